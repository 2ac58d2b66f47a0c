//! NPU and iGPU share the chunks of a reactive prompt, so that both end together (§4.3, Algorithm 1): while nothing
//! decodes, or, by `prefill.split_beside_proactive_ms`, while only proactive requests do.

use super::{
    Card, Class, Cost, Counted, Lane, Micros, Prefill, Proposal, Question, Rule, RuleCard, Slot,
    Verdict, View, is_agent_xpu,
};
use crate::costs::Call;
use crate::event::LayerKernel;
use crate::partition::{LayerTimes, PieceTime, npu_chunks};

/// The split of reactive prompts.
pub(crate) const CARD: Card = Card {
    name: "elastic split of reactive prompts (4.3)",
    is_on: |policy| is_agent_xpu(policy) && policy.prefill.elastic,
    remove: |policy| policy.prefill.elastic = false,
    rule: Some(RuleCard {
        about: &[Question::Place],
        counts: Counted::ByTheScheduler,
        hold: None,
        rule: |policy| {
            let patience_ms = policy.prefill.split_beside_proactive_ms;
            let split = Split {
                overdue_patience: patience_ms.map(Micros::from_millis),
            };
            policy
                .prefill
                .elastic
                .then(|| Box::new(split) as Box<dyn Rule>)
        },
    }),
};

/// The split beside proactive decoding: a constant of the split's rule.
pub(crate) const BESIDE_PROACTIVE: Card = Card {
    name: "the same beside proactive decoding",
    is_on: |policy| (CARD.is_on)(policy) && policy.prefill.split_beside_proactive_ms.is_some(),
    remove: |policy| policy.prefill.split_beside_proactive_ms = None,
    rule: None,
};

#[derive(Debug)]
struct Split {
    /// Time for which an overdue answer waits for the prompt; `None` if the prompt waits for all answers.
    overdue_patience: Option<Micros>,
}

impl Rule for Split {
    fn judge(&self, view: &dyn View, proposal: Proposal<'_>) -> Verdict {
        let Proposal::Place {
            entry,
            prefill,
            step,
        } = proposal
        else {
            return Verdict::Pass;
        };
        let own = entry.class() == Class::Reactive
            && view.prefills().holds(Slot::Foreground, entry.id())
            && step.part < prefill.chunks();
        let spares = || {
            self.overdue_patience
                .is_some_and(|patience| !view.decodes_for_somebody(Micros(0), patience))
        };
        let splits = own
            && (view.decode().is_idle() || spares())
            && view.prefills().holder(Slot::Aside).is_none();
        match splits && step.part >= npu_share(view, prefill) {
            true => Verdict::OnDynamicLane,
            false => Verdict::Pass,
        }
    }
}

/// Returns the number of a prompt's chunks that the NPU takes if both devices share them; all if their times are
/// unknown.
pub(super) fn npu_share(view: &dyn View, prefill: &Prefill) -> usize {
    layer_times(view, prefill).map_or(prefill.chunks(), |times| {
        npu_chunks(prefill.chunks(), times)
    })
}

fn layer_times(view: &dyn View, prefill: &Prefill) -> Option<LayerTimes> {
    let dynamic = view.dynamic_lane()?;
    let cost = |lane, kernel, tokens, context| {
        let call = Call::Prefill {
            kernel,
            tokens,
            context,
        };
        view.cost(lane, call)
    };
    let token_wise = |lane, tokens| {
        let qkv = cost(lane, LayerKernel::Qkv, tokens, tokens)?;
        Some([qkv, cost(lane, LayerKernel::Ffn, tokens, tokens)?])
    };
    let chunk = view.model().chunk_tokens;
    let on_npu = token_wise(Lane::Npu, chunk)?;
    let on_dynamic = token_wise(dynamic, chunk)?;
    let beside_npu = |costs: &[Cost]| beside(view, (dynamic, costs), (Lane::Npu, &on_npu));
    let mut attention = PieceTime::default();
    for segment in prefill.segments() {
        let (tokens, context) = (segment.tokens, segment.context());
        let cost = cost(dynamic, LayerKernel::Mha, tokens, context)?;
        attention = attention + beside_npu(&[cost]);
    }
    let remainder = match prefill.remainder() {
        0 => PieceTime::default(),
        tokens => beside_npu(&token_wise(dynamic, tokens)?),
    };
    Some(LayerTimes {
        npu_chunk: beside(view, (Lane::Npu, &on_npu), (dynamic, &on_dynamic)),
        igpu_chunk: beside_npu(&on_dynamic),
        igpu_fixed: attention + remainder,
    })
}

/// Returns the time of a lane's kernels, if each of them meets all those of another lane for as long as they take.
fn beside(
    view: &dyn View,
    (lane, own): (Lane, &[Cost]),
    (other_lane, others): (Lane, &[Cost]),
) -> PieceTime {
    let others_us: f64 = others.iter().map(|other| other.latency_us).sum();
    let slowdown = |cost: &Cost| {
        let met = others
            .iter()
            .map(|other| other.latency_us * view.slowdown(cost.on(lane), other.on(other_lane)));
        met.sum::<f64>() / others_us
    };
    PieceTime {
        alone_us: own.iter().map(|cost| cost.latency_us).sum(),
        beside_us: own
            .iter()
            .map(|cost| cost.latency_us * slowdown(cost))
            .sum(),
    }
}
