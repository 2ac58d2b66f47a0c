//! Checks of a plan: sizes in order, each weight stored once and in one shape, distinct variants.

use std::collections::{BTreeMap, BTreeSet};

use heg_spec::{DeviceClass, Sight};

use super::Plan;
use crate::variants::variants;
use crate::verify::{BrokenInvariant, Checks};

/// Checks the inputs of lowering and encoding.
pub(super) fn verify(plan: &Plan) -> Result<(), BrokenInvariant> {
    let checks = Checks::new(PASS, "sizes");
    for (what, sizes) in [
        ("chunks in ascending order", &plan.chunk_tokens),
        ("buckets in ascending order", &plan.mha_context_tokens),
    ] {
        checks.holds(sizes.is_sorted_by(|a, b| a < b), what, sizes)?;
    }
    let longest = plan.mha_context_tokens.last().copied().unwrap_or(0);
    let within = longest <= plan.context_tokens;
    checks.holds(within, "buckets within the context", longest)?;
    check_weights(plan)?;
    plan.heg.kernels.iter().try_for_each(|kernel| {
        let checks = Checks::new(PASS, format!("kernel `{}`", kernel.name));
        let variants = variants(plan, kernel.group);
        let kinds = variants.iter().map(|v| (v.device, v.lowering.shape));
        let mut seen = BTreeSet::new();
        let twice: Vec<_> = kinds.filter(|kind| !seen.insert(*kind)).collect();
        checks.holds(twice.is_empty(), "variants that differ", twice)?;
        let devices: BTreeSet<DeviceClass> = variants.iter().map(|v| v.device).collect();
        let everywhere: &[DeviceClass] = match plan.sight() {
            Sight::Causal => &[DeviceClass::Cpu, DeviceClass::Igpu],
            Sight::Whole => &[DeviceClass::Cpu],
        };
        let complete = everywhere.iter().all(|device| devices.contains(device));
        checks.holds(complete, "a variant for CPU and iGPU", devices)
    })
}

/// Checks that all uses of a source have the same kind and shape, and that all are in the list of stored weights, the
/// embedding first.
fn check_weights(plan: &Plan) -> Result<(), BrokenInvariant> {
    let stored = plan.weights();
    let first = stored.first().map(|weight| &weight.source);
    let checks = Checks::new(PASS, "weights");
    checks.equal("first", Some(&plan.embedding.tokens.source), first)?;
    let by_source: BTreeMap<_, _> = stored.iter().map(|w| (&w.source, w)).collect();
    checks.equal("distinct sources:", stored.len(), by_source.len())?;
    let uses = plan.heg.layers.iter().flatten().chain([&plan.heg.head]);
    for weight in uses.flat_map(|used| &used.weights) {
        let checks = Checks::new(PASS, format!("weight `{}`", weight.source.name));
        let found = by_source.get(&weight.source).map(|w| (w.kind, &w.shape));
        checks.equal("stored as", Some((weight.kind, &weight.shape)), found)?;
    }
    Ok(())
}

const PASS: &str = "plan";

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::fixture::{Described, FAMILIES};

    fn refusal(break_it: impl FnOnce(&mut Plan)) -> String {
        let mut plan = Described::family("llama").plan();
        break_it(&mut plan);
        let said = verify(&plan).unwrap_err().to_string();
        let fault = " (a fault of the compiler, not of the model)";
        said.strip_suffix(fault).unwrap().to_owned()
    }

    #[test]
    fn plans_of_all_families_hold() {
        for family in FAMILIES {
            verify(&Described::family(family).plan()).unwrap();
        }
    }

    #[test]
    fn sizes_out_of_order_and_equal_variants_are_found() {
        assert_snapshot!(refusal(|plan| plan.chunk_tokens = vec![64, 32]), @"after pass `plan`: sizes: expected chunks in ascending order, found [64, 32]");
        assert_snapshot!(refusal(|plan| plan.chunk_tokens.push(512)), @"after pass `plan`: sizes: expected chunks in ascending order, found [32, 64, 128, 256, 512, 512]");
        assert_snapshot!(refusal(|plan| plan.context_tokens = 100), @"after pass `plan`: sizes: expected buckets within the context, found 512");
    }

    #[test]
    fn a_weight_in_two_shapes_is_found() {
        assert_snapshot!(refusal(|plan| plan.heg.head.weights[0].source = plan.embedding.tokens.source.clone()), @"after pass `plan`: weight `model.embed_tokens.weight`: expected stored as Some((Vector, [64])), found Some((Table, [256, 64]))");
        assert_snapshot!(refusal(|plan| {
            let source = plan.heg.layers[0][0].weights[1].source.clone();
            plan.heg.layers[1][2].weights[1].source = source;
        }), @"after pass `plan`: weight `model.layers.0.self_attn.q_proj.weight`: expected stored as Some((Vector, [64])), found Some((Matrix, [64, 64]))");
    }
}
