//! Makes a stored IR readable: references to sections become offsets into the mapped bundle.
//!
//! An IR says `offset="@k"` for the k-th section of the place it is used at, and `offset="@c+N"` for a
//! literal (see `heg_artifacts::manifest::Variant::ir`). The whole bundle is the weight buffer that OpenVINO
//! reads constants from, so an offset is simply the section's place in the file. A static attention can be had over
//! fewer rows of context than the bundle has it for.

use crate::error::RuntimeError;

/// Writes the true offsets into `ir`. `sections` are the file offsets of the place's sections.
pub(super) fn resolve(
    ir: &str,
    kernel: &str,
    sections: &[u64],
    literals: u64,
) -> Result<String, RuntimeError> {
    let mut resolved = String::with_capacity(ir.len() + 16 * sections.len());
    let mut rest = ir;
    while let Some(at) = rest.find(MARK) {
        let start = at + MARK.len();
        let end = rest[start..]
            .find('"')
            .map_or(rest.len(), |length| start + length);
        let reference = &rest[start..end];
        let offset = match reference.strip_prefix("c+") {
            Some(inner) => inner
                .parse()
                .ok()
                .and_then(|inner: u64| literals.checked_add(inner)),
            None => reference
                .parse()
                .ok()
                .and_then(|index: usize| sections.get(index).copied()),
        };
        let offset = offset.ok_or_else(|| RuntimeError::Reference {
            kernel: kernel.to_owned(),
            reference: reference.to_owned(),
            sections: sections.len(),
        })?;
        resolved.push_str(&rest[..start - 1]);
        resolved.push_str(&offset.to_string());
        rest = &rest[end..];
    }
    resolved.push_str(rest);
    Ok(resolved)
}

/// Makes the IR of a static attention one of fewer rows of context: `from` rows become `to`.
///
/// The number of rows is in three places (see `heg_artifacts::manifest::ShapeClass::Bucket`): the shapes of keys and
/// values, and the literal that counts the rows, of which the first `to` are taken. Everything else follows when
/// OpenVINO infers shapes. Another number of places is an error. More rows cannot be had: `to` is at most `from`.
pub(super) fn narrow(ir: &str, kernel: &str, from: u32, to: u32) -> Result<String, RuntimeError> {
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
        Err(RuntimeError::Narrow {
            kernel: kernel.to_owned(),
            from,
            to,
            found,
        })
    }
}

/// Keys, values, and the count of their rows.
const CONTEXT_PLACES: usize = 3;

const MARK: &str = "offset=\"@";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_become_offsets() {
        let ir = r#"<data offset="@1" size="8"/><data offset="@c+16"/><data offset="@0"/>"#;
        let resolved = resolve(ir, "qkv", &[4096, 8192], 100).unwrap();
        assert_eq!(
            resolved,
            r#"<data offset="8192" size="8"/><data offset="116"/><data offset="4096"/>"#
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
                    "IR of kernel `mha` cannot be had over 16 rows of context: its {from} rows are in {found} \
                     places, expected 3"
                )
            );
        }
    }

    #[test]
    fn unknown_references_are_refused() {
        let refused = |ir: &str| {
            resolve(ir, "qkv", &[4096], u64::MAX)
                .unwrap_err()
                .to_string()
        };
        for ir in [
            r#"offset="@1""#,
            r#"offset="@x""#,
            r#"offset="@c+1""#,
            r#"offset="@c+-1""#,
            r#"offset="@"#,
        ] {
            assert!(
                refused(ir).starts_with("IR of kernel `qkv` has the reference"),
                "{ir}"
            );
        }
    }
}
