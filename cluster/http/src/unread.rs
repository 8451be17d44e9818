//! The part of a request that its answer leaves unread.
//!
//! A server of HTTP/2 that answers before the request has ended resets the stream. Some clients
//! that are still sending take that for a broken stream, and do not show the answer.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::http::Request;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::{sync::oneshot, time::timeout};
use tokio_stream::StreamExt;
use tonic::{Status, body::Body};

/// Most bytes of a request that are read after its answer is known, and the longest time for it.
const BYTES_MAX: usize = 64 << 10;
const TIME_MAX: Duration = Duration::from_secs(1);

/// The body of a request. When it is dropped before its end, the rest goes to [`Unread`].
struct Watched {
    body: Body,
    rest: Option<oneshot::Sender<Body>>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(task)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take().filter(|_| !self.body.is_end_stream()) {
            // Nobody waits for it once the answer is sent.
            let _ = rest.send(std::mem::take(&mut self.body));
        }
    }
}

/// The part of one request that its answer leaves unread.
pub(crate) struct Unread(oneshot::Receiver<Body>);

impl Unread {
    /// Watches the body of a request.
    pub(crate) fn of(request: Request<Body>) -> (Request<Body>, Self) {
        let (rest, unread) = oneshot::channel();
        (request.map(|body| Body::new(Watched { body, rest: Some(rest) })), Self(unread))
    }

    /// Reads the rest of a small request whose answer is known. The answer goes out early to a
    /// client that is slow or sends much.
    pub(crate) async fn drain(mut self) {
        if let Ok(body) = self.0.try_recv() {
            drain(body).await;
        }
    }
}

/// Reads the body of a small request that nobody else reads.
pub(crate) async fn drain(body: Body) {
    let mut frames = axum::body::Body::new(body).into_data_stream();
    let ended = async {
        let mut left = BYTES_MAX;
        while let Some(Ok(bytes)) = frames.next().await {
            match left.checked_sub(bytes.len()) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = timeout(TIME_MAX, ended).await;
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use futures::stream;

    use super::*;

    /// A request with so many parts of 1 KiB, and the count of those that were read.
    fn request(parts: usize) -> (Request<Body>, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&read);
        let parts = stream::iter(0..parts).map(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Status>(Bytes::from(vec![0; 1 << 10]))
        });
        (Request::new(Body::new(axum::body::Body::from_stream(parts))), read)
    }

    #[tokio::test]
    async fn the_rest_of_a_small_request_is_read_and_of_a_large_one_a_part() {
        for (parts, expected) in [(0, 0), (1, 1), (64, 64), (65, 65), (1000, 66)] {
            let (watched, read) = request(parts);
            let (watched, unread) = Unread::of(watched);
            let mut body = watched.into_body();
            if parts > 1 {
                let first = std::future::poll_fn(|task| Pin::new(&mut body).poll_frame(task)).await;
                assert!(first.is_some());
            }
            drop(body);
            unread.drain().await;
            assert_eq!(read.load(Ordering::Relaxed), expected, "{parts} parts");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_ends_delays_its_answer_by_the_longest_time() {
        let began = tokio::time::Instant::now();
        let silent = stream::pending::<Result<Bytes, Status>>();
        drain(Body::new(axum::body::Body::from_stream(silent))).await;
        assert_eq!(began.elapsed().as_secs(), TIME_MAX.as_secs());
    }

    #[tokio::test]
    async fn an_answer_does_not_wait_for_a_request_that_somebody_still_reads() {
        let (watched, read) = request(3);
        let (watched, unread) = Unread::of(watched);
        unread.drain().await;
        assert_eq!(read.load(Ordering::Relaxed), 0);
        drop(watched);
    }
}
