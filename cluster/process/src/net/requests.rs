//! Requests that are being received. Their bytes are counted as they arrive, within a time limit.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use coppice_proto::status;
use coppice_types::Reason;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use tokio::time::{Sleep, sleep};
use tonic::{Status, body::Body};

use super::budget::Held;

/// gRPC's prefix of a message: a flag and the length.
const PREFIX_BYTES: usize = 5;

/// The bytes that a request holds. The call keeps them until it is answered, because the request
/// stays in memory that long.
pub(super) type Kept = Arc<Mutex<Held>>;

fn lock(kept: &Kept) -> MutexGuard<'_, Held> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a request consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// One message of gRPC.
    Message,
    /// Any number of them. The bytes of a message are given back once the service has read it.
    Stream,
    /// Bytes until the end of the request, as in the HTTP API.
    Bare,
}

/// A request that is being received.
pub(super) struct Incoming {
    body: Body,
    kept: Kept,
    framing: Framing,
    messages: Messages,
    limit: Duration,
    /// The time limit for the rest of the message that is being received.
    until: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(super) fn new(body: Body, kept: Kept, framing: Framing, limit: Duration) -> Self {
        Self { body, kept, framing, messages: Messages::default(), limit, until: None }
    }

    /// Whether bytes with a time limit are missing: all of a single request, or the rest of a
    /// message of a stream. A body of the HTTP API is missing until it has ended.
    fn is_awaited(&self) -> bool {
        match self.framing {
            Framing::Stream => self.messages.is_under_way(),
            Framing::Message => self.messages.count == 0,
            Framing::Bare => true,
        }
    }

    fn arrived(&mut self, data: &Bytes) -> Result<(), Status> {
        if self.framing != Framing::Bare {
            self.messages.pass(data);
        }
        lock(&self.kept).take(data.len())
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.framing == Framing::Stream && !this.messages.is_under_way() {
            // The service asks for more, so it has read the complete messages.
            let mut held = lock(&this.kept);
            let bytes = held.bytes();
            held.give_back(bytes);
        }
        match Pin::new(&mut this.body).poll_frame(task) {
            Poll::Ready(Some(Ok(frame))) => {
                let before = this.messages.count;
                if let Some(data) = frame.data_ref()
                    && let Err(refused) = this.arrived(data)
                {
                    return Poll::Ready(Some(Err(refused)));
                }
                if this.messages.count != before {
                    this.until = None;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending if this.is_awaited() => {
                let limit = this.limit;
                let until = this.until.get_or_insert_with(|| Box::pin(sleep(limit)));
                std::task::ready!(until.as_mut().poll(task));
                let message =
                    format!("the request did not arrive completely within {} s: send it again", limit.as_secs_f64());
                Poll::Ready(Some(Err(status::refuse(Reason::ResourceExhausted, message))))
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Finds the beginning and end of messages in the bytes of a request.
#[derive(Debug, Default)]
struct Messages {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that have arrived.
    prefix_len: usize,
    /// Bytes of the message that are missing.
    missing: usize,
    /// Number of complete messages.
    count: u64,
}

impl Messages {
    fn is_under_way(&self) -> bool {
        self.prefix_len > 0
    }

    fn pass(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.prefix_len < PREFIX_BYTES {
                let len = data.len().min(PREFIX_BYTES - self.prefix_len);
                self.prefix[self.prefix_len..][..len].copy_from_slice(&data[..len]);
                self.prefix_len += len;
                data = &data[len..];
                if self.prefix_len < PREFIX_BYTES {
                    return;
                }
                let [_, length @ ..] = self.prefix;
                self.missing = u32::from_be_bytes(length) as usize;
            }
            let len = data.len().min(self.missing);
            self.missing -= len;
            data = &data[len..];
            if self.missing == 0 {
                self.prefix_len = 0;
                self.count += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart_however_their_bytes_arrive() {
        let bytes = [&[0, 0, 0, 0, 3, 7, 7, 7][..], &[0, 0, 0, 0, 0], &[1, 0, 0, 1, 0], &[9; 256]].concat();
        for step in 1..bytes.len() {
            let mut messages = Messages::default();
            bytes.chunks(step).for_each(|part| messages.pass(part));
            assert!(messages.count == 3 && !messages.is_under_way(), "by {step}: {messages:?}");
            messages.pass(&[0]);
            assert!(messages.is_under_way());
        }
    }
}
