//! Parts, blocks and slices of bundles, as a device that fetches them sees them.

use heg_artifacts::manifest::{Blob, Manifest};
use heg_artifacts::{
    BLOCK_BYTES, Bundle, BundleHead, Error, FilePart, HEAD_PART, SectionBlocks, computation_id,
    list_bytes, npu_needs, platforms, slice,
};
use heg_spec::NpuPlatform;

use crate::tiny::{self, Plan};

/// The head of a plan's bundle with its sections in the writer's order.
fn head(plan: &Plan) -> BundleHead {
    let bundle = Bundle::from_bytes(&tiny::bundle_bytes(plan)).unwrap();
    BundleHead::of(slice(bundle.manifest(), Some(NpuPlatform::NPU3720))).unwrap()
}

/// A manifest with blobs of a second platform beside each of the first.
fn of_two_platforms(manifest: &Manifest) -> Manifest {
    let mut manifest = manifest.clone();
    for kernel in &mut manifest.kernels {
        for variant in &mut kernel.variants {
            let other: Vec<Blob> = variant.blobs.clone();
            variant.blobs.extend(other.into_iter().map(|mut blob| {
                blob.platform = NpuPlatform::NPU4000;
                blob.compatibility.elf = "1.10.0".to_owned();
                blob.compatibility.text = "compiler=8.4;npu=4000;elf=1.10.0".to_owned();
                blob
            }));
        }
    }
    manifest
}

fn table(parts: &[FilePart]) -> String {
    let line = |part: &FilePart| {
        let FilePart {
            name,
            id,
            range,
            sections,
        } = part;
        format!("{name:<20} {range:>16?} sections {sections:?} {id}\n")
    };
    parts.iter().map(line).collect()
}

#[test]
fn parts_of_the_tiny_bundle() {
    insta::assert_snapshot!("parts", table(&head(&Plan::default()).parts()));
}

/// A plan with two baked states, whose first pages are the same.
fn with_states() -> Plan {
    Plan {
        states: vec![("mail", 3), ("notes", 2)],
        ..Plan::default()
    }
}

#[test]
fn a_state_is_a_part_behind_all_others() {
    insta::assert_snapshot!("state parts", table(&head(&with_states()).parts()));
}

/// A state that is baked into a bundle is a new head and a new part, and where it goes the rest is what it was.
#[test]
fn a_new_state_is_its_part() {
    let one = Plan {
        states: vec![("mail", 3)],
        ..Plan::default()
    };
    let mut known = Vec::new();
    let mut sent = Vec::new();
    for plan in [Plan::default(), one.clone(), with_states(), one] {
        let head = head(&plan);
        let new = head.parts().into_iter();
        let new: Vec<FilePart> = new.filter(|part| !known.contains(&part.id)).collect();
        known.extend(new.iter().map(|part| part.id));
        let names: Vec<String> = new.into_iter().map(|part| part.name).collect();
        sent.push(names.join(" "));
    }
    assert_eq!(sent[1..], ["head state-mail", "head state-notes", ""]);
    let manifest = |plan: &Plan| head(plan).manifest().clone();
    let computed = |plan: &Plan| computation_id(&manifest(plan)).unwrap();
    assert_eq!(computed(&Plan::default()), computed(&with_states()));
    let other = Plan {
        layers: 3,
        ..Plan::default()
    };
    assert_ne!(computed(&Plan::default()), computed(&other));
}

/// One behind the other they are the file, and each has sections of its own.
#[test]
fn parts_cover_the_file() {
    let head = head(&with_states());
    let (mut byte, mut section) = (0, 0);
    for part in head.parts() {
        assert_eq!((part.range.start, part.sections.start), (byte, section));
        assert!(part.range.start.is_multiple_of(4096) && part.range.end > byte);
        (byte, section) = (part.range.end, part.sections.end);
    }
    assert_eq!(
        (byte, section),
        (head.file_bytes(), head.manifest().sections.len())
    );
}

#[test]
fn a_file_in_another_order_has_parts_too() {
    let head = head(&Plan::default());
    let mut manifest = head.manifest().clone();
    manifest.sections.reverse();
    let reversed = BundleHead::of(manifest).unwrap();
    let parts = reversed.parts();
    let mut names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names[0], HEAD_PART);
    assert_eq!(parts.last().unwrap().range.end, reversed.file_bytes());
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), parts.len());
}

/// A new template is a new head and a new part `text`; nothing else has to be sent.
#[test]
fn what_changes_is_its_part() {
    let plan = Plan::default();
    let old = head(&plan);
    let new = head(&Plan {
        text: Some("{{ other }}".to_owned()),
        ..plan
    });
    let known: Vec<_> = old.parts().iter().map(|part| part.id).collect();
    let sent = new.parts().into_iter();
    let sent = sent.filter(|part| !known.contains(&part.id));
    let sent: Vec<String> = sent.map(|part| part.name).collect();
    assert_eq!(sent, [HEAD_PART, "text"]);
}

#[test]
fn places_of_a_layer_are_joined_where_there_are_too_many() {
    let parts_of = |layers| {
        head(&Plan {
            layers,
            ..Plan::default()
        })
        .parts()
        .len()
    };
    assert!(parts_of(120) > 240);
    assert!(parts_of(160) < 190);
}

#[test]
fn a_head_is_read_back() {
    let head = head(&Plan::default());
    let bundle = Bundle::from_bytes(&tiny::bundle_bytes(&Plan::default())).unwrap();
    let of_file = BundleHead::of_bundle(&bundle).unwrap();
    assert!(bundle.mapping().starts_with(of_file.bytes()));
    assert_eq!(of_file.file_bytes(), bundle.mapping().len() as u64);
    let read = BundleHead::read(head.bytes().to_vec()).unwrap();
    assert_eq!(read.manifest(), head.manifest());
    assert_eq!(read.parts(), head.parts());
    assert_eq!(
        BundleHead::of(head.manifest().clone()).unwrap().bytes(),
        head.bytes()
    );
    for bytes in [0, 16, 4096, head.bytes().len() - 1] {
        assert!(BundleHead::read(head.bytes()[..bytes].to_vec()).is_err());
    }
    let longer = [head.bytes(), &[0; 4096]].concat();
    assert!(matches!(
        BundleHead::read(longer),
        Err(Error::TooLong { .. })
    ));
    let mut changed = head.bytes().to_vec();
    changed[5000] ^= 1;
    assert!(matches!(
        BundleHead::read(changed),
        Err(Error::Corrupt { .. })
    ));
}

#[test]
fn a_slice_has_the_blobs_of_one_platform() {
    let full = of_two_platforms(head(&Plan::default()).manifest());
    let all = [NpuPlatform::NPU3720, NpuPlatform::NPU4000];
    assert!(platforms(&full).into_iter().eq(all));
    for platform in all {
        let sliced = slice(&full, Some(platform));
        assert!(platforms(&sliced).into_iter().eq([platform]));
        BundleHead::of(sliced.clone()).unwrap();
        assert_eq!(slice(&sliced, Some(platform)), sliced);
    }
    let cpu = slice(&full, None);
    assert!(platforms(&cpu).is_empty());
    let cpu = BundleHead::of(cpu).unwrap();
    assert!(
        cpu.parts()
            .iter()
            .all(|part| !part.name.starts_with("npu-"))
    );
    let needs = npu_needs(&full, NpuPlatform::NPU4000);
    assert_eq!(needs.as_deref(), Some("compiler=8.4;npu=4000;elf=1.10.0"));
    assert_eq!(npu_needs(&full, NpuPlatform::NPU5010), None);
}

/// The same bundle: nothing was left out.
#[test]
fn a_slice_that_drops_nothing_is_the_bundle() {
    let head = head(&Plan::default());
    let sliced = slice(head.manifest(), Some(NpuPlatform::NPU3720));
    let sliced = BundleHead::of(sliced).unwrap();
    assert_eq!(sliced.manifest_id(), head.manifest_id());
}

/// The embedding is 2 MiB and a page: three blocks, and the only section above one.
fn of_blocks() -> Plan {
    Plan {
        vocab: 65664,
        hidden: 16,
        ..Plan::default()
    }
}

#[test]
fn blocks_are_checked_one_by_one() {
    let bytes = tiny::bundle_bytes(&of_blocks());
    let bundle = Bundle::from_bytes(&bytes).unwrap();
    let manifest = bundle.manifest();
    let blocks = SectionBlocks::of(&bundle, manifest).unwrap();
    let list = blocks.to_bytes();
    assert_eq!(list.len() as u64, list_bytes(manifest));
    assert_eq!(list.len(), 3 * 32);
    assert_eq!(SectionBlocks::read(manifest, &list).unwrap(), blocks);
    for (index, section) in manifest.sections.iter().enumerate() {
        let bytes = bundle.section(section.id).unwrap();
        for (block, position) in bytes.chunks(BLOCK_BYTES as usize).zip(0..) {
            assert!(blocks.is_right(index, position, block));
            assert!(!blocks.is_right(index, position + 1, block));
            assert!(!blocks.is_right(index + 1, position, block));
            let mut changed = block.to_vec();
            changed[block.len() / 2] ^= 1;
            assert!(!blocks.is_right(index, position, &changed));
            assert!(!blocks.is_right(index, position, &block[1..]));
        }
        assert!(!blocks.is_right(index, u64::MAX, bytes));
    }
}

#[test]
fn a_list_of_blocks_proves_itself() {
    let bytes = tiny::bundle_bytes(&of_blocks());
    let bundle = Bundle::from_bytes(&bytes).unwrap();
    let list = SectionBlocks::of(&bundle, bundle.manifest())
        .unwrap()
        .to_bytes();
    let refused = |list: &[u8]| {
        let read = SectionBlocks::read(bundle.manifest(), list);
        read.unwrap_err().to_string()
    };
    assert_eq!(
        refused(&list[1..]),
        "the list of blocks has `95` bytes, expected `96` for this manifest"
    );
    let mut changed = list.clone();
    changed[40] ^= 1;
    let message = refused(&changed);
    assert!(
        message.contains("weight `model.embed_tokens.weight` values"),
        "{message}"
    );
    let mut turned = list;
    turned.rotate_left(32);
    assert_ne!(refused(&turned), message);
}
