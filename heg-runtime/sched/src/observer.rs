//! Observers of a scheduler at work.

use crate::{
    Action, Actions, ActivationCounts, Class, Event, Hold, Lane, Micros, RequestId, Scheduler,
};

/// Observes the scheduler at work: for traces, pictures, checks.
pub trait Observer: Send {
    /// Observes one step: an event, and the actions that answer it. Called on the conductor's thread, which waits.
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]);

    /// Whether it wants to know why requests wait. It is asked at each step, and the answer may change.
    fn asks_why(&self) -> bool {
        false
    }

    /// Observes why each live request that has nothing running waits after a step.
    fn held(&mut self, _now: Micros, _holds: &[Hold]) {}

    /// Observes the counts of mechanisms after a step, if it asks why requests wait.
    fn counted(&mut self, _counts: &ActivationCounts) {}

    /// Observes, before the step that submits a request, that the leading tokens of its prompt that need not be computed
    /// are in the bundle, and not in kept state.
    fn baked(&mut self, _request: RequestId) {}

    /// Observes that a lane cannot be used any more. Requests go on without it, if they can.
    fn lost(&mut self, _lane: Lane, _why: &str) {}
}

/// A scheduler with an observer, which does not change what the scheduler does.
#[derive(Debug)]
pub struct Observed<S, O> {
    scheduler: S,
    observer: O,
}

impl<S: Scheduler, O: Observer> Observed<S, O> {
    /// Makes a scheduler that `observer` watches.
    pub fn new(scheduler: S, observer: O) -> Self {
        Self {
            scheduler,
            observer,
        }
    }

    /// Returns the observer, with all that it has recorded.
    pub fn into_observer(self) -> O {
        self.observer
    }
}

impl<S: Scheduler, O: Observer> Scheduler for Observed<S, O> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        let told = event.clone();
        let first = actions.len();
        self.scheduler.step(now, event, actions);
        self.observer.stepped(now, &told, &actions[first..]);
        if self.observer.asks_why() {
            let mut holds = Vec::new();
            self.scheduler.holds(&mut holds);
            self.observer.held(now, &holds);
            self.observer.counted(&self.scheduler.activations());
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn activations(&self) -> ActivationCounts {
        self.scheduler.activations()
    }

    fn first_token_in(&self, request: RequestId) -> Option<Micros> {
        self.scheduler.first_token_in(request)
    }

    fn prompts_left(&self, class: Class) -> Micros {
        self.scheduler.prompts_left(class)
    }

    fn holds(&self, holds: &mut Vec<Hold>) {
        self.scheduler.holds(holds);
    }
}
