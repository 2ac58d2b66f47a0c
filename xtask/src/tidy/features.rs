//! Checks that all our programs use the same features of their dependencies, so that cargo compiles these once for all
//! of them: see `xtask/features`.

use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use xtask::setup;
use xtask::workspace;

use crate::windows;

/// Features of packages, by name and version.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Returns a line for each package whose features differ.
pub(super) fn check() -> Result<Vec<String>> {
    let of = |selection: &[&str]| -> Result<Features> {
        let mut command = workspace::cargo(&["tree", "--locked", "--prefix", "none"]);
        command.args(["--format", "{p} {f}"]).args(selection);
        Ok(features(&workspace::capture(&mut command, "cargo tree")?))
    };
    // Dependencies of tests count with the rest of the workspace.
    let all = of(&["--workspace", "--edges", "normal,build,dev"])?;
    let mut findings = Vec::new();
    for program in PROGRAMS {
        let own = of(&["--package", program, "--edges", "normal,build"])?;
        findings.extend(differences(program, &own, &all));
    }
    // The kernels' tests for Windows stand beside its program.
    let target = ["--target", setup::WINDOWS_TARGET];
    let all = of(&[
        &target[..],
        &windows::PACKAGES,
        &["--edges", "normal,build"],
    ]
    .concat())?;
    let own = of(&[&target[..], &["--package", windows::TESTED]].concat())?;
    findings.extend(differences(windows::TESTED, &own, &all));
    Ok(findings)
}

fn differences(program: &str, own: &Features, all: &Features) -> Vec<String> {
    let differing = own.iter().filter_map(|(package, found)| {
        let expected = all.get(package).filter(|it| !found.is_subset(it))?;
        let name = package.split(' ').next()?;
        (!EXCEPTIONS.contains(&name)).then(|| {
            let list = |features: &BTreeSet<String>| {
                let features: Vec<&str> = features.iter().map(String::as_str).collect();
                features.join("; ")
            };
            let (found, expected) = (list(found), list(expected));
            format!(
                "xtask/features/Cargo.toml:1: {package} is compiled with `{found}` for `{program}` and with `{expected}` for \
                 the workspace: name the features there"
            )
        })
    });
    differing.collect()
}

/// The packages in the output of `cargo tree`, with their sets of features.
fn features(tree: &str) -> Features {
    let mut features = Features::new();
    for line in tree.lines() {
        let line = line.trim().trim_end_matches(" (*)");
        let mut words = line.split(' ').filter(|word| !word.starts_with('('));
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            continue;
        };
        let set = words.next().unwrap_or_default().to_owned();
        features
            .entry(format!("{name} {version}"))
            .or_default()
            .insert(set);
    }
    features
}

const PROGRAMS: [&str; 4] = ["xtask", "hegc", "heg", "heg-fuzz"];

/// The engine's feature for tests is not in any program that ships.
const EXCEPTIONS: [&str; 3] = ["heg-engine", "heg-exec", "heg-runtime"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_features_are_found() {
        let own = features("a v1.0.0 std\nb v1.0.0 (/folder) \nc v1.0.0 (proc-macro) x,y (*)\n");
        let all = features(
            "a v1.0.0 default,std\nb v1.0.0 (/folder)\nc v1.0.0 (proc-macro) x,y\nd v2.0.0\n",
        );
        let found = differences("heg", &own, &all);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("a v1.0.0 is compiled with `std` for `heg`"),
            "{found:?}"
        );
    }
}
