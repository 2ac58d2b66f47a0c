//! `heg pull` from a mirror that is a web server with TLS and a certificate of the company's own.

use std::fs;
use std::path::Path;
use std::process::Command;

use heg_tests::{Workbench, fixture, skipped};

use crate::nginx::Nginx;
use crate::registry::{heg_with_store, or_skip, with_mounts};

/// Makes a certificate for this machine, signed by itself.
fn certificate(folder: &Path) -> std::io::Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    openssl.args([
        "-nodes", "-days", "2", "-subj", "/CN=heg", "-keyout", "key.pem",
    ]);
    openssl.args(["-addext", "subjectAltName=DNS:mirror.heg.test"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let output = openssl
        .args(["-out", "ca.pem"])
        .current_dir(folder)
        .output()?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn a_mirror_with_a_certificate_of_its_own_is_trusted_when_the_system_does() {
    let test = "a_mirror_with_a_certificate_of_its_own_is_trusted_when_the_system_does";
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = |name: &str| folder.join(name).display().to_string();
    if or_skip(test, "openssl", certificate(folder)).is_none() {
        return;
    }
    let layout = folder.join("layout");
    fs::create_dir(&layout).unwrap();
    let keys = format!(
        "ssl_certificate {};\nssl_certificate_key {};",
        path("ca.pem"),
        path("key.pem")
    );
    let started = Nginx::start(&folder.join("nginx"), &layout, " ssl", &keys);
    let Some(nginx) = or_skip(test, "nginx", started) else {
        return;
    };
    // This machine by names that are not known to be it, so that it is asked with TLS.
    fs::write(
        path("hosts"),
        "127.0.0.1 mirror.heg.test registry.heg.test\n",
    )
    .unwrap();
    let port = nginx.host.rsplit(':').next().unwrap();
    let settings = format!(
        "(revision: 1, mirrors: [(prefix: \"registry.heg.test:1/\", at: [\"https://mirror.heg.test:{port}/\"])])"
    );
    fs::create_dir_all(folder.join("config/heg")).unwrap();
    fs::write(folder.join("config/heg/sources.ron"), settings).unwrap();
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let mut export = heg_with_store(folder);
    let to = format!("oci:{}:stable", layout.join("chat").display());
    let exported = export
        .arg("export")
        .arg(compiled.unwrap().0)
        .args(["--to", &to])
        .output();
    assert!(exported.unwrap().status.success());

    let mut heg = heg_with_store(folder);
    heg.env("XDG_CONFIG_HOME", path("config"));
    let pull = format!(
        "mount --bind {} /etc/hosts || exit 99; \"$0\" pull registry.heg.test:1/chat:stable --allow-unsigned",
        path("hosts")
    );
    let pulled = |heg: &Command| with_mounts(heg, &pull);
    let stranger = pulled(heg.env("SSL_CERT_FILE", "/dev/null"));
    let status = stranger.ok().and_then(|output| output.status.code());
    if !matches!(status, Some(4)) {
        return skipped(&format!(
            "{test}: no namespaces in which a user mounts: {status:?}"
        ));
    }
    assert_eq!(nginx.answers(), "", "it was asked without its certificate");
    let output = pulled(heg.env("SSL_CERT_FILE", path("ca.pem"))).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(nginx.answers().lines().all(|line| line.starts_with("20")));
}
