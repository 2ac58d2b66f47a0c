//! Whether requests can be served at all.

use crate::request::Micros;

/// The outlook of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outlook {
    /// There is a lane of dynamic kernels.
    Served,
    /// A lane may come back until this time.
    WaitsUntil(Micros),
    /// There is no lane of dynamic kernels, and none is waited for.
    Hopeless,
}
