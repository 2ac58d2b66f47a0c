//! `libheg`: the runtime for programs that are not written in Rust.
//!
//! `interface` has the functions of `include/heg.h`, and with `boundary`, which turns pointers into references and
//! results into codes, all unsafe code. The rest is ordinary: a bundle with its engine (`opened`), a request as JSON
//! (`ask`), an answer as it arrives (`answer`), and why something did not work (`failure`). Nothing is decided here that
//! an embedder in Rust would lack, and nothing is fetched: a bundle is a path.

mod answer;
mod ask;
mod boundary;
mod failure;
pub mod interface;
mod opened;
mod report;
