//! Decides which kernel runs next, and on which device.
//!
//! A [`Scheduler`] is a state machine without threads, clocks or devices: it takes in events with their times
//! ([`Event`]) and answers with commands ([`Action`]). The executor drives it with OpenVINO's completions,
//! the simulator with virtual time. Its knowledge of speed comes from [`Costs`], its limits from a policy
//! file.
//!
//! `pass` is the schedule of a single request, which needs no scheduler.

mod agent_xpu;
mod batch;
mod clients;
mod costs;
mod event;
mod forecast;
mod hold;
mod isolation;
mod kv;
mod lanes;
mod ledger;
mod machine;
mod mechanism;
mod observer;
mod order;
mod partition;
mod pass;
mod prefill;
mod request;
mod rows;
mod single_lane;
mod switching;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

pub use agent_xpu::AgentXpu;
pub use costs::{
    CachedCosts, Call, Cost, Costs, KernelBound, LaneLoad, ModelShape, Slowdowns, WorkStage,
};
pub use event::{
    Action, Actions, DecodeRun, Decoding, Event, Finish, Given, LayerKernel, Segment, Ticket,
    Transfer, WarmKernel, Work,
};
pub use hold::{Hold, HoldReason};
pub use lanes::RESET_PATIENCE;
pub use machine::{
    MachineFacts, MachineLanes, NoLane, for_machine, one_request_policy, prefill_tokens_max,
    with_rows,
};
pub use mechanism::{ActivationCounts, Mechanism};
pub use observer::{Observed, Observer};
pub use order::LayerOrder;
pub use pass::{Launch, Logits, Span, chunks, launches};
pub use prefill::PromptWindow;
pub use request::{Class, ClientId, FlowId, Lane, Micros, PromptLogits, RequestId, Submission};
pub use single_lane::{ClassesPresent, DeviceSharing, SingleLane};
pub use switching::{Load, SwitchTimes, SwitchedBlock, Switching, plan, times};

/// A scheduler: Agent.xpu's, or a baseline that it is compared with.
pub trait Scheduler {
    /// Takes in one event and appends its answer to `actions`.
    ///
    /// `now` never decreases from call to call. Calls with equal arguments, in equal order, give equal actions.
    /// Events that are out of date (a ticket that was taken back, a request that is gone) change
    /// nothing.
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions);

    /// Whether no request is live.
    fn is_idle(&self) -> bool;

    /// Number of steps in which each mechanism of the policy acted; all zero for a scheduler without mechanisms.
    fn activations(&self) -> ActivationCounts {
        ActivationCounts::default()
    }

    /// Time from the last step to a live request's first token, as far as its prompt and the prompts before it
    /// determine it; `None` if the request is not live or has its first token, or if the scheduler does not forecast.
    fn first_token_in(&self, _request: RequestId) -> Option<Micros> {
        None
    }

    /// Time that is left of the prompts of a class up to their first tokens, alone on their lanes; nothing if the scheduler
    /// does not forecast.
    fn prompts_left(&self, _class: Class) -> Micros {
        Micros(0)
    }

    /// Appends every live request that has nothing running, with the reason why it waits. Changes no state, and costs
    /// nothing unless it is called.
    fn holds(&self, _holds: &mut Vec<Hold>) {}
}

impl<S: Scheduler + ?Sized> Scheduler for Box<S> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        (**self).step(now, event, actions);
    }

    fn is_idle(&self) -> bool {
        (**self).is_idle()
    }

    fn activations(&self) -> ActivationCounts {
        (**self).activations()
    }

    fn first_token_in(&self, request: RequestId) -> Option<Micros> {
        (**self).first_token_in(request)
    }

    fn prompts_left(&self, class: Class) -> Micros {
        (**self).prompts_left(class)
    }

    fn holds(&self, holds: &mut Vec<Hold>) {
        (**self).holds(holds);
    }
}

/// Returns the scheduler that a policy asks for.
pub fn scheduler<C: Costs + 'static>(policy: Policy, costs: C) -> Box<dyn Scheduler> {
    match policy.scheduler {
        SchedulerKind::AgentXpu => Box::new(AgentXpu::new(policy, costs)),
        SchedulerKind::ContinuousBatching => Box::new(SingleLane::new(policy, costs)),
        SchedulerKind::PriorityBatching => Box::new(SingleLane::by_priority(policy, costs)),
    }
}
