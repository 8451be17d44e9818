//! Answers on their way to their callers.
//!
//! HTTP/2 asks for more of an answer when the caller has room for it. If that does not happen for
//! too long after the last part, the caller is not reading. A task checks all answers for this,
//! because nothing would wake a stalled one. Large parts are handed over in pieces, so that the
//! transport never holds more than one piece of a stalled answer.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use coppice_proto::{status, telemetry::SCOPE};
use coppice_types::Reason;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use opentelemetry::{global, metrics::Counter};
use tokio::time::{Instant, sleep};
use tonic::{Status, body::Body, codegen::http};

use super::{
    budget::{Budget, Held},
    places::Place,
};
use crate::peer::{Party, lines::Busy};

/// The resources of an open call: its place, and a mark on its connection.
pub(super) type Taken = (Place, Option<Busy>);

/// Bytes of an answer that are handed to the transport at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Number of checks of an answer within the time that it may stall.
const LOOKS: u32 = 10;

/// The answers of a server that are on their way. Clones share them.
#[derive(Clone)]
pub(super) struct Answers {
    shared: Arc<Shared>,
}

struct Shared {
    stall_max: Duration,
    unsent: Budget,
    open: Mutex<Open>,
    cut_off: Counter<u64>,
}

#[derive(Default)]
struct Open {
    next: u64,
    answers: BTreeMap<u64, Arc<Mutex<State>>>,
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answers {
    /// Starts the task that checks the answers; it ends with the last clone of this. Must be called
    /// within a tokio runtime.
    pub(super) fn new(stall_max: Duration, unsent: Budget) -> Self {
        let meter = global::meter(SCOPE);
        let cut_off = meter.u64_counter("coppice.calls.cut_off");
        let cut_off = cut_off.with_description("Answers that were cut off because their callers did not read them");
        let cut_off = cut_off.build();
        cut_off.add(0, &[]);
        let shared = Arc::new(Shared { stall_max, unsent, open: Mutex::default(), cut_off });
        tokio::spawn(look(Arc::downgrade(&shared)));
        Self { shared }
    }

    /// Watches an answer: it is cut off if it stalls. `taken` is released when it has ended.
    pub(super) fn watch(&self, body: Body, caller: &Party, taken: Taken) -> Body {
        let held = self.shared.unsent.held(caller);
        let state =
            State { body: Some(body), rest: Bytes::new(), held, waits_since: None, cut: None, taken: Some(taken) };
        let state = Arc::new(Mutex::new(state));
        let mut open = lock(&self.shared.open);
        let number = open.next;
        open.next += 1;
        open.answers.insert(number, Arc::clone(&state));
        drop(open);
        Body::new(Answer { state, number, shared: Arc::clone(&self.shared) })
    }
}

async fn look(shared: Weak<Shared>) {
    loop {
        let Some(stall_max) = shared.upgrade().map(|shared| shared.stall_max) else { return };
        sleep(stall_max / LOOKS).await;
        let Some(shared) = shared.upgrade() else { return };
        let open: Vec<_> = lock(&shared.open).answers.values().cloned().collect();
        for state in open {
            let mut state = lock(&state);
            if state.waits_since.is_some_and(|since| since.elapsed() >= shared.stall_max) {
                let cut = state.cut_off(shared.stall_max);
                drop(state);
                shared.cut_off.add(u64::from(cut.is_some()), &[]);
                // Ends the producer of the answer here, outside of the lock.
                drop(cut);
            }
        }
    }
}

struct State {
    /// The producer of the answer; `None` once it is cut off.
    body: Option<Body>,
    /// The remainder of its last part.
    rest: Bytes,
    /// Bytes of the remainder, and of the piece that was handed over last.
    held: Held,
    /// When the last piece was handed over; `None` if more was asked for since.
    waits_since: Option<Instant>,
    /// The status that the caller gets in place of the remainder.
    cut: Option<Status>,
    taken: Option<Taken>,
}

impl State {
    /// Ends a stalled answer. Returns its producer, to be dropped outside of the lock.
    fn cut_off(&mut self, stall_max: Duration) -> Option<(Body, Option<Taken>)> {
        let seconds = stall_max.as_secs_f64();
        let message =
            format!("the answer was cut off: it was not read for {seconds} s; ask again, and read it as it arrives");
        self.end(status::refuse(Reason::ResourceExhausted, message))
    }

    /// Ends the answer with a status. Returns its producer, to be dropped outside of the lock.
    fn end(&mut self, status: Status) -> Option<(Body, Option<Taken>)> {
        let body = self.body.take()?;
        self.waits_since = None;
        self.cut = Some(status);
        self.rest = Bytes::new();
        self.held.give_back(self.held.bytes());
        Some((body, self.taken.take()))
    }

    /// The status that replaces the remainder, once.
    fn trailers(&mut self) -> Option<Result<Frame<Bytes>, Status>> {
        let status = self.cut.take()?;
        let mut trailers = http::HeaderMap::new();
        Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
    }

    fn piece(&mut self) -> Frame<Bytes> {
        let len = self.rest.len().min(PIECE_BYTES);
        self.waits_since = Some(Instant::now());
        Frame::data(self.rest.split_to(len))
    }
}

/// An answer that is being sent.
struct Answer {
    state: Arc<Mutex<State>>,
    number: u64,
    shared: Arc<Shared>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = lock(&self.state);
        state.waits_since = None;
        // The transport has sent the previous piece.
        let taken = state.held.bytes() - state.rest.len();
        state.held.give_back(taken);
        if !state.rest.is_empty() {
            return Poll::Ready(Some(Ok(state.piece())));
        }
        let Some(body) = &mut state.body else { return Poll::Ready(state.trailers()) };
        match std::task::ready!(Pin::new(body).poll_frame(task)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => match state.held.take(data.len()) {
                    Ok(()) => {
                        state.rest = data;
                        Poll::Ready(Some(Ok(state.piece())))
                    }
                    Err(refused) => {
                        let ended = state.end(refused);
                        let trailers = state.trailers();
                        drop((state, data, ended));
                        Poll::Ready(trailers)
                    }
                },
                Err(frame) => Poll::Ready(Some(Ok(frame))),
            },
            other => Poll::Ready(other),
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.state);
        match &state.body {
            Some(body) => state.rest.is_empty() && body.is_end_stream(),
            None => state.cut.is_none(),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let ended = lock(&self.shared.open).answers.remove(&self.number);
        drop(ended);
    }
}
