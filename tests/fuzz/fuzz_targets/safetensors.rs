//! Opens arbitrary bytes as a safetensors file and touches every tensor of it.
//!
//! The data that the header promises must exist: as many bytes as shape and type need, all of them within the file. An
//! input that begins with `{` is a header alone: it gets its length in front and zeros after it.

use std::path::Path;

use heg_ingest::{Checkpoint, check_header};

pub(crate) fn run(input: &[u8]) {
    if input.starts_with(b"{") {
        for data_bytes in [0, 12, 64] {
            let mut file = (input.len() as u64).to_le_bytes().to_vec();
            file.extend_from_slice(input);
            file.resize(file.len() + data_bytes, 0);
            use_file(file);
        }
    } else {
        use_file(input.to_vec());
    }
}

fn use_file(file: Vec<u8>) {
    let header = check_header(Path::new("fuzz.safetensors"), &file);
    let length = file.len();
    let checkpoint = Checkpoint::from_bytes("fuzz.safetensors", file);
    let Ok(entries) = header else {
        assert!(
            checkpoint.is_err(),
            "a file whose header is refused is opened"
        );
        return;
    };
    let Ok(checkpoint) = checkpoint else { return };
    let names: Vec<&str> = checkpoint.names().collect();
    assert_eq!(names.len(), entries.len());
    assert!(checkpoint.tensor_bytes() <= length as u64);
    for name in names {
        assert!(entries[name].bytes.end <= length);
        // A type that is not compiled is refused.
        let Ok(tensor) = checkpoint.tensor(name) else {
            continue;
        };
        let bytes = tensor.bytes();
        assert_eq!(bytes.len(), entries[name].bytes.len());
        assert_eq!(
            bytes.len(),
            tensor.element_count() * tensor.dtype().element_bytes()
        );
        std::hint::black_box(bytes.iter().fold(0_u8, |sum, byte| sum ^ byte));
        let rows = tensor.row_count();
        for range in [0..rows, 0..rows / 2, rows / 2..rows] {
            let part = tensor.rows(range.clone()).expect("rows within the tensor");
            assert_eq!(part.row_count(), range.len());
            assert_eq!(part.row_start(), range.start);
            assert!(part.bytes().len() <= bytes.len());
        }
        let Some(beyond) = rows.checked_add(1) else {
            continue;
        };
        assert!(tensor.rows(0..beyond).is_err());
    }
    checkpoint.advise_done();
}
