//! Orders that the other side of a partner runs alone without dividing, timing and learning, since the partner got nothing
//! of the latest ones of their kind.

use crate::call::CpuCall;
use crate::kernel::CpuKernel;

/// Orders that take about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrderKind {
    /// Address of the first kernel.
    kernel: usize,
    calls: usize,
    rows: usize,
    /// The rules that it is divided by: see [`Partition::rules`](crate::Partition::rules).
    rules: u32,
}

/// The outcome of a divided order for a partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PartnerPart {
    Nothing,
    /// Parts to be measured, and no others.
    Questions,
    Parts,
}

/// Orders without a partner, by kind.
#[derive(Debug, Default)]
pub(crate) struct Rests(Vec<Rest>);

#[derive(Debug)]
struct Rest {
    kind: OrderKind,
    /// Divided orders in a row that gave the partner nothing.
    quiet: u32,
    /// Orders that are left to run without division.
    left: u32,
    /// Orders of the latest rest.
    length: u32,
}

impl OrderKind {
    pub(crate) fn of(order: &[(&CpuKernel, CpuCall<'_>)], rules: u32) -> Option<Self> {
        let (kernel, call) = order.first()?;
        Some(Self {
            kernel: std::ptr::from_ref(*kernel).addr(),
            calls: order.len(),
            rows: call.rows,
            rules,
        })
    }
}

impl Rests {
    /// Whether the next order of a kind is run without division.
    pub(crate) fn take(&mut self, kind: OrderKind) -> bool {
        let rest = self.0.iter_mut().find(|rest| rest.kind == kind);
        rest.is_some_and(|rest| {
            let is_left = rest.left > 0;
            rest.left = rest.left.saturating_sub(1);
            is_left
        })
    }

    /// The orders that a divided one stands for: itself, and those that ran without division before it.
    pub(crate) fn stands_for(&self, kind: OrderKind) -> u32 {
        let rest = self.0.iter().find(|rest| rest.kind == kind);
        rest.map_or(1, |rest| rest.length + 1)
    }

    /// Learns from a divided order.
    pub(crate) fn learn(&mut self, kind: OrderKind, part: PartnerPart) {
        let known = self.0.iter().position(|rest| rest.kind == kind);
        let at = known.unwrap_or_else(|| {
            if self.0.len() == KINDS_MAX {
                self.0.remove(0);
            }
            self.0.push(Rest {
                kind,
                quiet: 0,
                left: 0,
                length: 0,
            });
            self.0.len() - 1
        });
        let rest = &mut self.0[at];
        match part {
            PartnerPart::Parts => (rest.quiet, rest.length) = (0, 0),
            // They say nothing of what the next order gives.
            PartnerPart::Questions => rest.length = 0,
            PartnerPart::Nothing => {
                rest.quiet = rest.quiet.saturating_add(1);
                let more = rest.quiet.saturating_sub(QUIET).min(DOUBLINGS);
                rest.length = (1 << more) - 1;
            }
        }
        rest.left = rest.length;
    }
}

/// Divided orders without a part for the partner before the first rest. Chosen: `pace` and the tuners know by then.
const QUIET: u32 = 8;

/// Doublings of a rest. Chosen: a small model's 63 steps take a tenth of a second, after which a change is noticed.
const DOUBLINGS: u32 = 6;

/// Kinds that are kept. Chosen: two stages, of tens of sizes.
const KINDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: OrderKind = OrderKind {
        kernel: 1,
        calls: 91,
        rows: 1,
        rules: 0,
    };

    /// Runs orders that give the partner `part`; returns the number that were divided.
    fn divided(rests: &mut Rests, orders: usize, part: PartnerPart) -> usize {
        let mut stand_for = 0;
        let mut divided = 0;
        for _ in 0..orders {
            if !rests.take(KIND) {
                stand_for += rests.stands_for(KIND);
                rests.learn(KIND, part);
                divided += 1;
            }
        }
        assert!(
            orders.abs_diff(stand_for as usize) < 64,
            "{stand_for} of {orders}"
        );
        divided
    }

    #[test]
    fn one_order_in_64_is_divided_while_a_partner_gets_nothing() {
        let mut rests = Rests::default();
        divided(&mut rests, 200, PartnerPart::Nothing);
        assert_eq!(divided(&mut rests, 6400, PartnerPart::Nothing), 100);
        let others = [
            OrderKind { rows: 2, ..KIND },
            OrderKind { rules: 1, ..KIND },
        ];
        assert!(others.into_iter().all(|other| !rests.take(other)));
    }

    #[test]
    fn every_order_is_divided_that_gives_a_partner_parts() {
        let mut rests = Rests::default();
        assert_eq!(divided(&mut rests, 100, PartnerPart::Parts), 100);
        divided(&mut rests, 1000, PartnerPart::Nothing);
        while rests.take(KIND) {}
        assert_eq!(divided(&mut rests, 100, PartnerPart::Parts), 100);
    }

    #[test]
    fn questions_are_followed_by_a_divided_order_and_then_by_long_rests() {
        let mut rests = Rests::default();
        divided(&mut rests, 1000, PartnerPart::Nothing);
        while rests.take(KIND) {}
        rests.learn(KIND, PartnerPart::Questions);
        assert!(!rests.take(KIND));
        rests.learn(KIND, PartnerPart::Nothing);
        assert_eq!(rests.stands_for(KIND), 64);
    }
}
