//! A pair of unlike devices: a thread of the CPU and an NPU with pieces that were compiled ahead of time, beside the thread
//! alone. Their sizes are fixed, so there are no other shares to compare.

use super::gpu::{FINE, OnMachine, hand_overs, learn};
use super::machines::{Machine, Shape};
use super::measure::{Decoding, PROMPT_TOKENS, Prefilling, in_turn};
use super::report::Report;
use crate::goal::Goal;
use anyhow::Result;
use heg_runtime::Loaded;
use xtask::fail::Fail;
use xtask::workspace::note;

/// A prompt of one chunk, and decode steps.
pub(super) fn pair(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let prefilling = |shape| Prefilling::new(Machine::new(loaded, shape)?);
    let what = format!("prompt of {PROMPT_TOKENS} tokens");
    compare(&what, &prefilling, rounds, report)?;
    let decoding = |shape| Decoding::new(Machine::new(loaded, shape)?);
    compare("decode", &decoding, rounds, report)
}

/// Two machines of each side, as beside a GPU.
fn compare<M: OnMachine>(
    what: &str,
    make: &dyn Fn(Shape) -> Result<M>,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    let shapes = [Shape::NpuPair, Shape::NpuPair, Shape::one(1), Shape::one(1)];
    let mut all = shapes.into_iter().map(make).collect::<Result<Vec<_>>>()?;
    let before = hand_overs(&all[0]);
    learn(&mut all[..2])?;
    let pair = all[0].machine().pair();
    if pair.is_none_or(|pair| pair.partner_parts() == 0) {
        return Err(without_npu().into());
    }
    let [both, again, cpu, twin] = in_turn(&mut all, rounds * FINE)?;
    let after = hand_overs(&all[0]);
    let line = report.of(what, "the CPU alone", cpu.clone());
    report.add(line.beside("the same again", twin.clone(), []));
    let line = report.of(what, "CPU and NPU", [both, again].concat());
    let cpu = [cpu, twin].concat();
    report.add(line.beside("the CPU alone", cpu, [Goal::AtLeast(0.97)]));
    report.hand_overs(what, before.0, after.0);
    report.hand_overs(&format!("{what}, way of the NPU"), before.1, after.1);
    let passes = all[0].machine().pair().map_or(0, |pair| pair.cpu_passes());
    note(format!("{what}: {passes} passes of the CPU alone"));
    Ok(())
}

fn without_npu() -> Fail {
    Fail::environment(
        "expected products on an NPU, found none: the bundle needs `hegc compile --npu-platforms 4000 --partition \
         host-pair-npu`, and this machine that NPU"
            .to_owned(),
    )
}
