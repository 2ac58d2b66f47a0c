//! Reports to observers, and to other engines on the machine.

use super::super::shared_prompts::PromptTimes;
use super::Serving;
use heg_sched::{Action, Class, Event, Hold, HoldReason, Micros, RequestId};

impl Serving {
    /// Tells observers of a step of the scheduler.
    pub(super) fn tell_step(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        for observer in &mut self.observers {
            observer.stepped(now, event, actions);
        }
    }

    /// Tells observers that the beginning of a prompt is in the bundle.
    pub(super) fn tell_baked(&mut self, request: RequestId) {
        for observer in &mut self.observers {
            observer.baked(request);
        }
    }

    /// Tells the observers that ask why requests wait: the scheduler's, and those behind an earlier call of their
    /// flow.
    pub(super) fn tell_holds(&mut self) {
        if !self.observers.iter().any(|observer| observer.asks_why()) {
            return;
        }
        let now = self.now();
        let mut holds = Vec::new();
        self.scheduler.holds(&mut holds);
        holds.extend(self.held.iter().map(|arrival| Hold {
            request: arrival.id,
            why: HoldReason::Flow,
        }));
        for observer in &mut self.observers {
            if observer.asks_why() {
                observer.held(now, &holds);
                observer.counted(&self.scheduler.activations());
            }
        }
    }

    /// Tells other engines on the machine how long this one's prompts will take: at once when one comes or all requests have
    /// ended, and now and then while prompts go on.
    pub(super) fn tell_prompts(&mut self, is_new: bool) {
        // An engine that is alone does nothing more in its steps.
        if !self.prompts.are_shared() {
            return;
        }
        let now = self.now();
        let is_changed = is_new || self.scheduler.is_idle();
        if !is_changed && !self.prompts.are_due(now) {
            return;
        }
        let left = PromptTimes {
            reactive: self.scheduler.prompts_left(Class::Reactive),
            proactive: self.scheduler.prompts_left(Class::Proactive),
        };
        self.prompts.tell(left, now);
    }
}
