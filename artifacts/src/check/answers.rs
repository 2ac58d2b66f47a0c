//! Checks of known answers: the question fits the model, and every answer has the outputs' shape.

use super::sections::Lengths;
use super::{bytes_of, check_nonzero};
use crate::error::Error;
use crate::manifest::{ElementType, KernelUse, KnownAnswers, Manifest};
use crate::references::Reference;
use heg_spec::Group;

pub(super) fn check_answers(
    asked: Option<&KnownAnswers>,
    manifest: &Manifest,
    lengths: &Lengths,
) -> Result<(), Error> {
    if let Some(asked) = asked {
        check_question(asked, manifest)?;
    }
    let layers = manifest
        .layers
        .iter()
        .enumerate()
        .flat_map(|(index, layer)| {
            [
                (Reference::Answer(Some(index), Group::Qkv), &layer.qkv),
                (Reference::Answer(Some(index), Group::Mha), &layer.mha),
                (Reference::Answer(Some(index), Group::Ffn), &layer.ffn),
            ]
        });
    let head = (Reference::Answer(None, Group::Head), &manifest.head);
    for (reference, place) in layers.chain([head]) {
        check_answer(reference, place, asked, manifest, lengths)?;
    }
    Ok(())
}

fn check_question(asked: &KnownAnswers, manifest: &Manifest) -> Result<(), Error> {
    let KnownAnswers {
        seed: _,
        rows,
        context,
    } = *asked;
    check_nonzero(|| "known_answers.rows".to_owned(), rows.into())?;
    let expected = rows..=manifest.model.context_tokens;
    if expected.contains(&context) {
        return Ok(());
    }
    let expected = format!("`{}` to `{}`", expected.start(), expected.end());
    Err(Error::invalid(
        "known_answers.context",
        format!("`{context}`"),
        expected,
    ))
}

fn check_answer(
    reference: Reference,
    place: &KernelUse,
    asked: Option<&KnownAnswers>,
    manifest: &Manifest,
    lengths: &Lengths,
) -> Result<(), Error> {
    let Some(id) = place.answer else {
        return Ok(());
    };
    let Some(asked) = asked else {
        let found = "an answer without `known_answers`";
        return Err(Error::invalid(
            reference.to_string(),
            found,
            "`None`, or `known_answers`",
        ));
    };
    // Places were checked before, so the kernel exists.
    let kernel = manifest.kernels.get(place.kernel.0 as usize);
    let outputs = kernel.map_or(&[][..], |kernel| &kernel.outputs);
    let expected = outputs.iter().try_fold(0_u64, |total, port| {
        let rows = asked.rows_of(port.rows);
        total.checked_add(bytes_of(&[rows, port.width], ElementType::F32)?)
    });
    lengths.check_bytes(reference, id, expected)
}
