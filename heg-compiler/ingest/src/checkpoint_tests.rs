//! Folders: finding weights, valid and invalid indexes, access to tensors.
//!
//! The unit tests of `Checkpoint::open`, in a file of their own because of their length. Each refusal is compared with
//! its message to the user. The content of single files is tested in `header_tests.rs`.

use std::path::Path;

use super::*;

/// A file of header length, header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        Self(dir)
    }

    fn open(&self) -> Result<Checkpoint, IngestError> {
        Checkpoint::open(self.0.path())
    }

    /// The message without the path of the folder.
    fn refused(&self) -> String {
        let dir = format!("{}", self.0.path().display());
        let message = self.open().unwrap_err().to_string();
        message.replace(&format!("{dir}/"), "").replace(&dir, "DIR")
    }
}

fn index(pairs: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<_, _> = pairs
        .iter()
        .map(|(tensor, shard)| ((*tensor).to_owned(), serde_json::json!(shard)))
        .collect();
    serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map})
        .to_string()
        .into_bytes()
}

fn one(tensor: &str) -> Vec<u8> {
    let header = format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
    file(&header, &[7])
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn every_fixture_opens() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/");
    let families = [
        "gemma2", "gemma3", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3",
        "smollm3",
    ];
    let folders = families.iter().map(|family| format!("golden/{family}"));
    for folder in folders.chain(["tiny-agent".to_owned()]) {
        let checkpoint = Checkpoint::open(&Path::new(root).join(&folder)).unwrap();
        assert!(checkpoint.names().count() > 10, "{folder}");
        for name in checkpoint.names() {
            let tensor = checkpoint.tensor(name).unwrap();
            assert!(tensor.element_count() > 0, "{folder} {name}");
        }
        let embedding = checkpoint.tensor("model.embed_tokens.weight").unwrap();
        let trained = folder == "tiny-agent";
        let (shape, dtype) = match trained {
            true => ([2048, 192], SourceDtype::Bf16),
            false => ([256, 64], SourceDtype::F32),
        };
        assert_eq!(embedding.dtype(), dtype);
        embedding.expect_shape(&shape).unwrap();
    }
}

#[test]
fn fused_rows_are_views() {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/golden/phi3"
    );
    let checkpoint = Checkpoint::open(Path::new(root)).unwrap();
    let fused = checkpoint
        .tensor("model.layers.0.self_attn.qkv_proj.weight")
        .unwrap();
    let before = fused.bytes().to_vec();
    let row_bytes = fused.row_elements() * 4;
    let key = fused.rows(64..96).unwrap();
    assert_eq!(key.shape(), [32, 64]);
    assert_eq!(key.row_start(), 64);
    assert_eq!(key.bytes(), &before[64 * row_bytes..96 * row_bytes]);
    assert_eq!(key.rows(1..2).unwrap().row_start(), 65);
    key.advise_done(0..usize::MAX);
    checkpoint.advise_done();
    assert_eq!(fused.bytes(), before);
    for range in [0..129, 200..201, 129..129, usize::MAX..usize::MAX] {
        assert!(fused.rows(range).is_err());
    }
    #[allow(
        clippy::reversed_empty_ranges,
        reason = "this is the case to be refused"
    )]
    let error = fused.rows(5..4).unwrap_err().to_string();
    assert_eq!(
        error,
        "rows 5..4 of tensor `model.layers.0.self_attn.qkv_proj.weight` do not exist: it has 128"
    );
}

#[test]
fn a_missing_tensor_suggests_the_nearest() {
    let names = [
        "model.layers.0.mlp.up_proj.weight",
        "language_model.model.norm.weight",
    ];
    let shards = names.map(one);
    let pairs = [(names[0], "0.safetensors"), (names[1], "1.safetensors")];
    let index = index(&pairs);
    let folder = Folder::new(&[
        (INDEX, &index),
        ("0.safetensors", &shards[0]),
        ("1.safetensors", &shards[1]),
    ]);
    let checkpoint = folder.open().unwrap();
    let message = |name: &str| checkpoint.tensor(name).unwrap_err().to_string();
    assert_eq!(
        message("model.layers.0.mlp.up.weight"),
        "no tensor `model.layers.0.mlp.up.weight` in the weights; the nearest is `model.layers.0.mlp.up_proj.weight`"
    );
    assert!(message("model.norm.weight").ends_with("`language_model.model.norm.weight`"));
    assert_eq!(message("x"), "no tensor `x` in the weights");
    assert_eq!(message(""), "no tensor `` in the weights");
    assert_eq!(
        message(names[0]),
        "tensor `model.layers.0.mlp.up_proj.weight` is of type U8, expected F32, F16 or BF16"
    );
}

#[test]
fn a_short_file_in_a_folder_is_truncated() {
    let shard = one("t");
    let short = Folder::new(&[("model.safetensors", &shard[..20])]);
    assert_eq!(
        short.refused(),
        "`model.safetensors` is truncated: found 20 bytes, expected 61"
    );
    let empty = Folder::new(&[("model.safetensors", b"")]);
    assert_eq!(
        empty.refused(),
        "`model.safetensors` is truncated: found 0 bytes, expected 8"
    );
}

#[test]
fn folders_say_what_is_missing() {
    let shard = one("t");
    assert_eq!(
        Folder::new(&[("config.json", b"{}")]).refused(),
        "no weights in `DIR`: expected `model.safetensors`, `model.safetensors.index.json` or one `*.safetensors` file"
    );
    assert!(Folder::new(&[("other.safetensors", &shard)]).open().is_ok());
    assert_eq!(
        Folder::new(&[("b.safetensors", &shard), ("a.safetensors", &shard)]).refused(),
        "`DIR` holds 2 weight files (`a.safetensors`, `b.safetensors`) and no `model.safetensors.index.json`"
    );
    let missing = Checkpoint::open(Path::new("no such folder")).unwrap_err();
    assert_eq!(missing.to_string(), "`no such folder` cannot be read");
    let folder = Folder::new(&[]);
    std::fs::create_dir(folder.0.path().join("model.safetensors")).unwrap();
    assert_eq!(
        folder.refused(),
        "`model.safetensors` is not a regular file"
    );
}

#[test]
fn an_index_is_believed_only_where_shards_agree() {
    let (s, u) = (one("s"), one("u"));
    let with = |pairs: &[(&str, &str)], files: &[(&str, &[u8])]| {
        let index = index(pairs);
        let mut all = vec![(INDEX, index.as_slice())];
        all.extend_from_slice(files);
        Folder::new(&all)
    };
    let both: &[(&str, &[u8])] = &[("1", &s), ("2", &u)];
    let opened = with(&[("s", "1"), ("u", "2")], both).open().unwrap();
    assert_eq!(opened.names().collect::<Vec<_>>(), ["s", "u"]);
    assert_eq!((opened.files().count(), opened.tensor_bytes()), (2, 2));
    assert_eq!(
        with(
            &[("s", "1"), ("a", "2"), ("b", "2"), ("c", "2"), ("d", "2")],
            &both[..1]
        )
        .refused(),
        "`model.safetensors.index.json` names shard `2`, which is missing; it holds 4 of the tensors: `a`, `b`, `c` and 1 more"
    );
    assert_eq!(
        with(&[("s", "1"), ("t", "1")], both).refused(),
        "`model.safetensors.index.json` says that shard `1` holds tensor `t`; it does not"
    );
    assert_eq!(
        with(&[("s", "2"), ("u", "1")], both).refused(),
        "`model.safetensors.index.json` says that shard `1` holds tensor `u`; it does not"
    );
    assert_eq!(
        with(&[("s", "1"), ("u", "2")], &[("1", &s), ("2", &s)]).refused(),
        "tensor `s` occurs twice: in `1` and in `2`"
    );
    for name in [
        "../x",
        "/etc/passwd",
        "a/b",
        "..",
        ".",
        "",
        "a\\b",
        "C:x",
        "x\u{0}",
    ] {
        let error = with(&[("s", name)], both).open().unwrap_err();
        assert!(
            matches!(error, IngestError::ShardName { .. }),
            "{name}: {error}"
        );
    }
    assert_eq!(
        with(&[("s", "../1")], both).refused(),
        "`model.safetensors.index.json` names shard `../1`, expected a plain file name in the same folder"
    );
    assert_eq!(
        with(&[], both).refused(),
        "`model.safetensors.index.json`, key `weight_map`: found no tensors, expected tensor names with their files"
    );
    let broken = Folder::new(&[(INDEX, b"{\"weight_map\": 3}")]);
    assert!(
        broken
            .refused()
            .contains("line 1, column 16: invalid type: integer `3`")
    );
}

#[test]
fn a_pipe_in_place_of_a_shard_does_not_hang() {
    let index = index(&[("s", "pipe")]);
    let folder = Folder::new(&[(INDEX, &index)]);
    let made = std::process::Command::new("mkfifo")
        .arg(folder.0.path().join("pipe"))
        .status();
    if made.is_ok_and(|status| status.success()) {
        assert_eq!(folder.refused(), "`pipe` is not a regular file");
    }
}
