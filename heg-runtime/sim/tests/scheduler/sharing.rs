//! The use of the iGPU beside the NPU: rules of Agent.xpu one at a time; times in ms.

use heg_sched::{Call, Class, Lane, Mechanism};
use heg_spec::policy::AgeingStart;

use crate::script::{RoundCosts, Script};

/// Returns the number of chunks of a request that ran on a lane.
fn chunks(log: &str, lane: &str, id: u64) -> usize {
    let start = format!("{lane}: {id} [");
    let kernels = log.lines().filter(|line| line.contains(&start));
    kernels.filter(|line| line.ends_with("Ffn")).count()
}

/// Runs prompts of 1024 and 600 tokens; the second one comes while the first one's request decodes.
fn beside_decoding(class: Class, splits: bool) -> Script {
    let mut script =
        Script::new(|policy| policy.prefill.split_beside_proactive_ms = splits.then_some(1000));
    script.submit(1, class, 1024, 60, None);
    script.run_until(220);
    script.reactive(2, 1024, 1);
    script.run();
    script
}

#[test]
fn a_reactive_prompt_is_split_while_nobody_waits_for_what_decodes() {
    let split = |class, splits| chunks(&beside_decoding(class, splits).log, "Igpu", 2) > 0;
    assert!(split(Class::Proactive, true));
    assert!(!split(Class::Proactive, false));
    assert!(!split(Class::Reactive, true));
    let script = beside_decoding(Class::Proactive, true);
    assert!(script.activations(Mechanism::SplitBesideProactive) > 0);
    let first = |splits| {
        let log = beside_decoding(Class::Proactive, splits).log;
        said_at(&log, "a token for 2")
    };
    assert!(first(true) + 50.0 < first(false));
}

/// A proactive answer that has waited for too long counts as urgent again.
#[test]
fn it_is_not_split_while_an_overdue_request_decodes() {
    let mut script = Script::new(|policy| {
        policy.prefill.split_beside_proactive_ms = Some(0);
        policy.ageing.as_mut().unwrap().threshold_ms = 100;
    });
    script.proactive(1, 1024, 60);
    script.run_until(220);
    script.reactive(2, 1024, 1);
    script.run();
    assert_eq!(chunks(&script.log, "Igpu", 2), 0, "{}", script.log);
}

/// The short prompt has its token while the long one continues on the NPU; without the rule it waits, or preempts.
#[test]
fn a_short_reactive_prompt_has_the_igpu_beside_a_long_one() {
    let served = |aside: bool| {
        let mut script = Script::new(|policy| {
            policy.prefill.short_prompts_aside = aside;
            policy.prefill.short_prompts_first = None;
        });
        script.reactive(1, 2048, 1);
        script.run_until(100);
        script.reactive(2, 100, 1);
        script.run();
        script
    };
    let script = served(true);
    assert_eq!(script.tokens, [2, 1], "{}", script.log);
    assert!(chunks(&script.log, "Igpu", 2) == 2 && chunks(&script.log, "Npu", 2) == 0);
    assert!(script.activations(Mechanism::ShortPromptsAside) > 0);
    assert_eq!(served(false).tokens, [1, 2]);
}

/// Returns the time of the first log line with `what`, in ms.
fn said_at(log: &str, what: &str) -> f64 {
    let line = log.lines().find(|line| line.contains(what)).unwrap();
    time_of(line)
}

/// Returns the time of a log line, in ms.
fn time_of(line: &str) -> f64 {
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

/// The second long prompt has the iGPU as soon as it comes; without the rule it waits for the first one's token, or preempts.
#[test]
fn a_long_reactive_prompt_has_the_igpu_beside_another() {
    let served = |aside: Option<u32>| {
        let mut script = Script::new(|policy| {
            policy.prefill.long_prompts_aside_ms = aside;
            policy.prefill.short_prompts_first = None;
        });
        script.reactive(1, 2048, 1);
        script.run_until(100);
        script.reactive(2, 1024, 1);
        script.run();
        let begins = said_at(&script.log, ": 2 [");
        let acted = script.activations(Mechanism::LongPromptsAside) > 0;
        (
            begins < said_at(&script.log, "a token for 1"),
            acted,
            script,
        )
    };
    let (beside, acted, script) = served(Some(0));
    assert!(beside && acted, "{}", script.log);
    assert_eq!(chunks(&script.log, "Npu", 2), 0, "{}", script.log);
    let (beside, acted, _) = served(None);
    assert!(!beside && !acted);
}

/// Beside a reactive answer, the long prompt delays its next token by at most the time that the policy allows, plus a
/// kernel and an iteration; it does not begin if that time is zero.
#[test]
fn a_long_prompt_aside_keeps_answers_for_a_moment_only() {
    let longest_pause = |aside: Option<u32>| {
        let mut script = Script::new(|policy| policy.prefill.long_prompts_aside_ms = aside);
        script.reactive(3, 256, 100);
        script.run_until(100);
        script.reactive(1, 2048, 1);
        script.reactive(2, 2048, 1);
        script.run();
        let tokens = script
            .log
            .lines()
            .filter(|line| line.contains("a token for 3"));
        let times: Vec<f64> = tokens.map(time_of).collect();
        let pauses = times.windows(2).map(|two| two[1] - two[0]);
        pauses.fold(0.0, f64::max)
    };
    let never = longest_pause(None);
    assert_eq!(longest_pause(Some(0)), never);
    let (some, any) = (longest_pause(Some(60)), longest_pause(Some(100_000)));
    assert!(never < 60.0, "{never}");
    // Attention of two prompts goes before it now.
    let most = 60.0 + 20.0 + 2.0 * never;
    assert!((60.0..most).contains(&some), "{some} of {most}");
    assert!(any > 2.0 * some, "{some} {any}");
}

/// The second of two overdue background prompts has the iGPU beside a reactive one as soon as the first has its token
/// or, if its time counts from its turn on, 200 ms later.
#[test]
fn an_overdue_prompt_waits_from_its_turn_on() {
    let after_the_first = |from| {
        let mut script = Script::new(|policy| {
            let ageing = policy.ageing.as_mut().unwrap();
            (ageing.threshold_ms, ageing.prompts_from) = (200, from);
        });
        script.proactive(1, 1024, 1);
        script.proactive(2, 512, 1);
        script.run_until(50);
        script.reactive(3, 4000, 1);
        script.run();
        let first = said_at(&script.log, "a token for 1");
        let second = said_at(&script.log, "Igpu: 2 [");
        assert!(
            second < said_at(&script.log, "a token for 3"),
            "{}",
            script.log
        );
        (
            second - first,
            script.activations(Mechanism::AgeingFromTurn) > 0,
        )
    };
    let (at_once, acted) = after_the_first(AgeingStart::Arrival);
    assert!(at_once < 50.0 && !acted, "{at_once}");
    let (later, acted) = after_the_first(AgeingStart::Turn);
    assert!((200.0..250.0).contains(&later) && acted, "{later}");
}

/// Alone, the head on the NPU draws 40% and decoding 60%: together more than there is. A proactive prompt then has its
/// head on the iGPU, although the NPU would end it earlier.
#[test]
fn a_memory_bound_kernel_keeps_off_the_npu_beside_more_urgent_decoding() {
    let head = |most: Option<f64>| {
        let mut script = Script::new(|policy| {
            policy.prefill.joint_bandwidth_max = most;
            policy.decode.fused_layer = false;
        })
        .drawing(|lane, call| match (lane, call) {
            (Lane::Npu, Call::Head { .. }) => 0.4,
            (_, Call::Layer { .. }) => 0.6,
            _ => 0.1,
        });
        script.reactive(1, 256, 100);
        script.run_until(100);
        script.proactive(2, 512, 1);
        script.run();
        let acted = script.activations(Mechanism::BandwidthDeferral) > 0;
        (script.log.contains("Igpu: 2 head"), acted)
    };
    assert_eq!(head(Some(0.9)), (true, true));
    assert_eq!(head(Some(1.0)), (false, false));
    assert_eq!(head(None), (false, false));
}

/// The iGPU may work for at most a quarter of the time: after a launch of 7 ms it rests for 21 ms.
#[test]
fn the_igpu_rests_for_graphics() {
    let mut script = Script::new(|policy| {
        policy.limits.igpu_percent_max = Some(25);
        policy.decode.fused_layer = false;
    });
    script.reactive(1, 256, 5);
    script.run_until(200);
    let starts = |log: &str| -> Vec<f64> {
        let lines = log.lines().filter(|line| line.contains("Igpu: decode"));
        lines.map(time_of).collect()
    };
    script.run();
    let starts = starts(&script.log);
    assert!(starts.len() > 3);
    assert!(
        starts.windows(2).all(|two| two[1] - two[0] >= 28.0),
        "{starts:?}"
    );
    assert!(script.activations(Mechanism::IgpuShare) > 0);
    assert!(script.runs(Lane::Igpu).is_none());
}

/// NPU and iGPU draw 10 and 25 W: together too much for 30 W, so proactive prompts wait for a reactive answer, which
/// goes first.
#[test]
fn kernels_side_by_side_keep_to_the_power_budget() {
    let beside = |budget: Option<u32>| {
        let mut script = Script::new(|policy| policy.limits.power_watts_max = budget);
        script.reactive(1, 256, 10);
        script.run_until(75);
        script.proactive(2, 512, 1);
        let mut beside = 0;
        for _ in 0..200 {
            script.run_for(1);
            let both = [Lane::Npu, Lane::Igpu].map(|lane| script.runs(lane).is_some());
            beside += usize::from(both == [true, true]);
        }
        script.run();
        let waits = script.log.rfind("a token for 1") < script.log.find("Npu: 2 [");
        (
            beside > 0,
            waits,
            script.activations(Mechanism::PowerBudget) > 0,
        )
    };
    assert_eq!(beside(None), (true, false, false));
    assert_eq!(beside(Some(40)), (true, false, false));
    assert_eq!(beside(Some(30)), (false, true, true));
}

/// The quiet policy leaves room for the screen and the power supply, unlike `agent-xpu`.
#[test]
fn the_quiet_policy_bounds_igpu_and_power() {
    let acted = |name: &str| {
        let policy = heg_spec::shipped::policy(name).unwrap();
        let mut script = Script::under(policy, RoundCosts::plain([true, true, false]));
        script.reactive(1, 512, 5);
        script.proactive(2, 1024, 5);
        script.run();
        [Mechanism::IgpuShare, Mechanism::PowerBudget].map(|it| script.activations(it) > 0)
    };
    assert_eq!(acted("agent-xpu-quiet"), [true, true]);
    assert_eq!(acted("agent-xpu"), [false, false]);
}

/// Rules are evaluated both by steps and by queries for the reasons of waiting; only steps count.
#[test]
fn to_ask_what_requests_wait_for_is_no_activation() {
    let acted = |asks: bool| {
        let mut script = Script::new(|policy| policy.limits.igpu_percent_max = Some(25));
        script.reactive(1, 256, 5);
        let mut holds = 0;
        for _ in 0..100 {
            script.run_for(1);
            holds += if asks { script.ask() } else { 0 };
        }
        script.run();
        (
            Mechanism::ALL.map(|mechanism| script.activations(mechanism)),
            holds,
        )
    };
    let ((asked, holds), (alone, _)) = (acted(true), acted(false));
    assert!(holds > 0);
    assert_eq!(asked, alone);
}
