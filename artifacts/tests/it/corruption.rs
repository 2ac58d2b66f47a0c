//! Damage: every flipped byte and every truncation of a small bundle is an error that names its place, and nothing
//! panics, not even when the damage comes with matching hashes.

use heg_artifacts::layout::{ALIGNMENT, HEADER_BYTES, reseal};
use heg_artifacts::{Bundle, BundlePart, Error};

use crate::tiny::{self, Plan};

/// The smallest bundle: one layer, no text. Padding is most of it.
fn smallest() -> Vec<u8> {
    tiny::bundle_bytes(&Plan {
        layers: 1,
        chunk_tokens: Vec::new(),
        text: None,
        ..Plan::default()
    })
}

/// Runs `check` on two threads over the interesting positions: all outside the sections' padding, and in the padding
/// the first, the last and every 251st.
fn at_all_positions(bytes: &[u8], check: impl Fn(usize) + Sync) {
    let bundle = Bundle::from_bytes(bytes).unwrap();
    let content: Vec<_> = bundle
        .manifest()
        .sections
        .iter()
        .map(|section| bundle.section_range(section.id).unwrap())
        .collect();
    let first = content[0].start;
    let wanted = |position: u64| {
        position < first
            || content
                .iter()
                .any(|range| range.contains(&position) || range.end == position)
            || position % ALIGNMENT == ALIGNMENT - 1
            || position.is_multiple_of(251)
    };
    let positions: Vec<usize> = (0..bytes.len())
        .filter(|position| wanted(*position as u64))
        .collect();
    assert!(positions.len() > 8000);
    std::thread::scope(|scope| {
        for half in positions.chunks(positions.len().div_ceil(2)) {
            scope.spawn(|| half.iter().for_each(|position| check(*position)));
        }
    });
}

#[test]
fn every_flipped_byte_is_an_error_that_says_where() {
    let bytes = smallest();
    let intact = tiny::verify(&bytes).unwrap();
    let labels: Vec<_> = intact
        .manifest()
        .sections
        .iter()
        .map(|section| {
            (
                intact.section_range(section.id).unwrap(),
                intact.label(section.id),
            )
        })
        .collect();
    at_all_positions(&bytes, |position| {
        let mut broken = bytes.clone();
        broken[position] ^= 1 << (position % 8);
        let error = tiny::verify(&broken).map(|_| ()).unwrap_err();
        let owner = labels
            .iter()
            .rev()
            .find(|(range, _)| range.start <= position as u64);
        match (owner, &error) {
            (
                Some((range, label)),
                Error::Corrupt {
                    part: BundlePart::Section { label: found, .. },
                    ..
                },
            ) => {
                assert!(range.contains(&(position as u64)));
                assert_eq!(found, label);
            }
            (
                Some((range, label)),
                Error::Padding {
                    part: BundlePart::Section { label: found, .. },
                    offset,
                    ..
                },
            ) => {
                assert!(range.end <= *offset && *offset == position as u64);
                assert_eq!(found, label);
            }
            (None, error) => {
                assert!(!matches!(
                    error,
                    Error::Io { .. } | Error::InvalidManifest { .. } | Error::Manifest { .. }
                ));
            }
            (Some(_), error) => panic!("byte {position}: {error}"),
        }
    });
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = smallest();
    // After the header every length fails at the same comparison: test all around pages, some between.
    let wanted = |length: &usize| {
        *length <= HEADER_BYTES + 64 || (length + 1) % 4096 < 3 || length.is_multiple_of(61)
    };
    for length in (0..bytes.len()).filter(wanted) {
        let error = Bundle::from_bytes(&bytes[..length])
            .map(|_| ())
            .unwrap_err();
        let expected = if length < HEADER_BYTES {
            HEADER_BYTES
        } else {
            bytes.len()
        } as u64;
        match error {
            Error::Truncated {
                expected: said,
                found,
            } => assert_eq!((said, found), (expected, length as u64)),
            error => panic!("length {length}: {error}"),
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    let error = Bundle::from_bytes(&longer).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "the bundle is too long: `{}` bytes, expected `{}`",
            bytes.len() + 1,
            bytes.len()
        )
    );
}

#[test]
fn damage_with_matching_hashes_is_no_panic() {
    let bytes = smallest();
    let intact = Bundle::from_bytes(&bytes).unwrap();
    let id = intact.manifest_id();
    let first = intact
        .section_range(intact.manifest().sections[0].id)
        .unwrap();
    let text = HEADER_BYTES..first.start as usize;
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (bytes, text) = (&bytes, text.clone());
            scope.spawn(move || {
                for position in text.skip(half).step_by(2) {
                    let mut broken = bytes.clone();
                    broken[position] ^= 1 << (position % 5);
                    reseal(&mut broken);
                    if let Ok(bundle) = tiny::verify(&broken) {
                        assert_ne!(bundle.manifest_id(), id);
                    }
                }
            });
        }
    });
}

#[test]
fn sections_are_hashed_on_first_use_only_where_used() {
    let bytes = smallest();
    let intact = Bundle::from_bytes(&bytes).unwrap();
    let weight = &intact.manifest().weights[0];
    let start = intact.section_range(weight.values).unwrap().start as usize;
    let mut broken = bytes.clone();
    broken[start] ^= 1;
    let bundle = Bundle::from_bytes(&broken).unwrap();
    let found = heg_artifacts::SectionId::of(bundle.section_unverified(weight.values).unwrap());
    let message = format!(
        "section `{}` (weight `model.embed_tokens.weight` values) is corrupt: its blake3 is `{found}`, expected `{}`",
        weight.values.short(),
        weight.values,
    );
    for _ in 0..2 {
        assert_eq!(
            bundle.section(weight.values).unwrap_err().to_string(),
            message
        );
    }
    for section in bundle
        .manifest()
        .sections
        .iter()
        .filter(|section| section.id != weight.values)
    {
        bundle.section(section.id).unwrap();
    }
}

#[test]
fn the_first_bad_section_is_reported_for_any_number_of_threads() {
    let bytes = smallest();
    let intact = Bundle::from_bytes(&bytes).unwrap();
    let mut broken = bytes.clone();
    for section in &intact.manifest().sections[2..] {
        broken[intact.section_range(section.id).unwrap().start as usize] ^= 1;
    }
    let bundle = Bundle::from_bytes(&broken).unwrap();
    for threads in [1, 2, 8, 1000] {
        let error = bundle
            .verify(std::num::NonZero::new(threads).unwrap())
            .unwrap_err();
        let expected = intact.manifest().sections[2].id;
        assert!(
            matches!(&error, Error::Corrupt { expected: id, .. } if *id == expected),
            "{threads}: {error}"
        );
    }
}
