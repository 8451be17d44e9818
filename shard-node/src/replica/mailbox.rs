//! The queue of a replica's thread: two bounded lanes, so that clients cannot crowd out raft.
//!
//! Adding an item never waits: a full lane refuses it. The replica takes all items at once, so
//! proposals and fsyncs are batched under load.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

/// The lane of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Messages of other replicas.
    Peers,
    /// Requests of clients and of the node itself.
    Requests,
    /// Results of the replica's own tasks. Each task sends one item at a time, so there is always
    /// room.
    Own,
}

/// The lane is full, or the replica has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Two bounded queues with one reader.
#[derive(Debug)]
pub struct Mailbox<T> {
    lanes: Mutex<Lanes<T>>,
    arrived: Condvar,
    /// Like `arrived`, for a reader that is a task.
    noted: Notify,
    peers_max: usize,
    requests_max: usize,
}

#[derive(Debug)]
struct Lanes<T> {
    peers: VecDeque<T>,
    requests: VecDeque<T>,
    woken: bool,
    closed: bool,
}

impl<T> Mailbox<T> {
    /// An empty mailbox with lanes of these lengths.
    #[must_use]
    pub fn new(peers_max: usize, requests_max: usize) -> Self {
        let lanes = Lanes { peers: VecDeque::new(), requests: VecDeque::new(), woken: false, closed: false };
        Self { lanes: Mutex::new(lanes), arrived: Condvar::new(), noted: Notify::new(), peers_max, requests_max }
    }

    fn lock(&self) -> MutexGuard<'_, Lanes<T>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.arrived.notify_one();
        self.noted.notify_one();
    }

    /// Waits in a task, at most `limit`, for an item to arrive. [`take`](Self::take) then finds it.
    pub async fn arrival(&self, limit: Duration) {
        // A notification from before the last `take` only makes the reader look once in vain.
        let _ = tokio::time::timeout(limit, self.noted.notified()).await;
    }

    /// Adds an item.
    ///
    /// # Errors
    /// [`Full`] if the lane has no room, or the mailbox is closed.
    pub fn put(&self, lane: Lane, item: T) -> Result<(), Full> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Err(Full);
        }
        let (queue, max) = match lane {
            Lane::Peers => (&mut lanes.peers, self.peers_max),
            Lane::Requests => (&mut lanes.requests, self.requests_max),
            Lane::Own => (&mut lanes.requests, usize::MAX),
        };
        if queue.len() >= max {
            return Err(Full);
        }
        queue.push_back(item);
        drop(lanes);
        self.notify();
        Ok(())
    }

    /// Takes all items, peers' messages first. Waits at most `limit` if there are none.
    pub fn take(&self, limit: Duration) -> Vec<T> {
        let lanes = self.lock();
        let empty =
            |lanes: &mut Lanes<T>| lanes.peers.is_empty() && lanes.requests.is_empty() && !lanes.woken && !lanes.closed;
        let mut lanes = self.arrived.wait_timeout_while(lanes, limit, empty).unwrap_or_else(PoisonError::into_inner).0;
        lanes.woken = false;
        let mut all: Vec<T> = lanes.peers.drain(..).collect();
        all.extend(lanes.requests.drain(..));
        all
    }

    /// How many messages from other replicas, and how many requests, wait.
    #[must_use]
    pub fn waiting(&self) -> (u64, u64) {
        let lanes = self.lock();
        (lanes.peers.len() as u64, lanes.requests.len() as u64)
    }

    /// Makes the reader return from [`take`](Self::take) even if no item arrives.
    pub fn wake(&self) {
        self.lock().woken = true;
        self.notify();
    }

    /// Refuses all items from now on and drops those that wait.
    pub fn close(&self) {
        let mut lanes = self.lock();
        lanes.closed = true;
        let left = (std::mem::take(&mut lanes.peers), std::mem::take(&mut lanes.requests));
        drop(lanes);
        // The items are dropped without the lock: dropping one may answer a caller, which then adds
        // another.
        drop(left);
        self.notify();
    }

    /// Whether the mailbox is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_bounded_separately_and_peers_come_first() {
        let mailbox = Mailbox::new(2, 1);
        assert_eq!(mailbox.put(Lane::Requests, 10), Ok(()));
        assert_eq!(mailbox.put(Lane::Requests, 11), Err(Full));
        assert_eq!(mailbox.put(Lane::Own, 12), Ok(()));
        assert_eq!(mailbox.put(Lane::Peers, 1), Ok(()));
        assert_eq!(mailbox.put(Lane::Peers, 2), Ok(()));
        assert_eq!(mailbox.put(Lane::Peers, 3), Err(Full));
        assert_eq!(mailbox.take(Duration::MAX), vec![1, 2, 10, 12]);
        assert_eq!(mailbox.take(Duration::ZERO), Vec::<i32>::new());
    }

    #[test]
    fn a_waiting_reader_is_woken_and_a_closed_mailbox_refuses() {
        let mailbox = Mailbox::<i32>::new(1, 1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| mailbox.take(Duration::MAX));
            mailbox.wake();
            assert!(reader.join().expect("the reader ends").is_empty());
        });
        mailbox.close();
        assert_eq!(mailbox.put(Lane::Peers, 1), Err(Full));
        assert!(mailbox.take(Duration::MAX).is_empty());
        assert!(mailbox.is_closed());
    }
}
