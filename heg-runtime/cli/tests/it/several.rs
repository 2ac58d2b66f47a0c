//! `heg serve` with several bundles: one that cannot be served leaves the others, and says why.

use crate::command::heg;
use crate::state::Server;
use heg_tests::{Workbench, fixture};
use serde_json::{Value, json};

/// Two bundles of 4.2 MB each with 6 MiB for them: each question to one releases the other, whose next answer is the same.
#[cfg(target_os = "linux")]
#[test]
fn a_bundle_that_nobody_needs_makes_room() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let (bundle, folder) = (compiled.unwrap().0, tempfile::tempdir().unwrap());
    let folder = folder.path();
    for name in ["first.heg", "second.heg"] {
        std::fs::copy(&bundle, folder.join(name)).unwrap();
    }
    let others = ["second.heg", "--state-mib", "0", "--resident-mib", "6"];
    let server = Server::start(folder, "first.heg".as_ref(), &others);
    let models = || -> Vec<(String, bool)> {
        let listed: Value = serde_json::from_str(&server.get("/v1/models")).unwrap();
        let models = listed["data"].as_array().unwrap().iter();
        let read = |model: &Value| {
            let resident = model["resident"].as_bool().unwrap();
            (model["id"].as_str().unwrap().to_owned(), resident)
        };
        models.map(read).collect()
    };
    let names: Vec<String> = models().into_iter().map(|(name, _)| name).collect();
    let mut answers: Vec<Value> = Vec::new();
    for (turn, asked) in names.iter().cycle().take(6).enumerate() {
        let body = json!({"model": asked, "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0});
        let answer = server.post("/v1/completions", &body)["choices"][0]["text"].clone();
        answers.push(answer);
        for (name, is_resident) in models() {
            assert_eq!(is_resident, name == *asked, "turn {turn}: {name}");
        }
        if turn > 0 {
            let file = match asked.as_str() {
                "first" => "second.heg",
                _ => "first.heg",
            };
            // A thread of its own releases it.
            let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while server.mapped_kib(file) > 0 {
                assert!(std::time::Instant::now() < patience, "{file} is in memory");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }
    assert!(
        answers
            .iter()
            .all(|answer| answer == &answers[0] && answer.is_string())
    );
}

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
        [
            &["serve", first, second, "--port", "0", "--resident-mib", "4"][..],
            &unkept,
        ]
        .concat(),
        vec!["serve", first, "--pin", "tiny-agent"],
        [
            &[
                "serve",
                first,
                "--port",
                "0",
                "--resident-mib",
                "9",
                "--pin",
                "other",
            ][..],
            &unkept,
        ]
        .concat(),
    ];
    let said: Vec<String> = refused.iter().map(|asked| heg(folder, asked)).collect();
    insta::assert_snapshot!("mistakes_serve_several", said.join("\n"));
}
