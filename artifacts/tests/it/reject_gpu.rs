//! Refused GPU modules, and the message to the user: one case per rule.

use std::collections::BTreeMap;

use heg_artifacts::manifest::{GpuModule, GpuPart};
use heg_artifacts::{Manifest, SectionId};

use crate::reject_manifest::check;

/// The GPU's part with modules of these names, whose words are those of the literals.
fn gpu(manifest: &mut Manifest, names: &[&str]) {
    let module = |name: &&str| GpuModule {
        name: (*name).to_owned(),
        section: manifest.literals,
        shapes: vec![[(3, 64)].into()],
    };
    let modules = names.iter().map(module).collect();
    manifest.gpu = Some(GpuPart { modules });
}

#[test]
fn gpu_modules() {
    let shapes = |manifest: &mut Manifest, shapes: Vec<BTreeMap<u32, u32>>| {
        gpu(manifest, &["rope"]);
        manifest.gpu.as_mut().unwrap().modules[0].shapes = shapes;
    };
    check(
        "`gpu.modules[0].name` is empty, expected a name",
        |manifest| gpu(manifest, &[""]),
    );
    check(
        "`gpu.modules[1].name` is `product`, expected ascending names",
        |manifest| gpu(manifest, &["rope", "product"]),
    );
    check(
        "`gpu.modules[1].name` is `rope`, expected ascending names",
        |manifest| gpu(manifest, &["rope", "rope"]),
    );
    check(
        "`gpu.modules[0].shapes` is `0` shapes, expected `1` to `1024`",
        |manifest| shapes(manifest, vec![]),
    );
    check(
        "`gpu.modules[0].shapes` is not ascending, expected each shape once, ascending",
        |manifest| shapes(manifest, vec![[(3, 64)].into(), [(3, 64)].into()]),
    );
    check(
        "`gpu.modules[0].shapes[0]` is `33` constants, expected at most `32`",
        |manifest| shapes(manifest, vec![(0..33).map(|number| (number, 1)).collect()]),
    );
    let id = SectionId::of(b"no section");
    check(
        &format!("`gpu.modules[0].section` is `{id}`, expected one of `sections`"),
        |manifest| {
            gpu(manifest, &["rope"]);
            manifest.gpu.as_mut().unwrap().modules[0].section = id;
        },
    );
    let of_literals = |bytes: u64| {
        move |manifest: &mut Manifest| {
            gpu(manifest, &["rope"]);
            let literals = manifest.literals;
            for section in &mut manifest.sections {
                if section.id == literals {
                    section.bytes = bytes;
                }
            }
        }
    };
    check(
        "`bytes of gpu.modules[0].section` is `0`, expected at least `1`",
        of_literals(0),
    );
    check(
        "`gpu.modules[0].section` is `300001` bytes with those before it, expected at most `300000`",
        of_literals(300_001),
    );
}
