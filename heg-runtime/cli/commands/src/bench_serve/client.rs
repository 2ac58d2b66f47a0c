//! One request to a server, over a connection of its own, and its outcome.

use std::time::Duration;

use bytes::Bytes;
use heg_workload::{EngineFigures, Outcome, ReplayRequest, ReplyReader};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::endpoint::{Address, Endpoint};
use crate::platform::connect_locally;

/// Maximum number of bytes of an error's body that are read.
const ERROR_BYTES_MAX: usize = 1 << 16;
/// Maximum number of bytes of metrics that are read. Chosen: ours are a hundredth of it.
const METRICS_BYTES_MAX: usize = 1 << 20;
/// Time limit for metrics, which not every server has. Chosen.
const METRICS_TIME: Duration = Duration::from_secs(5);

/// Sends a request and reads the answer to its end, or until `patience` after `due`. Times count from `start`.
pub(super) async fn complete(
    endpoint: &Endpoint,
    request: &ReplayRequest,
    start: Instant,
    due: Instant,
    patience: Duration,
) -> Outcome {
    let mut answer = Answer::new(due);
    let exchange = answer.read(endpoint, request);
    let failure = match timeout_at(due + patience, exchange).await {
        Ok(read) => read.err().map(|error| format!("{error:#}")),
        Err(_) => Some(format!("no answer within {} s", patience.as_secs())),
    };
    let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
    let ended = Instant::now();
    Outcome {
        class: request.class,
        at_ms: ms(start, due),
        prompt_tokens: request.prompt_tokens,
        asked_tokens: request.output_tokens,
        output_tokens: answer.tokens,
        ttft_ms: ms(due, answer.first.unwrap_or(ended)),
        latency_ms: ms(due, ended),
        gap_ms_max: answer.gap_max.as_secs_f64() * 1e3,
        failure,
    }
}

/// An answer as it arrives.
struct Answer {
    tokens: u32,
    first: Option<Instant>,
    last: Instant,
    gap_max: Duration,
}

impl Answer {
    fn new(due: Instant) -> Self {
        Self {
            tokens: 0,
            first: None,
            last: due,
            gap_max: Duration::ZERO,
        }
    }

    async fn read(&mut self, endpoint: &Endpoint, request: &ReplayRequest) -> anyhow::Result<()> {
        let body = endpoint.body(request).to_string();
        let request = Request::post(endpoint.path())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let mut response = send(endpoint, request).await?;
        if !response.status().is_success() {
            let status = response.status();
            anyhow::bail!("{status}: {}", error_text(response).await);
        }
        let mut reader = ReplyReader::default();
        let mut total = None;
        while let Some(frame) = response.frame().await {
            let frame = frame?;
            let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
            for data in reader.feed(bytes)? {
                let event = endpoint.event(&data).map_err(anyhow::Error::msg)?;
                total = total.max(event.total);
                self.note(event.tokens);
            }
        }
        anyhow::ensure!(self.first.is_some(), "an answer without a token");
        // Events may hold back tokens whose characters are not complete.
        self.tokens = total.unwrap_or(self.tokens);
        Ok(())
    }

    fn note(&mut self, tokens: u32) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        match self.first {
            None => self.first = Some(now),
            Some(_) => self.gap_max = self.gap_max.max(now - self.last),
        }
        self.last = now;
        self.tokens = self.tokens.saturating_add(tokens);
    }
}

/// Reads the server's engine metrics; `None` if it is not one of ours.
pub(super) async fn engine_figures(endpoint: &Endpoint) -> Option<EngineFigures> {
    let read = async {
        let request = Request::get("/metrics").body(Full::default()).ok()?;
        let response = send(endpoint, request).await.ok()?;
        let body = Limited::new(response.into_body(), METRICS_BYTES_MAX);
        let bytes = body.collect().await.ok()?.to_bytes();
        EngineFigures::parse(std::str::from_utf8(&bytes).ok()?)
    };
    timeout(METRICS_TIME, read).await.ok().flatten()
}

async fn send(
    endpoint: &Endpoint,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Incoming>> {
    match &endpoint.address {
        Address::Tcp(authority) => {
            let stream = TcpStream::connect(authority).await?;
            stream.set_nodelay(true)?;
            exchange(stream, authority, request).await
        }
        Address::Local(path) => {
            let stream = connect_locally(path).await?;
            exchange(stream, "localhost", request).await
        }
    }
}

async fn exchange<S>(
    stream: S,
    host: &str,
    mut request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the exchange; its errors reach the response too.
    tokio::spawn(connection);
    request.headers_mut().insert(HOST, host.parse()?);
    Ok(sender.send_request(request).await?)
}

/// Returns the server's description of an error: OpenAI's `error.message`, or the beginning of any other body.
async fn error_text(response: Response<Incoming>) -> String {
    let body = Limited::new(response.into_body(), ERROR_BYTES_MAX).collect();
    let Ok(body) = body.await else {
        return "a body that cannot be read".to_owned();
    };
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match json["error"]["message"].as_str() {
        Some(message) => message.to_owned(),
        None => text.chars().take(200).collect(),
    }
}
