//! Whether a `heg` for another system computes what `heg` does: keys and values of each layer, which `heg bake` writes as
//! they are, and answers. Its C library is another, and so are that library's allocator and mathematics.

use super::package::{Binaries, STATIC_HEG, WINDOWS_HEG};
use crate::fail::Fail;
use crate::wine::{self, Wine};
use crate::workspace::{self, note};
use anyhow::{Context, Result};
use elf::ElfBytes;
use elf::endian::AnyEndian;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Compiles a small model with the `hegc` of `folder`, and compares the programs for other systems that are there.
pub(super) fn check(folder: &Path, binaries: &Binaries) -> Result<()> {
    if let Some(program) = &binaries.heg_static {
        check_static(program)?;
    }
    let run_windows = binaries.heg_windows.is_some() && wine::is_here();
    if binaries.heg_windows.is_some() && !run_windows {
        note(format!(
            "no wine here: {WINDOWS_HEG} is packed without a trial"
        ));
    }
    if binaries.heg_static.is_none() && !run_windows {
        return Ok(());
    }
    let folder = &std::path::absolute(folder).context("there is no current folder")?;
    let scratch = tempfile::tempdir().context("cannot make a folder for a trial")?;
    let scratch = scratch.path();
    compile(&folder.join("hegc"), scratch)?;
    let ours = said(scratch, || Command::new(folder.join("heg")))?;
    if binaries.heg_static.is_some() {
        let other = said(scratch, || Command::new(folder.join(STATIC_HEG)))?;
        compare(STATIC_HEG, &ours, &other)?;
    }
    if run_windows {
        let wine = Wine::start(scratch)?;
        let other = said(scratch, || wine.command(&folder.join(WINDOWS_HEG)))?;
        compare(WINDOWS_HEG, &ours, &other)?;
    }
    Ok(())
}

/// What a program computes of a model.
#[derive(PartialEq, Eq)]
struct Said {
    /// The bundle with a state that it has computed.
    baked: Vec<u8>,
    /// An answer that is drawn, so that probabilities count and not only the likeliest token.
    answer: String,
}

/// Writes the model and instructions for it. Other files have no paths, so that each system finds them.
fn compile(hegc: &Path, scratch: &Path) -> Result<()> {
    let mut compile = Command::new(hegc);
    compile
        .arg("compile")
        .arg(workspace::root().join("tests/fixtures/tiny-agent"))
        .args(["-o", BUNDLE])
        // Beside the bundle it keeps a store.
        .current_dir(scratch);
    workspace::capture(&mut compile, "compiling a small model")?;
    let text = "Answer with one call of a tool, and nothing else. ".repeat(20);
    fs::write(scratch.join("instructions.txt"), text)
        .context("cannot write instructions for a trial")
}

fn said(scratch: &Path, heg: impl Fn() -> Command) -> Result<Said> {
    let ask = |arguments: &[&[&str]], what| {
        let mut heg = heg();
        heg.args(arguments.concat()).current_dir(scratch);
        // Others would have roles that they have here, and some of them lack.
        workspace::capture(heg.args(["--soc", "host-cpu"]), what)
    };
    let state = ["--system", "instructions.txt", "--state", "trial"];
    ask(
        &[&["bake", BUNDLE, "-o", "baked.heg"], &state],
        "baking a state",
    )?;
    let drawn = ["--max-tokens", "64", "--temperature", "1", "--seed", "7"];
    let prompt = ["--prompt", "Remind me to call Ana at 5 pm."];
    let answer = ask(&[&["run", BUNDLE], &prompt, &drawn], "asking a small model")?;
    let baked = scratch.join("baked.heg");
    let bytes = fs::read(&baked).context("cannot read what was baked")?;
    fs::remove_file(baked).context("cannot remove what was baked")?;
    Ok(Said {
        baked: bytes,
        answer: answer.trim().to_owned(),
    })
}

fn compare(name: &str, ours: &Said, other: &Said) -> Result<()> {
    if ours == other {
        let bytes = ours.baked.len();
        note(format!(
            "{name} gives the same answer and the same {bytes} bytes of a baked bundle"
        ));
        return Ok(());
    }
    let what = match ours.baked == other.baked {
        true => format!(
            "answers: expected `{}`, found `{}`",
            ours.answer, other.answer
        ),
        false => "keys and values of a prompt".to_owned(),
    };
    Err(Fail::check(format!("`{name}` differs from `heg` in {what}")).into())
}

/// A static program asks for no loader.
fn check_static(program: &[u8]) -> Result<()> {
    let elf = ElfBytes::<AnyEndian>::minimal_parse(program).context("expected an ELF file")?;
    let segments = elf.segments().into_iter().flatten();
    match segments
        .into_iter()
        .any(|it| it.p_type == elf::abi::PT_INTERP)
    {
        true => Err(Fail::check(format!("`{STATIC_HEG}` needs a loader: it is not static")).into()),
        false => Ok(()),
    }
}

const BUNDLE: &str = "tiny-agent.heg";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_loader_is_not_static() {
        let shared = fs::read("/bin/true").unwrap();
        check_static(&shared).unwrap_err();
    }

    #[test]
    fn a_difference_is_told_apart() {
        let said = |baked: &[u8], answer: &str| Said {
            baked: baked.to_vec(),
            answer: answer.to_owned(),
        };
        let ours = said(b"state", "five");
        compare("heg.exe", &ours, &said(b"state", "five")).unwrap();
        let refused = |other| compare("heg.exe", &ours, &other).unwrap_err().to_string();
        assert_eq!(
            refused(said(b"state", "six")),
            "`heg.exe` differs from `heg` in answers: expected `five`, found `six`"
        );
        assert_eq!(
            refused(said(b"stale", "five")),
            "`heg.exe` differs from `heg` in keys and values of a prompt"
        );
    }
}
