//! Refused pieces of products, and the message to the user: one case per rule.

use heg_artifacts::manifest::{
    Blob, Compatibility, ElementType, PIECE_TOKENS_MAX, PIECES_MAX, RowsForm, RowsPiece,
};
use heg_artifacts::{Bundle, Manifest, Reference, SectionId, platforms, slice, write_bundle};
use heg_spec::NpuPlatform;

use crate::reject_manifest::check;
use crate::tiny::{self, Plan};

/// Adds pieces of rows of the first matrix, each over as many tokens, whose blobs are the literals.
fn pieces(manifest: &mut Manifest, tokens: &[u32]) {
    let parameters = manifest.kernels.iter().flat_map(|it| &it.parameters);
    let form = parameters.filter_map(RowsForm::of).next().unwrap();
    let blob = Blob {
        platform: NpuPlatform::NPU4000,
        compatibility: Compatibility {
            compiler: "8.4".to_owned(),
            elf: "1.2.0".to_owned(),
            tiles: None,
            stepping: None,
            text: "compiler=8.4".to_owned(),
        },
        section: manifest.literals,
    };
    let piece = |tokens: &u32| RowsPiece {
        form,
        rows: 8,
        tokens: *tokens,
        activations: ElementType::F16,
        blobs: vec![blob.clone()],
    };
    manifest.pieces = tokens.iter().map(piece).collect();
}

/// Changes one piece over 32 tokens.
fn changed(change: impl FnOnce(&mut RowsPiece)) -> impl FnOnce(&mut Manifest) {
    move |manifest| {
        pieces(manifest, &[32]);
        change(&mut manifest.pieces[0]);
    }
}

#[test]
fn pieces_of_products() {
    check(
        "`pieces[0].rows` is `0`, expected at least `1`",
        changed(|piece| piece.rows = 0),
    );
    check(
        "`pieces[0].rows` is `4294967295`, expected at most `16`, the rows of the largest matrix of its form",
        changed(|piece| piece.rows = u32::MAX),
    );
    check(
        "`pieces[0].rows` is rows of `4294967295` columns of I8, expected rows of a kernel's matrix",
        changed(|piece| piece.form.columns = u32::MAX),
    );
    check(
        "`pieces[0].tokens` is `0`, expected at least `1`",
        changed(|piece| piece.tokens = 0),
    );
    check(
        &format!("`pieces[0].tokens` is `4294967295`, expected at most `{PIECE_TOKENS_MAX}`"),
        changed(|piece| piece.tokens = u32::MAX),
    );
    check(
        "`pieces[0].activations` is I8, expected `F16` or `F32`",
        changed(|piece| piece.activations = ElementType::I8),
    );
    check(
        "`pieces[0].blobs.len()` is `0`, expected at least `1`",
        changed(|piece| piece.blobs.clear()),
    );
    check(
        "`pieces[0].blobs[1].platform` is `4000` once more, expected one blob for a platform",
        changed(|piece| piece.blobs.push(piece.blobs[0].clone())),
    );
    let id = SectionId::of(b"no section");
    check(
        &format!("`pieces[0].blobs[0].section` is `{id}`, expected one of `sections`"),
        changed(|piece| piece.blobs[0].section = id),
    );
    for tokens in [[32, 32], [32, 1]] {
        let found = format!("8 rows over {} tokens behind its like", tokens[1]);
        check(
            &format!(
                "`pieces[1]` is {found}, expected each piece once, by form, rows and tokens, ascending"
            ),
            |manifest| pieces(manifest, &tokens),
        );
    }
    check(
        &format!("`pieces` is `4097` pieces, expected at most `{PIECES_MAX}`"),
        |manifest| pieces(manifest, &[32; PIECES_MAX + 1]),
    );
}

#[test]
fn pieces_are_read_as_they_were_written_and_a_slice_has_those_of_its_platform() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut manifest) = tiny::stored(&Plan::default(), folder.path());
    pieces(&mut manifest, &[1, 32]);
    let mut other = manifest.pieces[1].blobs[0].clone();
    other.platform = NpuPlatform::NPU5010;
    manifest.pieces[1].blobs.push(other);
    let path = folder.path().join("bundle.heg");
    write_bundle(&path, &manifest, &store, &|_| {}).unwrap();
    let bundle = Bundle::open(&path).unwrap();
    assert_eq!(bundle.manifest().pieces, manifest.pieces);
    let label = Reference::PieceBlob(1, 0).label(bundle.manifest());
    let expected = "blob (platform 4000) for 8 rows of 8 columns over 32 tokens";
    assert_eq!(label, expected);
    let sliced = |platform| {
        let sliced = slice(bundle.manifest(), platform);
        let pieces = sliced.pieces.iter();
        pieces
            .map(|it| (it.tokens, it.blobs.len()))
            .collect::<Vec<_>>()
    };
    assert!(platforms(bundle.manifest()).contains(&NpuPlatform::NPU5010));
    assert_eq!(sliced(Some(NpuPlatform::NPU4000)), [(1, 1), (32, 1)]);
    assert_eq!(sliced(Some(NpuPlatform::NPU5010)), [(32, 1)]);
    assert_eq!(sliced(None), []);
}
