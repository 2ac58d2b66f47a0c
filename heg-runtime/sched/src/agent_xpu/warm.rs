//! On-the-fly warm-up: static attention kernels that are compiled on the CPU while their request waits (§4.3).

use std::collections::BTreeSet;

use heg_spec::policy::NpuAttention;

use super::AgentXpu;
use crate::costs::Costs;
use crate::event::{Actions, WarmKernel};
use crate::ledger::Progress as _;
use crate::request::Lane;

/// Contexts are rounded up to this many tokens, so that requests of about the same length share a kernel.
/// Chosen: a chunk of the paper's.
const CONTEXT_STEP: u32 = 256;

impl<C: Costs> AgentXpu<C> {
    /// Compiles the kernel of the first waiting request that has none, and drops kernels that no request needs
    /// if there are too many.
    pub(super) fn warm_up(&mut self, actions: &mut Actions) {
        if self.policy.prefill.attention != NpuAttention::WarmUp {
            return;
        }
        let revision = self.prefills.revision();
        if !self.warmth.decide_for(revision) {
            return;
        }
        let wanted: BTreeSet<WarmKernel> = self
            .ledger
            .iter()
            .filter(|(_, entry)| !entry.own.decodes())
            .map(|(_, entry)| self.kernel_for(entry.prompt_tokens))
            .collect();
        self.warmth.drop_surplus(&wanted, actions);
        if self.warmth.is_compiling() || !self.lanes.is_present(Lane::Npu) {
            return;
        }
        let next = self
            .prefills
            .waiting()
            .filter_map(|id| self.ledger.get(id))
            .map(|entry| self.kernel_for(entry.prompt_tokens))
            .find(|kernel| self.warmth.lacks(kernel) && self.costs.warm_up(*kernel).is_some());
        if let Some(kernel) = next {
            self.warmth.compile(kernel, actions);
        }
    }

    fn kernel_for(&self, prompt_tokens: u32) -> WarmKernel {
        WarmKernel {
            tokens: self.model.chunk_tokens,
            context: prompt_tokens.next_multiple_of(CONTEXT_STEP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Action, Call, Class, ClientId, Cost, Event, LayerOrder, Micros, ModelShape, PromptLogits,
        RequestId, Scheduler, Submission, Ticket,
    };

    /// An NPU and an iGPU on which every call takes a second.
    struct Seconds;

    impl Costs for Seconds {
        fn model(&self) -> ModelShape {
            ModelShape {
                layers: 2,
                order: LayerOrder::default(),
                chunk_tokens: 256,
                context_tokens: 4096,
                kv_bytes_per_token: 1024,
            }
        }

        fn cost(&self, lane: Lane, _: Call) -> Option<Cost> {
            (lane != Lane::Cpu).then_some(Cost {
                latency_us: 1e6,
                bandwidth: 0.1,
            })
        }

        fn warm_cost(&self, _: WarmKernel) -> Option<Cost> {
            self.cost(Lane::Npu, Call::Head { rows: 1 })
        }

        fn warm_up(&self, _: WarmKernel) -> Option<Micros> {
            Some(Micros(1))
        }
    }

    #[test]
    fn a_kernel_that_cannot_be_compiled_is_asked_for_once_on_a_device() {
        let policy = heg_spec::shipped::policy("agent-xpu").unwrap();
        let mut scheduler = AgentXpu::new(policy, Seconds);
        let mut asked = |event| {
            let mut actions = Actions::new();
            scheduler.step(Micros(0), event, &mut actions);
            let contexts = actions.iter().filter_map(|action| match action {
                Action::Warm(kernel) => Some(kernel.context),
                _ => None,
            });
            contexts.collect::<Vec<_>>()
        };
        let submit = |id: u64, prompt_tokens| {
            Event::Submit(Submission {
                id: RequestId(id),
                client: ClientId::default(),
                flow: None,
                class: Class::Proactive,
                prompt_tokens,
                shared_tokens: 0,
                kept_tokens: 0,
                output_tokens_max: 1,
                deadline: None,
                prompt_logits: PromptLogits::LastRow,
            })
        };
        let kernel = |context| WarmKernel {
            tokens: 256,
            context,
        };
        // The first request begins; those behind it wait.
        assert_eq!(asked(submit(0, 100)), [0; 0]);
        assert_eq!(asked(submit(1, 300)), [512]);
        assert_eq!(asked(submit(2, 700)), [0; 0], "one at a time");
        assert_eq!(asked(Event::WarmFailed(kernel(512))), [768]);
        assert_eq!(asked(Event::Warmed(kernel(768))), [0; 0]);
        assert_eq!(asked(submit(3, 400)), [0; 0], "512 rows were refused");
        assert_eq!(asked(submit(4, 800)), [1024]);
        assert_eq!(asked(Event::WarmFailed(kernel(1024))), [0; 0]);
        // A device that comes back is asked again.
        assert_eq!(asked(Event::Lost(Lane::Npu)), [0; 0]);
        assert_eq!(asked(Event::Ready(Lane::Npu)), [512]);
        assert_eq!(
            asked(Event::Done {
                ticket: Ticket(99),
                layers: 0,
                ended: Vec::new(),
                given: Vec::new(),
            }),
            [0; 0]
        );
    }
}
