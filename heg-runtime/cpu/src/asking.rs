//! Decides when a partner that gets nothing of a product computes a part of it all the same, so that its speed is known.
//!
//! A product is asked for in single phases: in two orders before the partner gets anything, since it may be hundreds of
//! times as slow, and later each time when all that was done without it took a hundred times as long as the question.

use crate::pace::PaceKey;

/// The questions that a partner was asked, by product.
#[derive(Debug, Default)]
pub(crate) struct Asking(Vec<Asked>);

/// A product of a completed order: one of its phases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedPhase {
    pub(crate) key: PaceKey,
    /// Whether the partner had a part of it.
    pub(crate) has_part: bool,
    pub(crate) took_ns: u64,
}

#[derive(Debug)]
struct Asked {
    key: PaceKey,
    /// Orders in which the partner had a part.
    orders: u32,
    /// Time of a phase in which it had one, in ns: no question costs more.
    cost_ns: u64,
    /// Time of phases without it since then, in ns.
    without_ns: u64,
    /// Questions in the order that is listed.
    listed: u32,
    /// Whether it had a part in the order that ends.
    had_part: bool,
}

impl Asking {
    /// Begins to list an order.
    pub(crate) fn begin(&mut self) {
        self.0.iter_mut().for_each(|asked| asked.listed = 0);
    }

    /// Whether too little is known of a partner to give it more than questions.
    pub(crate) fn is_new(&self, key: PaceKey) -> bool {
        let mut all = self.0.iter();
        let known = all.find(|asked| asked.key == key);
        known.is_none_or(|asked| asked.orders < NEW)
    }

    /// Whether the next phase of a product is to be a question.
    pub(crate) fn asks(&mut self, key: PaceKey) -> bool {
        let asked = self.of(key);
        let is_asked = match asked.orders < NEW {
            true => asked.listed < AT_FIRST,
            false => asked.listed == 0 && asked.without_ns >= asked.cost_ns.saturating_mul(TIMES),
        };
        asked.listed += u32::from(is_asked);
        is_asked
    }

    /// Learns from the phases of a completed order that the partner might have had a part of. It stands for `orders`, the
    /// others without a partner.
    pub(crate) fn learn(&mut self, phases: impl Iterator<Item = AskedPhase>, orders: u32) {
        for phase in phases {
            let asked = self.of(phase.key);
            if !phase.has_part {
                let took_ns = phase.took_ns.saturating_mul(orders.into());
                asked.without_ns = asked.without_ns.saturating_add(took_ns);
                continue;
            }
            if !std::mem::replace(&mut asked.had_part, true) {
                (asked.cost_ns, asked.without_ns) = (0, 0);
                asked.orders = asked.orders.saturating_add(1);
            }
            asked.cost_ns = asked.cost_ns.max(phase.took_ns);
        }
        self.0.iter_mut().for_each(|asked| asked.had_part = false);
    }

    fn of(&mut self, key: PaceKey) -> &mut Asked {
        let known = self.0.iter().position(|asked| asked.key == key);
        let at = known.unwrap_or_else(|| {
            self.0.push(Asked {
                key,
                orders: 0,
                cost_ns: 0,
                without_ns: 0,
                listed: 0,
                had_part: false,
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

/// Orders in which a partner gets nothing but questions. Chosen: the first reads weights for the first time.
const NEW: u32 = 2;

/// Questions of such an order. Chosen: a model has tens of such phases, and a question is a small part of one.
const AT_FIRST: u32 = 2;

/// Time without a partner from one question to the next, divided by that of a question. Chosen: a percent is too little
/// to notice.
const TIMES: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use heg_spec::CutProduct;

    const DOWN: PaceKey = PaceKey {
        product: Some(CutProduct::Down),
        is_long: false,
    };

    /// Runs an order of `phases` phases, in which a question takes `asked_ns` and all else 1000; returns the number of
    /// questions.
    fn order(asking: &mut Asking, phases: usize, asked_ns: u64) -> usize {
        asking.begin();
        let asked: Vec<bool> = (0..phases).map(|_| asking.asks(DOWN)).collect();
        let phases = asked.iter().map(|has_part| AskedPhase {
            key: DOWN,
            has_part: *has_part,
            took_ns: if *has_part { asked_ns } else { 1000 },
        });
        asking.learn(phases, 1);
        asked.iter().filter(|asked| **asked).count()
    }

    #[test]
    fn a_partner_that_is_new_gets_two_questions_in_each_of_two_orders() {
        let mut asking = Asking::default();
        assert!(asking.is_new(DOWN));
        let questions = [0; 4].map(|_| order(&mut asking, 30, 400_000));
        assert_eq!(questions, [2, 2, 0, 0]);
        assert!(!asking.is_new(DOWN));
        let other = PaceKey {
            is_long: true,
            ..DOWN
        };
        assert!(asking.is_new(other));
    }

    #[test]
    fn questions_take_a_hundredth_of_the_time() {
        for (phases, asked_ns) in [(30, 400_000), (1, 2_000), (16, 900), (30, 90_000_000)] {
            let mut asking = Asking::default();
            for _ in 0..NEW {
                order(&mut asking, phases, asked_ns);
            }
            let orders = 400 * asked_ns as usize / 1000 / phases;
            let asked: usize = (0..orders)
                .map(|_| order(&mut asking, phases, asked_ns))
                .sum();
            let share = asked as f64 * asked_ns as f64 / (orders * phases * 1000) as f64;
            assert!(
                (0.005..=0.011).contains(&share),
                "{phases}, {asked_ns}: {share}"
            );
        }
    }

    #[test]
    fn a_partner_that_gets_parts_is_not_asked() {
        let mut asking = Asking::default();
        for _ in 0..1000 {
            asking.begin();
            asking.learn(
                [AskedPhase {
                    key: DOWN,
                    has_part: true,
                    took_ns: 10,
                }]
                .into_iter(),
                1,
            );
        }
        assert!(!asking.is_new(DOWN));
        asking.begin();
        assert!(!asking.asks(DOWN));
    }
}
