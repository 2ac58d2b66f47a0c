//! Checks of pieces of products: each is of some matrix of a kernel, has blobs, and stands in its order.

use super::check_nonzero;
use super::kernels::{check_activations, check_blobs};
use super::sections::Lengths;
use crate::error::Error;
use crate::manifest::{
    Kernel, Manifest, PIECE_TOKENS_MAX, PIECES_MAX, Parameter, RowsForm, RowsPiece,
};
use crate::references::Reference;

pub(super) fn check_pieces(manifest: &Manifest, lengths: &Lengths) -> Result<(), Error> {
    let Manifest {
        pieces, kernels, ..
    } = manifest;
    if pieces.len() > PIECES_MAX {
        let found = format!("`{}` pieces", pieces.len());
        let expected = format!("at most `{PIECES_MAX}`");
        return Err(Error::invalid("pieces", found, expected));
    }
    let mut before = None;
    for (index, piece) in pieces.iter().enumerate() {
        let RowsPiece {
            form,
            rows,
            tokens,
            activations,
            blobs,
        } = piece;
        let field = |name: &str| format!("pieces[{index}].{name}");
        check_nonzero(|| field("rows"), (*rows).into())?;
        check_nonzero(|| field("tokens"), (*tokens).into())?;
        if *tokens > PIECE_TOKENS_MAX {
            let expected = format!("at most `{PIECE_TOKENS_MAX}`");
            return Err(Error::invalid(
                field("tokens"),
                format!("`{tokens}`"),
                expected,
            ));
        }
        check_activations(|| field("activations"), *activations)?;
        check_rows(field("rows"), *form, *rows, kernels)?;
        if before.is_some_and(|before| before >= piece.place()) {
            let found = format!("{rows} rows over {tokens} tokens behind its like");
            let expected = "each piece once, by form, rows and tokens, ascending";
            return Err(Error::invalid(format!("pieces[{index}]"), found, expected));
        }
        before = Some(piece.place());
        check_nonzero(|| field("blobs.len()"), blobs.len() as u64)?;
        check_blobs(|| format!("pieces[{index}]"), blobs)?;
        for (number, blob) in blobs.iter().enumerate() {
            let reference = Reference::PieceBlob(index, number);
            let bytes = lengths.of(reference, blob.section)?;
            check_nonzero(|| format!("bytes of {reference}"), bytes)?;
        }
    }
    Ok(())
}

/// Checks that a kernel has a matrix of this form with as many rows.
fn check_rows(field: String, form: RowsForm, rows: u32, kernels: &[Kernel]) -> Result<(), Error> {
    let parameters = kernels.iter().flat_map(|kernel| &kernel.parameters);
    let of_form = parameters.filter(|parameter| RowsForm::of(parameter) == Some(form));
    let rows_of = |parameter: &Parameter| parameter.shape.first().copied();
    match of_form.filter_map(rows_of).max() {
        Some(most) if rows <= most => Ok(()),
        Some(most) => {
            let expected = format!("at most `{most}`, the rows of the largest matrix of its form");
            Err(Error::invalid(field, format!("`{rows}`"), expected))
        }
        None => {
            let (element, columns) = (form.element, form.columns);
            let found = format!("rows of `{columns}` columns of {element:?}");
            Err(Error::invalid(field, found, "rows of a kernel's matrix"))
        }
    }
}
