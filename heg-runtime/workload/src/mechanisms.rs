//! The mechanisms of a run in words: which acted, which would have, and which never did.

use std::fmt;

use heg_sched::{ActivationCounts, Mechanism};

/// Counts of the mechanisms of a policy in a run, in the order in which their rules are asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MechanismUse {
    /// The mechanisms that the policy has on, each with the steps in which it acted, and in which it would have if none
    /// before it had decided.
    pub steps: Vec<(Mechanism, [u64; 2])>,
}

impl From<&ActivationCounts> for MechanismUse {
    fn from(counts: &ActivationCounts) -> Self {
        let steps = |it| (it, [counts.of(it), counts.overruled(it)]);
        Self {
            steps: counts.on().map(steps).collect(),
        }
    }
}

/// Lines without an end for the mechanisms that acted, then one for those that did not.
impl fmt::Display for MechanismUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut never = Vec::new();
        for (mechanism, [acted, overruled]) in &self.steps {
            let name = mechanism.name();
            match (acted, overruled) {
                (0, 0) => never.push(name),
                (acted, 0) => writeln!(f, "{name} acted in {acted} steps")?,
                (acted, more) => writeln!(
                    f,
                    "{name} acted in {acted} steps, and would have in {more} more if none before it had decided"
                )?,
            }
        }
        match never.is_empty() {
            true => Ok(()),
            false => write!(f, "never acted: {}", never.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_acts_has_a_line_and_the_others_share_one() {
        let used = MechanismUse {
            steps: vec![
                (Mechanism::Preemption, [3, 0]),
                (Mechanism::Split, [0, 0]),
                (Mechanism::Pressure, [0, 7]),
                (Mechanism::Ageing, [0, 0]),
            ],
        };
        let name = Mechanism::name;
        let expected = [
            format!("{} acted in 3 steps", name(Mechanism::Preemption)),
            format!(
                "{} acted in 0 steps, and would have in 7 more if none before it had decided",
                name(Mechanism::Pressure)
            ),
            format!(
                "never acted: {}, {}",
                name(Mechanism::Split),
                name(Mechanism::Ageing)
            ),
        ];
        assert_eq!(used.to_string(), expected.join("\n"));
        assert_eq!(MechanismUse::default().to_string(), "");
    }
}
