//! Locks on what threads share.

use std::sync::{Mutex, MutexGuard};

/// Takes a lock. Panics if a holder has panicked, because what it left may be half done.
pub fn held<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of the lock panics")
}
