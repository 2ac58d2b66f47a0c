//! Packages for Node.js that tests use, pinned by version and hash in `xtask/requirements/javascript`. No script of a package
//! runs when it is installed.

use crate::fail::Fail;
use crate::workspace::{self, note};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether this machine has Node.js with its package manager.
pub fn is_there() -> bool {
    ["node", "npm"].into_iter().all(workspace::on_path)
}

/// Makes sure that `folder` has the packages.
///
/// # Errors
///
/// The installation failed; the next call starts afresh.
pub fn ensure(folder: &Path) -> Result<()> {
    let stamp = folder.join("packages.json");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == LOCK) {
        return Ok(());
    }
    note("installing JavaScript clients: 70 MB on disk, once");
    let unwritable = || format!("cannot write to `{}`", folder.display());
    fs::create_dir_all(folder).with_context(unwritable)?;
    fs::write(folder.join("package.json"), PACKAGES).with_context(unwritable)?;
    fs::write(folder.join("package-lock.json"), LOCK).with_context(unwritable)?;
    let mut install = Command::new("npm");
    install
        .current_dir(folder)
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    let hint = "check the network and npm's registry (`npm config list`); a file of another hash than ours is not installed";
    workspace::capture(&mut install, "npm ci")
        .context(Fail::environment("cannot install the packages").hint(hint))?;
    fs::write(&stamp, LOCK).with_context(unwritable)
}

const PACKAGES: &str = include_str!("../requirements/javascript/package.json");
const LOCK: &str = include_str!("../requirements/javascript/package-lock.json");

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_package_is_pinned_by_version_and_hash() {
        let lock: Value = serde_json::from_str(LOCK).unwrap();
        let packages = lock["packages"].as_object().unwrap();
        let asked: Value = serde_json::from_str(PACKAGES).unwrap();
        for (name, version) in asked["dependencies"].as_object().unwrap() {
            let locked = &packages[&format!("node_modules/{name}")];
            assert_eq!(&locked["version"], version, "{name}");
        }
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            let hash = package["integrity"].as_str().unwrap();
            assert!(hash.starts_with("sha512-"), "{name}");
            assert!(package.get("resolved").is_none(), "{name} names a registry");
        }
    }
}
