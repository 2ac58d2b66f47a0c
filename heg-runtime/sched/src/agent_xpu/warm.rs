//! On-the-fly warm-up: static attention kernels that are compiled on the CPU while their request waits (§4.3).

use std::collections::BTreeSet;

use heg_spec::policy::NpuAttention;

use super::AgentXpu;
use crate::costs::{Cost, Costs};
use crate::event::{Action, Actions, Segment, WarmKernel};
use crate::ledger::Progress as _;
use crate::request::Lane;

/// Contexts are rounded up to this many tokens, so that requests of about the same length share a kernel.
/// Chosen: a chunk of the paper's.
const CONTEXT_STEP: u32 = 256;

/// Number of kernels that stay when no request needs them, in case one comes: each is a megabyte or two, and
/// takes seconds of the CPU. Chosen: all multiples of the step up to a context of 4096.
const KEPT_MAX: usize = 16;

/// The compiled kernels, the one that is being compiled, and those that the device refuses.
#[derive(Debug, Default)]
pub(super) struct Warmth {
    ready: BTreeSet<WarmKernel>,
    compiling: Option<(WarmKernel, Wanted)>,
    refused: BTreeSet<WarmKernel>,
    /// The requests ([`Prefills::revision`]) for which it was last decided which kernels to compile and to
    /// drop; `None` if something else has changed.
    ///
    /// [`Prefills::revision`]: super::prefills::Prefills::revision
    decided_at: Option<u64>,
}

/// The device for which a kernel is being compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The present device.
    Here,
    /// A device that has gone since.
    Elsewhere,
}

impl Warmth {
    /// Takes in a compiled kernel, perhaps for a device that has gone since.
    pub(super) fn warmed(&mut self, kernel: WarmKernel, actions: &mut Actions) {
        match self.arrived(kernel) {
            Some(Wanted::Here) => {
                self.ready.insert(kernel);
            }
            Some(Wanted::Elsewhere) => actions.push(Action::Unload(kernel)),
            None => {}
        }
    }

    /// Notes that a kernel cannot be compiled, so that it is not tried again on this device.
    pub(super) fn failed(&mut self, kernel: WarmKernel) {
        if self.arrived(kernel) == Some(Wanted::Here) {
            self.refused.insert(kernel);
        }
    }

    /// Ends the compilation that was asked for; returns its device.
    fn arrived(&mut self, kernel: WarmKernel) -> Option<Wanted> {
        let (_, wanted) = self.compiling.take_if(|(asked, _)| *asked == kernel)?;
        self.decided_at = None;
        Some(wanted)
    }

    /// Reconsiders all kernels, since a device came back.
    pub(super) fn reconsider(&mut self) {
        self.decided_at = None;
    }

    /// The cost of attention over a segment with the best compiled kernel.
    pub(super) fn cost(&self, costs: &impl Costs, segment: Segment) -> Option<Cost> {
        self.ready
            .iter()
            .filter(|k| k.tokens >= segment.tokens && k.context >= segment.context())
            .filter_map(|kernel| costs.warm_cost(*kernel))
            .min_by(|a, b| a.latency_us.total_cmp(&b.latency_us))
    }

    /// Forgets the kernels of a device that is gone.
    pub(super) fn forget(&mut self, actions: &mut Actions) {
        self.decided_at = None;
        if let Some((_, wanted)) = &mut self.compiling {
            *wanted = Wanted::Elsewhere;
        }
        self.refused.clear();
        for kernel in std::mem::take(&mut self.ready) {
            actions.push(Action::Unload(kernel));
        }
    }
}

impl<C: Costs> AgentXpu<C> {
    /// Compiles the kernel of the first waiting request that has none, and drops kernels that no request needs
    /// if there are too many.
    pub(super) fn warm_up(&mut self, actions: &mut Actions) {
        if self.policy.prefill.attention != NpuAttention::WarmUp {
            return;
        }
        let revision = self.prefills.revision();
        if self.warmth.decided_at.replace(revision) == Some(revision) {
            return;
        }
        let wanted: BTreeSet<WarmKernel> = self
            .ledger
            .iter()
            .filter(|(_, entry)| !entry.own.decodes())
            .map(|(_, entry)| self.kernel_for(entry.prompt_tokens))
            .collect();
        let unwanted = |kernel: &WarmKernel| !wanted.contains(kernel);
        let ready = &self.warmth.ready;
        let surplus = ready.len().saturating_sub(KEPT_MAX);
        // The longest contexts are the rarest.
        let idle = ready.iter().rev().copied().filter(unwanted);
        for kernel in idle.take(surplus).collect::<Vec<_>>() {
            self.warmth.ready.remove(&kernel);
            actions.push(Action::Unload(kernel));
        }
        if self.warmth.compiling.is_some() || !self.lanes.is_present(Lane::Npu) {
            return;
        }
        let next = self
            .prefills
            .waiting()
            .filter_map(|id| self.ledger.get(id))
            .map(|entry| self.kernel_for(entry.prompt_tokens))
            .find(|kernel| {
                !self.warmth.ready.contains(kernel)
                    && !self.warmth.refused.contains(kernel)
                    && self.costs.warm_up(*kernel).is_some()
            });
        if let Some(kernel) = next {
            self.warmth.compiling = Some((kernel, Wanted::Here));
            actions.push(Action::Warm(kernel));
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
        Call, Class, ClientId, Event, Micros, ModelShape, PromptLogits, RequestId, Scheduler,
        Submission, Ticket,
    };

    /// An NPU and an iGPU on which every call takes a second.
    struct Seconds;

    impl Costs for Seconds {
        fn model(&self) -> ModelShape {
            ModelShape {
                layers: 2,
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
