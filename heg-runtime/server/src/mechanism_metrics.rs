//! Metrics of the scheduler's mechanisms: how often each acted, how often it would have, and which of them are on.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::metrics::Label;
use heg_sched::{ActivationCounts, Mechanism};

/// Registers the mechanisms of the policy: one that is on and has no step never acted.
pub(super) fn register(registry: &mut Registry, counts: &ActivationCounts) {
    let (steps, overruled) = <(MechanismSteps, MechanismSteps)>::default();
    let on = Family::<[Label; 1], Gauge>::default();
    for mechanism in Mechanism::ALL {
        let label = [("mechanism", mechanism.name())];
        steps.get_or_create(&label).inc_by(counts.of(mechanism));
        overruled
            .get_or_create(&label)
            .inc_by(counts.overruled(mechanism));
        let is_on = counts.on().any(|it| it == mechanism);
        on.get_or_create(&label).set(i64::from(is_on));
    }
    let help = "Steps of the scheduler in which a mechanism acted";
    registry.register("mechanism_steps", help, steps);
    let help = "Steps in which a mechanism would have acted, had none before it decided";
    registry.register("mechanism_overruled_steps", help, overruled);
    let help = "Whether the policy has a mechanism on";
    registry.register("mechanism_on", help, on);
}

/// A count for each mechanism.
type MechanismSteps = Family<[Label; 1], Counter>;
