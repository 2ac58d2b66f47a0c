//! GGUF files that must be refused, each with its message to the user; and arbitrary bytes, without a panic.

use std::path::PathBuf;

use proptest::prelude::*;

use super::super::{IngestError, ModelSource};
use super::written::{Written, number, text, whole};

fn refusal(change: impl FnOnce(&mut Written)) -> String {
    let mut file = Written::llama();
    change(&mut file);
    match open(&file.bytes()) {
        Ok(_) => "compiles".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Opens a file and views each tensor, as a compile does.
fn open(content: &[u8]) -> Result<ModelSource, IngestError> {
    let source = ModelSource::from_gguf_bytes("m", content)?;
    for name in source.checkpoint.names() {
        let tensor = source.checkpoint.tensor(name)?;
        let last = tensor.row_count() - 1;
        let row = tensor.rows(last..last + 1)?;
        let mut out = Vec::new();
        row.unpack_rows(0..1, &mut out);
        assert_eq!(row.element_count(), row.row_elements());
    }
    Ok(source)
}

fn fixture(name: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gguf");
    std::fs::read(root.join(name)).unwrap()
}

#[test]
fn what_cannot_be_compiled_is_named() {
    let q8 = |shape: &'static [u64]| {
        move |file: &mut Written| {
            let tensor = file.tensor("blk.0.ffn_up.weight");
            tensor.shape = shape.to_vec();
            tensor.number = 8;
        }
    };
    let refusals = [
        refusal(|_| {}),
        refusal(|file| file.set("general.architecture", text("rwkv7"))),
        refusal(|file| file.remove("general.architecture")),
        refusal(|file| file.set("general.type", text("mmproj"))),
        refusal(|file| file.set("split.count", whole(3))),
        refusal(|file| file.remove("tokenizer.ggml.model")),
        refusal(|file| file.remove("llama.block_count")),
        refusal(|file| file.set("llama.block_count", text("many"))),
        refusal(|file| file.set("llama.expert_count", whole(8))),
        refusal(|file| file.set("llama.attention.value_length", whole(8))),
        refusal(|file| file.set("llama.rope.dimension_count", whole(8))),
        refusal(|file| file.set("llama.attention.head_count", whole(3))),
        refusal(|file| {
            file.set("llama.rope.scaling.type", text("spiral"));
            file.set("llama.rope.scaling.factor", number(2.0));
        }),
        refusal(|file| file.set("general.alignment", whole(24))),
        refusal(|file| file.tensor("blk.0.ffn_up.weight").number = 23),
        refusal(|file| file.tensor("blk.0.ffn_up.weight").number = 4000),
        refusal(q8(&[64, 33])),
        refusal(q8(&[64 * 32])),
        refusal(q8(&[1, 1 << 21])),
        refusal(q8(&[64, 0])),
        refusal(q8(&[u64::MAX, 32])),
        refusal(q8(&[1, 1, 1, 1, 32])),
        refusal(|file| file.tensor("blk.0.ffn_up.weight").offset = Some(32)),
        refusal(|file| file.tensor("blk.0.ffn_up.weight").offset = Some(33)),
        refusal(|file| file.tensor("blk.0.ffn_up.weight").offset = Some(1 << 40)),
        refusal(|file| file.tensor("blk.0.ffn_up.weight").name = "token_embd.weight".to_owned()),
        refusal(|file| file.add("blk.0.attn_sinks.weight", &[2], 0, vec![0; 8])),
        refusal(|file| file.add("blk.00.attn_q.weight", &[2], 0, vec![0; 8])),
        refusal(|file| file.add("rope_freqs.weight", &[90], 0, vec![0; 360])),
        refusal(|file| file.add("rope_freqs.weight", &[8], 0, vec![0; 32])),
        refusal(|file| {
            file.tensors
                .retain(|tensor| tensor.name != "token_embd.weight")
        }),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r##"
    compiles
    `m`: architecture `rwkv7` is not compiled, expected one of llama, qwen2, qwen3, gemma2, gemma3, phi3, granite, olmo2, smollm3
    `m`, key `general.architecture`: found nothing, expected the name of an architecture
    `m`: the file holds `mmproj`, expected a model
    `m`: the file is one of 3: join them with `llama-gguf-split --merge`
    tokenizer of `m`: no key `tokenizer.ggml.model`: the file has no whole tokenizer, take one that was converted with its tokenizer
    `m`, key `llama.block_count`: found nothing, expected a whole number that is not negative
    `m`, key `llama.block_count`: found "many", expected a whole number that is not negative
    `m`, key `llama.expert_count`: found `8`, expected 0: mixtures of experts are not compiled
    `m`, key `llama.attention.value_length`: found `8`, expected the same as `key_length`
    `m`, key `llama.rope.dimension_count`: found `8`, expected the size of a head
    `m`: tensor `blk.0.attn_k.weight` has 32 rows, expected pairs in each of 3 heads
    `m`, key `llama.rope.scaling.type`: found "spiral", expected none, linear, yarn, or longrope with its factors
    `m`, key `general.alignment`: found `24`, expected a power of two of at most 65536
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` is of type IQ4_XS (23), expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or Q2_K to Q6_K
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` is of type 4000, expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or Q2_K to Q6_K
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` has shape [64, 33] of Q8_0, whose rows do not divide into blocks
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` has shape [2048] of Q8_0, expected F32, F16 or BF16 for a tensor of one dimension
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` has shape [1, 2097152] of Q8_0, whose rows are longer than is read
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` has shape [64, 0] of Q8_0, expected dimensions of at least 1
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` has shape [18446744073709551615, 32] of Q8_0, which is no possible number of bytes
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` has 5 dimensions, expected 1 to 4
    tensors `token_embd.weight` and `blk.0.ffn_up.weight` overlap in `m`
    `m`, byte 1145: tensor `blk.0.ffn_up.weight` begins at 33 of the data, expected a multiple of 32
    `m`, byte 1145: the file is truncated: tensor `blk.0.ffn_up.weight` ends at byte 1099511637248, the file at 43648
    `m`, byte 1145: tensor `token_embd.weight` occurs twice
    `m`: tensor `blk.0.attn_sinks.weight` is none of architecture `llama`
    `m`: tensor `blk.00.attn_q.weight` is none of architecture `llama`
    tensor `rope_freqs.weight` has shape [90], expected [8]
    `m`, key `rope_freqs.weight`: found others, expected finite positive numbers
    no tensor `token_embd.weight` in the weights
    "##);
}

#[test]
fn a_tensor_that_is_left_over_is_named() {
    let source = open(&Written::llama().bytes()).unwrap();
    let names: Vec<&str> = source.checkpoint.names().collect();
    let check = |names: &[&str]| source.checkpoint.check_used(names.iter().copied());
    assert!(check(&names).is_ok());
    let error = check(&names[1..]).unwrap_err().to_string();
    let expected = "tensor `model.embed_tokens.weight` in `m` is not used by the architecture: \
                    without it, it would be another model";
    assert_eq!(error, expected);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = Written::llama().bytes();
    assert!(open(&whole).is_ok());
    for cut in 0..whole.len() {
        assert!(open(&whole[..cut]).is_err(), "cut at {cut}");
    }
}

proptest! {
    #[test]
    fn fixtures_cut_anywhere_are_refused(share in 0.0..1.0_f64) {
        for name in ["llama.gguf", "gemma3.gguf"] {
            let whole = fixture(name);
            let cut = (share * whole.len() as f64) as usize;
            prop_assert!(open(&whole[..cut]).is_err());
        }
    }

    #[test]
    fn changed_headers_never_panic(
        changes in proptest::collection::vec((0..1800_usize, any::<u8>()), 1..4),
    ) {
        let mut content = Written::llama().bytes();
        for (at, byte) in changes {
            content[at] = byte;
        }
        let _ = open(&content);
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = open(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
    }
}
