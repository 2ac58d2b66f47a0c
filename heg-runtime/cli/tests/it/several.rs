//! `heg serve` with several bundles: one that cannot be served leaves the others, and says why.

use crate::command::heg;
use crate::state::Server;
use heg_tests::{Workbench, fixture};
use serde_json::Value;

#[test]
fn a_bundle_that_cannot_be_served_leaves_the_others() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let (bundle, folder) = (compiled.unwrap().0, tempfile::tempdir().unwrap());
    let folder = folder.path();
    let [first, second, broken] = ["first.heg", "second.heg", "broken.heg"];
    std::fs::copy(&bundle, folder.join(first)).unwrap();
    std::fs::copy(&bundle, folder.join(second)).unwrap();
    let mut bytes = std::fs::read(&bundle).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(folder.join(broken), bytes).unwrap();

    let others = [broken, second, "--alias", "small=first", "--state-mib", "0"];
    let server = Server::start(folder, first.as_ref(), &others);
    let listed: Value = serde_json::from_str(&server.get("/v1/models")).unwrap();
    let models = listed["data"].as_array().unwrap();
    let names: Vec<&Value> = models.iter().map(|model| &model["id"]).collect();
    // The bundles come in the order of the command line, on which the first stands last here.
    assert_eq!(names, ["tiny-agent", "first"]);
    assert_eq!(models[1]["aliases"][0], "small");
    assert!(server.has_said("`broken.heg` is not served"));
    assert!(server.has_said("so this one is `first`"));
    drop(server);

    let unkept = ["--state-mib", "0"];
    let refused = [
        vec!["serve", first, second, "--trace", "trace.json"],
        vec!["serve", first, second, "--kv-mib", "1"],
        vec!["serve", first, "--alias", "small"],
        [&["serve", broken, "absent.heg", "--port", "0"][..], &unkept].concat(),
    ];
    let said: Vec<String> = refused.iter().map(|asked| heg(folder, asked)).collect();
    insta::assert_snapshot!("mistakes_serve_several", said.join("\n"));
}
