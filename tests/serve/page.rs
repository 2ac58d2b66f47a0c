//! The page, in a real browser.

use heg_server::Token;
use serde_json::json;

use crate::clients::{run_or_skip, said};
use crate::host::{Host, wait_until};

/// The script's exit status if there is no browser.
const NO_BROWSER: i32 = 77;

#[test]
fn the_page_shows_the_engine_at_work() {
    let test = "the_page_shows_the_engine_at_work";
    let Some(output) = run_or_skip(test, "page.py", "") else {
        return;
    };
    let said = said(&output);
    if output.status.code() == Some(NO_BROWSER) {
        let required = std::env::var_os("HEG_REQUIRE_BROWSER").is_some();
        assert!(!required, "{test}: {said}");
        heg_tests::skipped(&format!("{test}: {}", said.trim()));
        return;
    }
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_page_is_open_and_its_data_are_not() {
    let host = Host::with(|options| options.tokens = Token::new("s3cret").unwrap().into());
    let page = host.get("/");
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    let (_, nonce) = policy.split_once("script-src 'nonce-").unwrap();
    let (nonce, _) = nonce.split_once('\'').unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
    assert!(page.body.contains(&format!("<script nonce=\"{nonce}\">")));
    assert!(!page.body.contains("{{") && !page.body.contains("http"));
    assert_ne!(
        host.get("/").header("content-security-policy"),
        Some(policy)
    );
    assert_eq!(host.get("/dashboard.json").status, 401);
}

#[test]
fn the_slowest_request_is_explained_once_somebody_looks() {
    let host = Host::new();
    let slowest = || host.get("/dashboard.json").json()["timeline"]["slowest"].clone();
    assert!(slowest().is_null());
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": true});
    assert_eq!(host.post("/v1/completions", &body).status, 200);
    wait_until("an explanation", || !slowest().is_null());
    let slowest = slowest();
    assert_eq!(slowest["class"], "reactive");
    let causes = slowest["causes"].as_array().unwrap();
    let mut texts = causes.iter().map(|cause| cause["text"].as_str().unwrap());
    assert!(
        texts.any(|text| text == "in kernels of its own prompt"),
        "{slowest}"
    );
    let time: u64 = causes
        .iter()
        .map(|cause| cause["time_us"].as_u64().unwrap())
        .sum();
    assert_eq!(slowest["time_us"], time);
}
