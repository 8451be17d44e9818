//! The connections of one listener: their number, their callers, and which of them is closed to
//! make room for another.
//!
//! **Invariants.** There are never more than [`Bounds::connections_max`] connections. A single
//! caller has at most [`Bounds::caller_max`], unless it is a process of the cluster. A connection
//! with a call in progress is never closed for another one. The first to be closed is one whose
//! peer never spoke, then the one that has been idle for longest. Among several callers, the caller
//! with most connections loses one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use coppice_proto::telemetry::SCOPE;
use opentelemetry::{KeyValue, global};
use tokio::{sync::oneshot, time::Instant};

use super::party::Party;
use crate::parts::Parts;

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The listener's name in metrics.
    pub name: &'static str,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most connections of one caller: of a certificate's subject, or of an address without a
    /// certificate.
    pub caller_max: usize,
    /// Most connections whose peer has not spoken yet, including those in their TLS handshake.
    pub silent_max: usize,
    /// Longest time for the peer to send its first bytes after the handshake.
    pub greeting_timeout: Duration,
    /// Number of first bytes that the peer must send in that time.
    pub greeting_bytes: usize,
    /// Longest life of a connection without a call.
    pub idle_max: Duration,
    /// Longest time in which the peer may read nothing of what is written to it.
    pub write_timeout: Duration,
}

/// The bounds of listeners for gRPC. The first bytes are HTTP/2's preface.
pub const GRPC: Bounds = Bounds {
    name: "grpc",
    connections_max: 4096,
    caller_max: 512,
    silent_max: 512,
    greeting_timeout: Duration::from_secs(5),
    greeting_bytes: 24,
    idle_max: Duration::from_secs(600),
    write_timeout: Duration::from_secs(30),
};

/// The listeners of this process.
static LISTENERS: Parts<Lines> = Parts::new();

/// The connections of a listener.
#[derive(Debug)]
pub(crate) struct Lines {
    bounds: Bounds,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    lines: BTreeMap<u64, Entry>,
    of: BTreeMap<Party, usize>,
    silent: usize,
}

/// A connection. It is closed when its entry is dropped.
#[derive(Debug)]
struct Entry {
    caller: Party,
    has_spoken: bool,
    calls: usize,
    /// When its last call ended.
    idle_since: Instant,
    _open: oneshot::Sender<()>,
}

impl Open {
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.lines.remove(&number)?;
        self.silent -= usize::from(!entry.has_spoken);
        self.leave(&entry.caller);
        Some(entry)
    }

    fn leave(&mut self, caller: &Party) {
        if let Some(count) = self.of.get_mut(caller) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(caller);
            }
        }
    }

    /// Closes one connection that has no call and that `may_go`; `false` if there is none.
    fn close_one(&mut self, may_go: impl Fn(&Entry) -> bool) -> bool {
        let idle = self.lines.iter().filter(|(_, entry)| entry.calls == 0 && may_go(entry));
        let first = idle.min_by_key(|(_, entry)| {
            let of_caller = self.of.get(&entry.caller).copied().unwrap_or_default();
            (entry.has_spoken, entry.caller.has_all(), std::cmp::Reverse(of_caller), entry.idle_since)
        });
        let Some(number) = first.map(|(number, _)| *number) else { return false };
        self.remove(number).is_some()
    }
}

/// There is no room for the connection, because all others are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Lines {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        let lines = Arc::new(Self { bounds, open: Mutex::default() });
        LISTENERS.add(&lines);
        let meter = global::meter(SCOPE);
        let gauge = meter.u64_observable_gauge("coppice.net.connections");
        let gauge = gauge.with_description("Open connections by purpose, including those whose handshake is under way");
        gauge
            .with_callback(move |observer| {
                let sum = LISTENERS.sum(|lines| (lines.bounds.name == bounds.name).then(|| lines.count()));
                if let Some(connections) = sum {
                    observer.observe(connections, &[KeyValue::new("of", bounds.name)]);
                }
            })
            .build();
        lines
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of connections.
    pub(crate) fn count(&self) -> usize {
        self.lock().lines.len()
    }

    /// Enters a new connection, and may close another one for it. The receiver ends when the new
    /// connection has to be closed.
    pub(crate) fn enter(self: &Arc<Self>, caller: Party) -> Result<(Line, oneshot::Receiver<()>), Full> {
        let mut open = self.lock();
        self.make_room(&mut open, &caller)?;
        if open.silent >= self.bounds.silent_max && !open.close_one(|entry| !entry.has_spoken) {
            return Err(Full);
        }
        if open.lines.len() >= self.bounds.connections_max && !open.close_one(|_| true) {
            return Err(Full);
        }
        let (sender, closed) = oneshot::channel();
        let number = open.next;
        open.next += 1;
        open.silent += 1;
        *open.of.entry(caller.clone()).or_default() += 1;
        let idle_since = Instant::now();
        let entry = Entry { caller, has_spoken: false, calls: 0, idle_since, _open: sender };
        open.lines.insert(number, entry);
        Ok((Line { number, lines: Arc::clone(self) }, closed))
    }

    /// Makes sure that the caller has room for one more.
    fn make_room(&self, open: &mut Open, caller: &Party) -> Result<(), Full> {
        let own = open.of.get(caller).copied().unwrap_or_default();
        if caller.has_all() || own < self.bounds.caller_max || open.close_one(|entry| entry.caller == *caller) {
            return Ok(());
        }
        Err(Full)
    }

    /// Closes connections that had no call for too long. Those of cluster processes stay, because
    /// they use them again.
    pub(crate) fn close_idle(&self) {
        let mut open = self.lock();
        let late = |entry: &Entry| {
            entry.calls == 0 && !entry.caller.has_all() && entry.idle_since.elapsed() >= self.bounds.idle_max
        };
        let late: Vec<u64> = open.lines.iter().filter(|(_, entry)| late(entry)).map(|(number, _)| *number).collect();
        for number in late {
            open.remove(number);
        }
    }
}

/// A place among the connections, until it is dropped.
#[derive(Debug)]
pub(crate) struct Line {
    number: u64,
    lines: Arc<Lines>,
}

impl Line {
    /// The limits that the connection is held to.
    pub(crate) fn bounds(&self) -> Bounds {
        self.lines.bounds
    }

    /// Notes the connection's caller, once it is known.
    pub(crate) fn is_of(&self, caller: Party) -> Result<(), Full> {
        let mut open = self.lines.lock();
        self.lines.make_room(&mut open, &caller)?;
        let Some(entry) = open.lines.get_mut(&self.number) else { return Err(Full) };
        let before = std::mem::replace(&mut entry.caller, caller.clone());
        open.leave(&before);
        *open.of.entry(caller).or_default() += 1;
        Ok(())
    }

    /// Notes that the peer has sent its first bytes.
    pub(crate) fn has_spoken(&self) {
        let mut open = self.lines.lock();
        if let Some(entry) = open.lines.get_mut(&self.number)
            && !std::mem::replace(&mut entry.has_spoken, true)
        {
            open.silent -= 1;
        }
    }

    /// Counts the calls on the connection.
    pub(crate) fn used(&self) -> Used {
        Used { number: self.number, lines: Arc::downgrade(&self.lines) }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.lock().remove(self.number);
    }
}

/// Counts the calls on a connection.
#[derive(Clone, Debug)]
pub struct Used {
    number: u64,
    lines: Weak<Lines>,
}

impl Used {
    /// Begins a call, which ends when the result is dropped.
    #[must_use]
    pub(crate) fn begin(&self) -> Busy {
        self.change(|entry| entry.calls += 1);
        Busy(self.clone())
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        let Some(lines) = self.lines.upgrade() else { return };
        if let Some(entry) = lines.lock().lines.get_mut(&self.number) {
            change(entry);
        }
    }
}

/// A call on a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Used);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(|entry| {
            entry.calls -= 1;
            entry.idle_since = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { connections_max: 6, caller_max: 4, silent_max: 3, ..GRPC };

    fn caller(last: u8) -> Party {
        Party::Address([10, 0, 0, last].into())
    }

    /// A connection whose peer has spoken.
    fn spoken(lines: &Arc<Lines>, last: u8) -> (Line, oneshot::Receiver<()>) {
        let (line, closed) = lines.enter(caller(last)).expect("there is room");
        line.has_spoken();
        (line, closed)
    }

    fn is_closed(closed: &mut oneshot::Receiver<()>) -> bool {
        !matches!(closed.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[tokio::test(start_paused = true)]
    async fn the_silent_make_room_then_the_idle_and_never_those_in_use() {
        let lines = Lines::new(BOUNDS);
        let (_first, mut first) = lines.enter(caller(1)).expect("there is room");
        let (_second, _) = lines.enter(caller(1)).expect("there is room");
        let (_third, mut third) = lines.enter(caller(2)).expect("there is room");
        assert!(!is_closed(&mut first));
        let (used, mut good) = spoken(&lines, 3);
        assert!(is_closed(&mut first), "the oldest of the address that has most silent ones");
        assert!(!is_closed(&mut third) && !is_closed(&mut good));
        let busy = used.used().begin();
        let mut idle = Vec::new();
        for last in 4..9 {
            tokio::time::advance(Duration::from_millis(1)).await;
            // Each is idle at once, so it is closed for those after it.
            idle.push(spoken(&lines, last));
        }
        assert!(is_closed(&mut third), "the silent go first");
        assert!(!is_closed(&mut good), "a call is under way there");
        assert_eq!(lines.count(), BOUNDS.connections_max);
        drop(busy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_has_its_share_and_takes_nothing_of_others() {
        let lines = Lines::new(BOUNDS);
        let (_other, mut other) = spoken(&lines, 1);
        let mut own: Vec<_> = (0..4).map(|_| spoken(&lines, 2)).collect();
        let mut busy: Vec<_> = own.iter().map(|(line, _)| line.used().begin()).collect();
        assert!(lines.enter(caller(2)).is_err_and(|full| full == Full), "all of its own are in use");
        busy.pop();
        let (_new, _) = lines.enter(caller(2)).expect("its idle one goes for it");
        assert!(is_closed(&mut own[3].1) && !is_closed(&mut other));
        let (inside, _) = lines.enter(caller(3)).expect("there is room");
        inside.is_of(Party::Cluster("node".to_owned())).expect("there is room");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_with_a_certificate_counts_as_its_subject() {
        let lines = Lines::new(BOUNDS);
        let subject = || Party::Subject("CN=a".to_owned());
        let mut kept = Vec::new();
        for last in 1..=4 {
            let (line, closed) = spoken(&lines, last);
            line.is_of(subject()).expect("there is room");
            kept.push((line.used().begin(), line, closed));
        }
        let (fifth, _) = lines.enter(caller(5)).expect("nobody knows yet whose it is");
        assert_eq!(fifth.is_of(subject()), Err(Full));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_call_is_closed_after_a_while() {
        let lines = Lines::new(BOUNDS);
        let (idle, mut idle_closed) = spoken(&lines, 1);
        let (used, mut used_closed) = spoken(&lines, 2);
        let (inside, mut inside_closed) = lines.enter(Party::Inside).expect("there is room");
        let busy = used.used().begin();
        tokio::time::advance(BOUNDS.idle_max).await;
        lines.close_idle();
        assert!(is_closed(&mut idle_closed) && !is_closed(&mut used_closed) && !is_closed(&mut inside_closed));
        drop(busy);
        lines.close_idle();
        assert!(!is_closed(&mut used_closed), "its time begins with the end of its call");
        drop((idle, used, inside));
        assert_eq!(lines.count(), 0);
    }
}
