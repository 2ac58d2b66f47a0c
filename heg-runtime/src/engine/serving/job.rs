//! Work with the memory it is done in.

use std::sync::Arc;

use super::Serving;
use crate::engine::lane::Job;
use crate::engine::served::Member;
use crate::sched::{RequestId, Work};

impl Serving {
    /// What a lane is to run; none where memory for it could not be had.
    pub(super) fn job(&self, work: &Work) -> Option<Job> {
        let member = |id: &RequestId| {
            Some(Member {
                served: Arc::clone(&self.live.get(id)?.served),
                cache: Arc::clone(self.room.memory.cache(*id)?),
            })
        };
        let decoding = |batch: &[(RequestId, u32)]| -> Option<Vec<(Member, u32)>> {
            batch
                .iter()
                .map(|(id, context)| Some((member(id)?, *context)))
                .collect()
        };
        let prompt = |id: &RequestId| self.live.get(id)?.prompt.clone();
        Some(match work {
            Work::Prefill {
                request,
                segment,
                layer,
                kernel,
            } => Job::Prefill {
                prompt: prompt(request)?,
                segment: *segment,
                layer: *layer,
                kernel: *kernel,
            },
            Work::Head(request) => {
                let prompt = prompt(request)?;
                let tokens = prompt.member.served.with_tokens(<[u32]>::len) as u32;
                Job::Head {
                    prompt,
                    last: tokens.saturating_sub(1),
                }
            }
            Work::Decode(run) => Job::Decode {
                batch: decoding(&run.batch)?,
                layers: run.layers.clone(),
            },
            Work::Mixed { batch, prompts } => Job::Mixed {
                batch: decoding(batch)?,
                prompts: prompts
                    .iter()
                    .map(|(id, segment)| {
                        let member = member(id)?;
                        let tokens = member.served.with_tokens(<[u32]>::len) as u32;
                        Some((member, *segment, segment.context() >= tokens))
                    })
                    .collect::<Option<_>>()?,
            },
        })
    }
}
