//! The full check: every byte of a bundle that opening did not check.
//!
//! Sections are hashed whole, so threads take sections, not pieces of them; the longest section bounds the time from
//! below. The reported error does not depend on the number of threads: it is the first in the file.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::Error;
use crate::reader::Bundle;

impl Bundle {
    /// Hashes every section and checks that all padding is zero, with `threads` threads. Reads the whole file; does not
    /// use the results of [`Bundle::section`].
    ///
    /// Errors: [`Error::Corrupt`] or [`Error::Padding`], naming the first bad section in the file.
    pub fn verify(&self, threads: NonZero<usize>) -> Result<(), Error> {
        let count = self.manifest().sections.len();
        let scan = Scan::default();
        std::thread::scope(|scope| {
            for _ in 1..threads.get().min(count) {
                scope.spawn(|| scan.run(self, count));
            }
            scan.run(self, count);
        });
        let first = scan
            .first
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// The state that threads share. Sections are claimed in file order, so that when one is bad all before it are done or
/// in progress, and the first bad one is found.
#[derive(Default)]
struct Scan {
    next: AtomicUsize,
    stop: AtomicBool,
    first: Mutex<Option<(usize, Error)>>,
}

impl Scan {
    fn run(&self, bundle: &Bundle, count: usize) {
        while !self.stop.load(Ordering::Relaxed) {
            let position = self.next.fetch_add(1, Ordering::Relaxed);
            if position >= count {
                return;
            }
            if let Err(error) = bundle.verify_section(position) {
                self.stop.store(true, Ordering::Relaxed);
                self.keep_first(position, error);
            }
        }
    }

    fn keep_first(&self, position: usize, error: Error) {
        let mut first = self
            .first
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if first
            .as_ref()
            .is_none_or(|(earlier, _)| position < *earlier)
        {
            *first = Some((position, error));
        }
    }
}
