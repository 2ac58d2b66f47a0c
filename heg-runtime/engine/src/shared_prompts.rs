//! Prompts of several engines on one machine: each engine tells how long its own will take, so that forecasts of the
//! others count them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heg_sched::{Class, Micros};

use crate::device_turns::EngineNumber;

/// Time that is left of an engine's prompts up to their first tokens, alone on the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PromptTimes {
    pub(super) reactive: Micros,
    pub(super) proactive: Micros,
}

/// The prompts of all engines on a machine.
#[derive(Debug, Default)]
pub(super) struct SharedPrompts(Mutex<EngineTimes>);

type EngineTimes = BTreeMap<EngineNumber, PromptTimes>;

impl SharedPrompts {
    fn lock(&self) -> MutexGuard<'_, EngineTimes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One engine's place among those of its machine; none on a machine that it has to itself.
#[derive(Debug, Default)]
pub(super) struct EnginePrompts(Option<Place>);

#[derive(Debug)]
struct Place {
    machine: Arc<SharedPrompts>,
    number: EngineNumber,
    told_at: Micros,
}

impl EnginePrompts {
    /// A place on a machine for several engines.
    pub(super) fn among(machine: Arc<SharedPrompts>, number: EngineNumber) -> Self {
        Self(Some(Place {
            machine,
            number,
            told_at: Micros(0),
        }))
    }

    /// Whether other engines know an old time, while prompts go on.
    pub(super) fn are_due(&self, now: Micros) -> bool {
        let place = self.0.as_ref();
        place.is_some_and(|place| now.0.saturating_sub(place.told_at.0) >= TOLD_EVERY.0)
    }

    /// Whether there may be other engines.
    pub(super) fn are_shared(&self) -> bool {
        self.0.is_some()
    }

    /// Tells other engines what is left.
    pub(super) fn tell(&mut self, times: PromptTimes, now: Micros) {
        if let Some(place) = &mut self.0 {
            place.told_at = now;
            place.machine.lock().insert(place.number, times);
        }
    }

    /// Time by which the prompts of other engines delay a first token that takes `alone` without them. Persons at different
    /// models take turns; background work waits for persons, and takes turns with other background work.
    pub(super) fn delay(&self, class: Class, alone: Micros) -> Micros {
        let Some(place) = &self.0 else {
            return Micros(0);
        };
        let times = place.machine.lock();
        let others = times.iter().filter(|(it, _)| **it != place.number);
        let delays = others.map(|(_, times)| match class {
            Class::Reactive => times.reactive.min(alone),
            Class::Proactive => times.reactive + times.proactive.min(alone),
        });
        delays.fold(Micros(0), |sum, delay| sum + delay)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.machine.lock().remove(&self.number);
    }
}

/// Time after which a prompt's progress is told. Chosen: summing up hundreds of long prompts takes a millisecond.
const TOLD_EVERY: Micros = Micros(20_000);

#[cfg(test)]
mod tests {
    use super::*;

    fn times(reactive: u64, proactive: u64) -> PromptTimes {
        PromptTimes {
            reactive: Micros(reactive),
            proactive: Micros(proactive),
        }
    }

    #[test]
    fn prompts_of_other_engines_delay_a_first_token() {
        let machine = Arc::default();
        let [mut chat, mut digest, embedder] =
            [0, 1, 2].map(|n| EnginePrompts::among(Arc::clone(&machine), EngineNumber(n)));
        let delays = |of: &EnginePrompts| {
            let delay = |class| of.delay(class, Micros(100)).0;
            [delay(Class::Reactive), delay(Class::Proactive)]
        };
        assert_eq!(delays(&embedder), [0, 0]);
        chat.tell(times(70, 1000), Micros(1));
        digest.tell(times(300, 30), Micros(1));
        assert_eq!(delays(&embedder), [70 + 100, 70 + 100 + 300 + 30]);
        // No engine waits for itself.
        assert_eq!(delays(&digest), [70, 70 + 100]);
        digest.tell(times(0, 30), Micros(2));
        assert_eq!(delays(&embedder), [70, 70 + 100 + 30]);
        drop(chat);
        assert_eq!(delays(&embedder), [0, 30]);
        assert_eq!(delays(&EnginePrompts::default()), [0, 0]);
    }

    #[test]
    fn progress_is_told_now_and_then() {
        let mut own = EnginePrompts::among(Arc::default(), EngineNumber(0));
        own.tell(times(1, 2), Micros(5));
        assert!(!own.are_due(Micros(5 + TOLD_EVERY.0 - 1)));
        assert!(own.are_due(Micros(5 + TOLD_EVERY.0)));
        assert!(!EnginePrompts::default().are_due(Micros(u64::MAX)));
    }
}
