//! Safetensors files of a model: the assignment of tensors to shards (as in `save_pretrained`: in order, with a new
//! shard when the next tensor would not fit), their headers, and the writing of all parts by a few threads that share
//! nothing but a counter. Memory use is one part per thread.

use super::layout::Tensor;
use super::random::{LANES, Normal, stream_key};
use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The plan of all files of a model, before anything is written.
pub(super) struct Plan {
    shards: Vec<Shard>,
}

struct Shard {
    name: String,
    header: Vec<u8>,
    tensors: Vec<Placed>,
    file_bytes: u64,
}

/// A tensor and the position of its bytes in its file.
struct Placed {
    tensor: Tensor,
    offset: u64,
    bytes: u64,
}

impl Plan {
    pub(super) fn total_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.file_bytes).sum()
    }

    /// Hugging Face's `total_size`: the tensors without the headers.
    fn tensor_bytes(&self) -> u64 {
        let placed = self.shards.iter().flat_map(|s| &s.tensors);
        placed.map(|p| p.bytes).sum()
    }
}

pub(super) fn plan(tensors: Vec<Tensor>, shard_bytes_max: u64) -> Result<Plan> {
    let mut groups: Vec<Vec<(Tensor, u64)>> = vec![Vec::new()];
    let mut filled = 0_u64;
    for tensor in tensors {
        let bytes = tensor_bytes(&tensor)?;
        filled = filled.saturating_add(bytes);
        match groups.last_mut() {
            Some(group) if group.is_empty() || filled <= shard_bytes_max => {
                group.push((tensor, bytes));
            }
            _ => {
                groups.push(vec![(tensor, bytes)]);
                filled = bytes;
            }
        }
    }
    let count = groups.len();
    let shards = groups
        .into_iter()
        .enumerate()
        .map(|(index, group)| place(shard_name(index, count), group));
    Ok(Plan {
        shards: shards.collect::<Result<_>>()?,
    })
}

/// Writes all shards, and the index if there is more than one.
pub(super) fn write(dir: &Path, plan: &Plan, seed: u64, threads: NonZeroUsize) -> Result<()> {
    let mut files = Vec::new();
    for shard in &plan.shards {
        let path = dir.join(&shard.name);
        let what = || format!("cannot write `{}`", path.display());
        let file = File::create_new(&path).with_context(what)?;
        file.set_len(shard.file_bytes).with_context(what)?;
        file.write_all_at(&shard.header, 0).with_context(what)?;
        files.push(file);
    }
    let bar = ProgressBar::new(plan.tensor_bytes()).with_message("writing weights");
    bar.set_style(ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    )?);
    let work = Work {
        parts: parts(plan),
        files: &files,
        plan,
        next: AtomicUsize::new(0),
        normal: Normal::new(DEVIATION)?,
        seed,
        bar: &bar,
    };
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.get())
            .map(|_| scope.spawn(|| work.run()))
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|end| end.unwrap_or_else(|_| Err(anyhow!("a writing thread panicked"))))
            .collect()
    });
    bar.finish_and_clear();
    outcomes.into_iter().collect::<Result<Vec<()>>>()?;
    match plan.shards.len() {
        1 => Ok(()),
        _ => super::write_json(dir, "model.safetensors.index.json", &index(plan)),
    }
}

/// State that the threads share.
struct Work<'a> {
    parts: Vec<Part>,
    files: &'a [File],
    plan: &'a Plan,
    next: AtomicUsize,
    normal: Normal,
    seed: u64,
    bar: &'a ProgressBar,
}

/// A piece of one tensor, small enough for a thread's buffer.
struct Part {
    shard: usize,
    tensor: usize,
    first: u64,
    bytes: usize,
}

impl Work<'_> {
    fn run(&self) -> Result<()> {
        let mut buffer = vec![0; PART_BYTES];
        while let Some(part) = self.parts.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let shard = &self.plan.shards[part.shard];
            let placed = &shard.tensors[part.tensor];
            let out = &mut buffer[..part.bytes];
            let key = stream_key(self.seed, &placed.tensor.stream);
            self.normal.fill(placed.tensor.fill, key, part.first, out);
            let at = placed.offset + part.first * ELEMENT_BYTES;
            let written = self.files[part.shard].write_all_at(out, at);
            if let Err(error) = written {
                // The other threads find no more work; the caller removes the folder.
                self.next.store(self.parts.len(), Ordering::Relaxed);
                return Err(error).with_context(|| format!("cannot write `{}`", shard.name));
            }
            self.bar.inc(part.bytes as u64);
        }
        Ok(())
    }
}

fn parts(plan: &Plan) -> Vec<Part> {
    let mut all = Vec::new();
    for (shard, tensors) in plan.shards.iter().map(|s| &s.tensors).enumerate() {
        for (tensor, placed) in tensors.iter().enumerate() {
            let mut done = 0;
            while done < placed.bytes {
                let bytes = (placed.bytes - done).min(PART_BYTES as u64);
                all.push(Part {
                    shard,
                    tensor,
                    first: done / ELEMENT_BYTES,
                    bytes: bytes as usize,
                });
                done += bytes;
            }
        }
    }
    all
}

/// The header and offsets of one file, with tensors sorted by name, as the safetensors library writes them.
fn place(name: String, mut group: Vec<(Tensor, u64)>) -> Result<Shard> {
    group.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    let mut entries = Map::new();
    entries.insert("__metadata__".to_string(), json!({ "format": "pt" }));
    let mut end = 0_u64;
    let mut starts = Vec::new();
    for (tensor, bytes) in &group {
        let start = end;
        end = end.checked_add(*bytes).context("absurd sizes")?;
        let entry = json!({ "dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end] });
        entries.insert(tensor.name.clone(), entry);
        starts.push(start);
    }
    let mut text = serde_json::to_vec(&Value::Object(entries)).context("cannot write a header")?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    let data = header.len() as u64;
    let tensors = group.into_iter().zip(starts);
    Ok(Shard {
        name,
        file_bytes: end.checked_add(data).context("absurd sizes")?,
        tensors: tensors
            .map(|((tensor, bytes), start)| Placed {
                tensor,
                offset: data + start,
                bytes,
            })
            .collect(),
        header,
    })
}

fn index(plan: &Plan) -> Value {
    let mut map = Map::new();
    for shard in &plan.shards {
        for placed in &shard.tensors {
            map.insert(placed.tensor.name.clone(), json!(shard.name));
        }
    }
    json!({ "metadata": { "total_size": plan.tensor_bytes() }, "weight_map": map })
}

fn shard_name(index: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".to_string(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    }
}

fn tensor_bytes(tensor: &Tensor) -> Result<u64> {
    let numbers = tensor.shape.iter().chain([&ELEMENT_BYTES]);
    numbers
        .copied()
        .try_fold(1_u64, u64::checked_mul)
        .with_context(|| format!("`{}` has an absurd shape", tensor.name))
}

/// Size of a bfloat16.
const ELEMENT_BYTES: u64 = 2;

/// Standard deviation of the weights: the usual `initializer_range`.
const DEVIATION: f64 = 0.02;

/// Bytes of one part: a thread's whole memory, and a write long enough to be efficient. Chosen.
const PART_BYTES: usize = 2 << 20;

/// Parts start at positions where the random counter can.
const _: () = assert!((PART_BYTES as u64).is_multiple_of(LANES * ELEMENT_BYTES));
