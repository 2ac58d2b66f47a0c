//! Opens arbitrary bytes as a GGUF file, and encodes a row of every tensor of it.
//!
//! The data that the header promises must exist: rows that can be unpacked, wherever a view of them begins.

use heg_ingest::ModelSource;
use heg_quant::{Form, encode, source_hash};

pub(crate) fn run(input: &[u8]) {
    let Ok(source) = ModelSource::from_gguf_bytes("fuzz.gguf", input) else {
        return;
    };
    let checkpoint = &source.checkpoint;
    assert!(checkpoint.tensor_bytes() <= input.len() as u64);
    for name in checkpoint.names() {
        let tensor = checkpoint
            .tensor(name)
            .expect("all types of an opened file are read");
        let rows = tensor.row_count();
        assert!(tensor.stored_bytes() <= input.len() as u64);
        assert!(tensor.rows(0..rows + 1).is_err());
        let part = tensor.rows(rows / 2..rows).expect("rows within the tensor");
        assert_eq!(part.row_start(), rows / 2);
        let (mut values, mut scales) = (Vec::new(), Vec::new());
        // Numbers that are not finite are refused.
        if let Ok(encoded) = encode(&part, Form::F32, &mut values, None) {
            assert_eq!(values.len(), part.element_count() * 4);
            assert_eq!(encoded.source_hash, source_hash(&part));
        }
        values.clear();
        if encode(&part, Form::I8, &mut values, Some(&mut scales)).is_ok() {
            assert_eq!(values.len(), part.element_count());
            assert_eq!(scales.len(), part.row_count());
        }
    }
    checkpoint.advise_done();
}
