//! Whether the static `heg` is static, and computes what the other one does: keys and values of each layer, which `heg
//! bake` writes as they are, and answers. Its C library is another, and so are that library's allocator and mathematics.

use super::package::STATIC_HEG;
use crate::fail::Fail;
use crate::workspace::{self, note};
use anyhow::{Context, Result};
use elf::ElfBytes;
use elf::endian::AnyEndian;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Compiles a small model with the `hegc` of `folder`, and compares both programs.
pub(super) fn check(folder: &Path, program: &[u8]) -> Result<()> {
    check_static(program)?;
    let folder = &std::path::absolute(folder).context("there is no current folder")?;
    let scratch = tempfile::tempdir().context("cannot make a folder for a trial")?;
    let scratch = scratch.path();
    let bundle = scratch.join("tiny-agent.heg");
    let mut compile = Command::new(folder.join("hegc"));
    compile
        .arg("compile")
        .arg(workspace::root().join("tests/fixtures/tiny-agent"))
        .arg("-o")
        .arg(&bundle)
        // Beside the bundle it keeps a store.
        .current_dir(scratch);
    workspace::capture(&mut compile, "compiling a small model")?;
    let instructions = scratch.join("instructions.txt");
    let text = "Answer with one call of a tool, and nothing else. ".repeat(20);
    fs::write(&instructions, text).context("cannot write instructions for a trial")?;
    let [ours, other] = ["heg", STATIC_HEG].map(|name| {
        let program = folder.join(name);
        let state = baked(&program, &bundle, &instructions)?;
        Ok::<_, anyhow::Error>((state, answer(&program, &bundle)?))
    });
    let (ours, other) = (ours?, other?);
    if ours != other {
        let what = match ours.0 == other.0 {
            true => format!(
                "answers: expected `{}`, found `{}`",
                ours.1.trim(),
                other.1.trim()
            ),
            false => "keys and values of a prompt".to_owned(),
        };
        return Err(Fail::check(format!("the static `heg` differs from `heg` in {what}")).into());
    }
    let state_bytes = ours.0.len();
    note(format!(
        "the static heg gives the same answer and the same {state_bytes} bytes of a baked bundle"
    ));
    Ok(())
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

/// The bundle with a state that a program has computed.
fn baked(program: &Path, bundle: &Path, instructions: &Path) -> Result<Vec<u8>> {
    let output = bundle.with_extension("baked");
    let mut bake = Command::new(program);
    bake.arg("bake").arg(bundle).arg("--system");
    bake.arg(instructions).args(["--state", "trial", "-o"]);
    workspace::capture(bake.arg(&output), "baking a state")?;
    fs::read(&output).with_context(|| format!("cannot read `{}`", output.display()))
}

/// An answer that is drawn, so that probabilities count and not only the likeliest token.
fn answer(program: &Path, bundle: &Path) -> Result<String> {
    let mut run = Command::new(program);
    run.arg("run").arg(bundle).args([
        "--prompt",
        "Remind me to call Ana at 5 pm.",
        "--max-tokens",
        "64",
        "--temperature",
        "1",
        "--seed",
        "7",
    ]);
    workspace::capture(&mut run, "asking a small model")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_loader_is_not_static() {
        let shared = fs::read("/bin/true").unwrap();
        check_static(&shared).unwrap_err();
    }
}
