//! A value that others wait on, like `tokio::sync::watch` and with the same names.
//!
//! The difference is the order in which waiters are woken: here it is the order in which they began
//! to wait. Tokio draws it from a random number that can't be set, so a run could not be repeated.
//! Only the newest value is kept: a late receiver never sees the values before it.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
    task::{Context, Poll, Waker},
};

/// The sender is gone, so the value can't change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the watched value has no sender any more")]
pub struct Closed;

/// No receiver is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody watches the value")]
pub struct Unwatched;

/// A version that no value has.
const NEVER: u64 = u64::MAX;

struct Shared<T> {
    value: RwLock<T>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    version: u64,
    closed: bool,
    receivers: usize,
    /// The waiters, in the order in which they began to wait.
    waiting: BTreeMap<u64, Waker>,
    tickets: u64,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, change: impl FnOnce(&mut State)) {
        let waiting = {
            let mut state = self.state();
            change(&mut state);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }
}

/// Changes the value. When it is dropped, all waiters are told.
pub struct Sender<T>(Arc<Shared<T>>);

/// Watches the value. Each receiver remembers which value it has seen.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// A reference to the value, which can't change while it is held.
pub struct Ref<'a, T>(RwLockReadGuard<'a, T>);

/// A value and its first receiver.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&*self.0.read()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&*self.shared.read()).finish()
    }
}

impl<T> Sender<T> {
    /// A value that has no receiver yet.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Arc::new(Shared { value: RwLock::new(value), state: Mutex::default() }))
    }

    /// Watches the value from now on. The present value counts as seen.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        let mut state = self.0.state();
        state.receivers += 1;
        Receiver { seen: state.version, shared: Arc::clone(&self.0) }
    }

    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.read())
    }

    /// Sets the value.
    ///
    /// # Errors
    /// If no receiver is left. Then the value stays the same.
    pub fn send(&self, value: T) -> Result<(), Unwatched> {
        if self.0.state().receivers == 0 {
            return Err(Unwatched);
        }
        self.send_replace(value);
        Ok(())
    }

    /// Sets the value, even without a receiver, and returns the old one.
    pub fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|old| std::mem::swap(old, &mut value));
        value
    }

    /// Changes the value.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value. The waiters are woken if `change` returns true.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let changed = change(&mut self.0.value.write().unwrap_or_else(PoisonError::into_inner));
        if changed {
            self.0.wake(|state| state.version += 1);
        }
        changed
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.wake(|state| state.closed = true);
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.state().receivers += 1;
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.state().receivers -= 1;
    }
}

impl<T> Receiver<T> {
    /// The value, without marking it as seen.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared.read())
    }

    /// The value, which is marked as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.mark_unchanged();
        Ref(self.shared.read())
    }

    /// Marks the present value as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.state().version;
    }

    /// Marks the value as not seen.
    pub fn mark_changed(&mut self) {
        self.seen = NEVER;
    }

    /// Whether the value was changed since it was last seen.
    ///
    /// # Errors
    /// If the sender is gone.
    pub fn has_changed(&self) -> Result<bool, Closed> {
        let state = self.shared.state();
        if state.closed { Err(Closed) } else { Ok(state.version != self.seen) }
    }

    /// Waits until the value is changed since it was last seen, and marks it as seen.
    ///
    /// # Errors
    /// If the sender is gone.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        let (shared, seen) = (&self.shared, self.seen);
        let version = Change { shared, seen, ticket: None }.await?;
        self.seen = version;
        Ok(())
    }

    /// Waits until the value satisfies `wanted`, and marks it as seen.
    ///
    /// # Errors
    /// If the sender is gone and the value does not satisfy `wanted`.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<Ref<'_, T>, Closed> {
        loop {
            self.mark_unchanged();
            if wanted(&self.shared.read()) {
                return Ok(Ref(self.shared.read()));
            }
            self.changed().await?;
        }
    }
}

/// Waits until the version is no longer the one that was seen.
struct Change<'a, T> {
    shared: &'a Shared<T>,
    seen: u64,
    ticket: Option<u64>,
}

impl<T> Future for Change<'_, T> {
    type Output = Result<u64, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.state();
        if state.version != self.seen {
            return Poll::Ready(Ok(state.version));
        }
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        let ticket = self.ticket.unwrap_or_else(|| {
            state.tickets += 1;
            state.tickets
        });
        state.waiting.insert(ticket, cx.waker().clone());
        drop(state);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl<T> Drop for Change<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.state().waiting.remove(&ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::Mutex,
        task::{Wake, Waker},
    };

    use super::*;

    struct Note(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("no holder panics").push(self.0);
        }
    }

    #[test]
    fn waiters_are_woken_in_the_order_in_which_they_began_to_wait() {
        let woken = Arc::new(Mutex::new(Vec::new()));
        let (sender, mut first) = channel(0);
        let mut second = sender.subscribe();
        let wakers = ["first", "second"].map(|name| Waker::from(Arc::new(Note(name, Arc::clone(&woken)))));
        let mut one = pin!(first.wait_for(|value| *value == 2));
        let mut two = pin!(second.changed());
        assert!(one.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        assert!(two.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
        assert_eq!(sender.send_replace(1), 0);
        assert_eq!(*woken.lock().expect("no holder panics"), ["first", "second"]);
        assert!(one.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        assert_eq!(two.as_mut().poll(&mut Context::from_waker(&wakers[1])), Poll::Ready(Ok(())));
        sender.send_modify(|value| *value += 1);
        assert!(
            matches!(one.as_mut().poll(&mut Context::from_waker(&wakers[0])), Poll::Ready(Ok(value)) if *value == 2)
        );
    }

    #[test]
    fn a_late_receiver_sees_the_newest_value_and_learns_of_a_lost_sender() {
        let (sender, mut receiver) = channel(1);
        assert_eq!(receiver.has_changed(), Ok(false));
        assert!(!sender.send_if_modified(|_| false));
        assert!(sender.send(2).is_ok() && sender.send(3).is_ok());
        assert_eq!(receiver.has_changed(), Ok(true));
        assert_eq!(*receiver.borrow_and_update(), 3);
        drop(sender);
        let mut waits = pin!(receiver.changed());
        assert_eq!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(Closed)));
    }

    #[test]
    fn nobody_watches_after_the_last_receiver() {
        let (sender, receiver) = channel(1);
        drop(receiver);
        assert_eq!(sender.send(2), Err(Unwatched));
        assert_eq!(*sender.borrow(), 1);
    }
}
