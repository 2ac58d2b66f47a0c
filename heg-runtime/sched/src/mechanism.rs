//! The mechanisms of a policy: their names and switches, and counts of the steps in which each acted, since a
//! mechanism that never acts has no reason to exist.

use std::cell::Cell;

use heg_spec::Policy;
use heg_spec::policy::{AgeingStart, NpuAttention, Resume, SchedulerKind};

use super::agent_xpu::rules::{
    Rule, RuleCard, bandwidth, bubble, graphics, power, pressure, remainder,
};

/// The name and the switch of a mechanism.
pub(crate) struct Card {
    /// Its name in tables, with its section.
    pub(crate) name: &'static str,
    /// Whether a policy has it on.
    pub(crate) is_on: fn(&Policy) -> bool,
    /// Switches it off in a policy.
    pub(crate) remove: fn(&mut Policy),
    /// Its rule, if it holds work back.
    pub(crate) rule: Option<RuleCard>,
}

impl Card {
    /// Makes the card of a mechanism that is not a rule of its own.
    const fn of(name: &'static str, is_on: fn(&Policy) -> bool, remove: fn(&mut Policy)) -> Self {
        Self {
            name,
            is_on,
            remove,
            rule: None,
        }
    }
}

/// Whether a policy is for Agent.xpu's scheduler, which distinguishes classes.
pub(crate) fn is_agent_xpu(policy: &Policy) -> bool {
    policy.scheduler == SchedulerKind::AgentXpu
}

macro_rules! mechanisms {
    ($($(#[doc = $doc:literal])* $name:ident: $card:expr,)*) => {
        /// A mechanism of Agent.xpu's scheduler. Sections are those of v2 unless they say v1.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mechanism {
            $($(#[doc = $doc])* $name,)*
        }

        /// A card for each mechanism, in the order of the variants.
        static CARDS: [Card; [$(stringify!($name)),*].len()] = [$($card),*];

        impl Mechanism {
            /// All mechanisms.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];
        }
    };
}

mechanisms! {
    /// A reactive prompt took the lanes from a proactive one (4.4).
    Preemption: Card::of(
        "kernel-level preemption (4.4)",
        |policy| is_agent_xpu(policy) && policy.prefill.preempt,
        |policy| policy.prefill.preempt = false,
    ),
    /// A shorter reactive prompt passed a longer one.
    ShortPromptsFirst: Card::of(
        "short reactive prompts first",
        |policy| is_agent_xpu(policy) && policy.prefill.short_prompts_first.is_some(),
        |policy| policy.prefill.short_prompts_first = None,
    ),
    /// A short reactive prompt ran on the iGPU beside another one on the NPU.
    ShortPromptsAside: Card::of(
        "short reactive prompts aside",
        |policy| is_agent_xpu(policy) && policy.prefill.short_prompts_aside,
        |policy| policy.prefill.short_prompts_aside = false,
    ),
    /// A longer reactive prompt ran aside, or one while reactive requests decode.
    LongPromptsAside: Card::of(
        "long reactive prompts aside",
        |policy| is_agent_xpu(policy) && policy.prefill.long_prompts_aside_ms.is_some(),
        |policy| policy.prefill.long_prompts_aside_ms = None,
    ),
    /// The iGPU took a chunk of a reactive prompt (4.3, Algorithm 1).
    Split: Card::of(
        "elastic split of reactive prompts (4.3)",
        |policy| is_agent_xpu(policy) && policy.prefill.elastic,
        |policy| policy.prefill.elastic = false,
    ),
    /// The iGPU took a chunk of a reactive prompt while proactive requests decode.
    SplitBesideProactive: Card::of(
        "the same beside proactive decoding",
        |policy| Mechanism::Split.is_on(policy) && policy.prefill.split_beside_proactive_ms.is_some(),
        |policy| policy.prefill.split_beside_proactive_ms = None,
    ),
    /// The iGPU took a chunk of a proactive prompt (v1 6.5).
    Balance: Card::of(
        "load balancing of proactive prompts (v1 6.5)",
        |policy| policy.prefill.balance,
        |policy| policy.prefill.balance = false,
    ),
    /// A remainder waited for the chunks beside it (4.3).
    RemainderDeferral: remainder::CARD,
    /// The NPU took attention, with a kernel compiled for it (4.3).
    NpuAttention: Card::of(
        "NPU attention on the fly (4.3)",
        |policy| policy.prefill.attention != NpuAttention::Off,
        |policy| policy.prefill.attention = NpuAttention::Off,
    ),
    /// Work waited because both devices together want more bandwidth than there is (4.3).
    BandwidthDeferral: bandwidth::CARD,
    /// A batch beside a reactive request left proactive ones out (4.5).
    ReactiveFirstBatch: Card::of(
        "reactive-first batches (4.5)",
        |policy| is_agent_xpu(policy) && policy.decode.reactive_batch_max.is_some(),
        |policy| policy.decode.reactive_batch_max = None,
    ),
    /// Length decided which proactive requests a batch left out (4.5).
    LongestLeftOut: Card::of(
        "eviction of the longest (4.5)",
        |policy| policy.decode.evict_longest,
        |policy| policy.decode.evict_longest = false,
    ),
    /// An iteration gave way to a prompt (4.3).
    PrefillFirst: Card::of(
        "prefill first on the iGPU (4.3)",
        |policy| policy.decode.prefill_first,
        |policy| policy.decode.prefill_first = false,
    ),
    /// A layer was one kernel (4.2).
    FusedLayer: Card::of(
        "fused decode layer (4.2)",
        |policy| policy.decode.fused_layer,
        |policy| policy.decode.fused_layer = false,
    ),
    /// A proactive request became overdue (4.5).
    Ageing: Card::of(
        "ageing (4.5)",
        |policy| is_agent_xpu(policy) && policy.ageing.is_some(),
        |policy| policy.ageing = None,
    ),
    /// An overdue request's prompt did not get the iGPU yet, since it had waited for others of its class.
    AgeingFromTurn: Card::of(
        "ageing of prompts from their turn on",
        |policy| {
            let from = policy.ageing.map(|ageing| ageing.prompts_from);
            is_agent_xpu(policy) && from == Some(AgeingStart::Turn)
        },
        |policy| {
            if let Some(ageing) = &mut policy.ageing {
                ageing.prompts_from = AgeingStart::Arrival;
            }
        },
    ),
    /// A prompt that takes less time went on before an earlier one (v1 6.2).
    LeastTimeToCompletion: Card::of(
        "least time to completion first (v1 6.2)",
        |policy| policy.prefill.resume == Resume::LeastTimeToCompletion,
        |policy| policy.prefill.resume = Resume::Arrival,
    ),
    /// A kernel waited for memory pressure to fall (v1 6.4).
    Pressure: pressure::CARD,
    /// A proactive prompt filled a bubble, or waited for one (v1 6.3).
    Backfill: bubble::CARD,
    /// The iGPU rested for graphics (4.1).
    IgpuShare: graphics::CARD,
    /// Work waited because both devices together draw too much power (v1 6.2).
    PowerBudget: power::CARD,
    /// A client had its turn before an earlier request of another one. No policy switches it: it acts whenever there
    /// is more than one client.
    ClientTurns: Card::of("turns between clients", |_| false, |_| {}),
}

impl Mechanism {
    fn card(self) -> &'static Card {
        &CARDS[self as usize]
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        self.card().name
    }

    /// Whether a policy has it on.
    pub fn is_on(self, policy: &Policy) -> bool {
        (self.card().is_on)(policy)
    }

    /// Switches it off in a policy, as an ablation does.
    pub fn remove(self, policy: &mut Policy) {
        (self.card().remove)(policy);
    }

    /// The word for the work that it holds back, in traces; `None` for a mechanism that holds nothing back.
    pub fn word(self) -> Option<&'static str> {
        self.card().rule.as_ref().map(|rule| rule.word)
    }

    /// The sentence part that explains the wait of a request that it holds back.
    pub fn explanation(self) -> Option<&'static str> {
        self.card().rule.as_ref().map(|rule| rule.explanation)
    }

    /// Whether its hold also explains the wait of requests behind the one that it holds back.
    pub fn holds_up_others(self) -> bool {
        let rule = self.card().rule.as_ref();
        rule.is_some_and(|rule| rule.holds_up_others)
    }

    /// Returns the mechanism's rule under a policy, if it has one.
    pub(crate) fn rule(self, policy: &Policy) -> Option<Box<dyn Rule>> {
        (self.card().rule.as_ref()?.rule)(policy)
    }
}

/// The number of the scheduler's steps in which each mechanism acted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivationCounts([u64; Mechanism::ALL.len()]);

impl ActivationCounts {
    /// Steps in which a mechanism acted.
    pub fn of(&self, mechanism: Mechanism) -> u64 {
        self.0[mechanism as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }
}

/// Counts activations. Rules note that they act whenever they are asked, which may be more than once a step, and also
/// between two steps if an observer asks why requests wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// A bit for each mechanism that acted in this step.
    acted: Cell<u32>,
    counted: ActivationCounts,
}

impl Tally {
    /// Begins a step: drops activations noted since the last one, which only answered an observer's questions.
    pub(super) fn open_step(&mut self) {
        self.acted.take();
    }

    /// Notes that a mechanism acts.
    pub(super) fn note(&self, mechanism: Mechanism) {
        self.acted.set(self.acted.get() | 1 << mechanism as u32);
    }

    /// Ends the step and counts its activations.
    pub(super) fn close_step(&mut self) {
        let mut acted = self.acted.take();
        while acted != 0 {
            self.counted.0[acted.trailing_zeros() as usize] += 1;
            acted &= acted - 1;
        }
    }

    pub(super) fn activations(&self) -> ActivationCounts {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mechanism_counts_once_a_step_and_not_between_steps() {
        let mut tally = Tally::default();
        tally.open_step();
        tally.note(Mechanism::Split);
        tally.note(Mechanism::Split);
        tally.note(Mechanism::IgpuShare);
        tally.close_step();
        // An observer asks.
        tally.note(Mechanism::Preemption);
        tally.open_step();
        tally.note(Mechanism::Split);
        tally.close_step();
        tally.open_step();
        tally.close_step();
        let mut sum = tally.activations();
        sum.add(&tally.activations());
        let counts = [
            Mechanism::Split,
            Mechanism::IgpuShare,
            Mechanism::Preemption,
        ];
        assert_eq!(counts.map(|it| sum.of(it)), [4, 2, 0]);
    }

    #[test]
    fn a_mechanism_that_is_removed_is_off() {
        for (name, _) in heg_spec::shipped::POLICIES {
            let whole = heg_spec::shipped::policy(name).unwrap();
            let on = Mechanism::ALL.into_iter().filter(|it| it.is_on(&whole));
            for mechanism in on {
                let mut without = whole.clone();
                mechanism.remove(&mut without);
                assert!(!mechanism.is_on(&without), "{name}: {mechanism:?}");
                assert!(mechanism.rule(&without).is_none(), "{name}: {mechanism:?}");
            }
        }
    }
}
