//! Documents of partitions are refused with an error, or written and read again, and every class has a cut that fits.

use heg_profiler::partition::Partitions;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(found) = Partitions::parse(text) else {
        return;
    };
    let Ok(written) = found.to_text() else {
        return;
    };
    assert_eq!(Partitions::parse(&written).as_ref(), Ok(&found));
    for product in found.socs.iter().flat_map(|soc| &soc.products) {
        for class in &product.prefill {
            assert_eq!(product.prefill(class.tokens), Some(class));
            let checked = class
                .cut
                .check(product.rows, class.tokens, product.row_step);
            assert_eq!(checked, Ok(()));
        }
    }
}
