//! Ablations: the first policy with each of its mechanisms off in turn.

use super::Subject;
use super::grid::Case;
use heg_spec::Policy;
use heg_spec::policy::NpuAttention;

/// A mechanism: its name, and how it is turned off.
type Mechanism = (&'static str, fn(&mut Policy));

/// Mechanisms in the order of the paper's sections.
const MECHANISMS: [Mechanism; 11] = [
    ("kernel-level preemption (4.4)", |p| {
        p.prefill.preempt = false
    }),
    ("elastic split of reactive prefills (4.3)", |p| {
        p.prefill.elastic = false
    }),
    ("load balancing of proactive prefills (v1 6.5)", |p| {
        p.prefill.balance = false
    }),
    ("deferral of the remainder (4.3)", |p| {
        p.prefill.defer_remainder = false
    }),
    ("NPU attention on the fly (4.3)", |p| {
        p.prefill.attention = NpuAttention::Off
    }),
    ("deferral of memory-bound kernels (4.3)", |p| {
        p.prefill.defer_memory_bound = None
    }),
    ("reactive-first batches (4.5)", |p| {
        p.decode.reactive_batch_max = None
    }),
    ("eviction of the longest (4.5)", |p| {
        p.decode.evict_longest = false
    }),
    ("prefill first on the iGPU (4.3)", |p| {
        p.decode.prefill_first = false
    }),
    ("fused decode layer (4.2)", |p| p.decode.fused_layer = false),
    ("ageing (4.5)", |p| p.ageing = None),
];

/// Rates of the ablations: reactive and proactive requests a minute, both of the mixed regime.
pub(crate) const RATES: [(f64, f64); 2] = [(3.0, 6.0), (5.0, 10.0)];

/// The first policy without one mechanism after the other, on every model.
pub(crate) fn cases(subject: &Subject) -> Vec<Case> {
    let Some(whole) = subject.policies.first() else {
        return Vec::new();
    };
    let variants = MECHANISMS.iter().filter_map(|(name, turn_off)| {
        let mut policy = whole.clone();
        turn_off(&mut policy);
        // Some policies have it off to begin with.
        (policy != *whole).then_some((policy, Some(*name)))
    });
    let variants: Vec<(Policy, Option<&str>)> = variants.collect();
    let mut cases = Vec::new();
    for platform in 0..subject.platforms.len() {
        for (policy, without) in &variants {
            for (reactive_rpm, proactive_rpm) in RATES {
                cases.extend(subject.seeds.clone().map(|seed| Case {
                    platform,
                    policy: policy.clone(),
                    benchmark: None,
                    reactive_rpm,
                    proactive_rpm,
                    seed,
                    without: *without,
                }));
            }
        }
    }
    cases
}
