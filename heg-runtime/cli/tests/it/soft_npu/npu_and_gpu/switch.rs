//! A request that passes between an NPU and a GPU, over one KV cache.

use heg_sched::{Class, Lane};
use heg_tests::soft_npu::SoftNpu;

use super::super::server::Server;
use super::lanes::{AGENT_XPU, Lanes, Ran, WHOLE, ask, policy};
use super::npu_and_gpu_or_skip;

/// Kernels that an NPU is asked again while it rests: one of each group.
const KNOWN_ANSWERS: usize = 3;

/// Prompts are read on the NPU and answered on the GPU, and a conversation goes back: the NPU's kernels of its second
/// prompt read what both wrote. Once its room is there that asks nothing of the NPU but runs: it imports and allocates no
/// memory, since it knows that of the cache.
#[test]
fn a_conversation_passes_between_npu_and_gpu_over_one_cache() {
    if !npu_and_gpu_or_skip("a request that passes between a software NPU and a GPU") {
        return;
    }
    let first = "Remind me to call Ana at 5 pm. ".repeat(8);
    let second = "Will it rain in Oslo tomorrow? ".repeat(8);
    let lanes = Lanes::start(&policy(AGENT_XPU, &WHOLE), "*=100");
    let answer = lanes.ask(Class::Reactive, &[&first], 12);
    let before = lanes.log();
    let again = lanes.ask(Class::Reactive, &[&first, &answer, &second], 12);
    let reused = lanes.metric("heg_reused_tokens_total", "");
    let since = lanes.log();
    // Its room is taken before its first kernel, but the NPU may have rested in between and been asked its known answers.
    let earlier = before.count("run");
    let runs: Vec<u64> = since.of("run").map(|run| run.at_us).collect();
    let (first_run, last_run) = (runs[earlier + KNOWN_ANSWERS], runs[runs.len() - 1]);
    for word in ["allocate", "import"] {
        let mut calls = since.of(word).map(|call| call.at_us);
        assert!(!calls.any(|at| first_run <= at && at <= last_run), "{word}");
    }
    let run = lanes.end();
    let requests = run.requests(Class::Reactive);
    assert!(
        reused > f64::from(requests[0].prompt_tokens) - 1.0,
        "{reused}"
    );
    for request in requests {
        let on_npu = run.prompt(request.id).into_iter();
        let on_npu = on_npu.filter(|ran| ran.lane == Lane::Npu && Ran::is_token_wise(ran));
        assert!(on_npu.count() > 0, "{request:?}");
        let decoding = run.decoding_lanes(request.id);
        assert!(decoding.contains(&Lane::Igpu), "{decoding:?}");
    }
    assert!(run.log.count("run") > 0);
    // What a CPU says in f32.
    let world = SoftNpu::new();
    let cpu = Server::start(&world, "host-cpu-f32", &[], &[]);
    assert_eq!(answer, ask(&cpu, Class::Reactive, &[&first], 12));
    let messages = [first.as_str(), &answer, &second];
    assert_eq!(again, ask(&cpu, Class::Reactive, &messages, 12));
    cpu.end();
}
