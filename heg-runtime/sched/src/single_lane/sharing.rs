//! Rules by which the classes share one device: they choose the next class from the classes present.

use std::fmt;

use crate::request::Class;

/// Classes that have requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassesPresent {
    /// Whether there is a reactive request.
    pub reactive: bool,
    /// Whether there is a proactive request.
    pub proactive: bool,
}

impl ClassesPresent {
    /// Returns the classes of some requests.
    pub(super) fn of(classes: impl Iterator<Item = Class>) -> Self {
        classes.fold(Self::default(), |present, class| match class {
            Class::Reactive => Self {
                reactive: true,
                ..present
            },
            Class::Proactive => Self {
                proactive: true,
                ..present
            },
        })
    }
}

/// A rule by which requests of both classes share a device.
pub trait DeviceSharing: fmt::Debug + Send {
    /// Whether classes do not matter, so that clients take turns in one rank.
    fn is_of_one_rank(&self) -> bool {
        false
    }

    /// The class that has the device to itself while these are live; the cached state of the others is discarded.
    fn exclusive(&self, _live: ClassesPresent) -> Option<Class> {
        None
    }

    /// The class of the next iteration, given the classes that have room and the class of the last iteration; `None`
    /// for all.
    fn next(&self, _with_room: ClassesPresent, _last: Option<Class>) -> Option<Class> {
        None
    }
}

/// Continuous batching: all requests are in one batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneBatch;

impl DeviceSharing for OneBatch {
    fn is_of_one_rank(&self) -> bool {
        true
    }
}

/// Batches of one class: reactive requests as long as there are some.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReactiveFirst;

impl DeviceSharing for ReactiveFirst {
    fn next(&self, with_room: ClassesPresent, _last: Option<Class>) -> Option<Class> {
        Some(match with_room.reactive {
            true => Class::Reactive,
            false => Class::Proactive,
        })
    }
}
