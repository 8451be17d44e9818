//! The handle of a prover: takes queries from the service and awaits their answers.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering,
        mpsc::{SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use coppice_env::{Clock, spawn_thread};
use coppice_pim::{Batcher, Error, Query, Reader};
use coppice_types::ShardState;
use tokio::{sync::oneshot, time::Instant};

use super::{
    PimOptions,
    shown::{Asked, Figures, Outcome, Shown},
    worker::{Input, Worker},
};
use crate::{replica::ReplicaHandle, shard::ShardMachine};

/// Makes proofs of single keys of one shard, on a thread of its own.
#[derive(Debug)]
pub struct Prover {
    inputs: SyncSender<Input>,
    shown: Arc<Shown>,
    clock: Arc<dyn Clock>,
    answer_wait: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Prover {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Setting` for batches that can't be, `Overloaded` if there is no thread.
    pub(super) fn start(
        replica: &ReplicaHandle<ShardMachine>,
        reader: Reader,
        clock: &Arc<dyn Clock>,
        options: &PimOptions,
    ) -> coppice_pim::Result<Self> {
        let (sender, inputs) = sync_channel(options.batches.queries_max);
        let shown = Arc::new(Shown::new(options.batches.wait_max));
        let batcher = Batcher::new(options.batches.clone())?;
        let worker = Worker::new(replica.clone(), reader, batcher, inputs, Arc::clone(&shown), Arc::clone(clock));
        let thread = spawn_thread(&format!("pim-{}", replica.group), move || worker.run());
        Ok(Self {
            inputs: sender,
            shown,
            clock: Arc::clone(clock),
            answer_wait: options.answer_wait,
            thread: Mutex::new(Some(thread.map_err(|_| Error::Overloaded)?)),
        })
    }

    /// Whether it is worth asking for this many proofs of a state.
    #[must_use]
    pub fn takes(&self, state: &ShardState, queries: usize) -> bool {
        queries > 0 && self.shown.takes(state, queries as u64, self.clock.now())
    }

    /// The proofs of keys in a state, in their order. `None` where the prover has none in time.
    pub async fn prove(&self, state: ShardState, keys: Vec<Bytes>) -> Vec<Option<Bytes>> {
        let until = Instant::now() + self.answer_wait;
        let ask = |key: Bytes| {
            let (answer, answered) = oneshot::channel();
            let query = Query { state, key: key.to_vec() };
            self.inputs.try_send(Input::Ask(query, answer)).ok().map(|()| answered)
        };
        let asked: Vec<_> = keys.into_iter().map(ask).collect();
        let mut proofs = Vec::with_capacity(asked.len());
        for answered in asked {
            let (proof, outcome) = match answered {
                None => (None, Outcome::Busy),
                Some(answered) => match tokio::time::timeout_at(until, answered).await {
                    Ok(Ok(proof)) => (Some(proof), Outcome::Answered),
                    _ => (None, Outcome::Late),
                },
            };
            self.shown.asked.note(outcome, 1);
            proofs.push(proof);
        }
        proofs
    }

    /// Damages the reader between two batches.
    #[cfg(test)]
    pub(crate) fn damage(&self, damage: fn(&mut Reader)) {
        self.inputs.send(Input::Break(damage)).expect("the thread lives");
    }

    /// Figures for metrics.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.shown.figures()
    }

    /// Queries by outcome.
    #[must_use]
    pub fn asked(&self) -> &Asked {
        &self.shown.asked
    }

    /// Ends the thread, and waits until the DPUs are free. May block for as long as a batch takes.
    pub fn close(&self) {
        self.shown.closed.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread of processing in memory had ended by a panic");
        }
    }
}

impl Drop for Prover {
    fn drop(&mut self) {
        self.shown.closed.store(true, Ordering::Relaxed);
    }
}
