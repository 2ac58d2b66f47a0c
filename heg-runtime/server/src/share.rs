//! Clients' shares of a bounded resource: each has a reserved part that nobody else can use up, and the rest is first
//! come, first served.

use std::collections::BTreeMap;

use super::account::Scope;

/// The amounts of a resource that clients hold.
#[derive(Debug)]
pub(super) struct Shares {
    bounds: Bounds,
    /// Amount of each client that holds any.
    held: BTreeMap<Scope, usize>,
    /// Sum of the clients' amounts beyond their reserved parts.
    common: usize,
}

/// The limits of a shared resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Reserved part of each client, whatever the others hold.
    pub(super) own: usize,
    /// Maximum amount of one client.
    pub(super) each_max: usize,
    /// Maximum amount of all clients together beyond their reserved parts.
    pub(super) common_max: usize,
}

/// The limit that a client ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The limit of one client.
    Own,
    /// The limit of all clients together.
    Common,
}

impl Shares {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            held: BTreeMap::new(),
            common: 0,
        }
    }

    /// Returns the maximum amount of one client.
    pub(super) fn each_max(&self) -> usize {
        self.bounds.each_max
    }

    /// Returns the amount that a client holds.
    pub(super) fn of(&self, scope: Scope) -> usize {
        self.held.get(&scope).copied().unwrap_or_default()
    }

    /// Returns the amount that all clients hold.
    pub(super) fn total(&self) -> usize {
        self.held.values().sum()
    }

    /// Gives a client `more`, all of it or none.
    pub(super) fn give(&mut self, scope: Scope, more: usize) -> Result<(), Full> {
        let before = self.of(scope);
        let after = before.saturating_add(more);
        if after > self.bounds.each_max {
            return Err(Full::Own);
        }
        let common = self.common - self.beyond_own(before) + self.beyond_own(after);
        if common > self.common && common > self.bounds.common_max {
            return Err(Full::Common);
        }
        self.set(scope, after);
        Ok(())
    }

    /// Takes back an amount that a client no longer needs.
    pub(super) fn take_back(&mut self, scope: Scope, fewer: usize) {
        let after = self.of(scope).saturating_sub(fewer);
        self.set(scope, after);
    }

    fn set(&mut self, scope: Scope, after: usize) {
        let before = match after {
            0 => self.held.remove(&scope),
            _ => self.held.insert(scope, after),
        };
        self.common -= self.beyond_own(before.unwrap_or_default());
        self.common += self.beyond_own(after);
    }

    fn beyond_own(&self, held: usize) -> usize {
        held.saturating_sub(self.bounds.own)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        own: 20,
        each_max: 50,
        common_max: 40,
    };

    #[test]
    fn strangers_leave_a_client_its_own_part() {
        let mut shares = Shares::new(BOUNDS);
        let [first, second, third] = [0, 1, 2].map(Scope::Client);
        assert_eq!(shares.give(first, 51), Err(Full::Own));
        shares.give(first, 50).unwrap();
        assert_eq!(shares.give(first, 1), Err(Full::Own));
        shares.give(second, 30).unwrap();
        assert_eq!(shares.give(second, 1), Err(Full::Common));
        shares.give(third, 20).unwrap();
        assert_eq!(shares.give(third, 1), Err(Full::Common));
        shares.take_back(first, 50);
        shares.give(third, 1).unwrap();
        assert_eq!((shares.of(third), shares.total()), (21, 51));
    }

    proptest! {
        /// After any sequence of gives and returns, no client has more than its limit, all together have no more than
        /// theirs, and no client is refused an amount within its own part.
        #[test]
        fn nobody_is_refused_its_own_part(
            steps in prop::collection::vec((0_u32..4, 0_usize..60, any::<bool>()), 1..100),
        ) {
            let mut shares = Shares::new(BOUNDS);
            for (client, amount, gives) in steps {
                let scope = Scope::Client(client);
                let before = shares.of(scope);
                if gives {
                    let given = shares.give(scope, amount);
                    prop_assert!(given.is_ok() || before + amount > BOUNDS.own);
                    prop_assert_eq!(shares.of(scope), before + given.map_or(0, |()| amount));
                } else {
                    shares.take_back(scope, amount);
                    prop_assert_eq!(shares.of(scope), before.saturating_sub(amount));
                }
                let clients = (0..4).map(|client| shares.of(Scope::Client(client)));
                let beyond: usize = clients.clone().map(|held| held.saturating_sub(BOUNDS.own)).sum();
                prop_assert!(beyond <= BOUNDS.common_max && beyond == shares.common);
                prop_assert!(clients.max() <= Some(BOUNDS.each_max));
            }
        }
    }
}
