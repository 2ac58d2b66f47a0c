//! The host's costs of a GPU's lane, as the layer and the system count it: submissions, bytes, anonymous memory, and time of
//! the thread that launches. Run it alone, with `--nocapture`, for the times; counts are checked.
//!
//! A device in software computes on threads of its own, so the time that the launching thread was on a processor is the
//! host's part.

use std::fs;
use std::time::{Duration, Instant};

use heg_gpu::{GpuDevice, GpuOptions};
use heg_runtime::Loaded;
use heg_runtime::exec::{Executor, ExecutorOptions};
use heg_sched::Logits;
use heg_spec::shipped;
use heg_vk_faults::{Installed, VkCounts, VkPlan};

use super::{Seen, layered, plan};
use crate::world::{GPU_ALONE, gpu_bundle};

/// Tokens that are decoded.
const TOKENS: u32 = 100;

/// The time that this thread was on a processor.
fn thread_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = text.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(nanoseconds)
}

/// Anonymous memory of this process, in kibibytes.
fn anonymous_kib() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.unwrap().trim().parse().unwrap()
}

fn executor() -> Executor {
    let loaded = Loaded::open(gpu_bundle()).unwrap();
    let loader = loaded.loader(&shipped::soc(GPU_ALONE).unwrap()).unwrap();
    let options = ExecutorOptions {
        chunk_tokens: 32,
        batch: 8,
        ..ExecutorOptions::default()
    };
    Executor::new(loader, options).unwrap()
}

/// The times of a decode step on the launching thread and on the clock, and what the device was asked for all in all.
struct Decoded {
    thread: Duration,
    clock: Duration,
    counts: VkCounts,
}

/// Decodes tokens behind a short prompt, after as many to get going.
fn decoded(layer: &Installed, tokens: u32) -> Decoded {
    plan(layer, &VkPlan::default());
    let mut executor = executor();
    let mut sequence = executor.sequence().unwrap();
    let prompt: Vec<u32> = (5..25).collect();
    executor
        .prefill(&mut sequence, &prompt, Logits::LastRows)
        .unwrap();
    let mut step = |count: u32| {
        let (thread, clock) = (thread_time(), Instant::now());
        for token in 0..count {
            let logits = executor.decode(&mut [&mut sequence], &[7 + token % 500]);
            logits.unwrap();
        }
        (thread_time() - thread, clock.elapsed())
    };
    step(TOKENS);
    let (thread, clock) = step(tokens);
    // A cache is memory of the device, too.
    drop(sequence);
    drop(executor);
    let seen = Seen::at_end(layer);
    seen.left_nothing("decoding");
    Decoded {
        thread: thread / tokens.max(1),
        clock: clock / tokens.max(1),
        counts: seen.ends[0],
    }
}

#[test]
fn what_a_lane_costs_the_host() {
    let test = "vulkan::figures::what_a_lane_costs_the_host";
    layered(test, Duration::from_secs(120), |layer| {
        let bundle_bytes = fs::metadata(gpu_bundle()).unwrap().len();
        let before = anonymous_kib();
        let start = Instant::now();
        GpuDevice::find(&GpuOptions::from_environment()).unwrap();
        let (driver, with_driver) = (start.elapsed(), anonymous_kib());
        let start = Instant::now();
        let device = GpuDevice::open(&GpuOptions::from_environment()).unwrap();
        let (opened, with_device) = (start.elapsed(), anonymous_kib());
        println!("pipelines of the probe: {}", device.pipeline_count());
        drop(device);
        let start = Instant::now();
        let mut ready = executor();
        ready.wait_ready().unwrap();
        let (ready_in, with_model) = (start.elapsed(), anonymous_kib());
        let layers = ready.manifest().layers.len() as u32;
        drop(ready);
        let few = decoded(layer, 0).counts;
        let Decoded {
            thread,
            clock,
            counts,
        } = decoded(layer, TOKENS);
        let launches = 3 * layers + 1;
        let submissions = counts.submissions - few.submissions;
        println!("driver loaded in {driver:?}, device opened and probed in {opened:?}");
        println!("kernels ready, with known answers, in {ready_in:?}");
        println!("anonymous KiB: {before}, {with_driver}, {with_device}, {with_model}");
        println!(
            "a token: {clock:?}, of the host {thread:?}: {:?} a launch, {:?} a layer",
            thread / launches,
            thread / layers
        );
        println!("{submissions} submissions for {TOKENS} tokens; {counts:?}");
        println!("the bundle has {bundle_bytes} bytes");
        // A step is one submission where its launches fit into two milliseconds, and at worst, on a slow machine, one for each
        // launch. Twice as many steps as tokens were run, and a prompt and known answers are less than twenty more.
        let most = u64::from((2 * TOKENS + 20) * (launches + 1));
        assert!(counts.submissions <= most, "{counts:?}");
        // Weights lie where they are; what a lane has of its own is a part of them.
        assert!(counts.imported_bytes >= bundle_bytes, "{counts:?}");
        assert!(counts.allocated_bytes < 64 << 20, "{counts:?}");
    });
}
