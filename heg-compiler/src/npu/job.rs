//! The compilation of one IR for one NPU, independent of the bundle that it belongs to.

use std::collections::BTreeMap;

use heg_artifacts::{RecipeKey, SectionId};
use heg_spec::NpuPlatform;

use super::error::NpuError;

/// An IR to compile for an NPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpuJob {
    /// Kernel and shapes, for messages.
    pub name: String,
    /// The IR's text; its constants are offsets into `constants`.
    pub ir: String,
    /// The IR's constants, and nothing else.
    pub constants: Vec<u8>,
    /// The target NPU.
    pub platform: NpuPlatform,
    /// Properties of the NPU device beyond the platform.
    pub properties: BTreeMap<String, String>,
    /// Expected compile time relative to other jobs, 0 if unknown: the most expensive jobs start first. Not part
    /// of the job's identity.
    pub cost: u64,
}

impl NpuJob {
    /// Makes a job from an IR written by `lower`, whose small constants point into a bundle's `pool` of literals
    /// (`offset="@c+N"`). The job keeps only the literals that it uses, so that it does not depend on the rest of the
    /// pool.
    ///
    /// Errors: [`NpuError::ConstantWeights`] for an IR whose weights are not inputs, [`NpuError::Literal`] for a
    /// reference outside the pool.
    pub fn from_ir(
        name: impl Into<String>,
        ir: &str,
        pool: &[u8],
        platform: NpuPlatform,
    ) -> Result<Self, NpuError> {
        let name = name.into();
        let (ir, constants) = cut_loose(&name, ir, pool)?;
        let properties = properties(&ir);
        Ok(Self {
            name,
            ir,
            constants,
            platform,
            properties,
            cost: 0,
        })
    }

    /// The key of everything that determines the blob.
    pub(super) fn recipe(&self, toolchain: &str) -> RecipeKey {
        let properties = self.properties.iter();
        let properties: Vec<String> = properties.map(|(k, v)| format!("{k}={v}")).collect();
        let head = [
            toolchain.to_owned(),
            self.platform.to_string(),
            self.ir.clone(),
            SectionId::of(&self.constants).to_string(),
        ];
        RecipeKey::of(PRECOMPILER, head.into_iter().chain(properties))
    }
}

/// Properties that an IR needs. Scales of groups come before the product, for which the compiler is fast only with
/// dynamic quantisation.
fn properties(ir: &str) -> BTreeMap<String, String> {
    let is_grouped = |element: &str| ir.contains(&format!("element_type=\"{element}\""));
    let dynamic = ("NPU_COMPILER_DYNAMIC_QUANTIZATION", "YES");
    let needed = (is_grouped("i4") || is_grouped("u4")).then_some(dynamic);
    needed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The IR with plain offsets, and the constants to which they refer.
fn cut_loose(name: &str, ir: &str, pool: &[u8]) -> Result<(String, Vec<u8>), NpuError> {
    let mut rewritten = String::with_capacity(ir.len());
    let mut constants = Vec::new();
    let mut placed: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut rest = ir;
    while let Some(at) = rest.find(MARK) {
        let start = at + MARK.len();
        let tail = &rest[start..];
        let reference = tail.split('"').next().unwrap_or_default();
        let Some(offset) = reference.strip_prefix("c+") else {
            return Err(NpuError::ConstantWeights {
                job: name.to_owned(),
                reference: reference.to_owned(),
            });
        };
        let size = attribute(tail.split('>').next().unwrap_or_default(), "size");
        let literal = literal(pool, offset, size).ok_or_else(|| NpuError::Literal {
            job: name.to_owned(),
            reference: reference.to_owned(),
            size: size.to_owned(),
            pool_bytes: pool.len(),
        })?;
        let offset = *placed.entry(literal).or_insert_with(|| {
            let offset = constants.len().next_multiple_of(LITERAL_ALIGN);
            constants.resize(offset, 0);
            constants.extend_from_slice(literal);
            offset
        });
        rewritten.push_str(&rest[..start - 1]);
        rewritten.push_str(&offset.to_string());
        rest = &tail[reference.len()..];
    }
    rewritten.push_str(rest);
    Ok((rewritten, constants))
}

/// The value of an attribute in the rest of a tag; empty if it is absent.
fn attribute<'t>(tag: &'t str, name: &str) -> &'t str {
    let value = tag.split_once(&format!(" {name}=\"")).map(|(_, rest)| rest);
    let value = value.and_then(|rest| rest.split_once('"'));
    value.map_or("", |(value, _)| value)
}

fn literal<'p>(pool: &'p [u8], offset: &str, size: &str) -> Option<&'p [u8]> {
    let (offset, size): (usize, usize) = (offset.parse().ok()?, size.parse().ok()?);
    pool.get(offset..offset.checked_add(size)?)
}

const MARK: &str = "offset=\"@";

/// Alignment that suits every element type.
const LITERAL_ALIGN: usize = 8;

/// Identifies this code: must change whenever the same job gives another blob.
const PRECOMPILER: &str = "npu precompile 1";

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &[u8] = b"unused..shape[3]axis----";

    fn job(ir: &str) -> Result<NpuJob, NpuError> {
        NpuJob::from_ir("ffn", ir, POOL, NpuPlatform::NPU3720)
    }

    #[test]
    fn only_used_literals_go_along_each_once() {
        let ir = r#"<data shape="4" offset="@c+16" size="4"/><data offset="@c+8" size="8"/>
            <data offset="@c+16" size="4"/>"#;
        let found = job(ir).unwrap();
        assert_eq!(
            found.ir,
            r#"<data shape="4" offset="0" size="4"/><data offset="8" size="8"/>
            <data offset="0" size="4"/>"#
        );
        assert_eq!(found.constants, b"axis\0\0\0\0shape[3]");
        let moved = ir.replace("@c+16", "@c+0").replace("@c+8", "@c+4");
        let moved = NpuJob::from_ir("mha", &moved, b"axisshape[3]", NpuPlatform::NPU3720).unwrap();
        assert_eq!(moved.recipe("x"), found.recipe("x"));
    }

    #[test]
    fn weights_and_unknown_literals_are_refused() {
        let refused = |ir: &str| job(ir).unwrap_err().to_string();
        assert_eq!(
            refused(r#"<data offset="@3" size="4"/>"#),
            "IR of `ffn` refers to weights as `@3`, expected weights as inputs"
        );
        for (reference, size) in [
            ("c+16", "9"),
            ("c+24", "1"),
            ("c+18446744073709551615", "2"),
            ("c+x", "4"),
            ("c+0", ""),
        ] {
            assert_eq!(
                refused(&format!(r#"<data offset="@{reference}" size="{size}"/>"#)),
                format!(
                    "IR of `ffn` refers to `{size}` bytes at `@{reference}`, \
                     expected a part of 24 bytes"
                )
            );
        }
        let other_tag = r#"<data offset="@c+0"/><data size="4"/>"#;
        assert!(refused(other_tag).contains("refers to `` bytes"));
        assert!(refused(r#"offset="@c+"#).contains("`@c+`"));
    }

    #[test]
    fn identity_depends_on_all_but_name_and_cost() {
        let base = job(r#"<data offset="@c+0" size="8"/>"#).unwrap();
        let mut same = base.clone();
        (same.name, same.cost) = ("mha".to_owned(), 7);
        assert_eq!(same.recipe("x"), base.recipe("x"));
        let changed = |change: fn(&mut NpuJob)| {
            let mut job = base.clone();
            change(&mut job);
            job.recipe("x")
        };
        let keys = [
            base.recipe("x"),
            base.recipe("y"),
            changed(|job| job.ir.push(' ')),
            changed(|job| job.constants.push(0)),
            changed(|job| job.platform = NpuPlatform::NPU4000),
            changed(|job| drop(job.properties.insert("A".to_owned(), "B".to_owned()))),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{index}");
        }
    }
}
