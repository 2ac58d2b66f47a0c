//! Adds the memory that a lane runs in to the scheduler's work.

use std::sync::Arc;

use super::Serving;
use crate::drafts::DraftTokens;
use crate::job::Job;
use crate::live::Live;
use crate::memory::NoCache;
use crate::served::{Continued, Member, Prompt};
use heg_sched::{Decoding, RequestId, Work};

/// The reason why a job cannot be launched.
pub(super) enum Obstacle {
    /// There was no memory for it.
    Unreserved,
    /// The cache of this request is not valid, or a lane that was given up may still write to it.
    Unusable(RequestId),
}

impl Serving {
    /// Makes the job of a lane.
    pub(super) fn job(&self, work: &Work) -> Result<Job, Obstacle> {
        Ok(match work {
            Work::Prefill {
                request,
                segment,
                layer,
                kernel,
            } => Job::Prefill {
                prompt: self.prompt(*request)?,
                segment: *segment,
                layer: *layer,
                kernel: *kernel,
            },
            Work::Head(request) => {
                let prompt = self.prompt(*request)?;
                let tokens = prompt.member.served.with_tokens(<[u32]>::len) as u32;
                let live = self.live.get(request);
                let is_drafted = live.is_some_and(|live| live.drafts.is_some());
                let bytes = self.kept_bytes(&prompt.rows, tokens);
                let is_kept =
                    is_drafted && prompt.rows.ring.is_whole() && self.calibrations.takes(bytes);
                Job::Head {
                    prompt,
                    last: tokens.saturating_sub(1),
                    unscored: live.map_or(Vec::new(), Live::unscored),
                    is_kept,
                }
            }
            Work::Decode(run) => Job::Decode {
                batch: self.decoding(&run.batch)?,
                layers: run.layers.clone(),
            },
            Work::Mixed { batch, prompts } => Job::Mixed {
                batch: self.decoding(batch)?,
                prompts: prompts
                    .iter()
                    .map(|(id, segment)| {
                        let member = self.member(*id)?;
                        let tokens = member.served.with_tokens(<[u32]>::len) as u32;
                        Ok((member, *segment, segment.context() >= tokens))
                    })
                    .collect::<Result<_, _>>()?,
            },
        })
    }

    fn member(&self, id: RequestId) -> Result<Member, Obstacle> {
        let live = self.live.get(&id).ok_or(Obstacle::Unreserved)?;
        if self.is_under_reset(id) {
            return Err(Obstacle::Unusable(id));
        }
        let cache = self.room.memory.cache(id).map_err(|reason| match reason {
            NoCache::Unreserved => Obstacle::Unreserved,
            NoCache::Spoiled => Obstacle::Unusable(id),
        })?;
        Ok(Member {
            served: Arc::clone(&live.served),
            cache,
        })
    }

    fn prompt(&self, id: RequestId) -> Result<Prompt, Obstacle> {
        let member = self.member(id)?;
        let live = self.live.get(&id).ok_or(Obstacle::Unreserved)?;
        let rows = live.prompt.clone().ok_or(Obstacle::Unreserved)?;
        Ok(Prompt { member, rows })
    }

    fn decoding(&self, batch: &[Decoding]) -> Result<Vec<Continued>, Obstacle> {
        let continued = |decoding: &Decoding| {
            let live = self.live.get(&decoding.request);
            let drafts = live.and_then(|live| live.drafts.as_ref());
            Ok(Continued {
                member: self.member(decoding.request)?,
                context: decoding.context,
                draft: drafts.map_or_else(DraftTokens::default, |drafts| {
                    drafts.leading(decoding.drafted)
                }),
            })
        };
        batch.iter().map(continued).collect()
    }
}
