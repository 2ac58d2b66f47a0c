//! The road of a request about texts: each of them is a request of the engine's own, and one JSON object has what all got.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_confine::Wait;
use hyper::Response;

use super::State;
use super::account::{Account, Charge, Scope};
use super::admission::Permit;
use super::body::RequestBody;
use super::complete::add_ignored;
use super::error::Result;
use super::preparation::Effort;
use super::route::{Answered, Body, json_pieces};
use super::sending::Pieces;
use super::served::ServedModel;
use super::text_metrics::TextRoute;
use super::text_vectors::TextsOf;
use heg_runtime::engine::{AnswerKind, Request};
use heg_sched::Class;

/// A request about texts.
pub(super) trait AboutTexts: Sized + Send + 'static {
    /// The route in the metrics.
    const ROUTE: TextRoute;
    /// What the engine gives for a text.
    const KIND: AnswerKind;

    /// Reads a body; `headers` are fields that it may leave out.
    fn parse<'a>(
        state: &State,
        body: &[u8],
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self>;

    /// The fields that all such requests have.
    fn terms(&self) -> Terms<'_>;

    /// Tokenizes the texts, which it need not keep, in the order in which they are to run.
    fn texts(&mut self, served: &ServedModel, wait: Wait<'_>) -> Result<Vec<TextTokens>>;

    /// About the most bytes that are kept besides tokens until the answer is written, its text included.
    fn kept_bytes(&self, served: &ServedModel, texts: usize) -> usize;

    /// About the bytes of the answer as text.
    fn written_bytes(&self, vectors: &[Vec<f32>]) -> usize;

    /// Writes the answer: the vectors of the texts in the order in which they ran.
    fn write(self, model: &str, vectors: Vec<Vec<f32>>, tokens: usize) -> Pieces;
}

/// Fields of every request about texts.
pub(super) struct Terms<'a> {
    /// The model, if named.
    pub(super) model: Option<&'a str>,
    /// The priority class.
    pub(super) class: Class,
    /// Time from the arrival after which the answer is worthless.
    pub(super) deadline: Option<Duration>,
    /// The fields of the request that have no effect.
    pub(super) ignored: &'a [&'static str],
}

/// A text, or two texts that get one score, as tokens.
pub(super) struct TextTokens {
    pub(super) tokens: Vec<u32>,
    /// Position at which the second text begins.
    pub(super) second_at: Option<u32>,
}

impl TextTokens {
    fn request(self, scope: Scope, class: Class) -> Request {
        let request = match self.second_at {
            Some(second_at) => Request::score(self.tokens, second_at),
            None => Request::vector(self.tokens),
        };
        Request {
            scope: scope.id(),
            class,
            ..request
        }
    }
}

/// A request that was admitted, with its texts as tokens.
struct Admitted<R> {
    asked: R,
    served: Arc<ServedModel>,
    texts: Vec<TextTokens>,
    permit: Permit,
    charge: Charge,
}

/// Answers a request.
pub(super) async fn answer<R: AboutTexts>(
    state: &Arc<State>,
    account: &Account,
    body: RequestBody,
    headers: Vec<(&'static str, String)>,
) -> Result<Response<Body>> {
    let arrived = Instant::now();
    let scope = account.scope();
    let effort = Effort::of(body.bytes.len());
    let admit = {
        let state = Arc::clone(state);
        move |wait: Wait<'_>| admit::<R>(&state, scope, (body, headers), arrived, wait)
    };
    let preparation = &state.preparation;
    let Admitted {
        asked,
        served,
        texts,
        permit,
        mut charge,
    } = preparation.run_until(scope, effort, None, admit).await?;
    let tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
    let terms = asked.terms();
    let (class, ignored) = (terms.class, terms.ignored.to_vec());
    let metrics = state.metrics.of(scope);
    let from = TextsOf {
        running: metrics.texts((R::ROUTE, class), texts.len(), arrived),
        engine: &served.engine,
        permit: &permit,
        arrived,
        deadline: terms.deadline,
    };
    let requests = texts.into_iter().map(|text| text.request(scope, class));
    let vectors = from.vectors(requests).await?;
    let name = served.name().to_owned();
    let effort = Effort::of(asked.written_bytes(&vectors));
    let write = move || Ok(asked.write(&name, vectors, tokens));
    let text = preparation.run(scope, effort, write).await?;
    charge.set(text.bytes())?;
    let mut response = json_pieces(text);
    response.extensions_mut().insert(Answered(Arc::new(charge)));
    add_ignored(&mut response, &ignored);
    Ok(response)
}

/// Parses a body, admits its request, and tokenizes its texts.
fn admit<R: AboutTexts>(
    state: &State,
    scope: Scope,
    (body, headers): (RequestBody, Vec<(&'static str, String)>),
    arrived: Instant,
    wait: Wait<'_>,
) -> Result<Admitted<R>> {
    let headers = headers.iter().map(|(name, text)| (*name, text.as_str()));
    let RequestBody { bytes, mut charge } = body;
    let mut asked = R::parse(state, &bytes, headers)?;
    drop(bytes);
    let terms = asked.terms();
    let served = Arc::clone(state.models.asked(terms.model, R::KIND)?);
    served.check_kind(R::KIND)?;
    let permit = state.admission.enter(scope, terms.class)?;
    let wait = Wait {
        deadline: terms.deadline.map(|time| arrived + time),
        ..wait
    };
    let texts = asked.texts(&served, wait)?;
    let token_bytes = texts.iter().map(|text| size_of_val(&*text.tokens));
    let token_bytes = token_bytes.fold(0, usize::saturating_add);
    charge.set(token_bytes.saturating_add(asked.kept_bytes(&served, texts.len())))?;
    Ok(Admitted {
        asked,
        served,
        texts,
        permit,
        charge,
    })
}
