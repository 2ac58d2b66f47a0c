//! The licences of what ships: each dependency with its licence and its place, then the texts that their packages have,
//! each once.

use crate::workspace;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Returns the document for these packages of the workspace, as they are built for a target.
pub(super) fn of(packages: &[&str], target: &str) -> Result<String> {
    let mut command = workspace::cargo(&["metadata", "--format-version", "1", "--locked"]);
    command.args(["--filter-platform", target]);
    let metadata: Value =
        serde_json::from_str(&workspace::capture(&mut command, "cargo metadata")?)
            .context("cargo metadata printed no JSON")?;
    let shipped = reached(&metadata, packages);
    let mut list = format!(
        "Dependencies of {} for {target}, and their licences.\n\n",
        packages.join(", ")
    );
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut foreign: Vec<&Value> = array(&metadata["packages"])
        .filter(|package| shipped.contains(text(&package["id"])) && !package["source"].is_null())
        .collect();
    foreign.sort_by_key(|package| (text(&package["name"]), text(&package["version"])));
    for package in foreign {
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        let (licence, place) = (text(&package["license"]), text(&package["repository"]));
        writeln!(list, "{name}: {licence}. {place}")?;
        let folder = Path::new(text(&package["manifest_path"])).parent();
        for words in folder.map(texts_in).transpose()?.unwrap_or_default() {
            texts.entry(words).or_default().insert(name.clone());
        }
    }
    for (words, names) in texts {
        let names: Vec<String> = names.into_iter().collect();
        write!(
            list,
            "\n{}\n{}\n\n{words}\n",
            "-".repeat(80),
            names.join(", ")
        )?;
    }
    Ok(list)
}

/// Ids of packages that programs of these packages are made of.
fn reached<'a>(metadata: &'a Value, packages: &[&str]) -> BTreeSet<&'a str> {
    let nodes: BTreeMap<&str, &Value> = array(&metadata["resolve"]["nodes"])
        .map(|node| (text(&node["id"]), node))
        .collect();
    let mut next: Vec<&str> = array(&metadata["packages"])
        .filter(|it| it["source"].is_null() && packages.contains(&text(&it["name"])))
        .map(|package| text(&package["id"]))
        .collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = next.pop() {
        let Some(node) = nodes.get(id).filter(|_| reached.insert(id)) else {
            continue;
        };
        let normal = |it: &&Value| array(&it["dep_kinds"]).any(|kind| kind["kind"].is_null());
        next.extend(
            array(&node["deps"])
                .filter(normal)
                .map(|it| text(&it["pkg"])),
        );
    }
    reached
}

/// The texts of licences in a package's folder.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        let name = file.file_name().to_string_lossy().to_uppercase();
        let is_text = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
        if is_text.iter().any(|begin| name.starts_with(begin)) && file.file_type()?.is_file() {
            let words = String::from_utf8_lossy(&fs::read(file.path())?).into_owned();
            found.push(words.replace('\r', "").trim().to_owned());
        }
    }
    found.sort();
    Ok(found)
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
