//! Makes a stored IR readable for OpenVINO: references to sections become offsets into the mapped bundle.
//!
//! An IR says `offset="@k"` for the k-th section of the place it is used at, and `offset="@c+N"` for a
//! literal (see `heg_artifacts::manifest::Variant::ir`). The whole bundle is the weight buffer that OpenVINO
//! reads constants from, so an offset is the section's position in the file. Static attention can also be narrowed to
//! fewer rows of context than the bundle's variant has, and a kernel for any number of rows fixed to one.

use crate::error::ExecError;

/// Writes the true offsets into `ir`. `sections` are those of the place, `literals` the pool.
///
/// Whatever OpenVINO takes for a constant's place has to be a reference in the compiler's own spelling that stays
/// within its section: an attribute `offset` or `size` in any other form is refused, wherever it is. So no constant can
/// be read from a section that this kernel does not have, which might not have been hashed.
pub(super) fn resolve(
    ir: &[u8],
    kernel: &str,
    sections: &[Extent],
    literals: Extent,
) -> Result<String, ExecError> {
    let refused = |found: &str, expected: String| ExecError::Reference {
        kernel: kernel.to_owned(),
        found: first_line(found),
        expected,
    };
    let text = std::str::from_utf8(ir);
    // With zeros in it, parsers take a text for UTF-16.
    let text = text.ok().filter(|text| !text.contains('\0'));
    let ir = text.ok_or_else(|| refused("bytes that are no text", "UTF-8".to_owned()))?;
    let mut resolved = String::with_capacity(ir.len() + 16 * sections.len());
    let mut rest = ir;
    while let Some(at) = next_attribute(rest) {
        let (before, found) = rest.split_at(at);
        let (constant, after) = Constant::parse(found)
            .ok_or_else(|| refused(found, "`offset=\"@k\" size=\"N\"/>`".to_owned()))?;
        let extent = match constant.section {
            Some(index) => sections.get(index).copied(),
            None => Some(literals),
        };
        let extent = extent.ok_or_else(|| {
            let count = sections.len();
            refused(found, format!("one of the {count} sections of its place"))
        })?;
        let end = constant.start.checked_add(constant.bytes);
        if end.is_none_or(|end| end > extent.bytes) {
            let bytes = extent.bytes;
            return Err(refused(
                found,
                format!("a part of the section's {bytes} bytes"),
            ));
        }
        // Both lie within memory that is mapped: their sum cannot overflow.
        let offset = extent.start.saturating_add(constant.start);
        resolved.push_str(before);
        resolved.push_str(&format!(
            "offset=\"{offset}\" size=\"{}\"/>",
            constant.bytes
        ));
        rest = after;
    }
    resolved.push_str(rest);
    Ok(resolved)
}

/// Place of a section in the memory that constants are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// A constant as an IR refers to it.
struct Constant {
    /// Number of the section at its place; none for a literal.
    section: Option<usize>,
    /// First byte within the section.
    start: u64,
    bytes: u64,
}

impl Constant {
    /// Reads the attributes at the start of `text`, which end their element; gives what is behind them.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let (reference, rest) = text.strip_prefix("offset=\"@")?.split_once('"')?;
        let (bytes, rest) = rest.strip_prefix(" size=\"")?.split_once('"')?;
        let rest = rest.strip_prefix("/>")?;
        let (section, start) = match reference.strip_prefix("c+") {
            Some(start) => (None, number(start)?),
            None => (Some(usize::try_from(number(reference)?).ok()?), 0),
        };
        let bytes = number(bytes)?;
        let constant = Self {
            section,
            start,
            bytes,
        };
        Some((constant, rest))
    }
}

/// The beginning of a text, as long as an error shows it.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(SHOWN_CHARS).collect()
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Position of the next attribute that places a constant, whatever stands around it.
fn next_attribute(text: &str) -> Option<usize> {
    let of_name = |name: &str| {
        let mut places = text.match_indices(name).map(|(at, _)| at);
        places.find(|at| is_attribute(&text[..*at], &text[at + name.len()..]))
    };
    [of_name("offset"), of_name("size")]
        .into_iter()
        .flatten()
        .min()
}

/// Whether a word between these texts is the name of an attribute, rather than a part of a longer one.
fn is_attribute(before: &str, after: &str) -> bool {
    let in_name =
        |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':') || !c.is_ascii();
    !before.ends_with(in_name) && after.trim_start().starts_with('=')
}

/// Narrows the IR of static attention from `from` rows of context to `to`.
///
/// The number of rows is in three places (see `heg_artifacts::manifest::ShapeClass::Bucket`): the shapes of keys and
/// values, and the literal that counts the rows, of which the first `to` are taken. Everything else follows when
/// OpenVINO infers shapes. Another number of places is an error, and `to` is at most `from`.
pub(super) fn narrow(ir: &str, kernel: &str, from: u32, to: u32) -> Result<String, ExecError> {
    let cache = format!("<data shape=\"{from},");
    let count = format!("<data element_type=\"i32\" shape=\"{from}\" ");
    let size = |rows: u32| format!("size=\"{}\"/>", 4 * u64::from(rows));
    let (from_size, to_size) = (size(from), size(to));
    let mut found = 0;
    let narrow_line = |line: &str| {
        if let Some(width) = line.strip_prefix(&cache) {
            found += 1;
            return format!("<data shape=\"{to},{width}\n");
        }
        let offset = line.strip_prefix(&count);
        match offset.and_then(|rest| rest.strip_suffix(&from_size)) {
            Some(offset) => {
                found += 1;
                format!("<data element_type=\"i32\" shape=\"{to}\" {offset}{to_size}\n")
            }
            None => format!("{line}\n"),
        }
    };
    let narrowed: String = ir.lines().map(narrow_line).collect();
    if found == CONTEXT_PLACES {
        Ok(narrowed)
    } else {
        Err(ExecError::Narrow {
            kernel: kernel.to_owned(),
            from,
            to,
            found,
        })
    }
}

/// Fixes the number of rows of a kernel that takes any: where a parameter has it, and everything else follows when OpenVINO
/// infers shapes. None where no parameter has it open.
pub(super) fn fix_rows(ir: &str, rows: u32) -> Option<String> {
    const ANY: &str = "<data shape=\"?,";
    let fixed = format!("<data shape=\"{rows},");
    ir.contains(ANY).then(|| ir.replace(ANY, &fixed))
}

/// Keys, values, and the count of their rows.
const CONTEXT_PLACES: usize = 3;

/// As much of a refused reference as an error shows.
const SHOWN_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn extent(start: u64, bytes: u64) -> Extent {
        Extent { start, bytes }
    }

    #[test]
    fn references_become_offsets() {
        let ir = r#"<data offset="@1" size="8"/><data offset="@c+16" size="4"/><data offset="@0" size="64"/>"#;
        let sections = [extent(4096, 64), extent(8192, 8)];
        let resolved = resolve(ir.as_bytes(), "qkv", &sections, extent(100, 20)).unwrap();
        assert_eq!(
            resolved,
            r#"<data offset="8192" size="8"/><data offset="116" size="4"/><data offset="4096" size="64"/>"#
        );
        let plain = r#"<layer id="0" name="offset" type="Add"><data kv_offset="1" resize="2" big-size="3"/></layer>"#;
        assert_eq!(
            resolve(plain.as_bytes(), "mha", &[], extent(0, 0)).unwrap(),
            plain
        );
    }

    #[test]
    fn rows_of_context_become_fewer_in_their_three_places_only() {
        let ir = r#"<data shape="32,512" element_type="f16"/>
<data shape="512,32" element_type="f16"/>
<data shape="512,32" element_type="f16"/>
<data element_type="i32" shape="32" offset="64" size="128"/>
<data element_type="i32" shape="512" offset="192" size="2048"/>
<data element_type="i64" shape="512" offset="192" size="4096"/>
"#;
        assert_eq!(
            narrow(ir, "mha", 512, 96).unwrap(),
            r#"<data shape="32,512" element_type="f16"/>
<data shape="96,32" element_type="f16"/>
<data shape="96,32" element_type="f16"/>
<data element_type="i32" shape="32" offset="64" size="128"/>
<data element_type="i32" shape="96" offset="192" size="384"/>
<data element_type="i64" shape="512" offset="192" size="4096"/>
"#
        );
        for (from, found) in [(32, 2), (96, 0)] {
            assert_eq!(
                narrow(ir, "mha", from, 16).unwrap_err().to_string(),
                format!(
                    "IR of kernel `mha` cannot be narrowed to 16 rows of context: its {from} rows are in {found} \
                     places, expected 3"
                )
            );
        }
    }

    fn refused(ir: &[u8]) -> String {
        let literals = extent(u64::MAX - 8, 8);
        let outcome = resolve(ir, "qkv", &[extent(4096, 64)], literals);
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_part_of_the_place_is_refused() {
        for (ir, expected) in [
            (
                r#"offset="@1" size="8"/>"#,
                "one of the 1 sections of its place",
            ),
            (
                r#"offset="@0" size="65"/>"#,
                "a part of the section's 64 bytes",
            ),
            (
                r#"offset="@c+1" size="8"/>"#,
                "a part of the section's 8 bytes",
            ),
            (
                r#"offset="@c+8" size="18446744073709551615"/>"#,
                "a part of the section's 8 bytes",
            ),
            (
                r#"offset="@c+18446744073709551615" size="8"/>"#,
                "a part of the section's 8 bytes",
            ),
        ] {
            let text = format!("IR of kernel `qkv` has `{ir}`, expected {expected}");
            assert_eq!(refused(ir.as_bytes()), text);
        }
    }

    /// Every way to write a place that a lenient parser may understand and our compiler does not use.
    #[test]
    fn another_spelling_is_refused() {
        for ir in [
            r#"<data offset="0" size="8"/>"#,
            r#"<data offset="4096" size="8"/>"#,
            r#"<data offset='4096' size="8"/>"#,
            r#"<data offset = "4096" size="8"/>"#,
            "<data\noffset\n=\n\"4096\" size=\"8\"/>",
            r#"<data offset="&#52;096" size="8"/>"#,
            r#"<data size="8" offset="@0"/>"#,
            r#"<data size="9999" offset="@0" size="8"/>"#,
            r#"<data offset="@0" size="8" size="9999"/>"#,
            r#"<data offset="@0" size="8" offset="1"/>"#,
            r#"<data offset="@0" size="8" />"#,
            r#"<data offset="@0" size="+8"/>"#,
            r#"<data offset="@-1" size="8"/>"#,
            r#"<data offset="@c+-1" size="8"/>"#,
            r#"<data offset="@c+" size="x"/>"#,
            r#"<data offset="@x" size="8"/>"#,
            r#"<data offset="@" size="8"/>"#,
            r#"<data offset="@"#,
            r#"<data offset="@0"/>"#,
            r#"<data size="8"/>"#,
            r#"<data offset="@0" size="8"/><data offset="12" size="8"/>"#,
        ] {
            let text = refused(ir.as_bytes());
            assert!(
                text.ends_with(r#", expected `offset="@k" size="N"/>`"#),
                "{ir}: {text}"
            );
        }
    }

    #[test]
    fn another_encoding_is_refused() {
        let ir = r#"<data offset="4096" size="8"/>"#;
        let utf16: Vec<u8> = ir.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in [utf16.as_slice(), b"\xff\xfe<\0", b"caf\xe9"] {
            let text = "IR of kernel `qkv` has `bytes that are no text`, expected UTF-8";
            assert_eq!(refused(bytes), text);
        }
    }

    #[test]
    fn rows_are_fixed_where_parameters_have_them_open() {
        let ir = r#"<data shape="?,64" element_type="f32"/><data shape="?,8" element_type="f32"/><dim>-1</dim>"#;
        let fixed = r#"<data shape="32,64" element_type="f32"/><data shape="32,8" element_type="f32"/><dim>-1</dim>"#;
        assert_eq!(fix_rows(ir, 32).as_deref(), Some(fixed));
        assert_eq!(fix_rows(fixed, 8), None);
    }

    /// Pieces of which places are spelt, rightly and wrongly.
    const PIECES: [&str; 24] = [
        "<data",
        " ",
        "\n",
        "offset",
        "size",
        "=",
        "\"",
        "'",
        "@",
        "@c+",
        "0",
        "1",
        "7",
        "64",
        "4096",
        "/>",
        ">",
        "-",
        "_",
        "é",
        "offset=\"@0\" size=\"8\"/>",
        "offset=\"@c+2\" size=\"4\"/>",
        "&#52;",
        "<!--",
    ];

    proptest! {
        /// Whatever an IR says, what comes out names bytes of the place or of the literals.
        #[test]
        fn every_place_that_comes_out_is_within_its_section(
            pieces in proptest::collection::vec(proptest::sample::select(PIECES.as_slice()), 0..40)
        ) {
            let sections = [extent(100_000, 64), extent(200_000, 8)];
            let literals = extent(300_000, 16);
            let Ok(resolved) = resolve(pieces.concat().as_bytes(), "qkv", &sections, literals) else {
                return Ok(());
            };
            let mut rest = resolved.as_str();
            while let Some(at) = next_attribute(rest) {
                let numbers = rest[at..].strip_prefix("offset=\"").unwrap();
                let (offset, numbers) = numbers.split_once("\" size=\"").unwrap();
                let (bytes, behind) = numbers.split_once("\"/>").unwrap();
                let (offset, bytes) = (number(offset).unwrap(), number(bytes).unwrap());
                let holds = |extent: &Extent| {
                    extent.start <= offset && offset + bytes <= extent.start + extent.bytes
                };
                prop_assert!(sections.iter().chain([&literals]).any(holds), "{resolved}");
                rest = behind;
            }
        }
    }
}
