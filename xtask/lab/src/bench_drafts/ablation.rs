//! The value of each mechanism of our drafts: the same replay with one of them off, or on.

use super::methods::Ours;
use super::replay::{Method, Replay};
use heg_draft::{Draft, Shape};
use heg_sim::DraftRecord;
use heg_spec::policy::DraftPolicy;
use std::fmt::Write;

/// The number of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// Always the largest number.
    Fixed,
    /// The number that pays off, by [`step_time`].
    ByCost,
}

/// Our drafts with a choice of mechanisms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Variant {
    pub(super) shape: Shape,
    /// Largest number of tokens.
    pub(super) tokens: usize,
    pub(super) length: Length,
    pub(super) policy: DraftPolicy,
    /// The difference from the others.
    what: &'static str,
}

impl Variant {
    /// A variant that drafts the largest number of tokens.
    pub(super) fn new(shape: Shape, tokens: usize) -> Self {
        Self {
            shape,
            tokens,
            length: Length::Fixed,
            policy: DraftPolicy::default(),
            what: "",
        }
    }

    pub(super) fn name(&self) -> String {
        let shape = match self.shape {
            Shape::Chain => "chain",
            Shape::Tree => "tree",
        };
        let length = match self.length {
            Length::Fixed => format!("of {}", self.tokens),
            Length::ByCost => "by cost".to_owned(),
        };
        format!("{shape} {length}{}", self.what)
    }
}

/// The variants of an ablation: a chain, and the chain without each mechanism or with another. The last ones draft from
/// tokens that a model found likely in the prompts, if a model was given.
pub(super) fn variants(is_calibrated: bool) -> Vec<Box<dyn Method>> {
    let chain = Variant::new(Shape::Chain, 16);
    let tree = Variant::new(Shape::Tree, 32);
    let with = |what, switch: fn(&mut DraftPolicy)| {
        let mut variant = Variant { what, ..chain };
        switch(&mut variant.policy);
        variant
    };
    let by_cost = |variant| Variant {
        length: Length::ByCost,
        ..variant
    };
    let mut all = vec![
        chain,
        with(" without context", |it| it.context = false),
        with(" without history", |it| it.history = false),
        with(" without frequencies", |it| it.frequencies = false),
        with(" without learning", |it| it.learning = false),
        by_cost(chain),
        by_cost(with(" without learning", |it| it.learning = false)),
        tree,
        by_cost(tree),
    ];
    if is_calibrated {
        let calibrated = |variant: Variant| Variant {
            policy: DraftPolicy {
                calibration: true,
                ..variant.policy
            },
            what: ", calibrated",
            ..variant
        };
        all.extend([chain, by_cost(chain), tree, by_cost(tree)].map(calibrated));
    }
    let method = |variant| Box::new(Ours::new(variant)) as Box<dyn Method>;
    all.into_iter().map(method).collect()
}

/// Time of a step with `rows` rows, relative to a step with one row: SmolLM2's on two x86 cores.
fn step_time(rows: f64) -> f64 {
    let mut before = MEASURED[0];
    for next in MEASURED {
        if rows <= next.0 {
            let share = (rows - before.0) / (next.0 - before.0).max(1.0);
            return before.1 + share * (next.1 - before.1);
        }
        before = next;
    }
    before.1 * rows / before.0
}

/// Rows of a step, and its relative time.
const MEASURED: [(f64, f64); 4] = [(1.0, 1.0), (4.0, 1.29), (8.0, 1.54), (16.0, 2.2)];

/// Number of leading tokens of a draft that gives the most tokens per time.
pub(super) fn worth(draft: &Draft) -> usize {
    let rate = |tokens: &usize| {
        let expected = draft.leading(*tokens).expected_tokens();
        expected / step_time(1.0 + *tokens as f64)
    };
    let all = 0..=draft.len();
    all.max_by(|a, b| rate(a).total_cmp(&rate(b)).then(b.cmp(a)))
        .unwrap_or(0)
}

/// The table of a data set.
pub(super) fn table(data: &str, replays: &[(String, Replay)]) -> String {
    let mut text = format!(
        "{data}, by mechanism\n\n{:<36}{:>14}{:>10}{:>10}{:>10}\n",
        "", "tokens a step", "to first", "drafted", "time"
    );
    let whole = |replay: &Replay, name: &str| replay.records(data, name).into_iter().next();
    let first = replays.first().and_then(|(name, it)| whole(it, name));
    let first = first.map_or(f64::NAN, |it| it.tokens_per_verification());
    for (name, replay) in replays {
        let Some(record) = whole(replay, name) else {
            continue;
        };
        let tokens = record.tokens_per_verification();
        let _ = writeln!(
            text,
            "{name:<36}{tokens:>14.3}{:>10.3}{:>10.1}{:>10.3}",
            tokens / first,
            record.drafted_per_verification(),
            time(&record)
        );
    }
    text.push_str("\ntime: of an answer, without its prompt, in that without drafts\n\n");
    text
}

/// Time per token, relative to a step of one row.
fn time(record: &DraftRecord) -> f64 {
    let steps = record.steps.iter();
    let (time, tokens) = steps.fold((0.0, 0.0), |(time, tokens), steps| {
        let [drafted, _, accepted, count] = (*steps).into();
        let count = f64::from(count);
        let step = step_time(f64::from(1 + drafted));
        (
            time + count * step,
            tokens + count * f64::from(1 + accepted),
        )
    });
    time / tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_what_was_measured_and_drafts_end_where_they_cost_more() {
        let times = [1.0, 2.5, 4.0, 16.0, 32.0].map(step_time);
        assert_eq!(times, [1.0, 1.145, 1.29, 2.2, 4.4]);
        let sure = Draft::expected((0..40).map(|at| (at, (at as u16).checked_sub(1))));
        // From 16 rows on, more rows give no more tokens per time.
        assert_eq!(worth(&sure), 15);
        assert_eq!(worth(&Draft::default()), 0);
    }

    #[test]
    fn names_say_what_is_on() {
        let names: Vec<String> = variants(true).iter().map(|it| it.name()).collect();
        for name in [
            "chain of 16",
            "chain of 16 without history",
            "chain by cost",
            "tree by cost, calibrated",
        ] {
            assert!(names.iter().any(|it| it == name), "{names:?}");
        }
        assert_eq!(variants(false).len() + 4, names.len());
    }
}
