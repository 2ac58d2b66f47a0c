//! `heg bake`: computes what conversations begin with, once, and writes a bundle with it; and the option of the commands
//! that go on behind it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use heg_artifacts::manifest::BakedState;
use heg_artifacts::plain::escape;
use heg_runtime::engine::{Engine, StateChoice, Status};
use heg_runtime::exec::{Executor, ExecutorOptions};
use heg_runtime::{Beginning, Loaded, RuntimeError, bake, read_soc};
use heg_spec::Isa;
use heg_text::Message;
use serde_json::{Value, json};

use crate::failure::input;
use crate::inspect::state_line;
use crate::options::located;
use crate::text_guard::guarded;

/// Arguments of `heg bake`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The bundle: a file, or a name that `heg list` shows
    #[arg(value_name = "BUNDLE")]
    bundle: PathBuf,
    /// Text file with the system message that conversations begin with; line ends at its end do not count
    #[arg(long, value_name = "FILE")]
    system: PathBuf,
    /// Tools that conversations offer, a JSON list as OpenAI's chat interface has it
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Name of the state: lower-case letters, digits, `-` and `_`. A state of the bundle that has it is replaced
    #[arg(long, value_name = "NAME", value_parser = state_name)]
    state: String,
    /// The bundle to write [default: in place of the one that is read, as a whole]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Devices to compute on, with CPU programs: `host-cpu`, another shipped SoC or a .ron file. Only machines with the same
    /// form of activations use the state
    #[arg(long, value_name = "SOC", default_value = "host-cpu")]
    soc: String,
    /// Instructions that CPU programs use [default: the best here]; bits are the same with all of them
    #[arg(long, value_name = "ISA")]
    isa: Option<Isa>,
    /// Print one JSON object: state, tokens, pages, bytes, bundle, path
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
A conversation with this system message and these tools starts where the state ends: the first token comes after what the
user says was read, not after thousands of tokens of instructions. `heg run`, `chat` and `serve` compare a prompt's tokens
with the states of their bundle and use the longest one by themselves; `--state NAME` asks for one, and brings its system
message along. Answers are the same, bit for bit. Whoever has the bundle can read it.

Examples:
  heg bake model.heg --system instructions.txt --tools tools.json --state mail
  heg bake model.heg --system other.txt --state notes -o model-with-both.heg
  heg run model.heg --state mail --prompt 'Answer the last one.' --stats
  heg chat model.heg --state mail
  heg inspect model.heg";

/// The choice among the states of a bundle.
#[derive(Args)]
pub(crate) struct Choice {
    /// Use the state of this name, which `heg bake` has put into the bundle, and no other [default: the longest that a prompt
    /// begins with]
    #[arg(long, value_name = "NAME", value_parser = state_name)]
    state: Option<String>,
}

impl Choice {
    /// Returns the choice for an engine.
    pub(crate) fn states(&self) -> StateChoice {
        match &self.state {
            Some(name) => StateChoice::Named(name.clone()),
            None => StateChoice::Any,
        }
    }

    /// Returns what conversations begin with, if a state was asked for.
    pub(crate) fn beginning(&self, loaded: &Loaded) -> Result<Option<Beginning>, RuntimeError> {
        let state = self.state.as_deref();
        state.map(|state| loaded.beginning(state)).transpose()
    }

    /// Says on standard error that a state that was asked for was of no use to a prompt, unless a descent says why.
    pub(crate) fn print_unused(&self, status: &Status, engine: &Engine) {
        let found = status.baked.as_ref().map_or(0, |baked| baked.found);
        if let Some(name) = &self.state
            && found == 0
            && engine.passed_states().is_empty()
        {
            eprintln!("note: state `{name}` is not used: the prompt begins with other tokens");
        }
    }
}

/// Parses the name of a state.
fn state_name(text: &str) -> Result<String, String> {
    match BakedState::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("expected at most 64 lower-case letters, digits, `-` and `_`".to_owned()),
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let path = located(&arguments.bundle)?;
    let loaded = Loaded::open(&path)?;
    let output = arguments.output(&path, &loaded)?;
    let beginning = arguments.beginning()?;
    let (template, tokenizer) = (loaded.chat_template()?, loaded.tokenizer()?);
    let tokens = guarded(|| beginning.tokens(&template, &tokenizer))?;
    let mut executor = arguments.executor(&loaded)?;
    let baking = bake(&mut executor, &arguments.state, &beginning, &tokens)?;
    let (bundle, bytes) = baking.write(&loaded, output, &|_| ())?;
    let state = &baking.state;
    if arguments.json {
        let object = json!({
            "state": state.name,
            "tokens": state.tokens.len(),
            "pages": state.pages.len(),
            "bytes": baking.bytes(),
            "bundle": bundle.to_string(),
            "path": output.to_string_lossy(),
        });
        println!("{object}");
        return Ok(());
    }
    print!("{}", state_line(state, baking.bytes()));
    println!(
        "bundle    {bundle}, {:.1} MB in `{}`",
        bytes as f64 / 1e6,
        escape(&output.to_string_lossy())
    );
    Ok(())
}

impl Arguments {
    /// The file to write: that of the bundle, if it is one file.
    fn output<'a>(&'a self, path: &'a Path, loaded: &Loaded) -> anyhow::Result<&'a Path> {
        if let Some(output) = &self.output {
            return Ok(output);
        }
        let found = std::fs::metadata(path);
        let found = found.with_context(|| format!("cannot inspect `{}`", path.display()))?;
        match found.len() == loaded.bundle().mapping().len() as u64 {
            true => Ok(path),
            false => Err(input(
                "the bundle is in a store, which others share: say with `-o FILE` where to write the new one",
            )),
        }
    }

    fn beginning(&self) -> anyhow::Result<Beginning> {
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path);
            text.map_err(|error| input(format!("cannot read `{}`: {error}", path.display())))
        };
        let system = read(&self.system)?;
        let tools: Vec<Value> = match &self.tools {
            None => Vec::new(),
            Some(path) => serde_json::from_str(&read(path)?)
                .map_err(|error| input(format!("`{}`: {error}", path.display())))?,
        };
        Ok(Beginning {
            messages: vec![Message::new(
                "system",
                system.trim_end_matches(['\r', '\n']),
            )],
            tools,
        })
    }

    fn executor(&self, loaded: &Loaded) -> Result<Executor, RuntimeError> {
        let mut soc = read_soc(&self.soc)?;
        let devices = soc.devices.iter_mut();
        for programs in devices.filter_map(|device| device.programs.as_mut()) {
            programs.isa = self.isa.or(programs.isa);
        }
        let options = ExecutorOptions {
            batch: 1,
            ..ExecutorOptions::default()
        };
        loaded.executor(&soc, options)
    }
}
