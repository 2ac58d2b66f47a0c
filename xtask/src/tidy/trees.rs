//! Dependencies that a crate must not have, at any depth: promises kept by cargo. "The scheduler has no clock of its
//! own" is checked by clippy (`clippy.toml` of each crate); "it cannot reach OpenVINO" is checked here.

use anyhow::Result;
use std::collections::BTreeSet;
use std::path::Path;
use xtask::workspace;

/// A crate with restricted dependencies, at any depth.
struct Promise {
    name: &'static str,
    /// Its folder.
    folder: &'static str,
    forbidden: &'static [Forbidden],
    /// Crates that are permitted all the same, with the reason.
    exceptions: &'static [(&'static str, &'static str)],
}

/// Forbidden crates with a common purpose.
struct Forbidden {
    what: &'static str,
    crates: &'static [&'static str],
}

/// Returns a line for each broken promise, and for each unnecessary exception.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for promise in &PROMISES {
        let tree = dependencies(promise.name)?;
        let file = format!("{}/Cargo.toml", promise.folder);
        debug_assert!(root.join(&file).is_file());
        let found = broken(promise, &tree);
        findings.extend(
            found
                .into_iter()
                .map(|message| format!("{file}:1: {message}")),
        );
    }
    Ok(findings)
}

/// The names of all libraries that a build of crate `name` links on this machine.
fn dependencies(name: &str) -> Result<BTreeSet<String>> {
    let mut command = workspace::cargo(&["tree", "--package", name, "--edges", "normal"]);
    command.args(["--prefix", "none", "--format", "{lib}"]);
    let text = workspace::capture(&mut command, "cargo tree")?;
    let names = text
        .lines()
        .map(|line| line.trim().trim_end_matches(" (*)"));
    Ok(names.map(String::from).collect())
}

fn broken(promise: &Promise, tree: &BTreeSet<String>) -> Vec<String> {
    let mut messages = Vec::new();
    let name = promise.name;
    let is_excepted = |one: &str| promise.exceptions.iter().any(|(known, _)| *known == one);
    for Forbidden { what, crates } in promise.forbidden {
        let present = crates.iter().filter(|one| tree.contains(**one));
        for one in present.filter(|one| !is_excepted(one)) {
            messages.push(format!(
                "`{name}` must not depend on {what}, and reaches `{one}` (see: cargo tree -p {name} -i {one})"
            ));
        }
    }
    for (one, _) in promise.exceptions {
        if !tree.contains(*one) {
            let message = format!("`{name}` no longer depends on `{one}`: remove its exception");
            messages.push(message);
        }
    }
    messages
}

// Names of libraries, with underscores, as in code.
const OPENVINO: Forbidden = Forbidden {
    what: "OpenVINO",
    crates: &["heg_openvino", "openvino_sys", "libloading"],
};
const NETWORK: Forbidden = Forbidden {
    what: "HTTP",
    crates: &[
        "tokio",
        "mio",
        "hyper",
        "hyper_util",
        "socket2",
        "ureq",
        "rustls",
    ],
};
const FILES: Forbidden = Forbidden {
    what: "files",
    crates: &["heg_files", "memmap2", "rustix", "tempfile"],
};
const THREADS: Forbidden = Forbidden {
    what: "threads",
    crates: &[
        "crossbeam_deque",
        "crossbeam_epoch",
        "crossbeam_utils",
        "rayon",
        "rayon_core",
    ],
};
const COMPILER: Forbidden = Forbidden {
    what: "the compiler",
    crates: &["heg_compiler", "petgraph", "quick_xml", "safetensors"],
};
const PROGRAM: Forbidden = Forbidden {
    what: "programs",
    crates: &["clap", "clap_builder", "indicatif"],
};

const PURE: &[Forbidden] = &[OPENVINO, NETWORK, FILES, THREADS, COMPILER, PROGRAM];

/// `tokenizers` cannot be built without rayon, which it uses for batches of texts; we never give it any.
const BY_TOKENIZERS: &[(&str, &str)] = &[
    ("crossbeam_deque", "rayon's"),
    ("crossbeam_epoch", "rayon's"),
    ("crossbeam_utils", "rayon's"),
    ("rayon", "in tokenizers, for batches"),
    ("rayon_core", "rayon's"),
];

const PROMISES: [Promise; 4] = [
    Promise {
        name: "heg-sched",
        folder: "heg-runtime/sched",
        forbidden: PURE,
        exceptions: &[],
    },
    Promise {
        name: "heg-text",
        folder: "heg-runtime/text",
        forbidden: PURE,
        exceptions: BY_TOKENIZERS,
    },
    Promise {
        name: "heg-cpu",
        folder: "heg-runtime/cpu",
        forbidden: &[OPENVINO, NETWORK, THREADS, COMPILER, PROGRAM],
        exceptions: &[],
    },
    Promise {
        name: "heg-runtime",
        folder: "heg-runtime",
        forbidden: &[NETWORK, COMPILER, PROGRAM],
        exceptions: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: Promise = Promise {
        name: "x",
        folder: "x",
        forbidden: &[FILES, THREADS],
        exceptions: &[("rayon", "a reason")],
    };

    fn tree(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_forbidden_crate_is_named_with_the_way_to_find_it() {
        let found = broken(&PROMISE, &tree(&["serde", "memmap2", "rayon"]));
        assert_eq!(
            found,
            [
                "`x` must not depend on files, and reaches `memmap2` (see: cargo tree -p x -i memmap2)"
            ]
        );
    }

    #[test]
    fn an_exception_that_nothing_needs_is_found() {
        let found = broken(&PROMISE, &tree(&["serde"]));
        assert_eq!(
            found,
            ["`x` no longer depends on `rayon`: remove its exception"]
        );
    }

    #[test]
    fn every_exception_is_of_something_forbidden() {
        for promise in &PROMISES {
            for (one, why) in promise.exceptions {
                let known = promise.forbidden.iter().any(|f| f.crates.contains(one));
                assert!(known && !why.is_empty(), "{}: {one}", promise.name);
            }
        }
    }
}
