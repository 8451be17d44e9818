//! Answers on their way to their callers.
//!
//! HTTP/2 asks for more of an answer when the caller has room for it. An answer that was not asked
//! for more since its last part is one that its caller does not take. It is looked for from
//! outside, since nothing else wakes it. Large parts are handed over in pieces, so that the
//! transport holds one piece of an answer that is not taken, and no more.

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
    calls::{Party, Place},
    lines::Busy,
};

/// What an open call takes: its place, and a mark on its connection.
pub(super) type Taken = (Place, Option<Busy>);

/// Bytes of an answer that are handed to the transport at a time.
const PIECE_BYTES: usize = 64 << 10;
/// How often it is looked for answers that are not taken, of the time that they may wait.
const LOOKS: u32 = 10;

/// The answers of a server that are on their way. Clones are the same.
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
    /// Must be called within a tokio runtime: a task looks for answers that wait for longer than
    /// `stall_max`, as long as there is a clone of this.
    pub(super) fn new(stall_max: Duration, unsent: Budget) -> Self {
        let meter = global::meter(SCOPE);
        let cut_off = meter.u64_counter("coppice.calls.cut_off");
        let cut_off = cut_off.with_description("Answers that were cut off because their callers took nothing of them");
        let cut_off = cut_off.build();
        cut_off.add(0, &[]);
        let shared = Arc::new(Shared { stall_max, unsent, open: Mutex::default(), cut_off });
        tokio::spawn(look(Arc::downgrade(&shared)));
        Self { shared }
    }

    /// An answer that is cut off if it is not taken. What it has taken is given back when it has
    /// ended.
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
                // What made the answer ends here, outside of the lock.
                drop(cut);
            }
        }
    }
}

struct State {
    /// Makes the answer; `None` once it is cut off.
    body: Option<Body>,
    /// What is left of its last part.
    rest: Bytes,
    /// Bytes of the rest, and of the piece that was handed over last.
    held: Held,
    /// When the last piece was handed over, if it was not asked for more since.
    waits_since: Option<Instant>,
    /// What the caller is told in place of the rest.
    cut: Option<Status>,
    taken: Option<Taken>,
}

impl State {
    /// Ends an answer that is not taken; gives what is to be dropped.
    fn cut_off(&mut self, stall_max: Duration) -> Option<(Body, Option<Taken>)> {
        let seconds = stall_max.as_secs_f64();
        let message = format!(
            "the answer was cut off: nothing of it was taken for {seconds} s; ask again, and read it as it comes"
        );
        self.end(status::refuse(Reason::ResourceExhausted, message))
    }

    /// Ends it with a status; gives what is to be dropped.
    fn end(&mut self, status: Status) -> Option<(Body, Option<Taken>)> {
        let body = self.body.take()?;
        self.waits_since = None;
        self.cut = Some(status);
        self.rest = Bytes::new();
        self.held.give_back(self.held.bytes());
        Some((body, self.taken.take()))
    }

    /// What the caller is told in place of the rest, once.
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
        // The piece before was taken.
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
