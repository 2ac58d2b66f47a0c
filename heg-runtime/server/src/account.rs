//! Accounts for the memory that each client makes the server keep, each against its own budget.
//!
//! Clients are told apart by their [`Scope`]. Every byte that a client makes the server keep is charged to its
//! [`Account`] for as long as it is kept; dropping the [`Charge`] gives it back. An account has a reserved part that
//! nobody else can use up and, beyond that, a share of a common pool. Small charges have a separate limit, so that
//! neither another client's large bodies nor the client's own crowd them out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{ApiError, Result};
use super::share::{Bounds, Full, Shares};
use heg_runtime::engine::ScopeId;

/// The identity of a client: its credential or, where none is required, the transport over which it connected. Clients
/// of different scopes see nothing of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    /// Loopback, where no token is required.
    Loopback,
    /// The Unix socket, where no token is required: a user of this machine, by user id.
    User(u32),
    /// A client with a token, over either transport: the index of its name in the server's list.
    Client(u32),
}

impl Scope {
    /// Returns the scope as the engine knows it.
    pub(super) fn id(self) -> ScopeId {
        let (kind, number) = match self {
            Self::Loopback => (0, 0),
            Self::User(user) => (1, user),
            Self::Client(place) => (2, place),
        };
        ScopeId(kind << 32 | u64::from(number))
    }
}

/// Limits on what clients can make the server keep. All of them are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Largest charge that counts as small, in bytes.
    pub small_bytes: usize,
    /// Maximum of an account's small charges together, in bytes.
    pub small_total_bytes: usize,
    /// Part of an account's large charges that nobody else can use up, in bytes.
    pub own_bytes: usize,
    /// Maximum of an account's large charges together, in bytes.
    pub account_bytes: usize,
    /// Maximum of all accounts' large charges beyond their own parts, in bytes.
    pub shared_bytes: usize,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            small_bytes: 64 << 10,
            small_total_bytes: 24 << 20,
            own_bytes: 16 << 20,
            account_bytes: 64 << 20,
            shared_bytes: 96 << 20,
        }
    }
}

/// The accounts of all clients.
#[derive(Debug, Clone)]
pub(super) struct Accounts(Arc<Ledger>);

#[derive(Debug)]
struct Ledger {
    /// Size of the largest small charge, in bytes.
    small_bytes: usize,
    held: Mutex<Balances>,
}

/// Memory kept for each client now, in bytes.
#[derive(Debug)]
struct Balances {
    small: Shares,
    large: Shares,
}

/// The limit that a charge counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Small,
    /// A charge that was large once stays large, even if it shrinks.
    Large,
}

impl Accounts {
    pub(super) fn new(budgets: Budgets) -> Self {
        let small = Bounds {
            own: budgets.small_total_bytes,
            each_max: budgets.small_total_bytes,
            common_max: 0,
        };
        let large = Bounds {
            own: budgets.own_bytes,
            each_max: budgets.account_bytes,
            common_max: budgets.shared_bytes,
        };
        Self(Arc::new(Ledger {
            small_bytes: budgets.small_bytes,
            held: Mutex::new(Balances {
                small: Shares::new(small),
                large: Shares::new(large),
            }),
        }))
    }

    /// Returns the account of a client.
    pub(super) fn of(&self, scope: Scope) -> Account {
        Account {
            ledger: Arc::clone(&self.0),
            scope,
        }
    }
}

/// The account of one client.
#[derive(Debug, Clone)]
pub(super) struct Account {
    ledger: Arc<Ledger>,
    scope: Scope,
}

impl Account {
    /// Returns the client that owns the account.
    pub(super) fn scope(&self) -> Scope {
        self.scope
    }

    /// Charges `bytes` to the account.
    ///
    /// # Errors
    /// `AccountFull` if the client's other requests keep too much; `BodiesFull` if all clients together do.
    pub(super) fn charge(&self, bytes: usize) -> Result<Charge> {
        let mut charge = Charge {
            account: self.clone(),
            room: Room::Small,
            bytes: 0,
        };
        charge.grow(bytes)?;
        Ok(charge)
    }
}

/// Bytes that a client makes the server keep, until it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: Account,
    room: Room,
    bytes: usize,
}

impl Charge {
    /// Charges `more` bytes; if there is no room, the charge stays as it was.
    ///
    /// # Errors
    /// As [`Account::charge`].
    pub(super) fn grow(&mut self, more: usize) -> Result<()> {
        let Account { ledger, scope } = &self.account;
        let bytes = self.bytes.saturating_add(more);
        let room = match self.room {
            Room::Small if bytes <= ledger.small_bytes => Room::Small,
            _ => Room::Large,
        };
        ledger.grow(*scope, (self.room, self.bytes), (room, bytes))?;
        (self.room, self.bytes) = (room, bytes);
        Ok(())
    }

    /// Grows or shrinks the charge to this many bytes; if there is no room, it stays as it was.
    ///
    /// # Errors
    /// As [`Account::charge`].
    pub(super) fn set(&mut self, bytes: usize) -> Result<()> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.shrink(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// Gives `fewer` bytes back.
    pub(super) fn shrink(&mut self, fewer: usize) {
        let Account { ledger, scope } = &self.account;
        let fewer = fewer.min(self.bytes);
        ledger.shrink(*scope, self.room, fewer);
        self.bytes -= fewer;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

impl Ledger {
    /// Replaces a charge with a larger one.
    fn grow(&self, scope: Scope, from: (Room, usize), to: (Room, usize)) -> Result<()> {
        let mut held = self.lock();
        let more = match from.0 == to.0 {
            true => to.1 - from.1,
            false => to.1,
        };
        let room = held.room(to.0);
        room.give(scope, more).map_err(|full| match full {
            Full::Own => ApiError::AccountFull {
                bytes_max: room.each_max(),
            },
            Full::Common => ApiError::BodiesFull,
        })?;
        if from.0 != to.0 {
            held.room(from.0).take_back(scope, from.1);
        }
        Ok(())
    }

    fn shrink(&self, scope: Scope, room: Room, fewer: usize) {
        self.lock().room(room).take_back(scope, fewer);
    }

    fn lock(&self) -> MutexGuard<'_, Balances> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Balances {
    fn room(&mut self, room: Room) -> &mut Shares {
        match room {
            Room::Small => &mut self.small,
            Room::Large => &mut self.large,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    fn accounts() -> (Account, Account) {
        let accounts = Accounts::new(Budgets::default());
        (
            accounts.of(Scope::Client(0)),
            accounts.of(Scope::User(1000)),
        )
    }

    #[test]
    fn a_stranger_who_fills_everything_leaves_the_others_their_own() {
        let accounts = Accounts::new(Budgets::default());
        let greedy: Vec<Charge> = (0..4)
            .flat_map(|stranger| {
                let account = accounts.of(Scope::User(stranger));
                std::iter::from_fn(move || account.charge(8 * MIB).ok())
            })
            .collect();
        assert!(greedy.len() >= 8);
        let other = accounts.of(Scope::Loopback);
        let own = [(); 2].map(|()| other.charge(8 * MIB).unwrap());
        assert!(matches!(other.charge(8 * MIB), Err(ApiError::BodiesFull)));
        drop(greedy);
        let _more = other.charge(8 * MIB).unwrap();
        drop(own);
    }

    #[test]
    fn large_charges_leave_small_ones_of_the_same_account_room() {
        let (account, other) = accounts();
        let full: Vec<Charge> = std::iter::from_fn(|| account.charge(8 * MIB).ok()).collect();
        assert_eq!(full.len(), 8);
        assert!(matches!(
            account.charge(8 * MIB),
            Err(ApiError::AccountFull { .. })
        ));
        let mut small = account.charge(1000).unwrap();
        assert!(small.grow(MIB).is_err());
        assert_eq!(small.bytes, 1000, "what was charged stays");
        other.charge(8 * MIB).unwrap();
    }

    proptest! {
        /// After any sequence of charges and returns, the ledger agrees with the charges and ends empty.
        #[test]
        fn the_books_agree_with_the_charges(
            steps in prop::collection::vec((0_u32..3, 0_usize..8, 0_usize..300, 0_u8..4), 1..200),
        ) {
            let accounts = Accounts::new(Budgets {
                small_bytes: 50,
                small_total_bytes: 120,
                own_bytes: 200,
                account_bytes: 500,
                shared_bytes: 400,
            });
            let mut charges: BTreeMap<(u32, usize), Charge> = BTreeMap::new();
            for (client, place, bytes, step) in steps {
                let key = (client, place);
                match (step, charges.get_mut(&key)) {
                    (0, _) => drop(charges.remove(&key)),
                    (1, Some(charge)) => charge.shrink(bytes),
                    (_, Some(charge)) => drop(charge.grow(bytes)),
                    (_, None) => {
                        if let Ok(charge) = accounts.of(Scope::Client(client)).charge(bytes) {
                            charges.insert(key, charge);
                        }
                    }
                }
                let mut held = accounts.0.lock();
                for scope in (0..3).map(Scope::Client) {
                    for room in [Room::Small, Room::Large] {
                        let own = charges.values();
                        let own = own.filter(|charge| charge.account.scope == scope && charge.room == room);
                        let bytes: usize = own.map(|charge| charge.bytes).sum();
                        prop_assert_eq!(held.room(room).of(scope), bytes);
                    }
                }
            }
            charges.clear();
            let held = accounts.0.lock();
            prop_assert_eq!(held.small.total() + held.large.total(), 0);
        }
    }
}
