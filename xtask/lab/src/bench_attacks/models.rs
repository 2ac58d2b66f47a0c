//! The models under attack: tiny-agent, which gives real answers; two bare ones with a long context; and tiny-agent
//! with text assets that an attack has changed.

use super::attack::{FolderChange, TextAssets};
use crate::process::text;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use xtask::fail::Fail;
use xtask::workspace::{self, last_lines, note, root, target_dir};
use xtask::{compile, synth};

/// A model under attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Model {
    /// The trained model of the fixtures.
    TinyAgent,
    /// One small layer with 49 152 tokens and a context of 131 072.
    Wide,
    /// One small layer with 512 tokens and a context of 8 192.
    Small,
}

/// The outcome of compiling a hostile folder.
pub(super) enum Compiled {
    Bundle(PathBuf),
    /// The compiler refused it, with this status and these last lines.
    Refused {
        status: Option<i32>,
        said: String,
    },
    /// It took longer than any compile of a small model should.
    TooLong,
}

impl Model {
    /// Returns the model's bundle, compiling it if necessary.
    pub(super) fn bundle(self) -> Result<PathBuf> {
        let (name, source) = match self {
            Self::TinyAgent => ("tiny-agent", tiny_agent()),
            Self::Wide => ("attack-wide", bare("attack-wide", 49_152, 131_072)?),
            Self::Small => ("attack-small", bare("attack-small", 512, 8192)?),
        };
        let folder = folder()?;
        let bundle = folder.join(format!("{name}.heg"));
        let mut options = compile::own_use();
        options.name = Some(name.to_owned());
        note(compile::compile(
            &source,
            &bundle,
            &workspace::output().store(),
            &options,
        )?);
        Ok(bundle)
    }
}

fn tiny_agent() -> PathBuf {
    root().join("tests/fixtures/tiny-agent")
}

/// Folder of the bundles.
fn folder() -> Result<PathBuf> {
    let folder = target_dir().join("bench-attacks");
    fs::create_dir_all(&folder)
        .with_context(|| Fail::environment(format!("cannot create `{}`", folder.display())))?;
    Ok(folder)
}

/// Writes a model file beside a folder of random weights with one small layer, so that a long context takes little
/// memory.
fn bare(name: &str, vocab: u32, context_tokens: u32) -> Result<PathBuf> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "attention_bias": false, "mlp_bias": false, "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "max_position_embeddings": context_tokens, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": null, "tie_word_embeddings": true, "vocab_size": vocab,
        "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
    });
    let weights = synth::ensure_shape(name, &config, &workspace::output())?;
    let file = folder()?.join(format!("{name}.ron"));
    let spec = format!(
        "(\n    name: {name:?},\n    source: {:?},\n    context_tokens: {context_tokens},\n)\n",
        text(&weights)
    );
    fs::write(&file, spec).with_context(|| format!("cannot write `{}`", file.display()))?;
    Ok(file)
}

/// Compiles tiny-agent with changed text assets, in a separate process.
pub(super) fn hostile(name: &str, change: &FolderChange) -> Result<Compiled> {
    let source = folder()?.join(name);
    let bundle = folder()?.join(format!("{name}.heg"));
    copy_changed(&tiny_agent(), &source, change)?;
    // A bundle of an earlier run would hide that this one is refused.
    if bundle.exists() {
        fs::remove_file(&bundle).with_context(|| format!("cannot remove `{name}.heg`"))?;
    }
    let front_door = workspace::build_front_door()?;
    let log = folder()?.join(format!("{name}.log"));
    let output = fs::File::create(&log).context("cannot write the compiler's log")?;
    let mut command = Command::new("sh");
    command
        .args(["-c", BOUNDED, "sh"])
        .args([&text(&front_door), "compile-model", &text(&source)])
        .args(["-o", &text(&bundle), "--npu", "off"])
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(
            output
                .try_clone()
                .context("cannot write the compiler's log")?,
        )
        .stderr(output);
    let status = ended(&mut command)?;
    let said = last_lines(&fs::read_to_string(&log).unwrap_or_default());
    Ok(match status {
        None => Compiled::TooLong,
        Some(status) if status.success() => Compiled::Bundle(bundle),
        Some(status) => Compiled::Refused {
            status: status.code(),
            said,
        },
    })
}

/// Runs a program with at most 8 GiB of address space.
const BOUNDED: &str = r#"ulimit -v 8388608 && exec "$@""#;

/// Runs a program to its end; returns `None` if it took too long and was killed.
fn ended(command: &mut Command) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    let mut child = command
        .spawn()
        .context(Fail::environment("cannot start `sh`"))?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the compiler")? {
            return Ok(Some(status));
        }
        if begin.elapsed() > COMPILE_PATIENCE {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Chosen: sixty times the time for tiny-agent.
const COMPILE_PATIENCE: Duration = Duration::from_secs(60);

/// Copies the files that a compile reads from a model folder, with changed text assets.
fn copy_changed(from: &Path, to: &Path, change: &FolderChange) -> Result<()> {
    let read = |name: &str| {
        let path = from.join(name);
        fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))
    };
    let write = |name: &str, bytes: &[u8]| {
        let path = to.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
    };
    fs::create_dir_all(to).with_context(|| format!("cannot create `{}`", to.display()))?;
    for name in COPIED {
        write(name, &read(name)?)?;
    }
    let tokenizer: Value = serde_json::from_slice(&read(TOKENIZER)?)?;
    let mut assets = TextAssets {
        tokenizer: tokenizer.as_object().cloned().unwrap_or_default(),
        template: String::from_utf8(read(TEMPLATE)?)?,
    };
    change(&mut assets);
    write(TOKENIZER, &serde_json::to_vec(&assets.tokenizer)?)?;
    write(TEMPLATE, assets.template.as_bytes())
}

/// Files that no attack changes; a template file takes precedence over a template in the last one.
const COPIED: [&str; 4] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer_config.json",
];
const TOKENIZER: &str = "tokenizer.json";
const TEMPLATE: &str = "chat_template.jinja";
