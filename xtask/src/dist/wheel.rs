//! The Python wheel: the package of `heg-runtime/capi/python`, which loads `libheg.so` beside it. It has no code for a
//! version of Python, so one wheel serves all.

use super::archive::{Compression, zip};
use super::package::Shipment;
use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// The files of the package.
const PACKAGE: [(&str, &str); 3] = [
    (
        "heg/__init__.py",
        include_str!("../../../heg-runtime/capi/python/heg/__init__.py"),
    ),
    (
        "heg/_library.py",
        include_str!("../../../heg-runtime/capi/python/heg/_library.py"),
    ),
    ("heg/py.typed", ""),
];

/// The tag of a wheel for a platform, such as `manylinux_2_28_x86_64`.
fn tag(platform: &str) -> String {
    format!("py3-none-{platform}")
}

/// The file name of the wheel.
pub(super) fn name(release: &Shipment, platform: &str) -> String {
    format!("heg-{}-{}.whl", release.version, tag(platform))
}

/// Makes the wheel in `folder`, named as pip expects it; returns its path.
///
/// # Errors
///
/// The errors of the file system, and of an archive that is too large.
pub fn write(
    folder: &std::path::Path,
    release: &Shipment,
    libheg: &[u8],
    platform: &str,
    compression: Compression,
) -> Result<std::path::PathBuf> {
    let path = folder.join(name(release, platform));
    let bytes = bytes(release, libheg, "", platform, compression)?;
    heg_files::write_whole(&path, &[&bytes])?;
    Ok(path)
}

/// Makes the wheel.
pub(super) fn bytes(
    release: &Shipment,
    libheg: &[u8],
    licences: &str,
    platform: &str,
    compression: Compression,
) -> Result<Vec<u8>> {
    let info = format!("heg-{}.dist-info", release.version);
    let metadata = format!(
        "Metadata-Version: 2.4\nName: heg\nVersion: {}\nSummary: Runs HEG bundles: language models compiled ahead of \
         time\nLicense-Expression: Apache-2.0\nRequires-Python: >=3.9\nClassifier: Typing :: Typed\n",
        release.version
    );
    let about = format!(
        "Wheel-Version: 1.0\nGenerator: heg-xtask ({})\nRoot-Is-Purelib: false\nTag: {}\n",
        release.version,
        tag(platform)
    );
    let mut files: Vec<(String, &[u8])> = PACKAGE
        .map(|(path, text)| (path.to_owned(), text.as_bytes()))
        .to_vec();
    files.push(("heg/libheg.so".to_owned(), libheg));
    files.push((format!("{info}/METADATA"), metadata.as_bytes()));
    files.push((format!("{info}/WHEEL"), about.as_bytes()));
    let own = include_str!("../../../LICENSE");
    files.push((format!("{info}/licenses/LICENSE"), own.as_bytes()));
    if !licences.is_empty() {
        files.push((format!("{info}/licenses/LICENCES.txt"), licences.as_bytes()));
    }
    let mut record = String::new();
    for (path, content) in &files {
        let digest = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(content));
        record.push_str(&format!("{path},sha256={digest},{}\n", content.len()));
    }
    let listed = format!("{info}/RECORD");
    record.push_str(&format!("{listed},,\n"));
    files.push((listed, record.as_bytes()));
    let files = files
        .iter()
        .map(|(path, content)| (path.as_str(), *content));
    zip(files, compression)
}
