//! Refused baked states, and the message to the user: one case per rule; and pages that are damaged.

use heg_artifacts::layout::reseal;
use heg_artifacts::manifest::{BakedState, ElementType, STATE_HEAD_BYTES};
use heg_artifacts::{Bundle, Error, Manifest, SectionId};

use crate::reject_manifest::check_plan;
use crate::tiny::{self, Plan};

/// A plan with two states.
fn plan() -> Plan {
    Plan {
        states: vec![("mail", 3), ("notes", 2)],
        ..Plan::default()
    }
}

/// Tests one rule, which `damage` breaks in the second state.
fn check(expected: &str, damage: impl FnOnce(&mut BakedState)) {
    check_plan(&plan(), expected, |manifest| {
        damage(&mut manifest.states[1]);
    });
}

#[test]
fn names() {
    let expected = "expected `1` to `64` of `a` to `z`, `0` to `9`, `-`, `_`";
    let long = "a".repeat(65);
    for name in ["", "../up", "a/b", "Mail", "mail.1", "ä", "a\n", &long] {
        let found = name.escape_debug();
        check(
            &format!("`states[1].name` is `{found}`, {expected}"),
            |state| name.clone_into(&mut state.name),
        );
    }
    for name in ["mail", "a"] {
        check(
            &format!("`states[1].name` is `{name}`, expected ascending names"),
            |state| name.clone_into(&mut state.name),
        );
    }
    let expected = "`states` is `65` states, expected at most `64`";
    check_plan(&plan(), expected, |manifest| {
        let first = manifest.states[0].clone();
        let named = |at| BakedState {
            name: format!("state-{at:02}"),
            ..first.clone()
        };
        manifest.states.extend((0..63).map(named));
    });
}

#[test]
fn tokens() {
    check(
        "`states[1].page_tokens` is `0`, expected at least `1`",
        |state| state.page_tokens = 0,
    );
    let one = Plan {
        states: vec![("mail", 3)],
        ..Plan::default()
    };
    let expected = "`states[1].pages.len()` is `0`, expected at least `1`";
    check_plan(&one, expected, |manifest| {
        manifest.states.push(BakedState {
            name: "notes".to_owned(),
            tokens: Vec::new(),
            pages: Vec::new(),
            ..manifest.states[0].clone()
        });
    });
    check(
        "`states[1].tokens` is `4` tokens, expected `5` to `8`, as many as its pages have",
        |state| state.tokens.truncate(4),
    );
    check(
        "`states[1].tokens` is `9` tokens, expected `5` to `8`, as many as its pages have",
        |state| state.tokens.extend([1, 1]),
    );
    check(
        "`states[1].tokens` is `7` tokens, expected `4294967296` to `8589934590`, as many as its pages have",
        |state| state.page_tokens = u32::MAX,
    );
    check(
        "`states[1].tokens[5]` is `16`, expected less than `model.vocab`: `16`",
        |state| state.tokens[5] = 16,
    );
    check(
        "`states[1].tokens` is `32` tokens, expected fewer than `model.context_tokens`: `32`",
        |state| {
            state.pages.extend([state.pages[0]; 6]);
            state.tokens = vec![1; 32];
        },
    );
}

#[test]
fn pages() {
    let id = SectionId::of(b"no section");
    check(
        &format!("`states[1].pages[1]` is `{id}`, expected one of `sections`"),
        |state| state.pages[1] = id,
    );
    check(
        &format!("`states[1].beginning` is `{id}`, expected one of `sections`"),
        |state| state.beginning = id,
    );
    // Two layers of two halves of four rows of eight elements of two bytes; the last page has three rows.
    let bytes = STATE_HEAD_BYTES + 256;
    for (tokens, expected) in [(6, bytes - 128), (8, bytes)] {
        check(
            &format!(
                "`states[1].pages[1]` is a section of `{}` bytes, expected `{expected}` bytes",
                bytes - 64
            ),
            |state| state.tokens.resize(tokens, 1),
        );
    }
    check(
        &format!(
            "`states[1].pages[0]` is a section of `{bytes}` bytes, expected `{}` bytes",
            bytes + 256
        ),
        |state| state.form.kv_cache = ElementType::F32,
    );
    // A byte for an element, and two for each of two heads.
    check(
        &format!(
            "`states[1].pages[0]` is a section of `{bytes}` bytes, expected `{}` bytes",
            bytes - 256 + 192
        ),
        |state| state.form.kv_cache = ElementType::I8,
    );
    check(
        "`states[1].form.kv_cache` is `I4`, expected `I8`, `F16`, `Bf16` or `F32`",
        |state| state.form.kv_cache = ElementType::I4,
    );
    let more_layers = |manifest: &mut Manifest| {
        let layer = manifest.layers[0].clone();
        manifest.layers.push(layer);
    };
    let expected = format!(
        "`states[0].pages[0]` is a section of `{bytes}` bytes, expected `{}` bytes",
        bytes + 128
    );
    check_plan(&plan(), &expected, more_layers);
    let long = |manifest: &mut Manifest| {
        let beginning = manifest.states[1].beginning;
        for section in &mut manifest.sections {
            if section.id == beginning {
                section.bytes = (4 << 20) + 1;
            }
        }
    };
    let expected = "`states[1].beginning` is `4194305` bytes, expected at most `4194304`";
    check_plan(&plan(), expected, long);
}

/// Readers of before are told nothing wrong: what they do not know is a field of the manifest.
#[test]
fn bundles_without_states_do_not_have_the_field() {
    let without = tiny::bundle_bytes(&Plan::default());
    let with = tiny::bundle_bytes(&plan());
    let has = |bytes: &[u8]| bytes.windows(7).any(|window| window == b"states:");
    assert!(!has(&without) && has(&with));
}

#[test]
fn a_damaged_page_is_named_and_no_other_section_is() {
    let mut bytes = tiny::bundle_bytes(&plan());
    let whole = tiny::verify(&bytes).unwrap();
    let damaged = whole.manifest().states[0].pages[2];
    let range = whole.section_range(damaged).unwrap();
    bytes[range.end as usize - 1] ^= 1;
    reseal(&mut bytes);
    let bundle = Bundle::from_bytes(&bytes).unwrap();
    for section in &bundle.manifest().sections {
        let read = bundle.section(section.id);
        assert_eq!(read.is_err(), section.id == damaged);
    }
    let error = bundle.verify(std::num::NonZero::<usize>::MIN).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { .. }));
    let named = "page 2 of state `mail`";
    assert!(error.to_string().contains(named), "{error}");
}
