//! Buckets: a folder, Amazon's storage as moto plays it, and URLs that give none.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod moto;
mod place;

use heg_bucket::open;
use std::error::Error;

#[test]
fn a_folder_keeps_what_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/farm", folder.path().display());
    place::keeps_what_is_sent(&*open(&url, |_| None).unwrap());
}

#[test]
fn a_url_that_gives_no_bucket_is_refused_with_the_reason() {
    let wrong = [
        "bucket",
        "s3://name:secret@bucket/heg",
        "ftp://bucket/heg",
        "s3://",
    ];
    let seen = wrong.map(|url| {
        let error = open(url, |_| None).unwrap_err();
        let cause = error.source().map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    });
    insta::assert_snapshot!(seen.join("\n"));
}
