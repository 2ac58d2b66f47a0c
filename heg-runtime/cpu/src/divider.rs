//! Divides the phases of an order between the sides of a pair: by the partition, with what was measured of either side.

use heg_spec::{Cut, DEVICE_STEP, Side};

use crate::asking::Asking;
use crate::division::{Division, Partition, SIDES, WorkItem, index};
use crate::pace::{Pace, PaceKey};
use crate::partner::PartnerForms;
use crate::solo_tuner::{MemoryBound, SoloTuner};

/// The inputs of a division: the partition, and the measurements of either side.
pub(crate) struct Divider<'a> {
    pub(crate) partition: &'a dyn Partition,
    pub(crate) pace: &'a mut Pace,
    pub(crate) solo_tuner: &'a mut SoloTuner,
    pub(crate) asking: &'a mut Asking,
    /// The side that is another device, and the areas that it computes.
    pub(crate) partner: Option<(Side, PartnerForms)>,
    pub(crate) hand_over_ns: [f64; 2],
}

/// A phase that was divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Divided {
    pub(crate) division: Division,
    /// Whether a partner has a part of it to be measured, not to be faster.
    pub(crate) is_question: bool,
}

impl Divided {
    /// A division that is meant to be fast.
    pub(crate) const fn by(division: Division) -> Self {
        Self {
            division,
            is_question: false,
        }
    }
}

impl Divider<'_> {
    /// Divides a phase that both sides can take part in.
    pub(crate) fn divide(&mut self, work: WorkItem, is_long: bool) -> Divided {
        let key = PaceKey {
            product: work.product,
            is_long,
        };
        let times = self.pace.times(key);
        let faster = SIDES[usize::from(times[0] > times[1])];
        // A partner with compiled areas cannot be tried alone.
        let is_free = !matches!(self.partner, Some((_, PartnerForms::Compiled)));
        let memory_bound = MemoryBound::of(&work, is_long).filter(|_| is_free);
        let work = WorkItem {
            times,
            hand_over_ns: self.hand_over_ns,
            alone: memory_bound.and_then(|it| self.solo_tuner.next(it, faster)),
            ..work
        };
        let step = match self.partner {
            Some(_) => DEVICE_STEP,
            None => 1,
        };
        let division = || Division::of(&self.partition.cut(work), work).in_steps(step);
        let Some((partner, PartnerForms::AnySize)) = self.partner else {
            return Divided::by(division());
        };
        if !self.partition.follows_speeds(work) {
            return Divided::by(division());
        }
        let division = match self.asking.is_new(key) {
            true => Division::of(&Cut::Whole(partner.other()), work).in_steps(step),
            false => division(),
        };
        let has_part = !division.is_nothing(partner, work.tokens);
        let question = question(work, partner).filter(|_| !has_part);
        match question.filter(|_| self.asking.asks(key)) {
            Some(question) => {
                self.pace.ask_again(key);
                Divided {
                    division: question.in_steps(step),
                    is_question: true,
                }
            }
            None => Divided::by(division),
        }
    }
}

/// The division in which a partner is done with its part as soon as the other side with the rest, so far as its speed is
/// known; `None` for work that is too small to be cut, and for attention and other steps.
fn question(work: WorkItem, partner: Side) -> Option<Division> {
    let step = DEVICE_STEP;
    if work.columns == 0 || work.rows < 2 * step {
        return None;
    }
    let [own, other] = [partner, partner.other()].map(|side| work.times[index(side)]);
    let part = work.rows as f64 * other / (own + other);
    let part = (part as usize)
        .clamp(step, work.rows / 2)
        .next_multiple_of(step);
    let first = match partner {
        Side::First => part,
        Side::Second => work.rows - part,
    };
    let first = u32::try_from(first).ok()?;
    Some(Division::of(&Cut::Rows { first }, work))
}

#[cfg(test)]
mod tests {
    use super::*;
    use heg_spec::CutProduct;

    fn down(times: [f64; 2]) -> WorkItem {
        WorkItem {
            product: Some(CutProduct::Down),
            rows: 2048,
            columns: 512,
            tokens: 1,
            times,
            hand_over_ns: [0.0; 2],
            alone: None,
        }
    }

    #[test]
    fn a_question_is_as_large_as_the_speeds_suggest_and_never_more_than_half() {
        let part = |times, partner| question(down(times), partner).map(|division| division.first);
        assert_eq!(part([3.0, 1.0], Side::First), Some(512));
        assert_eq!(part([1.0, 3.0], Side::Second), Some(2048 - 512));
        assert_eq!(part([400.0, 1.0], Side::First), Some(DEVICE_STEP));
        assert_eq!(part([0.1, 1.0], Side::First), Some(1024));
        let small = WorkItem {
            rows: DEVICE_STEP,
            ..down([1.0; 2])
        };
        assert!(question(small, Side::First).is_none());
    }

    /// Follows speeds, and gives the second side nothing unless it is faster.
    struct ToTheFaster;

    impl Partition for ToTheFaster {
        fn cut(&self, work: WorkItem) -> Cut {
            let [first, second] = work.times;
            Cut::Whole(if first <= second {
                Side::First
            } else {
                Side::Second
            })
        }

        fn follows_speeds(&self, _: WorkItem) -> bool {
            true
        }
    }

    #[test]
    fn a_partner_that_is_new_gets_questions_and_no_more() {
        let (mut pace, mut asking) = (Pace::beside(Side::Second), Asking::default());
        let mut divider = Divider {
            partition: &ToTheFaster,
            pace: &mut pace,
            solo_tuner: &mut SoloTuner::default(),
            asking: &mut asking,
            partner: Some((Side::Second, PartnerForms::AnySize)),
            hand_over_ns: [0.0; 2],
        };
        let divided = [0; 30].map(|_| divider.divide(down([1.0; 2]), false));
        let questions = divided.iter().filter(|it| it.is_question).count();
        assert_eq!(questions, 2);
        let others = divided.iter().filter(|it| !it.is_question);
        assert!(
            others
                .map(|it| it.division.first)
                .all(|first| first == 2048)
        );
    }
}
