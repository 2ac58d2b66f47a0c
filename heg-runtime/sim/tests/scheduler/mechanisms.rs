//! The paper's mechanisms one at a time, as a log of the scheduler's actions; times in ms.

use heg_sched::{Class, ClientId, Event, FlowId, Mechanism, PromptLogits, RequestId, Submission};

use crate::script::{RoundCosts, Script};

/// v2 4.4: a reactive request gets the NPU as soon as the running kernel is done, and the proactive prompt later
/// continues where it was.
#[test]
fn a_reactive_request_preempts_a_proactive_prefill_at_a_kernel_boundary() {
    let mut script = Script::new(|_| {});
    script.proactive(1, 512, 1);
    script.run_until(25);
    script.reactive(2, 256, 1);
    script.run();
    assert!(script.restarted.is_empty());
    assert_eq!(script.tokens, [2, 1]);
    insta::assert_snapshot!(script.log);
}

/// v2 4.3, Algorithm 1: with nothing to decode, chunks are shared so that both devices end together; while a request
/// decodes the NPU has all of them, and the remainder waits for the iGPU so as not to end earlier.
#[test]
fn chunks_are_split_only_while_nothing_decodes() {
    let mut script = Script::new(|_| {});
    script.reactive(1, 1024, 8);
    script.run_until(160);
    script.reactive(2, 600, 1);
    script.run();
    insta::assert_snapshot!(script.log);
}

/// v2 4.5, Algorithm 2: beside a reactive request a batch has three; the longest of the proactive ones is left out.
#[test]
fn the_longest_proactive_sequence_leaves_the_batch_to_a_reactive_one() {
    let mut script = Script::new(|policy| policy.prefill.elastic = false);
    script.proactive(1, 200, 8);
    script.proactive(2, 100, 8);
    script.proactive(3, 50, 8);
    script.run_until(215);
    script.reactive(4, 20, 3);
    script.run();
    let with_reactive: Vec<&str> = script
        .log
        .lines()
        .filter(|line| line.contains("decode [4"))
        .collect();
    assert!(!with_reactive.is_empty());
    assert!(
        with_reactive
            .iter()
            .all(|line| line.contains("decode [4, 3, 2]"))
    );
    insta::assert_snapshot!(script.log);
}

/// v2 4.5: a proactive request that has waited for too long gets the iGPU, and the reactive one keeps the NPU.
#[test]
fn an_overdue_prompt_has_the_igpu_beside_a_reactive_one() {
    let mut script = Script::new(|policy| policy.ageing.as_mut().unwrap().threshold_ms = 50);
    script.reactive(1, 512, 1);
    script.proactive(2, 256, 1);
    script.run();
    insta::assert_snapshot!(script.log);
}

/// On a single device that has all kernels, a proactive prompt has its share of the time beside reactive decoding, and
/// no more when it is overdue: a kernel of 10 ms after 40 ms of decoding, which are six iterations.
#[test]
fn a_proactive_prompt_has_its_share_where_one_device_has_all_kernels() {
    let mut script = Script::on([false, true, false], |policy| {
        policy.decode.proactive_share = Some(0.2);
        policy.ageing.as_mut().unwrap().threshold_ms = 50;
    });
    script.reactive(1, 256, 60);
    script.run_until(70);
    script.proactive(2, 256, 1);
    script.run();
    let between = tokens_between_kernels(&script.log);
    // `qkv`, `mha` and `ffn` of two layers; the first token is that of the prompt, and a token after a kernel waits for
    // the next kernel.
    assert_eq!(between[1..6], [3, 12, 6, 3, 12], "{}", script.log);
    let acted = [Mechanism::ProactiveShare, Mechanism::ReactiveFirst];
    assert!(
        acted
            .map(|it| script.activations(it))
            .iter()
            .all(|steps| *steps > 0)
    );
}

/// On a single device that has all kernels, an answer that has just begun goes before a long reactive prompt: here one
/// of 112 ms, so until the answer has eight tokens, which take 7 ms each.
#[test]
fn a_young_answer_goes_before_a_long_reactive_prompt_where_one_device_has_all_kernels() {
    let mut script = Script::on([false, true, false], |policy| {
        policy.decode.young_answers_first = Some(2.0);
    });
    script.reactive(1, 256, 20);
    script.run_until(70);
    script.reactive(2, 512, 1);
    script.run();
    let before = tokens_between_kernels(&script.log);
    assert_eq!(before[0], 8, "{}", script.log);
    assert!(script.activations(Mechanism::YoungAnswersFirst) > 0);
    // Once it has begun, the prompt goes first to its end.
    assert_eq!(before[1..before.len() - 1].iter().sum::<usize>(), 0);
}

/// An answer with few tokens left goes first too: here ten, since one and a half times their 70 ms are less than the
/// prompt's 112 ms.
#[test]
fn an_answer_that_soon_ends_goes_before_a_long_reactive_prompt_where_one_device_has_all_kernels() {
    let tokens_before = |answer_tokens| {
        let mut script = Script::on([false, true, false], |policy| {
            policy.decode.ending_answers_first = Some(1.5);
        });
        script.reactive(1, 256, answer_tokens);
        script.run_until(70);
        script.reactive(2, 512, 1);
        script.run();
        let acted = script.activations(Mechanism::EndingAnswersFirst) > 0;
        (tokens_between_kernels(&script.log)[0], acted)
    };
    // The prompt comes after the answer's first token.
    assert_eq!(tokens_before(11), (11, true));
    assert_eq!(tokens_before(12), (1, false));
}

/// A reactive prompt of two chunks arrives while one of eight is under way; it has its token before the long one, which
/// then continues where it was.
#[test]
fn a_short_reactive_prompt_overtakes_a_long_one_under_way() {
    let mut script = Script::on([false, true, false], |policy| {
        policy.prefill.short_prompts_first = Some(4.0);
    });
    script.reactive(1, 2048, 1);
    script.run_until(100);
    script.reactive(2, 512, 1);
    // Even shorter, but only one prompt is preempted at a time.
    script.run_until(110);
    script.reactive(3, 256, 1);
    script.run();
    assert!(script.restarted.is_empty());
    let tokens = script
        .log
        .lines()
        .filter(|line| line.contains("a token for"));
    let order: Vec<&str> = tokens
        .filter_map(|line| line.split("for ").nth(1))
        .collect();
    assert_eq!(order, ["2", "3", "1"], "{}", script.log);
}

/// The second call of a flow has hardly anything left to compute, however long its prompt is.
#[test]
fn a_long_prompt_that_its_flow_has_is_short() {
    let mut script = Script::on([false, true, false], |policy| {
        policy.prefill.short_prompts_first = Some(4.0);
    });
    let call = |id, prompt_tokens, shared_tokens| {
        Event::Submit(Submission {
            id: RequestId(id),
            client: ClientId::default(),
            flow: Some(FlowId(1)),
            class: Class::Reactive,
            prompt_tokens,
            shared_tokens,
            kept_tokens: 0,
            output_tokens_max: 1,
            deadline: None,
            prompt_logits: PromptLogits::LastRow,
        })
    };
    script.happen(call(1, 2048, 0));
    script.run();
    script.reactive(2, 1024, 1);
    script.happen(call(3, 2248, 2048));
    script.run();
    assert_eq!(script.tokens, [1, 3, 2], "{}", script.log);
}

/// A prompt is no longer overtaken once it has waited for a certain multiple of its remaining time.
#[test]
fn a_reactive_prompt_is_overtaken_for_a_part_of_its_length_only() {
    let overtaken = |times: f64| {
        let mut script = Script::on([false, true, false], |policy| {
            policy.prefill.short_prompts_first = Some(times);
        });
        script.reactive(1, 2048, 1);
        script.run_until(100);
        script.reactive(2, 256, 1);
        script.run();
        let first = |id: &str| script.log.find(&format!("a token for {id}\n")).unwrap();
        first("2") < first("1")
    };
    // The long prompt, which arrived 100 ms before one of 69 ms, has 430 ms left.
    assert!(!overtaken(0.25));
    assert!(overtaken(0.5));
}

/// On a single device that has all kernels, proactive answers decode beside a reactive one as far as costs allow: an
/// iteration of one row takes 7 ms here, and each further row 1 ms.
#[test]
fn proactive_answers_join_a_reactive_one_while_costs_bear_it() {
    let batches = |times: Option<f64>, overdue_ms: u32| {
        let costs = RoundCosts {
            lanes: [false, true, false],
            row_ms: 0.5,
            verifies: false,
            draws: |_, _| 0.1,
        };
        let mut script = Script::with(costs, |policy| {
            policy.decode.reactive_batch_max = Some(8);
            policy.decode.reactive_slowdown_max = times;
            policy.ageing.as_mut().unwrap().threshold_ms = overdue_ms;
        });
        script.proactive(1, 200, 40);
        script.proactive(2, 100, 40);
        script.proactive(3, 50, 40);
        script.run_until(230);
        script.reactive(4, 20, 3);
        script.run();
        let with_reactive = script.log.lines().filter_map(|line| {
            let (_, batch) = line.split_once("decode [4")?;
            batch.split_once(']').map(|(others, _)| others.to_owned())
        });
        let mut batches: Vec<String> = with_reactive.collect();
        batches.dedup();
        let acted = script.activations(Mechanism::ReactiveSlowdown) > 0;
        assert_eq!(acted, batches != [", 3, 2, 1"]);
        batches
    };
    assert_eq!(batches(None, 30_000), [", 3, 2, 1"]);
    assert_eq!(batches(Some(1.3), 30_000), [", 3, 2"]);
    assert_eq!(batches(Some(1.0), 30_000), [""]);
    // All of them have waited enough.
    assert_eq!(batches(Some(1.0), 1), [", 3, 2, 1"]);
}

/// A proactive prompt has kernels that do not delay a person for long, a reactive one those with the least total time.
#[test]
fn proactive_prompts_are_cut_into_chunks_of_their_own() {
    let mut script = Script::on([false, true, false], |policy| {
        policy.prefill.proactive_chunk_tokens = Some(100);
    });
    script.proactive(1, 256, 1);
    script.run();
    script.reactive(2, 300, 1);
    script.run();
    let cut = |id: u64, segment: &str| script.log.contains(&format!("{id} [{segment}]"));
    assert!(
        ["0..100", "100..200", "200..256"]
            .iter()
            .all(|part| cut(1, part))
    );
    assert!(["0..256", "256..300"].iter().all(|part| cut(2, part)));
}

/// A layer of decoding takes 3 ms and 1 ms for each further row, one of a verification 3 ms: the NPU takes a draft of
/// seven tokens when the others fill the iteration, one request at a time, and gives way to a prompt.
#[test]
fn the_npu_verifies_a_draft_while_others_decode() {
    let launches = |policy: &str| {
        let costs = RoundCosts {
            lanes: [true, true, false],
            row_ms: 1.0,
            verifies: true,
            draws: |_, _| 0.1,
        };
        let mut script = Script::under(heg_spec::shipped::policy(policy).unwrap(), costs);
        script.draft = vec![900, 800, 700, 600, 500, 400, 300];
        for id in 1..=3 {
            script.proactive(id, 40, 80);
        }
        script.run_for(400);
        script.reactive(4, 512, 1);
        script.run();
        let verified = script
            .log
            .lines()
            .filter(|line| line.contains("Npu: decode"));
        let verified: Vec<String> = verified.map(str::to_owned).collect();
        (verified, script)
    };
    let (none, _) = launches("agent-xpu");
    assert_eq!(none, [""; 0]);
    let (verified, script) = launches("sd-npu");
    assert!(script.activations(Mechanism::SecondLane) > 0);
    assert!(verified.len() > 3, "{}", script.log);
    let one = |line: &String| {
        line.split_once("decode [")
            .unwrap()
            .1
            .split_once(']')
            .unwrap()
            .0
            .len()
            == 1
    };
    assert!(verified.iter().all(one), "{verified:?}");
    // The prompt comes between two layers, and the verification continues where it was.
    assert!(script.log.contains("layers 1..2"), "{}", script.log);
    assert_eq!(script.tokens.len(), 3 * 80 + 1);
    assert!(script.restarted.is_empty());
}

/// If the NPU took longer than it gains, or a person would wait longer, it does not decode.
#[test]
fn the_npu_verifies_only_where_that_pays() {
    let verifications = |row_ms: f64, draft: &[u16]| {
        let costs = RoundCosts {
            lanes: [true, true, false],
            row_ms,
            verifies: true,
            draws: |_, _| 0.1,
        };
        let mut script = Script::with(costs, |policy| policy.decode.second_lane = true);
        script.draft = draft.to_vec();
        script.proactive(1, 40, 20);
        script.proactive(2, 40, 20);
        script.run();
        script.log.matches("Npu: decode").count()
    };
    assert!(verifications(1.0, &[900, 800, 700]) > 0);
    // Rows cost the iGPU nothing, so both together gain nothing.
    assert_eq!(verifications(0.0, &[900, 800, 700]), 0);
    assert_eq!(verifications(1.0, &[]), 0);
}

/// Returns the number of tokens for request 1 before, between and after the kernels of the first segment of request 2.
fn tokens_between_kernels(log: &str) -> Vec<usize> {
    log.split("2 [0..256]")
        .map(|part| part.matches("a token for 1\n").count())
        .collect()
}
