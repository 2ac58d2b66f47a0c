//! An answer that is sent whole: collected while it is generated, then written as JSON, off the event loop if it is
//! large.

use std::sync::Arc;

use hyper::Response;

use super::State;
use super::account::{Charge, Scope};
use super::answer::Piece;
use super::answering::{AnswerEnd, AnswerEvent, AnswerStats};
use super::choices::Choices;
use super::document::AnswerDocument;
use super::echo::{Echo, SCORED_TEXT_BYTES, TOKEN_TEXT_BYTES};
use super::error::Result;
use super::preparation::Effort;
use super::request::TokenIds;
use super::route::{Answered, Body, json_pieces};
use super::sending::Pieces;
use heg_runtime::FinishReason;

/// Collects the answers to a request, and writes them once all are over.
pub(super) async fn whole(
    state: &State,
    scope: Scope,
    document: AnswerDocument,
    mut choices: Choices,
    token_ids: TokenIds,
) -> Result<Response<Body>> {
    let collected = collect(&mut choices, token_ids).await?;
    let (stats, charge) = (choices.stats(), choices.charge());
    drop(choices);
    let text_bytes: usize = collected.iter().map(Collected::text_bytes).sum();
    let effort = Effort::of(text_bytes.saturating_add(document.repeated_bytes()));
    let write = move || write(document, collected, &stats);
    let text = match effort {
        Effort::Small => write()?,
        _ => state.preparation.run(scope, effort, write).await?,
    };
    let charge = charge.and_then(Arc::into_inner);
    charge_text(charge, text)
}

/// One of the answers, as far as it has arrived.
struct Collected {
    /// The prompt, if it is echoed.
    echo: Option<Echo>,
    piece: Piece,
    end: AnswerEnd,
}

async fn collect(choices: &mut Choices, token_ids: TokenIds) -> Result<Vec<Collected>> {
    let nothing = |index| Collected {
        echo: None,
        piece: Piece {
            index,
            token_ids: (token_ids == TokenIds::Included).then(Vec::new),
            ..Piece::default()
        },
        end: FinishReason::Length.into(),
    };
    let mut all: Vec<_> = (0..choices.count()).map(nothing).collect();
    while let Some((index, event)) = choices.next().await {
        let Some(Collected {
            echo,
            piece,
            end: ended,
        }) = all.get_mut(index)
        else {
            break;
        };
        match event? {
            AnswerEvent::Prompt(unread) => *echo = Some(unread),
            AnswerEvent::Token { id, said, scored } => {
                piece.add(said);
                piece.token_ids.iter_mut().for_each(|ids| ids.push(id));
                piece.scored.extend(scored);
            }
            AnswerEvent::End { said, end } => {
                piece.add(said);
                *ended = end;
            }
        }
    }
    Ok(all)
}

impl Collected {
    /// Returns the approximate size of the answer as JSON, in bytes.
    fn text_bytes(&self) -> usize {
        let ids = self.piece.token_ids.as_ref().map_or(0, Vec::len);
        self.echo.as_ref().map_or(0, Echo::text_bytes)
            + self.piece.text_bytes()
            + ids * TOKEN_TEXT_BYTES
            + self.piece.scored.len() * SCORED_TEXT_BYTES
    }

    /// Returns the answer, after its prompt if that is echoed.
    fn read(self) -> Result<(Piece, AnswerEnd)> {
        let mut piece = self.piece;
        if let Some(echo) = self.echo {
            let echoed = echo.read()?;
            let chars = echoed.text.chars().count();
            let mut scored = echoed.tokens;
            scored.extend(piece.scored.drain(..).map(|token| token.behind(chars)));
            piece.prepend(echoed.text);
            piece.scored = scored;
        }
        Ok((piece, self.end))
    }
}

fn write(document: AnswerDocument, all: Vec<Collected>, stats: &AnswerStats) -> Result<Pieces> {
    let all: Result<Vec<_>> = all.into_iter().map(Collected::read).collect();
    document.whole(all?, stats)
}

/// Returns a response whose text is charged until it is sent, in place of the charge for its sources.
fn charge_text(charge: Option<Charge>, text: Pieces) -> Result<Response<Body>> {
    let bytes = text.bytes();
    let mut response = json_pieces(text);
    if let Some(mut charge) = charge {
        charge.set(bytes)?;
        response.extensions_mut().insert(Answered(Arc::new(charge)));
    }
    Ok(response)
}
