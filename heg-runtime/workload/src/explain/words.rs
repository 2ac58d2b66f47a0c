//! Causes and times in words.

use std::collections::BTreeSet;

use heg_sched::{Class, Lane, Micros, RequestId};

use super::cause::SlowCause;
use super::index::Index;
use super::path::Piece;

/// Describes a cause of a request's time in words, to follow after the time that it took.
pub(super) fn described(
    index: &Index<'_>,
    own: RequestId,
    cause: SlowCause,
    pieces: &[&Piece],
) -> String {
    let of = |id: RequestId| match index.class(id) {
        _ if id == own => "its own".to_owned(),
        Some(Class::Reactive) => format!("request {} (reactive)", id.0),
        Some(Class::Proactive) => format!("request {} (proactive)", id.0),
        None => format!("request {}", id.0),
    };
    let text = match cause {
        SlowCause::Prompt(id) => format!("behind the prompt of {}", of(id)),
        SlowCause::Preempted(id) => format!("preempted by the prompt of {}", of(id)),
        SlowCause::Overdue(id) => {
            format!("behind {}, which had waited for too long (ageing)", of(id))
        }
        SlowCause::Kernel(id, lane) => {
            let (kernels, of, device) = (kernels(pieces.len()), of(id), device(lane));
            format!("behind {kernels} of {of} on the {device}")
        }
        SlowCause::Hung(id, lane) => {
            let (of, device) = (of(id), device(lane));
            format!("for a kernel of {of} that hung on the {device}")
        }
        SlowCause::Failed(id, lane) => {
            let (of, device) = (of(id), device(lane));
            format!("for a kernel of {of} that failed on the {device}")
        }
        SlowCause::Iterations(lane) => {
            format!("behind answers that decode on the {}", device(lane))
        }
        SlowCause::Reset(lane) => format!("waiting for the {} to be reset", device(lane)),
        SlowCause::WithoutLane(lane) => {
            let device = device(lane);
            format!("in kernels on another lane, since the {device} was lost")
        }
        SlowCause::KeptRead => {
            let launches = index.launches_of(own);
            let read = launches.map(|launch| (launch.kept_tokens, launch.baked_tokens));
            let (tokens, baked) = read.max().unwrap_or_default();
            let place = match baked {
                0 => "kept state",
                _ => "a state of the bundle",
            };
            format!("reading {tokens} tokens of its prompt from {place}")
        }
        other => plain(other).to_owned(),
    };
    let through: BTreeSet<RequestId> = pieces.iter().filter_map(|piece| piece.through).collect();
    let first = through.first().filter(|id| cause.request() != Some(**id));
    match first {
        Some(first) if pieces.iter().all(|piece| piece.through.is_some()) => {
            format!("{text}, which held up {} before it", of(*first))
        }
        _ => text,
    }
}

fn kernels(count: usize) -> String {
    match count {
        1 => "a kernel".to_owned(),
        some => format!("{some} kernels"),
    }
}

/// Returns the words for causes without a request or a lane.
fn plain(cause: SlowCause) -> &'static str {
    match cause {
        SlowCause::OwnPrompt => "in kernels of its own prompt",
        SlowCause::OwnAnswer => "in decode iterations of its own",
        SlowCause::Turn => "behind another client, whose turn it was",
        SlowCause::Memory => "waiting for KV memory",
        SlowCause::FlashWrite => "waiting for idle caches to be written to flash",
        SlowCause::FlashRead => "reading its flow's cache back from flash",
        SlowCause::BatchFull => {
            "left out of a full decode batch (decode.batch_max, reactive_batch_max)"
        }
        SlowCause::NextIteration => "waiting for the decode iteration under way",
        SlowCause::Answers => "behind answers, which went before its prompt",
        SlowCause::Rule(mechanism) => mechanism.explanation().unwrap_or(mechanism.name()),
        SlowCause::Stopping => "waiting for a lane to stop what had hung of it",
        SlowCause::NoLane => "waiting for a lane, since none had its kernels",
        SlowCause::WarmUp => {
            "in attention on another lane while the NPU's kernel for it was compiled"
        }
        SlowCause::Trial => "waiting while others ran alone to find who fails",
        SlowCause::Flow => "behind an earlier call of its flow",
        SlowCause::StartedOver => "in work that it had to do twice, since it started over",
        // The other causes have texts of their own.
        _ => "between kernels",
    }
}

/// Returns a lane in words.
fn device(lane: Lane) -> &'static str {
    match lane {
        Lane::Npu => "NPU",
        Lane::Igpu => "iGPU",
        Lane::Cpu => "CPU",
    }
}

/// Formats a time for people.
pub(super) fn millis(time: Micros) -> String {
    match time.0 {
        us @ 0..1_000 => format!("{:.2} ms", us as f64 / 1e3),
        us @ 1_000..100_000 => format!("{:.1} ms", us as f64 / 1e3),
        us @ 100_000..10_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        us => format!("{:.1} s", us as f64 / 1e6),
    }
}
