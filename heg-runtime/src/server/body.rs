//! The body of a request, taken in under limits: its own size, the time it may take, and what all bodies together
//! may hold at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Body;

use super::error::{ApiError, Result};

/// Limits on bodies, shared by all connections.
#[derive(Debug, Clone)]
pub(super) struct Intake {
    bytes_max: usize,
    time_max: Duration,
    /// Bytes left for all bodies together.
    left: Arc<AtomicUsize>,
}

/// A body; its bytes count as held until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) bytes: Vec<u8>,
    held: usize,
    left: Arc<AtomicUsize>,
}

impl Intake {
    /// Bodies of `bytes_max` bytes each, and `total_bytes_max` together, in `time_max`.
    pub(super) fn new(bytes_max: usize, total_bytes_max: usize, time_max: Duration) -> Self {
        Self {
            bytes_max,
            time_max,
            left: Arc::new(AtomicUsize::new(total_bytes_max)),
        }
    }

    /// Takes in a body.
    pub(super) async fn take<B>(&self, body: B) -> Result<Taken>
    where
        B: Body<Data = bytes::Bytes, Error: std::fmt::Display> + Unpin,
    {
        // Refused before a byte of it is read, so that `Expect: 100-continue` is worth its while.
        if body.size_hint().lower() > self.bytes_max as u64 {
            return Err(self.too_large());
        }
        let slow = |_| ApiError::Body {
            why: format!("{} s have passed", self.time_max.as_secs()),
        };
        tokio::time::timeout(self.time_max, self.collect(body))
            .await
            .map_err(slow)?
    }

    async fn collect<B>(&self, mut body: B) -> Result<Taken>
    where
        B: Body<Data = bytes::Bytes, Error: std::fmt::Display> + Unpin,
    {
        let mut taken = Taken {
            bytes: Vec::new(),
            held: 0,
            left: Arc::clone(&self.left),
        };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::Body {
                why: error.to_string(),
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if taken.bytes.len() + data.len() > self.bytes_max {
                return Err(self.too_large());
            }
            taken.push(&data)?;
        }
        Ok(taken)
    }

    fn too_large(&self) -> ApiError {
        ApiError::TooLarge {
            bytes_max: self.bytes_max,
        }
    }
}

impl Taken {
    fn push(&mut self, data: &[u8]) -> Result<()> {
        let take = |left: usize| left.checked_sub(data.len());
        self.left
            .try_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| ApiError::BodiesFull)?;
        self.held += data.len();
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.left.fetch_add(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    async fn take(intake: &Intake, bytes: usize) -> Result<Taken> {
        intake.take(Full::new(vec![b'x'; bytes].into())).await
    }

    #[tokio::test]
    async fn bodies_are_bounded_alone_and_together() {
        let intake = Intake::new(10, 25, Duration::from_secs(1));
        assert!(matches!(
            take(&intake, 11).await,
            Err(ApiError::TooLarge { bytes_max: 10 })
        ));
        let first = take(&intake, 10).await.unwrap();
        let _second = take(&intake, 10).await.unwrap();
        assert!(matches!(take(&intake, 10).await, Err(ApiError::BodiesFull)));
        assert_eq!(first.bytes.len(), 10);
        drop(first);
        assert!(take(&intake, 10).await.is_ok());
    }
}
