//! Bundles that are damaged, foreign or of another version, and prompts that do not fit: always an error that gives the
//! problem and its place, never a panic, and never tokens from damaged weights.
//!
//! The exhaustive run over a tiny bundle is in `artifacts/tests`; here a sample of a real one is tested.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use heg_artifacts::manifest::Variant;
use heg_artifacts::{Bundle, Error, layout};
use heg_runtime::engine::{EndTokens, Request};
use heg_runtime::{ExitStatus, Loaded, RuntimeError};
use heg_sched::{Finish, Logits};
use heg_spec::{DeviceClass, Group};
use heg_tests::roles::{drop_unused, rewrite};
use heg_tests::{Seeded, Workbench, chain, executor, fixture, openvino_or_skip, single_engine};

/// Returns the bundle of tiny-agent in W8A16, compiled once.
fn bundle_bytes() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| {});
        fs::read(compiled.unwrap().0).unwrap()
    })
}

/// Opens and verifies bytes as a bundle.
fn verify(bytes: &[u8]) -> Result<(), Error> {
    Bundle::from_bytes(bytes)?.verify(NonZero::<usize>::MIN)
}

fn number_at(bytes: &[u8], range: Range<usize>) -> usize {
    u64::from_le_bytes(bytes[range].try_into().unwrap()) as usize
}

/// Returns the manifest's place in the file, without and with padding (`artifacts/FORMAT.md`).
fn manifest_range(bytes: &[u8]) -> (Range<usize>, Range<usize>) {
    let start = number_at(bytes, 24..32);
    let end = start + number_at(bytes, 32..40);
    (start..end, start..end.next_multiple_of(4096))
}

#[test]
fn a_bundle_cut_anywhere_is_truncated() {
    let bytes = bundle_bytes();
    let (_, head) = manifest_range(bytes);
    let mut random = Seeded::new(20);
    let mut lengths: BTreeSet<usize> = (0..=104).chain([4095, 4096, head.end]).collect();
    while lengths.len() < 500 {
        lengths.insert(random.below(head.end));
    }
    lengths.insert(bytes.len() - 1);
    while lengths.len() < 1000 {
        lengths.insert(random.within(head.end..bytes.len()));
    }
    let workbench = Workbench::new().unwrap();
    let path = workbench.path("cut.heg");
    for (index, length) in lengths.iter().enumerate() {
        let cut = &bytes[..*length];
        let result = if index % 20 == 0 {
            // A new file each time: mapped files are never written in place.
            let _ = fs::remove_file(&path);
            fs::write(&path, cut).unwrap();
            Bundle::open(&path)
        } else {
            Bundle::from_bytes(cut)
        };
        match result {
            Err(Error::Truncated { expected, found }) => {
                assert_eq!(found, *length as u64);
                assert!(expected > found, "{expected}, {found}");
            }
            other => panic!("{length} bytes: {other:?}"),
        }
    }
    println!("{} lengths of {} bytes", lengths.len(), bytes.len());
}

#[test]
fn a_bundle_with_something_behind_it_is_too_long() {
    for more in [1, 4096] {
        let mut bytes = bundle_bytes().to_vec();
        bytes.resize(bytes.len() + more, 0);
        let result = verify(&bytes);
        assert!(matches!(result, Err(Error::TooLong { .. })), "{result:?}");
    }
}

/// Start and name of every part of the file, in order.
fn parts(bytes: &[u8]) -> Vec<(usize, String)> {
    let bundle = Bundle::from_bytes(bytes).unwrap();
    let (manifest, _) = manifest_range(bytes);
    let mut parts = vec![
        (0, "header".to_owned()),
        (manifest.start, "the manifest".to_owned()),
    ];
    for section in &bundle.manifest().sections {
        let range = bundle.section_range(section.id).unwrap();
        parts.push((range.start as usize, bundle.label(section.id)));
    }
    parts
}

/// Every byte of the header's fields; the first and last byte of each part, and the first of its padding; and many
/// more.
fn positions(bytes: &[u8]) -> BTreeSet<usize> {
    let bundle = Bundle::from_bytes(bytes).unwrap();
    let (manifest, head) = manifest_range(bytes);
    let mut ranges = vec![manifest.clone()];
    for section in &bundle.manifest().sections {
        let range = bundle.section_range(section.id).unwrap();
        ranges.push(range.start as usize..range.end as usize);
    }
    let ends = |range: Range<usize>| [range.start, range.end - 1, range.end];
    let ends = ranges.into_iter().flat_map(ends);
    let mut positions: BTreeSet<usize> = (0..=104).chain([4095]).chain(ends).collect();
    positions.retain(|position| *position < bytes.len());
    let mut random = Seeded::new(21);
    for _ in 0..500 {
        positions.insert(random.below(head.end));
    }
    while positions.len() < POSITIONS {
        positions.insert(random.below(bytes.len()));
    }
    positions
}

/// Returns the words that an error about a byte at `position` of the header must have.
fn header_words(position: usize) -> &'static [&'static str] {
    match position {
        0..8 => &["not a HEG bundle"],
        // The version is checked before the checksum, and so is not taken for damage.
        8..12 => &["format version", "the header"],
        _ => &["the header"],
    }
}

#[test]
fn any_changed_byte_is_found_and_its_section_named() {
    let bytes = bundle_bytes();
    let parts = parts(bytes);
    let mut changed = bytes.to_vec();
    let mut random = Seeded::new(22);
    let positions = positions(bytes);
    for position in &positions {
        changed[*position] ^= random.within(1..256) as u8;
        let part = parts.iter().rev().find(|(start, _)| start <= position);
        let part = &part.unwrap().1;
        let error = match verify(&changed) {
            Err(error) => error.to_string(),
            Ok(()) => panic!("byte {position} ({part}) changed, and nobody noticed"),
        };
        let named = match part.as_str() {
            "header" => header_words(*position)
                .iter()
                .any(|word| error.contains(word)),
            part => error.contains(part),
        };
        assert!(named, "byte {position} ({part}): {error}");
        changed[*position] = bytes[*position];
    }
    verify(&changed).unwrap();
    println!("{} positions in {} parts", positions.len(), parts.len());
}

/// Returns the error and the exit status for a user who opens a file.
fn opened(workbench: &Workbench, content: &[u8]) -> String {
    let path = workbench.path("file.heg");
    fs::write(&path, content).unwrap();
    refusal(workbench, &path)
}

fn refusal(workbench: &Workbench, path: &Path) -> String {
    let Err(error) = Loaded::open(path) else {
        panic!("{} was opened", path.display());
    };
    let status = error.exit_status() as u8;
    format!(
        "{}\nexit status {status}\n",
        chain(&error, workbench.folder())
    )
}

#[test]
fn other_versions_and_files_that_are_no_bundles() {
    let bytes = bundle_bytes();
    let workbench = Workbench::new().unwrap();
    let mut version = bytes.to_vec();
    version[8..12].copy_from_slice(&2_u32.to_le_bytes());
    let mut no_version = bytes.to_vec();
    no_version[8..12].copy_from_slice(&0_u32.to_le_bytes());
    let manifest = std::str::from_utf8(&bytes[manifest_range(bytes).0]).unwrap();
    let revision = manifest.replacen("revision: 1,", "revision: 2,\n new_things: [1],", 1);
    let field = manifest.replacen("revision: 1,", "revision: 1,\n new_things: [1],", 1);
    let mut random = Seeded::new(23);
    let noise: Vec<u8> = (0..9000).map(|_| random.bits() as u8).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("format version 2", version),
        ("format version 0", no_version),
        ("manifest revision 2", layout::wrap(revision.as_bytes(), 0)),
        (
            "unknown field in the manifest",
            layout::wrap(field.as_bytes(), 0),
        ),
        ("no sections", layout::wrap(manifest.as_bytes(), 0)),
        ("empty file", Vec::new()),
        ("text file", b"# Model card\n".to_vec()),
        (
            "safetensors",
            fs::read(fixture("golden/llama/model.safetensors")).unwrap(),
        ),
        ("noise", noise),
        ("cut in half", bytes[..bytes.len() / 2].to_vec()),
    ];
    let mut text = String::new();
    for (name, content) in cases {
        text.push_str(&format!("# {name}\n{}\n", opened(&workbench, &content)));
    }
    for (name, path) in [("missing file", "none.heg"), ("folder", "")] {
        let refusal = refusal(&workbench, &workbench.path(path));
        text.push_str(&format!("# {name}\n{refusal}\n"));
    }
    insta::assert_snapshot!("not_a_bundle", text);
}

/// Writes the bundle with one byte of that part changed.
fn damaged(workbench: &Workbench, part: &str) -> std::path::PathBuf {
    let mut bytes = bundle_bytes().to_vec();
    let (start, _) = parts(&bytes)
        .into_iter()
        .find(|(_, name)| name == part)
        .unwrap_or_else(|| panic!("no part `{part}`"));
    bytes[start + 100] ^= 1;
    let path = workbench.path("damaged.heg");
    let _ = fs::remove_file(&path);
    fs::write(&path, bytes).unwrap();
    path
}

/// Uses everything for the first time: text, kernels, one pass.
fn use_all(bundle: &Path, soc: &str) -> Result<(), RuntimeError> {
    let loaded = Loaded::open(bundle)?;
    loaded.tokenizer()?;
    loaded.chat_template()?;
    let mut executor = executor(bundle, soc, 32)?;
    let mut sequence = executor.sequence()?;
    executor.prefill(&mut sequence, &[2032, 5, 7], Logits::LastRows)?;
    Ok(())
}

#[test]
fn damaged_sections_are_refused_at_their_first_use() {
    if !openvino_or_skip("damaged_sections_are_refused_at_their_first_use") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let mut text = String::new();
    for (soc, part) in [
        ("host-cpu", "tokenizer"),
        ("host-cpu", "chat template"),
        ("host-cpu", "weight `model.embed_tokens.weight` values"),
        ("host-cpu", "weight `model.embed_tokens.weight` scales"),
        (
            "host-cpu",
            "weight `model.layers.0.input_layernorm.weight` values",
        ),
        (
            "host-cpu",
            "weight `model.layers.5.mlp.down_proj.weight` values",
        ),
        (
            "host-roles-openvino",
            "weight `model.layers.5.mlp.down_proj.weight` values",
        ),
        (
            "host-roles-openvino",
            "weight `model.layers.5.mlp.down_proj.weight` scales",
        ),
        ("host-cpu", "weight `model.embed_tokens.weight` centres"),
        ("host-cpu", "rope table `0` cosines"),
        ("host-roles-openvino", "literals of the kernels"),
        ("host-cpu-openvino", "kernel `mha` IR for cpu, dynamic"),
        ("host-cpu", "kernel `mha` program for cpu, dynamic"),
    ] {
        let bundle = damaged(&workbench, part);
        let Err(error) = use_all(&bundle, soc) else {
            panic!("{soc}, {part}: damaged and used");
        };
        assert_eq!(error.exit_status(), ExitStatus::Incompatible, "{part}");
        let chain = without_hashes(&chain(&error, workbench.folder()));
        assert!(chain.contains(part), "{part}: {chain}");
        text.push_str(&format!("# {part}, {soc}\n{chain}\n\n"));
    }
    insta::assert_snapshot!("damaged_sections", text);
}

/// Kernels whose IR would have OpenVINO read constants from elsewhere in the file: from sections of other places, which
/// this process may not have hashed, or beyond the section that is named.
#[test]
fn constants_that_are_no_part_of_their_place_are_refused() {
    if !openvino_or_skip("constants_that_are_no_part_of_their_place_are_refused") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let model = fixture("tiny-agent");
    let (bundle, _) = workbench.compile(&model, "tiny-agent", |_| {}).unwrap();
    let mut text = String::new();
    for (name, from, to) in [
        ("a plain offset", "offset=\"@0\"", "offset=\"4096\""),
        ("a section too many", "offset=\"@0\"", "offset=\"@99\""),
        (
            "behind the literals",
            "offset=\"@c+0\"",
            "offset=\"@c+99999999\"",
        ),
        ("another spelling", "offset=\"@0\"", "offset = '4096'"),
    ] {
        let changed = rewrite(&workbench, &bundle, "changed", |manifest, store| {
            let opened = Bundle::open(&bundle).unwrap();
            let qkv = manifest
                .kernels
                .iter_mut()
                .find(|kernel| kernel.group == Group::Qkv);
            let mut variants = qkv.unwrap().variants.iter_mut();
            let of_cpu = |variant: &&mut Variant| variant.device == DeviceClass::Cpu;
            let variant = variants.find(of_cpu).unwrap();
            let ir = opened.section_copy(variant.ir).unwrap();
            let ir = String::from_utf8(ir).unwrap();
            assert!(ir.contains(from), "{name}");
            let section = store
                .put_bytes(ir.replacen(from, to, 1).as_bytes())
                .unwrap();
            variant.ir = section.id;
            manifest.sections.push(section);
            drop_unused(manifest);
        });
        let Err(error) = use_all(&changed, "host-cpu-openvino") else {
            panic!("{name}: used");
        };
        assert_eq!(error.exit_status(), ExitStatus::Incompatible, "{name}");
        text.push_str(&format!(
            "# {name}\n{}\n\n",
            chain(&error, workbench.folder())
        ));
    }
    insta::assert_snapshot!("constants_elsewhere", text);
}

/// Removes hashes, which depend on the compiler's output, from messages.
fn without_hashes(text: &str) -> String {
    let piece = |piece: &str| match piece {
        hash if hash.len() >= 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => "[hash]".into(),
        other => other.to_owned(),
    };
    text.split('`').map(piece).collect::<Vec<_>>().join("`")
}

#[test]
fn prompts_that_do_not_fit_are_refused_and_do_no_harm() {
    let workbench = Workbench::new().unwrap();
    let small = |spec: &mut heg_spec::ModelSpec| spec.context_tokens = Some(CONTEXT);
    let (bundle, _) = workbench
        .compile(&fixture("tiny-agent"), "tiny-agent", small)
        .unwrap();
    let engine = single_engine(&bundle, "host-cpu", 64).unwrap();
    let context = CONTEXT as usize;
    let answer = |prompt: &[u32], tokens_max| {
        let request = Request {
            tokens_max,
            end_tokens: EndTokens::Ignored,
            ..Request::reactive(prompt.to_vec())
        };
        engine.generate(request).wait().unwrap().1
    };
    let mut text = String::new();
    for (name, prompt) in [
        ("longer than the context", vec![5; context + 1]),
        (
            "the first token that is not in the vocabulary",
            vec![5, 2048],
        ),
        ("the largest token", vec![u32::MAX]),
        ("empty", vec![]),
    ] {
        let ending = answer(&prompt, 4);
        assert_eq!(
            (ending.finish, ending.generated),
            (Finish::Failed, 0),
            "{name}"
        );
        let error = ending.error.unwrap();
        assert_eq!(error.exit_status(), ExitStatus::Input, "{name}");
        text.push_str(&format!(
            "# {name}\n{}\n\n",
            chain(&*error, workbench.folder())
        ));
        // The engine still works.
        assert_eq!(answer(&[5], 2).generated, 2);
    }
    insta::assert_snapshot!("prompts", text);
    let full = answer(&vec![5; context], 4);
    assert_eq!(
        full.generated, 1,
        "a full context leaves room for one token"
    );
}

/// Longest context of the bundle whose prompts are refused, in tokens.
const CONTEXT: u32 = 64;

/// Number of changed bytes that are tried.
const POSITIONS: usize = 1600;
