//! Reads the body of a request within limits: on its size, on the time it may take, and on the memory that its sender
//! may make the server keep.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::time::{Instant, timeout_at};

use super::account::{Account, Charge};
use super::body_bytes::BodyBytes;
use super::error::{ApiError, Result};

/// Reads bodies within the limits on their size and pace.
#[derive(Debug, Clone)]
pub(super) struct BodyReader {
    bytes_max: usize,
    pace: BodyPace,
}

/// The pace at which a body has to arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyPace {
    /// Maximum time for any body.
    pub time_max: Duration,
    /// Size of the largest body that may take all that time, in bytes.
    pub small_bytes: usize,
    /// Time that a larger body gets before its pace counts.
    pub grace: Duration,
    /// Number of bytes for which a larger body gets another second.
    pub bytes_per_second: u32,
}

impl Default for BodyPace {
    /// All defaults are chosen.
    fn default() -> Self {
        Self {
            time_max: Duration::from_secs(30),
            small_bytes: 64 << 10,
            grace: Duration::from_secs(5),
            bytes_per_second: 1 << 20,
        }
    }
}

impl BodyPace {
    /// Returns the time from the start within which the next byte has to arrive, after `bytes` bytes have arrived.
    fn time(&self, bytes: usize) -> Duration {
        if bytes <= self.small_bytes {
            return self.time_max;
        }
        let earned = bytes as f64 / f64::from(self.bytes_per_second.max(1));
        (self.grace + Duration::from_secs_f64(earned)).min(self.time_max)
    }
}

/// A body; its bytes are charged to its sender until it is dropped.
#[derive(Debug)]
pub(super) struct RequestBody {
    pub(super) bytes: BodyBytes,
    pub(super) charge: Charge,
}

impl BodyReader {
    /// Creates a reader of bodies of up to `bytes_max` bytes that arrive at this pace.
    pub(super) fn new(bytes_max: usize, pace: BodyPace) -> Self {
        Self { bytes_max, pace }
    }

    /// Reads a body and charges it to `account`.
    pub(super) async fn take<B>(&self, account: &Account, body: &mut B) -> Result<RequestBody>
    where
        B: Body<Data = bytes::Bytes, Error: std::fmt::Display> + Unpin,
    {
        // Refused before a byte is read, so that a client that sent `Expect: 100-continue` need not send the body.
        if body.size_hint().lower() > self.bytes_max as u64 {
            return Err(self.too_large());
        }
        let announced = body.size_hint().upper();
        let announced = announced.and_then(|bytes| usize::try_from(bytes).ok());
        let announced = announced.map_or(self.bytes_max, |bytes| bytes.min(self.bytes_max));
        let begin = Instant::now();
        let mut taken = RequestBody {
            bytes: BodyBytes::new(announced),
            charge: account.charge(0)?,
        };
        loop {
            let time = self.pace.time(taken.bytes.len());
            let frame = timeout_at(begin + time, body.frame()).await;
            let frame = frame.map_err(|_| ApiError::Body {
                why: format!("{} bytes came in {} s", taken.bytes.len(), time.as_secs()),
            })?;
            let Some(frame) = frame else {
                return Ok(taken);
            };
            let frame = frame.map_err(|error| ApiError::Body {
                why: error.to_string(),
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if taken.bytes.len() + data.len() > self.bytes_max {
                return Err(self.too_large());
            }
            taken.charge.grow(data.len())?;
            let kept = taken.bytes.push(&data);
            kept.map_err(|_| ApiError::BodiesFull)?;
        }
    }

    /// Discards the rest of a refused body, so that the client, which is still sending, gets to read the refusal.
    pub(super) async fn pass_over<B>(&self, body: &mut B)
    where
        B: Body<Data = bytes::Bytes> + Unpin,
    {
        let end = Instant::now() + PASS_OVER_TIME;
        let mut left = PASS_OVER_BYTES;
        while let Ok(Some(Ok(frame))) =
            timeout_at(end.min(Instant::now() + PASS_OVER_PAUSE), body.frame()).await
        {
            let bytes = frame.data_ref().map_or(0, |data| data.len());
            match left.checked_sub(bytes) {
                Some(fewer) => left = fewer,
                None => return,
            }
        }
    }

    fn too_large(&self) -> ApiError {
        ApiError::TooLarge {
            bytes_max: self.bytes_max,
        }
    }
}

/// Maximum number of bytes to discard. Chosen: twice the size of the largest bodies.
const PASS_OVER_BYTES: usize = 16 << 20;

/// Maximum time for discarding.
const PASS_OVER_TIME: Duration = Duration::from_secs(5);

/// Maximum pause while discarding.
const PASS_OVER_PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use futures_util::stream::{StreamExt, iter, pending};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;
    use crate::account::{Accounts, Budgets, Scope};

    fn account() -> Account {
        Accounts::new(Budgets::default()).of(Scope::Loopback)
    }

    #[tokio::test]
    async fn bodies_are_bounded_alone_and_together() {
        let body_reader = BodyReader::new(8 << 20, BodyPace::default());
        let account = account();
        let take = async |bytes: usize| {
            let mut body = Full::new(vec![b'x'; bytes].into());
            body_reader.take(&account, &mut body).await
        };
        assert!(matches!(
            take((8 << 20) + 1).await,
            Err(ApiError::TooLarge { .. })
        ));
        let mut bodies = Vec::new();
        while let Ok(taken) = take(8 << 20).await {
            bodies.push(taken);
        }
        assert_eq!(bodies.len(), 8);
        assert!(take(1000).await.is_ok());
        bodies.pop();
        assert!(take(8 << 20).await.is_ok());
    }

    /// Without this, a client that goes on sending after a refusal would see its connection reset, without a reason.
    #[tokio::test]
    async fn the_rest_of_a_refused_body_is_passed_over() {
        let body_reader = BodyReader::new(1000, BodyPace::default());
        let data = bytes::Bytes::from(vec![b'x'; 1000]);
        let frames = |count: usize| {
            let frame = data.clone();
            (0..count).map(move |_| Ok::<_, std::io::Error>(Frame::data(frame.clone())))
        };
        let mut body = StreamBody::new(iter(frames(100)));
        let outcome = body_reader.take(&account(), &mut body).await;
        assert!(matches!(outcome, Err(ApiError::TooLarge { .. })));
        body_reader.pass_over(&mut body).await;
        assert!(body.frame().await.is_none());
        // The discarding ends at some point.
        let mut endless = StreamBody::new(iter(frames(usize::MAX)));
        body_reader.pass_over(&mut endless).await;
        let mut silent = StreamBody::new(pending::<std::io::Result<Frame<bytes::Bytes>>>());
        body_reader.pass_over(&mut silent).await;
    }

    #[test]
    fn a_large_body_has_to_come_at_a_pace() {
        let seconds = |bytes: usize| BodyPace::default().time(bytes).as_secs();
        assert_eq!(seconds(1000), 30, "small ones have time");
        assert_eq!(seconds(1 << 20), 6);
        assert_eq!(seconds((8 << 20) - 1), 12);
        assert_eq!(seconds(64 << 20), 30);
    }

    #[tokio::test]
    async fn a_large_body_that_stays_away_is_given_up() {
        let pace = BodyPace {
            time_max: Duration::from_secs(600),
            grace: Duration::from_millis(1),
            bytes_per_second: 1 << 30,
            ..BodyPace::default()
        };
        let body_reader = BodyReader::new(8 << 20, pace);
        let account = account();
        let data = bytes::Bytes::from(vec![b'x'; 1 << 20]);
        let frames = iter([Ok::<_, std::io::Error>(Frame::data(data))]);
        let mut body = StreamBody::new(frames.chain(pending()));
        let outcome = body_reader.take(&account, &mut body).await;
        assert!(matches!(outcome, Err(ApiError::Body { .. })));
        assert!(account.charge(64 << 20).is_ok(), "all of it was given back");
    }
}
