//! Opens arbitrary bytes as a bundle, verifies it and touches every section.
//!
//! No mutation would ever find a blake3 hash, so the code behind the hashes would never be reached. So an
//! input that begins like a bundle is tried unchanged and with a header that agrees with it; any other is
//! taken for the text of a manifest and gets a header and sections of zeros. An accepted bundle must hold
//! its promises; everything else must be an error.

use std::num::NonZero;

use heg_artifacts::manifest::{BakedState, STATE_HEAD_BYTES};
use heg_artifacts::{Bundle, Error, SectionId, layout, references};

pub(crate) fn run(input: &[u8]) {
    if input.starts_with(&layout::MAGIC) {
        use_bundle(input);
        let mut sealed = input.to_vec();
        layout::reseal(&mut sealed);
        use_bundle(&sealed);
    } else {
        use_manifest(input);
    }
}

/// Uses the text as a manifest; the reader's error gives the number of missing bytes of sections.
fn use_manifest(text: &[u8]) {
    let Err(Error::Truncated { expected, found }) = Bundle::from_bytes(&layout::wrap(text, 0))
    else {
        return;
    };
    let missing = expected - found;
    if missing <= SECTION_BYTES_MAX {
        use_bundle(&layout::wrap(text, missing as usize));
    }
}

fn use_bundle(bytes: &[u8]) {
    let Ok(bundle) = Bundle::from_bytes(bytes) else {
        return;
    };
    let manifest = bundle.manifest();
    let mut intact = true;
    for section in &manifest.sections {
        let raw = bundle
            .section_unverified(section.id)
            .expect("listed sections are there");
        assert_eq!(raw.len() as u64, section.bytes);
        assert!(raw.as_ptr().addr().is_multiple_of(4096));
        let checked = bundle.section(section.id);
        assert_eq!(checked.is_ok(), SectionId::of(raw) == section.id);
        intact &= checked.is_ok();
        assert!(!bundle.label(section.id).is_empty());
        bundle
            .mapping()
            .give_back(
                bundle
                    .section_range(section.id)
                    .expect("listed sections are there"),
            )
            .expect("advice");
    }
    for (_, id) in references(manifest) {
        bundle.section_unverified(id).expect("references are valid");
    }
    for state in &manifest.states {
        let tokens = state.tokens.len();
        // Pages of more tokens than a context has are one page.
        let pages = tokens.div_ceil(state.page_tokens as usize);
        assert_eq!(state.pages.len(), pages);
        assert!(tokens < manifest.model.context_tokens as usize);
        assert!(
            state
                .tokens
                .iter()
                .all(|token| *token < manifest.model.vocab)
        );
        assert!(BakedState::is_name(&state.name));
        for page in &state.pages {
            let page = bundle.section_unverified(*page).expect("pages are valid");
            assert!(page.len() as u64 > STATE_HEAD_BYTES);
        }
    }
    for layer in &manifest.layers {
        for place in [&layer.qkv, &layer.mha, &layer.ffn, &manifest.head] {
            let kernel = &manifest.kernels[place.kernel.0 as usize];
            assert_eq!(kernel.parameters.len(), place.weights.len());
            assert!(
                place
                    .weights
                    .iter()
                    .all(|id| (id.0 as usize) < manifest.weights.len())
            );
            assert!(
                place
                    .rope
                    .is_none_or(|id| (id.0 as usize) < manifest.rope.len())
            );
        }
    }
    if bundle.verify(NonZero::<usize>::MIN).is_ok() {
        assert!(intact, "verify accepts what first use refuses");
    }
}

/// Maximum size of the sections; longer ones would only be more zeros to hash.
const SECTION_BYTES_MAX: u64 = 1 << 20;
