//! The list of a policy's rules.

use heg_spec::Policy;

use super::rules::{Counted, Proposal, Question, Rule, Verdict};
use super::view::View;
use crate::costs::Cost;
use crate::lanes::Running;
use crate::mechanism::{Mechanism, Tally};
use crate::request::{Lane, Micros};

/// A rule of a policy, and the mechanism that it is.
#[derive(Debug)]
struct Listed {
    mechanism: Mechanism,
    counts: Counted,
    rule: Box<dyn Rule>,
}

/// The rules of a policy, in the order of their mechanisms.
///
/// - A rule is asked only about the proposals that its card names.
/// - Of the rules that are asked, the first that does not pass decides.
#[derive(Debug)]
pub(super) struct RuleList {
    all: Vec<Listed>,
    /// For each question the places of the rules that are asked.
    asked: [Vec<usize>; Question::COUNT],
}

impl RuleList {
    /// Returns the rules that the policy has.
    pub(super) fn of(policy: &Policy) -> Self {
        let mut list = Self {
            all: Vec::new(),
            asked: Default::default(),
        };
        for mechanism in Mechanism::ALL {
            let Some((card, rule)) = mechanism.rule(policy) else {
                continue;
            };
            for question in card.about {
                list.asked[*question as usize].push(list.all.len());
            }
            list.all.push(Listed {
                mechanism,
                counts: card.counts,
                rule,
            });
        }
        list
    }

    /// Whether any rule is asked about a kind of proposal.
    pub(super) fn has(&self, question: Question) -> bool {
        !self.asked[question as usize].is_empty()
    }

    fn asked(&self, question: Question) -> impl Iterator<Item = &Listed> {
        let places = self.asked[question as usize].iter();
        places.filter_map(|place| self.all.get(*place))
    }

    /// Returns the verdict on a proposal and the mechanism whose rule decided.
    pub(super) fn judge(
        &self,
        view: &dyn View,
        proposal: Proposal<'_>,
        tally: &Tally,
    ) -> (Verdict, Option<Mechanism>) {
        let mut asked = self.asked(proposal.question());
        let decided = asked.find_map(|it| {
            let verdict = it.rule.judge(view, proposal);
            (verdict != Verdict::Pass).then_some((verdict, it))
        });
        let Some((verdict, first)) = decided else {
            return (Verdict::Pass, None);
        };
        if first.counts == Counted::WhenItHolds && is_hold(verdict) {
            tally.note(first.mechanism);
        }
        for it in asked {
            // A rule may ask the others what comes next, which is no activation of theirs here.
            let would = tally.unnoted(|| it.rule.judge(view, proposal));
            let counts = it.counts != Counted::WhenItHolds || is_hold(would);
            if would != Verdict::Pass && counts {
                tally.note_overruled(it.mechanism);
            }
        }
        (verdict, Some(first.mechanism))
    }

    /// Whether work would have to wait by a rule that moves it to another lane.
    pub(super) fn divert(&self, view: &dyn View, proposal: Proposal<'_>, tally: &Tally) -> bool {
        let mut diverting = self
            .asked(proposal.question())
            .filter(|it| it.rule.diverts());
        let first = diverting.find(|it| it.rule.judge(view, proposal) == Verdict::Wait);
        first.inspect(|it| tally.note(it.mechanism)).is_some()
    }

    /// Notes that a prompt goes before decoding because a mechanism's rule decided so.
    pub(super) fn granted(&self, mechanism: Mechanism, tally: &Tally) {
        for it in self.all.iter().filter(|it| it.mechanism == mechanism) {
            it.rule.granted();
            if it.counts == Counted::WhenGranted {
                tally.note(mechanism);
            }
        }
    }

    /// Notes that a launch starts on a lane.
    pub(super) fn started(&self, now: Micros, lane: Lane, launch: &Running) {
        for it in &self.all {
            it.rule.started(now, lane, launch);
        }
    }

    /// Notes that a decode run of this cost ended on a lane.
    pub(super) fn decoded(&self, view: &dyn View, lane: Lane, cost: Cost) {
        for it in &self.all {
            it.rule.decoded(view, lane, cost);
        }
    }

    /// Whether work that starts first may keep other work from starting.
    pub(super) fn exclude(&self) -> bool {
        self.all.iter().any(|it| it.rule.excludes())
    }

    /// The earliest time at which a rule may let work start by time alone.
    pub(super) fn next_opening(&self, view: &dyn View) -> Option<Micros> {
        let openings = self.all.iter();
        openings.filter_map(|it| it.rule.opens_at(view)).min()
    }
}

fn is_hold(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Wait | Verdict::First(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mechanisms whose rules a policy has, in the order in which they are asked about a kind of proposal.
    fn asked(policy: &Policy, question: Question) -> Vec<Mechanism> {
        let list = RuleList::of(policy);
        list.asked(question).map(|it| it.mechanism).collect()
    }

    #[test]
    fn a_policy_is_the_list_of_its_rules() {
        use Mechanism::*;
        let policy = |name| heg_spec::shipped::policy(name).unwrap();
        let own = policy("agent-xpu");
        assert_eq!(
            asked(&own, Question::Start),
            [RemainderDeferral, BandwidthDeferral]
        );
        assert_eq!(
            asked(&own, Question::Place),
            [Ageing, ShortPromptsAside, LongPromptsAside, Split, Balance]
        );
        assert_eq!(
            asked(&own, Question::Promotion),
            [AgeingFromTurn, Ageing],
            "the turn may hold back what age lets go"
        );
        let one = policy("agent-xpu-one-device");
        assert_eq!(
            asked(&one, Question::Precedence),
            [
                ProactiveShare,
                ClientTurns,
                Ageing,
                ReactiveFirst,
                YoungAnswersFirst,
                EndingAnswersFirst,
                PrefillFirst
            ],
            "prompts go first unless a rule before that decides otherwise"
        );
        assert_eq!(asked(&one, Question::Batch), [ReactiveSlowdown]);
        let first = policy("agent-xpu-v1");
        assert_eq!(asked(&first, Question::Start), [Pressure, Backfill]);
        assert_eq!(asked(&first, Question::Attention), [NpuAttention; 0]);
    }

    #[test]
    fn an_ablation_takes_one_rule_out_of_the_list() {
        for (name, _) in heg_spec::shipped::POLICIES {
            let whole = heg_spec::shipped::policy(name).unwrap();
            let mechanisms = |policy: &Policy| -> Vec<Mechanism> {
                let list = RuleList::of(policy);
                list.all.iter().map(|it| it.mechanism).collect()
            };
            let all = mechanisms(&whole);
            for removed in all.iter().filter(|it| it.is_on(&whole)) {
                let mut without = whole.clone();
                removed.remove(&mut without);
                let left = mechanisms(&without);
                assert!(!left.contains(removed), "{name}: {removed:?}");
                assert!(
                    left.iter().all(|it| all.contains(it)),
                    "{name}: {removed:?}"
                );
            }
        }
    }
}
