//! The mechanisms of a policy in the order in which their rules are asked, and counts of the steps in which each acted,
//! since a mechanism that never acts has no reason to exist.

use std::cell::Cell;

use heg_spec::Policy;
use heg_spec::policy::Resume;

use super::agent_xpu::rules::{self, Card, HoldCard, Rule, RuleCard, is_agent_xpu};

/// Makes the card of a mechanism that is a choice among requests or kernels, and no rule.
const fn choice(name: &'static str, is_on: fn(&Policy) -> bool, remove: fn(&mut Policy)) -> Card {
    Card {
        name,
        is_on,
        remove,
        rule: None,
    }
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
    Preemption: rules::preemption::CARD,
    /// A shorter reactive prompt passed a longer one.
    ShortPromptsFirst: rules::short_prompts_first::CARD,
    /// An overdue request's prompt did not get the iGPU yet, since it had waited for others of its class.
    AgeingFromTurn: rules::ageing::FROM_TURN,
    /// Proactive prompts ran a kernel that they had been owed beside reactive decoding.
    ProactiveShare: rules::proactive_share::CARD,
    /// A client had its turn before an earlier request of another one. No policy switches it: it acts whenever there
    /// is more than one client.
    ClientTurns: rules::client_turns::CARD,
    /// A proactive request became overdue (4.5).
    Ageing: rules::ageing::CARD,
    /// A proactive prompt waited for reactive decoding, without an NPU. No policy switches it.
    ReactiveFirst: rules::reactive_first::CARD,
    /// A long reactive prompt waited for a reactive answer that had just begun.
    YoungAnswersFirst: rules::young_first::CARD,
    /// A long reactive prompt waited for a reactive answer that was sure to end soon.
    EndingAnswersFirst: rules::ending_first::CARD,
    /// An iteration gave way to a prompt (4.3).
    PrefillFirst: rules::prefill_first::CARD,
    /// A short reactive prompt ran on the iGPU beside another one on the NPU.
    ShortPromptsAside: rules::aside::SHORT,
    /// A longer reactive prompt ran aside, or one while reactive requests decode.
    LongPromptsAside: rules::aside::LONG,
    /// The iGPU took a chunk of a reactive prompt (4.3, Algorithm 1).
    Split: rules::split::CARD,
    /// The iGPU took a chunk of a reactive prompt while proactive requests decode.
    SplitBesideProactive: rules::split::BESIDE_PROACTIVE,
    /// The iGPU took a chunk of a proactive prompt (v1 6.5).
    Balance: rules::balance::CARD,
    /// A remainder waited for the chunks beside it (4.3).
    RemainderDeferral: rules::remainder::CARD,
    /// The NPU took attention, with a kernel compiled for it (4.3).
    NpuAttention: rules::npu_attention::CARD,
    /// Work waited because both devices together want more bandwidth than there is (4.3).
    BandwidthDeferral: rules::bandwidth::CARD,
    /// A batch beside a reactive request left proactive ones out (4.5).
    ReactiveFirstBatch: choice(
        "reactive-first batches (4.5)",
        |policy| is_agent_xpu(policy) && policy.decode.reactive_batch_max.is_some(),
        |policy| policy.decode.reactive_batch_max = None,
    ),
    /// A batch left out proactive answers that would have slowed the reactive ones down.
    ReactiveSlowdown: rules::company::CARD,
    /// Length decided which proactive requests a batch left out (4.5).
    LongestLeftOut: choice(
        "eviction of the longest (4.5)",
        |policy| policy.decode.evict_longest,
        |policy| policy.decode.evict_longest = false,
    ),
    /// A layer was one kernel (4.2).
    FusedLayer: choice(
        "fused decode layer (4.2)",
        |policy| policy.decode.fused_layer,
        |policy| policy.decode.fused_layer = false,
    ),
    /// The NPU verified a draft beside an iteration of the others.
    SecondLane: choice(
        "verification on the NPU beside decoding",
        |policy| is_agent_xpu(policy) && policy.decode.second_lane,
        |policy| policy.decode.second_lane = false,
    ),
    /// A prompt that takes less time went on before an earlier one (v1 6.2).
    LeastTimeToCompletion: choice(
        "least time to completion first (v1 6.2)",
        |policy| policy.prefill.resume == Resume::LeastTimeToCompletion,
        |policy| policy.prefill.resume = Resume::Arrival,
    ),
    /// A kernel waited for memory pressure to fall (v1 6.4).
    Pressure: rules::pressure::CARD,
    /// A proactive prompt filled a bubble, or waited for one (v1 6.3).
    Backfill: rules::bubble::CARD,
    /// The iGPU rested for graphics (4.1).
    IgpuShare: rules::graphics::CARD,
    /// Work waited because both devices together draw too much power (v1 6.2).
    PowerBudget: rules::power::CARD,
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

    /// Its word in traces, as the reason of a wait; `None` for a mechanism that holds nothing back.
    pub fn word(self) -> Option<&'static str> {
        self.hold().map(|hold| hold.word)
    }

    /// The sentence part that explains the wait of a request that it holds back.
    pub fn explanation(self) -> Option<&'static str> {
        self.hold().map(|hold| hold.explanation)
    }

    /// Whether its hold also explains the wait of requests behind the one that it holds back.
    pub fn holds_up_others(self) -> bool {
        self.hold().is_some_and(|hold| hold.holds_up_others)
    }

    fn hold(self) -> Option<&'static HoldCard> {
        self.card().rule.as_ref()?.hold.as_ref()
    }

    /// Returns the mechanism's rule under a policy with the rule's card, if it has one.
    pub(crate) fn rule(self, policy: &Policy) -> Option<(&'static RuleCard, Box<dyn Rule>)> {
        let card = self.card().rule.as_ref()?;
        Some((card, (card.rule)(policy)?))
    }
}

/// The number of the scheduler's steps in which each mechanism acted, and in which it would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivationCounts {
    acted: [u64; Mechanism::ALL.len()],
    overruled: [u64; Mechanism::ALL.len()],
    /// A bit for each mechanism that the policy has on.
    on: u32,
}

impl ActivationCounts {
    /// Steps in which a mechanism acted.
    pub fn of(&self, mechanism: Mechanism) -> u64 {
        self.acted[mechanism as usize]
    }

    /// Steps in which a mechanism did not act, and would have if none before it had decided.
    pub fn overruled(&self, mechanism: Mechanism) -> u64 {
        self.overruled[mechanism as usize]
    }

    /// Mechanisms that the policy of the counted scheduler has on, in the order in which their rules are asked.
    pub fn on(&self) -> impl Iterator<Item = Mechanism> {
        let on = self.on;
        let all = Mechanism::ALL.into_iter();
        all.filter(move |mechanism| on & bit(*mechanism) != 0)
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.acted.iter_mut().zip(other.acted) {
            *sum += count;
        }
        for (sum, count) in self.overruled.iter_mut().zip(other.overruled) {
            *sum += count;
        }
        self.on |= other.on;
    }
}

fn bit(mechanism: Mechanism) -> u32 {
    1 << mechanism as u32
}

/// Counts activations. Rules note that they act whenever they are asked, which may be more than once a step, and also
/// between two steps if an observer asks why requests wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// A bit for each mechanism that acted in this step.
    acted: Cell<u32>,
    /// A bit for each mechanism that would have acted in this step.
    overruled: Cell<u32>,
    /// Whether nothing is noted now.
    is_silent: Cell<bool>,
    counted: ActivationCounts,
}

impl Tally {
    /// Returns a tally of nothing so far, under a policy.
    pub(super) fn of(policy: &Policy) -> Self {
        let on = Mechanism::ALL.into_iter().filter(|it| it.is_on(policy));
        let mut tally = Self::default();
        tally.counted.on = on.map(bit).sum();
        tally
    }

    /// Begins a step: drops activations noted since the last one, which only answered an observer's questions.
    pub(super) fn open_step(&mut self) {
        self.acted.take();
        self.overruled.take();
    }

    /// Notes that a mechanism acts.
    pub(super) fn note(&self, mechanism: Mechanism) {
        if !self.is_silent.get() {
            self.acted.set(self.acted.get() | bit(mechanism));
        }
    }

    /// Notes that a mechanism would act if none before it had decided.
    pub(super) fn note_overruled(&self, mechanism: Mechanism) {
        if !self.is_silent.get() {
            self.overruled.set(self.overruled.get() | bit(mechanism));
        }
    }

    /// Asks a question whose answer changes nothing, and notes no mechanism that it has to do with.
    pub(super) fn unnoted<T>(&self, ask: impl FnOnce() -> T) -> T {
        let was_silent = self.is_silent.replace(true);
        let answer = ask();
        self.is_silent.set(was_silent);
        answer
    }

    /// Ends the step and counts its activations.
    pub(super) fn close_step(&mut self) {
        let acted = self.acted.take();
        let overruled = self.overruled.take() & !acted;
        count(&mut self.counted.acted, acted);
        count(&mut self.counted.overruled, overruled);
    }

    pub(super) fn activations(&self) -> ActivationCounts {
        self.counted
    }
}

/// Adds one for each bit that is set.
fn count(counts: &mut [u64; Mechanism::ALL.len()], mut bits: u32) {
    while bits != 0 {
        counts[bits.trailing_zeros() as usize] += 1;
        bits &= bits - 1;
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
    fn who_acts_in_a_step_is_not_overruled_there() {
        let policy = heg_spec::shipped::policy("agent-xpu").unwrap();
        let mut tally = Tally::of(&policy);
        for acts in [true, false] {
            tally.open_step();
            tally.note_overruled(Mechanism::Split);
            if acts {
                tally.note(Mechanism::Split);
            }
            tally.close_step();
        }
        let counts = tally.activations();
        assert_eq!(counts.of(Mechanism::Split), 1);
        assert_eq!(counts.overruled(Mechanism::Split), 1);
        let on: Vec<Mechanism> = counts.on().collect();
        assert!(on.contains(&Mechanism::Split) && !on.contains(&Mechanism::Pressure));
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
