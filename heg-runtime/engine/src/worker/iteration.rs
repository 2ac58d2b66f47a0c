//! Iterations: one token, or several drafted ones, for each request of a batch, and parts of prompts beside them.

use std::ops::Range;

use super::{HEAD, Worker, caches_of};
use crate::drafts::{DraftRows, DraftTokens};
use crate::error::EngineError;
use crate::report::{Done, Failure};
use crate::served::{Continued, Member, NextToken, Served};
use crate::vectors::PooledText;
use heg_artifacts::manifest::TextVectors;
use heg_exec::mem::{ActivationRows, KvCache};
use heg_exec::{Batch, TokenRun};
use heg_sched::{Launch, Logits, RequestId, Segment, Span, Ticket, WorkStage, launches};
use heg_spec::bug;

/// One request's part of an iteration.
struct Part<'a> {
    member: &'a Member,
    /// Its rows among those of the iteration.
    span: Span,
    /// Drafted tokens: those of the span behind its first.
    draft: DraftRows<'a>,
    /// Whether it gives tokens.
    is_last: bool,
}

/// Consecutive rows whose logits a request's next tokens are chosen from.
struct Wanted<'a> {
    served: &'a Served,
    rows: Span,
    /// The tokens of the rows but the first.
    draft: DraftRows<'a>,
    cache: &'a KvCache,
}

impl Worker {
    pub(super) fn decode(
        &mut self,
        ticket: Ticket,
        batch: &[Continued],
        layers: Range<u32>,
    ) -> Result<Done, Failure> {
        let parts = self.parts(batch, &[]);
        let rows = self.executor.pass_rows();
        let caches = caches_of(parts.iter().map(|part| part.member))?;
        let caches: Vec<&KvCache> = caches.iter().map(|cache| &**cache).collect();
        if layers.start == 0 {
            self.embed(&parts, &rows)?;
        }
        let spans: Vec<Span> = parts.iter().map(|part| part.span).collect();
        let trees: Vec<_> = parts.iter().map(|part| part.draft.follows).collect();
        let all = Batch {
            rows: &rows,
            caches: &caches,
            spans: &spans,
            trees: &trees,
        };
        // The head of a plain iteration is part of its order.
        let is_plain = parts.iter().all(|part| part.draft.tokens.is_empty());
        let logits = if is_plain {
            Logits::LastRows
        } else {
            Logits::None
        };
        let order = self.executor.order(WorkStage::Decode);
        let rest: Vec<Launch> = launches(order, layers.clone(), logits).collect();
        let ran = self.launch_all(&rest, &all, Some(ticket))?;
        if let Some(next) = rest.get(ran) {
            return Ok(Done {
                layers: next.layer.unwrap_or(0),
                ..Done::default()
            });
        }
        let Chosen { tokens, likeliest } = if is_plain {
            let served: Vec<&Served> = batch.iter().map(|it| &*it.member.served).collect();
            Chosen {
                tokens: self.choose(&served)?,
                likeliest: Vec::new(),
            }
        } else {
            self.choose_along(&rows, &wanted(&parts, &caches))?
        };
        Ok(Done {
            layers: layers.end,
            tokens,
            likeliest,
            ..Done::default()
        })
    }

    pub(super) fn mixed(
        &mut self,
        batch: &[Continued],
        prompts: &[(Member, Segment, bool)],
    ) -> Result<Done, Failure> {
        let parts = self.parts(batch, prompts);
        let rows = self.executor.pass_rows();
        self.embed(&parts, &rows)?;
        let caches = caches_of(parts.iter().map(|part| part.member))?;
        let caches: Vec<&KvCache> = caches.iter().map(|cache| &**cache).collect();
        let spans: Vec<Span> = parts.iter().map(|part| part.span).collect();
        let trees: Vec<_> = parts.iter().map(|part| part.draft.follows).collect();
        let all = Batch {
            rows: &rows,
            caches: &caches,
            spans: &spans,
            trees: &trees,
        };
        let layers = self.executor.layers();
        let order = self.executor.order(WorkStage::Prefill);
        let launches: Vec<Launch> = launches(order, 0..layers, Logits::None).collect();
        self.launch_all(&launches, &all, None)?;
        let mut done = Done {
            layers,
            ..Done::default()
        };
        let mut texts = Vec::new();
        for part in &parts {
            let served = &part.member.served;
            if let Some(vectors) = served.vectors.filter(|_| part.is_last) {
                texts.push(pooled_text(served.id, vectors, part.span));
                continue;
            }
            let scores = self.score_span(served, &rows, part.span)?;
            done.add_scores(served.id, scores);
        }
        done.vectors = self.vectors(&rows, &texts)?;
        let chosen = self.choose_along(&rows, &wanted(&parts, &caches))?;
        (done.tokens, done.likeliest) = (chosen.tokens, chosen.likeliest);
        Ok(done)
    }

    /// Writes the tokens of all parts to the first layer's rows.
    fn embed(&mut self, parts: &[Part<'_>], rows: &ActivationRows) -> Result<(), EngineError> {
        for Part {
            member,
            span,
            draft,
            ..
        } in parts
        {
            let known = span.position..span.position + span.tokens - draft.tokens.len();
            member.served.with_tokens(|tokens| {
                let tokens = tokens.get(known.clone());
                let tokens = tokens.ok_or_else(|| bug!("a span has tokens that are unknown"))?;
                let run = member.served.run_of(tokens, span.position);
                self.executor.embed(run, rows, span.row)
            })?;
            let drafted = TokenRun::new(draft.tokens, span.position + known.len());
            self.executor.embed(drafted, rows, span.row + known.len())?;
        }
        Ok(())
    }

    /// Runs the head on all wanted rows, and chooses tokens of each request for as long as they equal the drafted
    /// ones. The keys and values of these are then consecutive in its cache.
    fn choose_along(
        &mut self,
        rows: &ActivationRows,
        wanted: &[Wanted<'_>],
    ) -> Result<Chosen, EngineError> {
        let mut tokens = Vec::with_capacity(wanted.len());
        let mut ways: Vec<Way> = wanted.iter().map(|_| Way::default()).collect();
        let all: Vec<(usize, usize)> = (0..)
            .zip(wanted)
            .flat_map(|(of, wanted)| (0..wanted.rows.tokens).map(move |at| (of, at)))
            .collect();
        // More rows may be wanted than the head takes at a time.
        for some in all.chunks(self.executor.head_rows().max(1)) {
            let span = |(of, at): &(usize, usize)| Span {
                row: wanted[*of].rows.row + at,
                tokens: 1,
                position: wanted[*of].rows.position + at,
            };
            let spans: Vec<Span> = some.iter().map(span).collect();
            let batch = Batch {
                rows,
                caches: &[],
                spans: &spans,
                trees: &[],
            };
            self.launch(HEAD, &batch)?;
            let logits = self.executor.logits(spans.len())?;
            let width = (logits.len() / spans.len().max(1)).max(1);
            for ((of, at), row) in some.iter().zip(logits.chunks_exact_mut(width)) {
                let (wanted, way) = (&wanted[*of], &mut ways[*of]);
                if way.next != Some(*at) {
                    if self.drafts.reuse {
                        way.compare(*at, &wanted.draft, row);
                    }
                    continue;
                }
                let next = match at {
                    0 => wanted.served.choose(row),
                    _ => wanted.served.choose_next(row),
                };
                let token = wanted.served.goes_on(&next);
                way.keep(*at, wanted)?;
                way.next = token.and_then(|token| wanted.draft.next(*at, token));
                tokens.push((wanted.served.id, next));
            }
        }
        let likeliest = wanted.iter().zip(ways);
        let likeliest = likeliest.filter(|(_, way)| !way.likeliest.is_empty());
        let likeliest = likeliest.map(|(wanted, way)| (wanted.served.id, way.likeliest));
        Ok(Chosen {
            tokens,
            likeliest: likeliest.collect(),
        })
    }

    /// Returns the parts that an iteration runs, row after row.
    fn parts<'a>(
        &self,
        batch: &'a [Continued],
        prompts: &'a [(Member, Segment, bool)],
    ) -> Vec<Part<'a>> {
        let mut row = 0;
        let mut span = |position: u32, tokens: usize| {
            let span = Span {
                row,
                tokens,
                position: position as usize,
            };
            row += tokens;
            span
        };
        let mut parts = Vec::with_capacity(batch.len() + prompts.len());
        for Continued {
            member,
            context,
            draft,
        } in batch
        {
            let draft = draft.rows(self.takes_tree(draft, *context));
            parts.push(Part {
                member,
                span: span(context.saturating_sub(1), 1 + draft.tokens.len()),
                draft,
                is_last: true,
            });
        }
        for (member, segment, is_last) in prompts {
            parts.push(Part {
                member,
                span: span(segment.position, segment.tokens as usize),
                draft: DraftRows::default(),
                is_last: *is_last,
            });
        }
        parts
    }

    /// Whether a draft can be verified as the tree that it is, behind an answer's last token at the end of `context`.
    fn takes_tree(&self, draft: &DraftTokens, context: u32) -> bool {
        let drafted = draft.len();
        draft.is_tree()
            && self
                .executor
                .takes_trees(1 + drafted, context as usize + drafted)
    }
}

/// The rows of a text that are pooled, whose last part has this span.
fn pooled_text(id: RequestId, vectors: TextVectors, last: Span) -> PooledText {
    let Span {
        row,
        tokens,
        position,
    } = last;
    PooledText::new(id, vectors, position + tokens, |at| Span {
        row: row + at - position,
        tokens: 1,
        position: at,
    })
}

/// The tokens that were chosen along drafts.
struct Chosen {
    tokens: Vec<(RequestId, NextToken)>,
    /// Whether each drafted token is the model's likeliest, as in [`Done`].
    likeliest: Vec<(RequestId, Vec<bool>)>,
}

/// The rows after which a request's tokens were chosen.
struct Way {
    /// The row that the next token is chosen after.
    next: Option<usize>,
    len: usize,
    /// Whether drafted tokens behind the first wrong one are the ones that the model found likeliest there.
    likeliest: Vec<bool>,
}

impl Default for Way {
    fn default() -> Self {
        Self {
            next: Some(0),
            len: 0,
            likeliest: Vec::new(),
        }
    }
}

impl Way {
    /// Notes which of the tokens drafted after a row is the likeliest there, if no token was chosen after that row.
    fn compare(&mut self, row: usize, draft: &DraftRows<'_>, logits: &[f32]) {
        for (at, token) in draft.after(row) {
            if is_likeliest(logits, token) {
                self.likeliest.resize(draft.tokens.len(), false);
                self.likeliest[at] = true;
            }
        }
    }

    /// Adds a row, and moves its keys and values to the next position.
    fn keep(&mut self, row: usize, wanted: &Wanted<'_>) -> Result<(), EngineError> {
        let to = self.len;
        self.len += 1;
        if row == to {
            return Ok(());
        }
        let first = wanted.rows.position;
        Ok(wanted.cache.copy_row(first + row, first + to)?)
    }
}

/// Whether no token is likelier. Most tokens turn out wrong within the first logits, so the likeliest is not searched
/// for.
fn is_likeliest(logits: &[f32], token: u32) -> bool {
    let Some(most) = logits.get(token as usize) else {
        return false;
    };
    // All logits of a block are compared, without branches in between, so that a processor compares several at once.
    let is_below = |block: &[f32]| block.iter().fold(true, |all, logit| all & (logit <= most));
    logits.chunks(BLOCK).all(is_below)
}

/// Number of logits that are compared before checking for a likelier one.
const BLOCK: usize = 512;

/// Returns the rows that tokens are chosen from: the last one of a prompt, or that of a request's last token and
/// those of its draft.
fn wanted<'a>(parts: &[Part<'a>], caches: &[&'a KvCache]) -> Vec<Wanted<'a>> {
    let gives_tokens = |part: &Part<'_>| part.is_last && part.member.served.vectors.is_none();
    let last = parts.iter().zip(caches);
    let last = last.filter(|(part, _)| gives_tokens(part));
    let wanted = last.map(|(part, cache)| {
        let before = part.span.tokens - 1 - part.draft.tokens.len();
        Wanted {
            served: &part.member.served,
            rows: Span {
                row: part.span.row + before,
                tokens: 1 + part.draft.tokens.len(),
                position: part.span.position + before,
            },
            draft: part.draft,
            cache,
        }
    });
    wanted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_token_is_the_one_with_the_largest_logit() {
        let mut logits: Vec<f32> = (0..2000).map(|at| (at * 37 % 1999) as f32).collect();
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        for token in 0..logits.len() {
            assert_eq!(
                is_likeliest(&logits, token as u32),
                logits[token] == largest
            );
        }
        assert!(!is_likeliest(&logits, 2000));
        logits[1999] = f32::NAN;
        assert!(!is_likeliest(&logits, 1999));
    }
}
