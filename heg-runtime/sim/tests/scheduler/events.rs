//! Events other than the ends of kernels: after them the remaining requests finish.

use heg_sched::{Class, Event, Finish, Lane, Micros, RequestId, Ticket, Work};

use crate::script::Script;

/// Submits two requests, the second of which has to finish.
fn two(script: &mut Script) {
    script.proactive(1, 512, 4);
    script.proactive(2, 256, 2);
}

/// Runs to the end; checks that request 1 ended with `first`, and request 2 was answered.
fn assert_ends(mut script: Script, first: Finish) {
    script.run();
    script.finished.sort_unstable();
    assert_eq!(script.finished, [(1, first), (2, Finish::Complete)]);
    let answered = script.tokens.iter().filter(|id| **id == 2);
    assert_eq!(answered.count(), 2);
}

/// Times within the first request's life: waiting, in its prompt, in its head, decoding.
fn moments() -> impl Iterator<Item = u64> {
    [0, 3, 25, 63, 72, 75, 85].into_iter()
}

#[test]
fn a_cancelled_request_ends_in_any_phase() {
    for at in moments() {
        let mut script = Script::new(|_| {});
        two(&mut script);
        script.run_until(at);
        script.happen(Event::Cancel(RequestId(1)));
        assert_ends(script, Finish::Cancelled);
    }
}

#[test]
fn a_cancelled_request_that_waits_is_never_started() {
    let mut script = Script::new(|_| {});
    two(&mut script);
    script.happen(Event::Cancel(RequestId(2)));
    script.run();
    assert_eq!(
        script.finished,
        [(2, Finish::Cancelled), (1, Finish::Complete)]
    );
    assert!(!script.log.contains("2 ["));
}

#[test]
fn a_deadline_ends_a_request_in_any_phase() {
    for at in moments().filter(|at| *at > 0) {
        let mut script = Script::new(|_| {});
        let deadline = Some(Micros(at * 1000));
        script.submit(1, Class::Proactive, 512, 4, deadline);
        script.proactive(2, 256, 2);
        assert_ends(script, Finish::Deadline);
    }
}

#[test]
fn a_failed_kernel_is_run_again_on_the_other_device() {
    let mut script = Script::new(|_| {});
    two(&mut script);
    script.run_until(5);
    script.fail(Lane::Npu, Event::Failed);
    script.run_until(200);
    let ran = |lane: &str| {
        script
            .log
            .contains(&format!("{lane}: 1 [0..256] layer 0 Qkv"))
    };
    assert!(ran("Npu") && ran("Igpu"), "{}", script.log);
    assert_ends(script, Finish::Complete);
}

#[test]
fn a_request_whose_kernel_always_fails_ends() {
    let mut script = Script::new(|policy| policy.prefill.balance = false);
    two(&mut script);
    for _ in 0..3 {
        let first = |lane: &Lane| matches!(script.runs(*lane), Some(Work::Prefill { request, .. }) if request.0 == 1);
        let lane = Lane::ALL.into_iter().find(first).unwrap();
        script.fail(lane, Event::Failed);
    }
    assert_ends(script, Finish::Failed);
}

#[test]
fn a_hung_kernel_costs_a_reset() {
    for at in moments() {
        let mut script = Script::new(|_| {});
        two(&mut script);
        script.run_until(at);
        script.hang(Lane::Npu);
        // Longer than any request's patience.
        script.run_until(10_000);
        if script.log.contains("reset of Npu") {
            script.happen(Event::Ready(Lane::Npu));
        }
        assert_ends(script, Finish::Complete);
    }
}

#[test]
fn without_its_npu_the_igpu_does_everything() {
    for at in moments() {
        let mut script = Script::new(|_| {});
        two(&mut script);
        script.run_until(at);
        script.lose(Lane::Npu);
        assert_ends(script, Finish::Complete);
    }
}

#[test]
fn the_cpu_stands_in_for_a_lost_igpu() {
    for at in moments() {
        let mut script = Script::on([true; 3], |_| {});
        two(&mut script);
        script.run_until(at);
        script.lose(Lane::Igpu);
        assert_ends(script, Finish::Complete);
    }
}

#[test]
fn without_a_device_for_dynamic_kernels_requests_wait_until_it_is_back() {
    for at in moments() {
        let mut script = Script::new(|_| {});
        two(&mut script);
        script.run_until(at);
        script.lose(Lane::Igpu);
        script.run_until(at + 1900);
        script.happen(Event::Ready(Lane::Igpu));
        assert_ends(script, Finish::Complete);
    }
}

#[test]
fn where_it_does_not_come_back_all_end_and_new_requests_are_refused_until_it_does() {
    let mut script = Script::new(|_| {});
    two(&mut script);
    script.run_until(63);
    script.lose(Lane::Igpu);
    script.run();
    script.proactive(3, 100, 1);
    script.run();
    script.happen(Event::Ready(Lane::Igpu));
    script.proactive(4, 100, 1);
    script.run();
    script.finished.sort_unstable();
    let failed = |id| (id, Finish::Failed);
    assert_eq!(
        script.finished,
        [failed(1), failed(2), failed(3), (4, Finish::Complete)]
    );
}

#[test]
fn a_lane_that_does_not_answer_counts_as_lost_and_another_one_takes_over() {
    for at in moments() {
        let mut script = Script::on([true; 3], |_| {});
        two(&mut script);
        script.run_until(at);
        script.hang(Lane::Igpu);
        assert_ends(script, Finish::Complete);
    }
}

/// Submits three requests that decode together; returns the work on the lane that decodes.
fn three_decode(script: &mut Script) {
    for id in 1..=3 {
        script.proactive(id, 256, 40);
    }
    while !matches!(script.runs(Lane::Igpu), Some(Work::Decode(run)) if run.batch.len() == 3) {
        script.run_for(1);
    }
}

#[test]
fn whose_iterations_fail_is_found_whoever_it_is() {
    for bad in 1..=3 {
        let mut script = Script::new(|_| {});
        three_decode(&mut script);
        while script.finished.is_empty() {
            let of_it = |work: &Work| work.is_of(RequestId(bad));
            match script.runs(Lane::Igpu).is_some_and(of_it) {
                true => script.fail(Lane::Igpu, Event::Failed),
                false => script.run_for(1),
            }
        }
        assert_eq!(script.finished, [(bad, Finish::Failed)]);
        script.run();
        let others = (1..=3)
            .filter(|id| *id != bad)
            .map(|id| (id, Finish::Complete));
        script.finished[1..].sort_unstable();
        assert_eq!(script.finished[1..], others.collect::<Vec<_>>());
        for id in (1..=3).filter(|id| *id != bad) {
            let tokens = script.tokens.iter().filter(|token| **token == id);
            assert_eq!(tokens.count(), 40);
        }
    }
}

#[test]
fn an_iteration_does_not_go_on_in_the_activations_of_another_lane() {
    let mut script = Script::on([true; 3], |_| {});
    script.proactive(1, 256, 8);
    script.run_until(84);
    // It yields to the attention of a prompt after its first layer, and then its lane is lost.
    script.reactive(2, 256, 1);
    script.run_until(97);
    let yields = "decoding yields at its next layer";
    assert!(script.log.contains(yields), "{}", script.log);
    assert!(matches!(
        script.runs(Lane::Igpu),
        Some(Work::Prefill { .. })
    ));
    script.lose(Lane::Igpu);
    script.run();
    let mut lines = script.log.lines();
    let next = lines.find(|line| line.contains("Cpu: decode [1]"));
    assert!(
        next.is_some_and(|line| line.ends_with("layers 0..2")),
        "{next:?}"
    );
}

#[test]
fn memory_that_cannot_be_had_is_asked_for_again_when_others_give_theirs_back() {
    let mut script = Script::new(|_| {});
    script.proactive(1, 256, 4);
    script.run_until(5);
    script.reactive(2, 256, 2);
    script.refuse(2);
    assert_eq!(script.restarted, [2]);
    assert_eq!(script.finished, []);
    script.run();
    let complete = |id| (id, Finish::Complete);
    assert_eq!(script.finished, [complete(1), complete(2)]);
}

#[test]
fn memory_that_can_never_be_had_ends_its_request_alone() {
    let mut script = Script::new(|_| {});
    script.reactive(2, 256, 2);
    for _ in 0..3 {
        script.refuse(2);
    }
    script.proactive(1, 256, 4);
    script.run();
    assert_eq!(
        script.finished,
        [(2, Finish::Failed), (1, Finish::Complete)]
    );
}

#[test]
fn out_of_memory_restarts_a_preempted_request_and_spares_the_reactive_one() {
    let mut script = Script::new(|_| {});
    script.proactive(1, 512, 4);
    script.run_until(25);
    script.reactive(2, 256, 2);
    script.run_until(40);
    script.fail(Lane::Npu, Event::OutOfMemory);
    script.run();
    assert_eq!(script.restarted, [1]);
    assert_eq!(
        script.finished,
        [(2, Finish::Complete), (1, Finish::Complete)]
    );
}

#[test]
fn beyond_the_limit_the_youngest_waiting_proactive_request_is_shed() {
    let mut script = Script::new(|policy| policy.limits.requests_max = 3);
    script.proactive(1, 256, 1);
    script.proactive(2, 256, 1);
    script.proactive(3, 256, 1);
    script.reactive(4, 256, 1);
    assert_eq!(script.finished, [(3, Finish::Shed)]);
    script.run();
    assert_eq!(script.tokens, [4, 1, 2]);
}

#[test]
fn what_can_never_fit_is_shed_at_once() {
    let mut script = Script::new(|policy| policy.limits.kv_mib = 1);
    two(&mut script);
    script.proactive(3, 1000, 100);
    script.proactive(4, 5000, 1);
    script.proactive(5, 0, 1);
    let shed = |id| (id, Finish::Shed);
    assert_eq!(script.finished, [shed(3), shed(4), shed(5)]);
    script.finished.clear();
    assert_ends(script, Finish::Complete);
}

#[test]
fn what_means_nothing_changes_nothing() {
    let mut script = Script::new(|_| {});
    two(&mut script);
    script.run_until(3);
    let before = script.log.clone();
    for event in [
        Event::Cancel(RequestId(9)),
        Event::Failed(Ticket(99)),
        Event::OutOfMemory(Ticket(99)),
        Event::Done {
            ticket: Ticket(99),
            layers: 2,
            ended: vec![RequestId(1)],
            given: Vec::new(),
        },
        Event::Lost(Lane::Cpu),
        // One request is over, the other has no memory yet.
        Event::Unreserved(RequestId(9)),
        Event::Unreserved(RequestId(2)),
        Event::Timer,
    ] {
        script.happen(event);
    }
    let said: Vec<&str> = script.log[before.len()..].lines().collect();
    assert_eq!(said.len(), 8, "{said:?}");
    assert!(script.restarted.is_empty());
    assert_ends(script, Finish::Complete);
}
