//! Builds for release in a target folder of its own, without a path of this machine in what comes out.

use super::{package, stubs};
use crate::fail::Fail;
use crate::setup;
use crate::workspace::{self, note};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A `heg` for another system than this one, which is built if nobody leaves it out.
pub(super) struct Foreign {
    target: &'static str,
    /// The program that compiles C for it.
    compiler: &'static str,
    /// The Debian package that has the compiler.
    package: &'static str,
    /// Options for rustc.
    options: &'static [&'static str],
    /// The file name of what cargo builds.
    built: &'static str,
    /// Its file name beside the other binaries.
    place: &'static str,
    /// The option that leaves it out.
    without: &'static str,
}

/// `heg` without any library of the system. It runs on each x86-64 Linux, but can load no library either, and so has
/// neither OpenVINO nor Vulkan.
pub(super) const STATIC: Foreign = Foreign {
    target: "x86_64-unknown-linux-musl",
    compiler: "musl-gcc",
    package: "musl-tools",
    options: &[],
    built: "heg",
    place: package::STATIC_HEG,
    without: "--without-static",
};

/// `heg` for Windows.
pub(super) const WINDOWS: Foreign = Foreign {
    target: setup::WINDOWS_TARGET,
    compiler: setup::WINDOWS_LINKER,
    package: "gcc-mingw-w64-x86-64",
    // Else the header has the time of the build.
    options: &["-Clink-arg=-Wl,--no-insert-timestamp"],
    built: package::WINDOWS_HEG,
    place: package::WINDOWS_HEG,
    without: "--without-windows",
};

/// Builds the commands and the library, and `heg` for other systems; returns the folder where they are.
pub(super) fn build(foreign: &[Foreign]) -> Result<PathBuf> {
    foreign.iter().try_for_each(Foreign::check_tools)?;
    let glibc = target().join("glibc");
    stubs::write(stubs::zig()?, &glibc)?;
    let options = linked(&glibc);
    note("building heg, hegc and libheg for release, which takes a while");
    let programs = ["build", "--release", "--locked", "-p", "heg", "-p", "hegc"];
    workspace::run(&mut cargo(&programs, &options)?, "building the commands")?;
    let library = ["rustc", "--release", "--locked", "-p", "heg-capi", "--lib"];
    let mut command = cargo(&library, &options)?;
    // Without the library for Rust, with which no link-time optimisation is possible.
    workspace::run(
        command.args(["--crate-type", "staticlib"]),
        "building libheg",
    )?;
    let folder = target().join("release");
    share(&folder, &glibc)?;
    for each in [STATIC, WINDOWS] {
        // One of an earlier build would be packed.
        let _ = std::fs::remove_file(folder.join(each.place));
    }
    foreign.iter().try_for_each(|each| each.build(&folder))?;
    Ok(folder)
}

impl Foreign {
    fn build(&self, folder: &Path) -> Result<()> {
        let arguments = ["build", "--release", "--locked", "-p", "heg", "--target"];
        let options: Vec<String> = self.options.iter().map(|&it| it.to_owned()).collect();
        let mut command = cargo(&arguments, &options)?;
        let variable = format!("CC_{}", self.target.replace('-', "_"));
        command.arg(self.target).env(variable, self.compiler);
        workspace::run(&mut command, &format!("building heg for {}", self.target))?;
        let built = target().join(self.target).join("release").join(self.built);
        let place = folder.join(self.place);
        std::fs::copy(&built, &place)
            .with_context(|| format!("cannot copy `{}` to `{}`", built.display(), place.display()))
            .map(drop)
    }

    /// Says what is missing, before minutes of building.
    fn check_tools(&self) -> Result<()> {
        let Self {
            target,
            compiler,
            package,
            ..
        } = self;
        let (what, wanted) = if !workspace::has_rust_target(target)? {
            let what = format!("this Rust cannot build for {target}");
            (what, format!("run: rustup target add {target}"))
        } else if !workspace::on_path(compiler) {
            let what = format!("`{compiler}` is missing, which compiles C for {target}");
            (
                what,
                format!("install {package} (Debian: `apt-get install {package}`)"),
            )
        } else {
            return Ok(());
        };
        let hint = format!("{wanted}, or leave this `heg` out: {}", self.without);
        Err(Fail::environment(what).hint(hint).into())
    }
}

/// Links the shared library of the static one. Rust's own link would also export the C functions of dependencies, and keep
/// their code for that.
fn share(folder: &Path, glibc: &Path) -> Result<()> {
    let exports = folder.join("exports.map");
    std::fs::write(&exports, "{ global: heg_*; local: *; };\n")
        .with_context(|| format!("cannot write `{}`", exports.display()))?;
    let mut link = Command::new("cc");
    link.arg("-B").arg(glibc).args(["-shared", "-s", "-o"]);
    link.arg(folder.join("libheg.so"));
    link.arg(format!("-Wl,-soname,{}", package::SONAME));
    link.arg(format!("-Wl,--version-script={}", exports.display()));
    link.args([
        "-Wl,--gc-sections",
        "-Wl,-z,relro,-z,now",
        "-Wl,--whole-archive",
    ]);
    link.arg(folder.join("libheg.a"));
    link.args(["-Wl,--no-whole-archive", "-Wl,--as-needed"]);
    link.args(package::SYSTEM_LIBRARIES.split(' '));
    workspace::run(&mut link, "linking libheg")
}

/// Options for rustc, by which programs are linked with the glibc of a folder, and functions and constants of the same
/// bytes once. LLD can, which Rust brings and links with where the target is the machine's own; libheg, which is linked
/// apart, is built with them only to share what is compiled. Statics that are never written to may have one address, then:
/// of all dependencies only `bytes` compares such, tables of functions that differ.
fn linked(glibc: &Path) -> Vec<String> {
    vec![
        format!("-Clink-arg=-B{}", glibc.display()),
        // This machine's libgcc_s needs this machine's glibc; programs find that of the machine where they run.
        "-Clink-arg=-Wl,--allow-shlib-undefined".to_owned(),
        // Relocated before `main` and read-only from then on, as without these two. But with `full`, in its place, calls
        // between crates go through addresses that the loader has to write, too.
        "-Crelro-level=partial".to_owned(),
        "-Clink-arg=-Wl,-z,now".to_owned(),
        "-Clink-arg=-Wl,--icf=all".to_owned(),
        "-Clink-arg=-Wl,--ignore-data-address-equality".to_owned(),
    ]
}

fn target() -> PathBuf {
    workspace::target_dir().join("dist")
}

/// A cargo command whose output has no path of this machine: those of the checkout, of dependencies and of the standard
/// library are written as fixed names. `options` are for rustc.
fn cargo(args: &[&str], options: &[String]) -> Result<Command> {
    let mut rustc = Command::new("rustc");
    let sysroot = workspace::capture(rustc.args(["--print", "sysroot"]), "rustc")?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let mut names = vec![(workspace::root(), "/heg")];
    names.extend(home.map(|home| (home, "/cargo")));
    names.push((PathBuf::from(sysroot.trim()), "/rust"));
    // The target folder may be outside of the checkout. Of several names that fit, the last counts.
    names.push((target(), "/heg/target/dist"));
    let renamed = |option: &str| -> Vec<String> {
        let each = names.iter();
        each.map(|(path, name)| format!("{option}={}={name}", path.display()))
            .collect()
    };
    let mut flags = renamed("--remap-path-prefix");
    flags.extend_from_slice(options);
    let mut command = workspace::cargo(args);
    command
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env("CFLAGS", renamed("-ffile-prefix-map").join(" "))
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TARGET_DIR", target());
    Ok(command)
}
