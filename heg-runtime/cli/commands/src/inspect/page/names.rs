//! Names on the page: words of the manifest as people read them, at lengths that fit a page.

use heg_artifacts::manifest::{Binding, ElementType, Kernel, ShapeClass};
use heg_profiler::AnchorSource;
use heg_spec::DeviceClass;

/// Returns a name from the bundle: at most `limit` characters, without any that affect the text around it.
pub(super) fn name(text: &str, limit: usize) -> String {
    let mut short: String = text
        .chars()
        .take(limit)
        .map(|character| {
            if steers(character) {
                '\u{fffd}'
            } else {
                character
            }
        })
        .collect();
    if text.chars().nth(limit).is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// Returns whether a character is a control character, or changes the direction of writing.
fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Longest name of a kernel, model or machine, in characters.
pub(super) const NAME: usize = 40;
/// Longest sentence, such as the source of a number, in characters.
pub(super) const SENTENCE: usize = 400;

pub(super) fn device(class: DeviceClass) -> &'static str {
    match class {
        DeviceClass::Cpu => "CPU",
        DeviceClass::Igpu => "iGPU",
        DeviceClass::Npu => "NPU",
    }
}

/// Returns the class of the page's style sheet with the device's colour.
pub(super) fn style(class: DeviceClass) -> &'static str {
    class.name()
}

pub(super) fn element(element: ElementType) -> &'static str {
    match element {
        ElementType::I4 => "int4",
        ElementType::U4 => "uint4",
        ElementType::I8 => "int8",
        ElementType::F16 => "f16",
        ElementType::Bf16 => "bf16",
        ElementType::F32 => "f32",
        ElementType::I64 => "int64",
    }
}

/// Returns the binding of a variant's weights; empty for attention, which has none.
pub(super) fn binding(kernel: &Kernel, binding: Binding) -> &'static str {
    match binding {
        _ if kernel.parameters.is_empty() => "no weights",
        Binding::Constant => "constant weights",
        Binding::Input => "weights as inputs",
    }
}

pub(super) fn shape(shape: ShapeClass) -> String {
    match shape {
        ShapeClass::Dynamic => "dynamic".to_owned(),
        ShapeClass::Static { tokens } => tokens.to_string(),
        ShapeClass::Bucket { tokens, context } => format!("{tokens} × {context}"),
    }
}

/// Returns the shapes of several variants in a few words.
pub(super) fn shapes(shapes: &[ShapeClass]) -> String {
    let chunks = span(shapes.iter().filter_map(|shape| shape.chunk()));
    let buckets = span(shapes.iter().filter_map(|shape| shape.bucket()));
    match (chunks, buckets) {
        (None, _) => "dynamic".to_owned(),
        (Some(chunks), None) => format!("static, c {chunks}"),
        (Some(chunks), Some(buckets)) => format!("c {chunks}, n {buckets}"),
    }
}

/// Returns the range of these numbers: `32`, `32–512`.
fn span(numbers: impl Iterator<Item = u32> + Clone) -> Option<String> {
    let (least, most) = (numbers.clone().min()?, numbers.max()?);
    Some(match least == most {
        true => least.to_string(),
        false => format!("{least}–{most}"),
    })
}

pub(super) fn source(source: AnchorSource) -> &'static str {
    match source {
        AnchorSource::Measured => "Measured",
        AnchorSource::Vendor => "Vendor",
        AnchorSource::Spec => "Spec",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_do_not_steer() {
        assert_eq!(name("ffn.1", 5), "ffn.1");
        assert_eq!(name("ffn.12", 5), "ffn.…");
        assert_eq!(name("a\u{202e}b\nc", 9), "a\u{fffd}b\u{fffd}c");
        assert_eq!(name(&"é".repeat(1000), 3), "éé…");
    }

    #[test]
    fn shapes_are_named_together() {
        let bucket = |tokens, context| ShapeClass::Bucket { tokens, context };
        assert_eq!(shapes(&[ShapeClass::Dynamic]), "dynamic");
        assert_eq!(
            shapes(&[32, 64].map(|tokens| ShapeClass::Static { tokens })),
            "static, c 32–64"
        );
        assert_eq!(
            shapes(&[bucket(32, 512), bucket(32, 1024)]),
            "c 32, n 512–1024"
        );
    }
}
