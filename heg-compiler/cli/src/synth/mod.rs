//! `hegc synth`: a Hugging Face folder with a published model's true shapes and seeded random weights, for performance
//! work without access to the licensed weights. Its text is noise; its time, memory and file layout are the real
//! model's.

mod catalogue;
mod layout;
mod random;
mod shards;
mod tokenizer;

use crate::fail::Fail;
use crate::output::OutputFolder;
use crate::terminal::note;
use anyhow::{Context, Result};
use catalogue::Model;
use serde_json::{Value, json};
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `hegc synth`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Model whose shapes to take
    #[arg(long, value_name = "NAME", value_parser = catalogue::names())]
    pub like: String,
    /// Folder to write [default: bundles/models/NAME]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Seed of the random weights; the same seed gives the same bytes everywhere
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Writes the folder that `args` describe, into `output` unless they name another place.
pub fn run(args: &Args, output: &OutputFolder) -> Result<()> {
    let dir = ensure_model(args, output)?;
    println!("{}", dir.display());
    Ok(())
}

/// Writes the folder unless the very same one exists. Returns its path.
pub fn ensure_model(args: &Args, output: &OutputFolder) -> Result<PathBuf> {
    let model = catalogue::find(&args.like)?;
    let dir = match &args.output {
        Some(dir) => dir.clone(),
        None => output.model(&args.like),
    };
    let stamp = stamp(&args.like, args.seed);
    if dir.exists() {
        return existing(&dir, &stamp).map(|()| dir);
    }
    let job = Job {
        model: &model,
        seed: args.seed,
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        shard_bytes_max: SHARD_BYTES_MAX,
    };
    let start = Instant::now();
    let bytes = write_model(&dir, &job, &stamp)?;
    note(format!(
        "wrote {:.2} GB of {} weights in {:.1} s",
        gigabytes(bytes),
        args.like,
        start.elapsed().as_secs_f64()
    ));
    Ok(dir)
}

/// Writes a model `name` with the caller's own shape, given as its config.json, into `output`, unless the very same one
/// exists. Returns its folder.
pub fn ensure_shape(name: &str, config: &Value, output: &OutputFolder) -> Result<PathBuf> {
    let dir = output.model(name);
    let mut stamp = stamp(name, 0);
    stamp["config"] = config.clone();
    if dir.exists() {
        return existing(&dir, &stamp).map(|()| dir);
    }
    let model = Model {
        config: config.clone(),
        stores_tied_head: false,
    };
    let job = Job {
        model: &model,
        seed: 0,
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        shard_bytes_max: SHARD_BYTES_MAX,
    };
    write_model(&dir, &job, &stamp)?;
    Ok(dir)
}

/// Whether `name` is a model with known shapes.
pub fn is_known(name: &str) -> bool {
    catalogue::find(name).is_ok()
}

/// The files to write, and their settings.
struct Job<'a> {
    model: &'a Model,
    seed: u64,
    threads: NonZeroUsize,
    shard_bytes_max: u64,
}

fn write_model(dir: &Path, job: &Job<'_>, stamp: &Value) -> Result<u64> {
    let tensors = layout::tensors(job.model)?;
    let plan = shards::plan(tensors, job.shard_bytes_max)?;
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).with_context(|| format!("cannot create `{}`", parent.display()))?;
    check_disk(parent, plan.total_bytes())?;
    let scratch = tempfile::Builder::new()
        .prefix(".synth-model.tmp-")
        .tempdir_in(parent)
        .with_context(|| format!("cannot create a folder in `{}`", parent.display()))?;
    let inside = scratch.path().join("model");
    fs::create_dir(&inside).context("cannot create the model folder")?;
    shards::write(&inside, &plan, job.seed, job.threads)?;
    let config = tokenizer::with_token_ids(&job.model.config);
    write_json(&inside, "config.json", &config)?;
    let generation = tokenizer::generation_config();
    write_json(&inside, "generation_config.json", &generation)?;
    write_json(&inside, "tokenizer.json", &tokenizer::tokenizer())?;
    write_json(&inside, "tokenizer_config.json", &tokenizer::config())?;
    write_json(&inside, STAMP, stamp)?;
    fs::rename(&inside, dir).with_context(|| format!("cannot move it to `{}`", dir.display()))?;
    Ok(plan.total_bytes())
}

fn write_json(dir: &Path, name: &str, value: &Value) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    text.push('\n');
    fs::write(dir.join(name), text).with_context(|| format!("cannot write `{name}`"))
}

/// The inputs that the folder was made from; `VERSION` changes when the same arguments give other bytes.
fn stamp(like: &str, seed: u64) -> Value {
    json!({ "made_by": "hegc synth", "version": 1, "like": like, "seed": seed })
}

fn existing(dir: &Path, stamp: &Value) -> Result<()> {
    let text = fs::read_to_string(dir.join(STAMP)).unwrap_or_default();
    if serde_json::from_str::<Value>(&text).is_ok_and(|found| &found == stamp) {
        note(format!("`{}` is already there", dir.display()));
        return Ok(());
    }
    let message = format!("`{}` exists and is another model", dir.display());
    Err(Fail::input(message)
        .hint("remove it, or write elsewhere with -o DIR")
        .into())
}

fn check_disk(parent: &Path, bytes: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(parent)
        .map_err(std::io::Error::from)
        .with_context(|| format!("cannot ask for the free space of `{}`", parent.display()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = bytes.saturating_add(DISK_SLACK_BYTES);
    if free >= needed {
        return Ok(());
    }
    let message = format!(
        "the model needs {:.1} GB, `{}` has {:.1} GB free",
        gigabytes(needed),
        parent.display(),
        gigabytes(free)
    );
    Err(Fail::environment(message)
        .hint("free some space, or write to another disk with -o DIR")
        .into())
}

/// Converts to GB, for messages only.
fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

const STAMP: &str = "synth.json";

/// Hugging Face's default since 2023: shards of at most 5 GB.
const SHARD_BYTES_MAX: u64 = 5_000_000_000;

/// Space kept free beside the weights, for the small files and the file system's own. Chosen.
const DISK_SLACK_BYTES: u64 = 64 << 20;

const AFTER_HELP: &str = "\
The folder has what a download has: config.json with the published keys and sizes, bfloat16
weights in shards of at most 5 GB with an index (normal, standard deviation 0.02; norms 1), and a
small byte-level tokenizer. The ids of the begin and end tokens in config.json are that
tokenizer's. Writing needs under 50 MB of memory, whatever the model.

Examples:
  hegc synth --like llama-3.2-1b
  hegc synth --like qwen3-4b --seed 7 -o some/folder";

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::{Dtype, SafeTensors};

    fn tiny() -> Model {
        let config = json!({
            "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "head_dim": 32,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
            "vocab_size": 515, "tie_word_embeddings": true, "bos_token_id": 9,
        });
        Model {
            config,
            stores_tied_head: true,
        }
    }

    fn write_tiny(threads: usize, seed: u64) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("tiny");
        let job = Job {
            model: &tiny(),
            seed,
            threads: NonZeroUsize::new(threads).unwrap(),
            shard_bytes_max: 100_000,
        };
        write_model(&out, &job, &stamp("tiny", seed)).unwrap();
        (dir, out)
    }

    fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
        let mut all: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| {
                let name = e.file_name().into_string().unwrap();
                (name, fs::read(e.path()).unwrap())
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn safetensors_reads_back_what_was_written() {
        let (_keep, dir) = write_tiny(3, 1);
        let index = fs::read(dir.join("model.safetensors.index.json")).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        let mut bytes_total = 0;
        for (name, shard) in index["weight_map"].as_object().unwrap() {
            let bytes = fs::read(dir.join(shard.as_str().unwrap())).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let tensor = file.tensor(name).unwrap();
            assert_eq!(tensor.dtype(), Dtype::BF16);
            bytes_total += tensor.data().len();
            check_values(name, tensor.data());
        }
        assert_eq!(index["metadata"]["total_size"], bytes_total);
        // embeddings, head, final norm, and eleven tensors a layer
        assert_eq!(index["weight_map"].as_object().unwrap().len(), 3 + 3 * 11);
    }

    fn check_values(name: &str, data: &[u8]) {
        let values: Vec<f64> = data
            .chunks_exact(2)
            .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect();
        if name.contains("norm") {
            assert!(values.iter().all(|v| *v == 1.0), "{name}");
            return;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let deviation = (values.iter().map(|v| v * v).sum::<f64>() / n).sqrt();
        assert!(mean.abs() < 0.0015, "{name}: mean {mean}");
        assert!((deviation - 0.02).abs() < 0.001, "{name}: {deviation}");
    }

    #[test]
    fn bytes_depend_on_the_seed_and_not_on_the_threads() {
        let (_one, one) = write_tiny(1, 5);
        let (_four, four) = write_tiny(4, 5);
        let (_other, other) = write_tiny(4, 6);
        assert_eq!(files(&one), files(&four));
        assert_ne!(files(&one), files(&other));
    }

    #[test]
    fn a_stored_tied_head_equals_the_embedding() {
        let (_keep, dir) = write_tiny(2, 5);
        let mut found = Vec::new();
        for (name, bytes) in files(&dir) {
            if !name.ends_with(".safetensors") {
                continue;
            }
            let file = SafeTensors::deserialize(&bytes).unwrap();
            for wanted in ["lm_head.weight", "model.embed_tokens.weight"] {
                if let Ok(tensor) = file.tensor(wanted) {
                    found.push(tensor.data().to_vec());
                }
            }
        }
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], found[1]);
    }

    #[test]
    fn an_existing_folder_is_kept_or_refused() {
        let (_keep, dir) = write_tiny(1, 5);
        assert!(existing(&dir, &stamp("tiny", 5)).is_ok());
        let error = existing(&dir, &stamp("tiny", 6)).unwrap_err();
        assert_eq!(crate::fail::exit_status(&error), 2);
    }

    #[test]
    fn a_full_disk_is_an_error_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let error = check_disk(dir.path(), u64::MAX / 2).unwrap_err();
        assert_eq!(crate::fail::exit_status(&error), 4);
    }
}
