//! The choice of a chat template if a file has several.

use super::super::super::text_assets::TEMPLATE_BYTES_MAX;
use super::mistake::VocabularyMistake;
use super::vocabulary::TemplateOf;

/// The main template, else the one named `default`, else the only one.
pub(super) fn chosen(templates: &[TemplateOf<'_>]) -> Result<Option<String>, VocabularyMistake> {
    let called = |name: Option<&str>| templates.iter().find(|template| template.name == name);
    let template = match (called(None).or_else(|| called(Some("default"))), templates) {
        (Some(template), _) => template,
        (None, []) => return Ok(None),
        (None, [only]) => only,
        (None, several) => {
            let names = several.iter().filter_map(|template| template.name);
            return Err(VocabularyMistake::Templates {
                names: names.map(|name| format!("`{name}`")).collect(),
            });
        }
    };
    match template.source.len() as u64 {
        0..=TEMPLATE_BYTES_MAX => Ok(Some(template.source.to_owned())),
        _ => Err(VocabularyMistake::TooLarge {
            what: "the chat template",
            found_bytes: template.source.len(),
            limit_bytes: TEMPLATE_BYTES_MAX,
        }),
    }
}
