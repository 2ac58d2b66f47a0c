//! The contract of a place, for any bucket.

use heg_artifacts::SharedPlace;
use std::fs;
use std::io::ErrorKind;

pub(crate) fn keeps_what_is_sent(bucket: &dyn SharedPlace) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    // Nothing, one request, and three pieces.
    for bytes in [0, 1000, (16 << 20) + 5] {
        let name = format!("blake3/ab/{bytes}");
        assert_eq!(bucket.length(&name).unwrap(), None);
        let missing = bucket.fetch(&name, 1, &mut Vec::new()).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let content: Vec<u8> = (0..bytes as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for content in [content.iter().rev().copied().collect(), content] {
            fs::write(&file, &content).unwrap();
            bucket.send(&name, &file).unwrap();
            assert_eq!(bucket.length(&name).unwrap(), Some(bytes as u64));
            let mut fetched = Vec::new();
            bucket.fetch(&name, bytes as u64, &mut fetched).unwrap();
            assert!(fetched == content);
        }
        assert!(
            bucket
                .fetch(&name, bytes as u64 + 1, &mut Vec::new())
                .is_err()
        );
        bucket.remove(&name).unwrap();
        bucket.remove(&name).unwrap();
        assert_eq!(bucket.length(&name).unwrap(), None);
    }
}
