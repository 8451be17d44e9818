//! A budget of bytes for answers that are being built. No caller holds more than a share of it.
//!
//! A caller waits for its own share first, and only then for the common budget. So a caller with
//! many large requests waits for itself, and other callers find room at once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use coppice_proto::status;
use coppice_types::Reason;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};
use tonic::Status;

/// The largest total of estimated bytes of the answers that are being built. Further answers wait.
const BYTES_MAX: u32 = 128 << 20;
/// One caller may hold 1/SHARE of the bytes.
const SHARE: u32 = 4;

/// The budget. Callers that hold no bytes are forgotten.
#[derive(Debug)]
pub struct Room {
    all: Arc<Semaphore>,
    shares: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

/// A part of the budget, held until this value is dropped. It also keeps the caller's share alive.
#[derive(Debug)]
pub struct Taken {
    _of_all: OwnedSemaphorePermit,
    _of_share: OwnedSemaphorePermit,
}

impl Default for Room {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(BYTES_MAX as usize)), shares: Mutex::default() }
    }
}

impl Room {
    /// Waits for this many bytes, or for a whole share if that is less.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if they are not free before the deadline.
    pub async fn take(&self, caller: &str, bytes: u32, deadline: Instant) -> Result<Taken, Status> {
        let bytes = bytes.min(BYTES_MAX / SHARE);
        let taken = async {
            let of_share = self.share(caller).acquire_many_owned(bytes).await.expect("it is never closed");
            let of_all = self.all.clone().acquire_many_owned(bytes).await.expect("it is never closed");
            Taken { _of_all: of_all, _of_share: of_share }
        };
        let late = |_| {
            let message = "too many large answers are being made: try again later";
            status::refuse(Reason::ResourceExhausted, message)
        };
        timeout_at(deadline, taken).await.map_err(late)
    }

    fn share(&self, caller: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(caller).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new((BYTES_MAX / SHARE) as usize));
        shares.insert(caller.to_owned(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_waits_for_its_share_delays_nobody_else() {
        let (room, soon) = (Room::default(), || Instant::now() + Duration::from_secs(1));
        let part = BYTES_MAX / SHARE / 2;
        let held = [room.take("greedy", part, soon()).await, room.take("greedy", part, soon()).await];
        assert!(held.iter().all(Result::is_ok));
        let more = room.take("greedy", 1, soon());
        let others = async {
            let began = Instant::now();
            for _ in 0..8 {
                room.take("modest", u32::MAX, soon()).await.expect("a whole share is there");
            }
            began.elapsed()
        };
        let (refused, waited) = tokio::join!(more, others);
        assert_eq!(waited, Duration::ZERO);
        assert_eq!(status::reason(&refused.expect_err("its share is taken")), Some(Reason::ResourceExhausted));
        drop(held);
        room.take("greedy", u32::MAX, soon()).await.expect("it was given back");
        room.take("another", 1, soon()).await.expect("there is room");
        assert_eq!(room.shares.lock().expect("nobody panics").len(), 1, "those who have nothing are forgotten");
    }
}
