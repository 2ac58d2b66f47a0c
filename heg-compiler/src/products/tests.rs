//! Kernels of products are valid kernels, and the installed compiler distinguishes their orders.

use heg_artifacts::manifest::ElementType;
use heg_spec::{GroupColumns, WeightForm, shipped};

use super::*;
use crate::fixture::{Described, FAMILIES};
use crate::phase::Silent;

/// An empty store.
fn store() -> (tempfile::TempDir, Store, Pool) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let pool = Pool::new(folder.path().join("npu"));
    (folder, store, pool)
}

fn inquirer<'a>(plan: &'a Plan, places: (&'a Store, &'a Pool)) -> Inquirer<'a> {
    Inquirer::new(plan, places, Verify::Always, &Silent)
}

#[test]
fn products_of_all_families_and_forms_are_kernels_in_either_order() {
    let (_folder, store, pool) = store();
    for family in FAMILIES {
        let mut plan = Described::family(family).plan();
        let bodies = plan.heg.kernels.clone();
        let linears: Vec<Linear> = bodies
            .iter()
            .flat_map(|body| &body.ops)
            .filter_map(|op| Linear::of(&op.op))
            .collect();
        let group = GroupColumns::SMALLEST;
        let symmetric = false;
        for form in [WeightForm::W8A16, WeightForm::W4A16 { group, symmetric }] {
            plan.weights = form;
            let inquirer = inquirer(&plan, (&store, &pool));
            for (linear, order) in linears.iter().flat_map(|linear| {
                [WeightsFirst::NONE, WeightsFirst::ALL].map(|order| (linear, order))
            }) {
                let halves = [linear.first(linear.rows() / 2), linear.first(1)];
                let gated = [linear.clone(), linear.clone()];
                for body in [
                    kernel(&halves, None),
                    kernel(&gated, Some(Activation::Silu)),
                ] {
                    let job = inquirer.job(&Inquiry {
                        name: family.to_owned(),
                        body,
                        tokens: 32,
                        weights_first: order,
                        platform: NpuPlatform::NPU3720,
                    });
                    let transposes = job.unwrap().ir.matches("type=\"Transpose\"").count();
                    let expected = [0, 2][usize::from(order == WeightsFirst::ALL)];
                    assert_eq!(transposes, expected, "{family}, {form:?}");
                }
            }
        }
        assert_eq!(
            activations(DeviceClass::Npu, plan.weights),
            ElementType::F16
        );
    }
}

#[test]
fn nothing_is_asked_without_a_platform_or_a_machine() {
    let (_folder, store, pool) = store();
    let plan = Described::family("llama").plan();
    let inquirer = inquirer(&plan, (&store, &pool));
    let refused = |found: Result<String, CompileError>| found.unwrap_err().to_string();
    insta::assert_snapshot!([
        refused(orders(&inquirer, &[])),
        refused(cuts(&inquirer, &[])),
        refused(cuts(&inquirer, &[shipped::soc("snapdragon-8-gen3").unwrap()])),
        refused(cuts(&inquirer, &[shipped::soc("host-cpu").unwrap()])),
    ].join("\n"), @r"
    nothing to ask the NPU's compiler about: expected NPU platforms, found none
    nothing to ask the NPU's compiler about: expected machines to partition the model for, found none
    nothing to ask the NPU's compiler about: expected a machine whose first device has an NPU's `platform`, found none
    the SoC `host-cpu` has no `pair`: expected a SoC file that names two devices that share products
    ");
}

#[cfg(unix)]
#[test]
fn the_compiler_estimates_orders_and_cuts() {
    if crate::npu::toolchain("orders and cuts").is_none() {
        return;
    }
    let (_folder, store, pool) = store();
    let mut plan = Described::family("llama").plan();
    plan.chunk_tokens = vec![32];
    let inquirer = inquirer(&plan, (&store, &pool));
    let platform = NpuPlatform::NPU3720;
    let table = orders(&inquirer, &[platform]).unwrap();
    assert!(table.contains("kernel ffn"), "{table}");
    assert!(!table.contains("refused"), "{table}");
    let mut bodies = plan.heg.kernels.iter();
    let ffn = bodies.find(|body| body.group == Group::Ffn).unwrap();
    let first = weights_first(&inquirer, &[(ffn, (32, platform))]).unwrap();
    assert_eq!(first, [WeightsFirst::NONE], "{table}");
    let soc = shipped::soc("core-ultra-5-125h").unwrap();
    let found = cuts(&inquirer, &[soc]).unwrap();
    assert!(found.contains("cuts by estimates of"), "{found}");
    assert!(!found.contains("left out"), "{found}");
}
