//! The remainder of a prompt waits for the chunks that it belongs to: it need not be done before them, and while it
//! waits, decoding may come to the end of its iteration (§4.3).

use super::{
    Card, Cost, Counted, HoldCard, Lane, Micros, Prefill, Proposal, Question, Rule, RuleCard, Slot,
    Step, Verdict, View,
};
use crate::event::LayerKernel;

pub(crate) const CARD: Card = Card {
    name: "deferral of the remainder (4.3)",
    is_on: |policy| policy.prefill.defer_remainder,
    remove: |policy| policy.prefill.defer_remainder = false,
    rule: Some(RuleCard {
        about: &[Question::Start],
        counts: Counted::WhenItHolds,
        hold: Some(HoldCard {
            word: "remainder",
            explanation: "deferred, to end with its own chunks (prefill.defer_remainder)",
            holds_up_others: false,
        }),
        rule: |policy| {
            let defers = policy.prefill.defer_remainder;
            defers.then(|| Box::new(Remainder) as Box<dyn Rule>)
        },
    }),
};

#[derive(Debug)]
struct Remainder;

impl Rule for Remainder {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Prompt {
            entry,
            lane,
            cost,
            step: Some((prefill, step)),
        } = proposal
        else {
            return Verdict::Pass;
        };
        let may_wait = is_of_remainder(prefill, step)
            && lane != Lane::Npu
            && !entry.own.is_overdue()
            && !view.decode().is_idle();
        let start = || starts_at(view, prefill, step, (lane, cost));
        Verdict::wait_if(may_wait && start().is_some_and(|start| view.now() < start))
    }

    fn opens_at(&self, view: &dyn View) -> Option<Micros> {
        if view.decode().is_idle() {
            return None;
        }
        let foreground = view.prefills().holder(Slot::Foreground)?;
        let entry = view.ledger().get(foreground)?;
        let prefill = entry.prefill()?;
        let step = prefill
            .ready()
            .find(|step| is_of_remainder(prefill, *step))?;
        let (lane, cost) = view.lane_of(entry, prefill, step)?;
        let start = starts_at(view, prefill, step, (lane, cost))?;
        (lane != Lane::Npu && start > view.now()).then_some(start)
    }
}

/// Whether a step is a token-wise kernel of the remainder.
fn is_of_remainder(prefill: &Prefill, step: Step) -> bool {
    step.kernel != LayerKernel::Mha && step.part >= prefill.chunks()
}

/// The time at which the remainder has to start on a lane in order to end together with the last chunk at the same
/// kernel; `None` if no chunk is behind it.
fn starts_at(
    view: &dyn View,
    prefill: &Prefill,
    step: Step,
    (lane, cost): (Lane, Cost),
) -> Option<Micros> {
    let behind = prefill.chunks_behind(step.done);
    if behind == 0 {
        return None;
    }
    let running = view.lanes().running(Lane::Npu)?;
    let rest = running.ends.since(view.now()).0 as f64;
    let (chunk, own) = (running.cost.on(Lane::Npu), cost.on(lane));
    // The chunks run beside decoding until the remainder starts, and that runs beside chunks.
    let decoding = view.lanes().running(lane);
    let slower = decoding.map_or(1.0, |it| view.slowdown(chunk, it.cost.on(lane)));
    let others = (behind - 1) as f64 * running.cost.latency_us;
    let chunks_us = (rest + others) * slower;
    let own_us = cost.latency_us * view.slowdown(own, chunk);
    Some(view.now() + Micros::from_f64((chunks_us - own_us).max(0.0)))
}
