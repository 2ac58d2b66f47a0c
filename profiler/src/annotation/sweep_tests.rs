//! The choice of a chunk against its rule, and the sweep of a whole model.

use heg_spec::shipped;
use proptest::prelude::*;

use super::super::llama_3b;
use super::super::{annotate, of_data_sheet};
use super::*;

fn candidate(tokens: u32, token_us: f64, longest_us: f64) -> ChunkCost {
    ChunkCost {
        tokens,
        token_us,
        longest_us,
        kernels: Vec::new(),
    }
}

#[test]
fn the_smallest_within_the_tolerance_is_chosen() {
    let limits = SweepLimits::default();
    let mut candidates = vec![
        candidate(32, 106.0, 2e3),
        candidate(64, 104.9, 4e3),
        candidate(128, 100.0, 9e3),
        candidate(256, 80.0, 100_001.0),
    ];
    assert_eq!(choose(&candidates, &limits), Some(64));
    // At the bound, not beyond it.
    candidates[3].longest_us = 100_000.0;
    assert_eq!(choose(&candidates, &limits), Some(256));
    for candidate in &mut candidates {
        candidate.longest_us = 2e5;
    }
    assert_eq!(choose(&candidates, &limits), None);
    assert_eq!(choose(&[], &limits), None);
}

#[test]
fn the_sweep_of_the_3b_model_on_the_papers_machine() {
    let soc = shipped::soc("core-ultra-5-125h").unwrap();
    let vendor = llama_3b::vendor_tables(&[(3720, 1.0)]);
    let manifest = llama_3b::manifest();
    let limits = SweepLimits::default();
    let annotations = annotate(&manifest, &[soc], &vendor, limits).unwrap();
    let sweep = annotations.socs[0].sweep.as_ref().unwrap();
    let chunks: Vec<u32> = sweep.candidates().iter().map(|c| c.tokens).collect();
    assert_eq!(chunks, llama_3b::CHUNKS);
    let at_256 = &sweep.candidates()[3];
    assert!(at_256.kernels.iter().all(|k| k.device == DeviceClass::Npu));
    let ffn = &at_256.kernels[2];
    assert_eq!(
        (ffn.latency_us, ffn.source),
        (15_700.0, AnchorSource::Vendor)
    );
    let pass_us: f64 = at_256.kernels[..3].iter().map(|k| k.latency_us).sum();
    let expected = 28.0 * pass_us / 256.0 + at_256.kernels[3].latency_us / 2048.0;
    assert!((at_256.token_us - expected).abs() < 0.1, "{at_256:?}");
    // The head's smallest variant serves its one row whatever the chunk is.
    assert_eq!(at_256.kernels[3], sweep.candidates()[0].kernels[3]);
    assert_eq!(sweep.chosen(), choose(sweep.candidates(), &limits));
}

#[test]
fn a_model_without_speeds_has_no_sweep() {
    let soc = of_data_sheet(&shipped::soc("host-cpu").unwrap()).unwrap();
    assert_eq!(
        sweep(&llama_3b::manifest(), &soc, SweepLimits::default()),
        None
    );
}

#[test]
fn attention_goes_elsewhere_where_no_bucket_is_long_enough() {
    let soc = shipped::soc("core-ultra-5-125h").unwrap();
    let vendor = llama_3b::vendor_tables(&[(3720, 1.0)]);
    let limits = SweepLimits {
        context_tokens: 8000,
        ..SweepLimits::default()
    };
    let annotations = annotate(&llama_3b::manifest(), &[soc], &vendor, limits).unwrap();
    let sweep = annotations.socs[0].sweep.as_ref().unwrap();
    assert_eq!(sweep.candidates()[0].kernels[1].device, DeviceClass::Igpu);
    assert_eq!(sweep.candidates()[0].kernels[2].device, DeviceClass::Npu);
}

#[test]
fn what_a_sweep_cannot_be() {
    let limits = SweepLimits::default();
    let refused = |limits, candidates| ChunkSweep::new(limits, candidates).unwrap_err().to_string();
    let twice = vec![candidate(64, 1.0, 1.0), candidate(64, 1.0, 1.0)];
    assert_eq!(
        refused(limits, twice),
        "the chunk sweep's chunk is `64.0`, expected candidates in ascending order"
    );
    assert_eq!(
        refused(limits, vec![candidate(64, 0.0, 1.0)]),
        "the latency in µs is `0.0`, expected a finite number above 0"
    );
    let no_bound = SweepLimits {
        preemption_us: f64::INFINITY,
        ..limits
    };
    assert_eq!(
        refused(no_bound, Vec::new()),
        "the chunk sweep's preemption bound in µs is `inf`, expected a finite number above 0"
    );
    let no_tolerance = SweepLimits {
        tolerance: -0.1,
        ..limits
    };
    assert_eq!(
        refused(no_tolerance, Vec::new()),
        "the chunk sweep's tolerance is `-0.1`, expected a finite number from 0"
    );
}

fn candidates() -> impl Strategy<Value = Vec<ChunkCost>> {
    proptest::collection::btree_map(1..5000_u32, (1.0..200.0_f64, 1.0..2e5_f64), 0..9).prop_map(
        |by_tokens| {
            by_tokens
                .into_iter()
                .map(|(tokens, (token_us, longest_us))| candidate(tokens, token_us, longest_us))
                .collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_choice_is_what_the_rule_says(
        candidates in candidates(),
        tolerance in 0.0..0.5_f64,
        preemption_us in 1.0..2e5_f64,
    ) {
        let limits = SweepLimits { context_tokens: 1, preemption_us, tolerance };
        let allowed: Vec<&ChunkCost> =
            candidates.iter().filter(|c| c.longest_us <= preemption_us).collect();
        let Some(chosen) = choose(&candidates, &limits) else {
            prop_assert!(allowed.is_empty());
            return Ok(());
        };
        let is_good = |c: &ChunkCost| {
            allowed.iter().all(|other| c.token_us <= other.token_us * (1.0 + tolerance))
        };
        let found = allowed.iter().find(|c| c.tokens == chosen).expect("it can be preempted");
        prop_assert!(is_good(found));
        prop_assert!(allowed.iter().all(|c| c.tokens >= chosen || !is_good(c)));
    }

    #[test]
    fn a_sweep_is_read_as_it_was_written(candidates in candidates()) {
        let sweep = ChunkSweep::new(SweepLimits::default(), candidates).unwrap();
        let text = ron::to_string(&sweep).unwrap();
        prop_assert_eq!(ron::from_str::<ChunkSweep>(&text).unwrap(), sweep);
    }
}
