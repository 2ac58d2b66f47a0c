//! A head of a bundle, or a list of blocks: what a device plans a transfer by, before it has a byte of the file.

use heg_artifacts::{Bundle, BundleHead, SectionBlocks, list_bytes, slice};

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(head) = BundleHead::read(bytes.to_vec()) {
        let mut end = 0;
        for part in head.parts() {
            assert_eq!(part.range.start, end);
            end = part.range.end;
        }
        assert_eq!(end, head.file_bytes());
        if let Ok(blocks) = SectionBlocks::read(head.manifest(), &[]) {
            assert_eq!(list_bytes(head.manifest()), 0);
            for index in 0..=head.manifest().sections.len() {
                assert!(!blocks.is_right(index, 0, bytes));
            }
        }
        let sliced = slice(head.manifest(), None);
        BundleHead::of(sliced).expect("a slice of a checked manifest passes the check");
    }
    let tiny = include_bytes!("../../../artifacts/testdata/v1/tiny.heg");
    let tiny = Bundle::from_bytes(tiny).expect("the fixture opens");
    // No section of it has more than a block, so the only list is the empty one.
    assert_eq!(
        SectionBlocks::read(tiny.manifest(), bytes).is_ok(),
        bytes.is_empty()
    );
}
