//! `heg fit` on a registry's bundle: few requests, no weights, and the speed that the bundle has once it is here.

use std::path::Path;

use heg_tests::{Workbench, fixture};
use serde_json::Value;

use crate::registry::{heg_with_store, registry_or_skip};

/// Runs `heg` with a store in a folder; returns its status, and what it printed as JSON.
fn heg(folder: &Path, arguments: &[&str]) -> (i32, Value) {
    let output = heg_with_store(folder).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().next_back().unwrap_or_default();
    let errors = String::from_utf8_lossy(&output.stderr);
    let json: serde_json::Result<Value> = serde_json::from_str(last);
    assert!(json.is_ok(), "{text}{errors}");
    (output.status.code().unwrap(), json.unwrap())
}

#[test]
fn a_bundle_is_judged_before_its_weights_are_fetched() {
    let test = "a_bundle_is_judged_before_its_weights_are_fetched";
    let folder = tempfile::tempdir().unwrap();
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let folder = folder.path();
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let bundle = compiled.unwrap().0;
    let name = format!("{}/acme/chat:stable", docker.host);
    heg(folder, &["push", bundle.to_str().unwrap(), &name, "--json"]);

    let (status, unsigned) = heg(folder, &["fit", &name, "--allow-unsigned", "--json"]);
    assert_eq!(status, 0, "{unsigned}");
    let number = |report: &Value, field: &str| report[field].as_f64().unwrap();
    assert!(number(&unsigned, "requests") <= 6.0, "{unsigned}");
    assert!(number(&unsigned, "moved_bytes") < 0.5e6, "{unsigned}");
    assert!(number(&unsigned, "decode_limit_tokens_per_s") > 0.0);
    assert_eq!(unsigned["number"], Value::Null);
    assert!(!folder.join("store").exists(), "a look left a store");

    let measure = ["fit", &name, "--allow-unsigned", "--measure", "--json"];
    let (status, measured) = heg(folder, &measure);
    assert_eq!(status, 0, "{measured}");
    assert!(number(&measured, "moved_bytes") < 5e6, "{measured}");
    assert!(number(&measured, "moved_bytes") < number(&measured, "bundle_bytes") / 2.0);
    let speed = &measured["measured"];
    assert!(number(speed, "decode_tokens_per_s") > 0.0, "{measured}");
    assert!(number(speed, "first_token_s") > 0.0, "{measured}");

    heg(folder, &["pull", &name, "--allow-unsigned", "--json"]);
    let (_, here) = heg(folder, &["fit", &name, "--allow-unsigned", "--json"]);
    assert_eq!(number(&here, "fetch_bytes"), 0.0, "{here}");
}
