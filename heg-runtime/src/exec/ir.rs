//! Makes a stored IR readable: references to sections become offsets into the mapped bundle.
//!
//! An IR says `offset="@k"` for the k-th section of the place it is used at, and `offset="@c+N"` for a
//! literal (see `heg_artifacts::manifest::Variant::ir`). The whole bundle is the weight buffer that OpenVINO
//! reads constants from, so an offset is simply the section's place in the file.

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
