//! The thread of a prover. Between batches it takes versions from the replica's state machine.
//!
//! The state machine is read part by part, each as short as a client's read. A version that is
//! gone from it meanwhile is given up, and the newest decided one is begun instead.

use std::{
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use bytes::Bytes;
use coppice_env::Clock;
use coppice_pim::{Batcher, Error, Loading, Query, Reader};
use coppice_types::ShardState;
use tokio::sync::oneshot;

use super::shown::{Outcome, Shown};
use crate::{refusal::Refusal, replica::ReplicaHandle, shard::ShardMachine};

/// Nodes that are read while the state machine is held: some hundred microseconds.
const PART_NODES: usize = 32;
/// How often a thread without work looks for new versions.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How soon a version that could not be read is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a version with too many nodes: the next one will hardly have fewer.
const LARGE_PAUSE: Duration = Duration::from_secs(60);

/// What the thread takes.
#[derive(Debug)]
pub enum Input {
    /// A query, and where its proof goes. Without a proof it is dropped.
    Ask(Query, oneshot::Sender<Bytes>),
    /// Damage, for tests.
    #[cfg(test)]
    Break(fn(&mut Reader)),
}

/// The thread's own state.
#[derive(Debug)]
pub struct Worker {
    replica: ReplicaHandle<ShardMachine>,
    reader: Reader,
    batcher: Batcher<oneshot::Sender<Bytes>>,
    inputs: Receiver<Input>,
    shown: Arc<Shown>,
    clock: Arc<dyn Clock>,
    /// The version that is being read.
    loading: Option<Loading>,
    /// The applied entry of the last look at the state machine; `None` if the next look is due.
    looked_at: Option<u64>,
    /// When the next look is due in any case, after a failure.
    retry_at: Option<Duration>,
    /// No version is begun before this time, after one that was too large.
    rest_until: Duration,
    /// Number of versions that were too large.
    too_large: u64,
}

impl Worker {
    pub fn new(
        replica: ReplicaHandle<ShardMachine>,
        reader: Reader,
        batcher: Batcher<oneshot::Sender<Bytes>>,
        inputs: Receiver<Input>,
        shown: Arc<Shown>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            replica,
            reader,
            batcher,
            inputs,
            shown,
            clock,
            loading: None,
            looked_at: None,
            retry_at: None,
            rest_until: Duration::ZERO,
            too_large: 0,
        }
    }

    /// Works until it is told to end.
    pub fn run(mut self) {
        self.shown.show(&self.reader, self.too_large);
        while !self.shown.closed.load(Ordering::Relaxed) && self.take_inputs() {
            if let Some((queries, answers)) = self.batcher.take_due(self.clock.now()) {
                self.answer(&queries, answers);
            }
            self.refresh();
        }
    }

    /// Takes what has come, and waits for it if there is nothing else to do. `false` at the end.
    fn take_inputs(&mut self) -> bool {
        let now = self.clock.now();
        let until_due = self.batcher.due_at().map(|due| due.saturating_sub(now));
        let wait = if self.loading.is_some() { Duration::ZERO } else { until_due.unwrap_or(LOOK_PAUSE) };
        match self.inputs.recv_timeout(wait.min(LOOK_PAUSE)) {
            Ok(input) => self.take(input),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        while self.batcher.due_at().is_none_or(|due| due > self.clock.now())
            && let Ok(input) = self.inputs.try_recv()
        {
            self.take(input);
        }
        true
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Ask(query, answer) => {
                if self.batcher.push(query, answer, self.clock.now()).is_err() {
                    self.shown.asked.note(Outcome::Busy, 1);
                }
            }
            #[cfg(test)]
            Input::Break(damage) => damage(&mut self.reader),
        }
    }

    /// Answers a batch, from the versions that the replica still has.
    fn answer(&mut self, queries: &[Query], answers: Vec<oneshot::Sender<Bytes>>) {
        self.look_if_changed();
        for (proof, answer) in self.reader.answer(queries).into_iter().zip(answers) {
            if let Ok(proof) = proof {
                // The caller may have given up.
                let _ = answer.send(proof.into());
            }
        }
        self.shown.show(&self.reader, self.too_large);
    }

    /// One part of the work to get the newest version.
    fn refresh(&mut self) {
        match self.loading.take() {
            Some(loading) => self.load(loading),
            None => self.look_if_changed(),
        }
    }

    fn look_if_changed(&mut self) {
        let applied = *self.replica.shared.applied.borrow();
        let retry = self.retry_at.is_some_and(|at| at <= self.clock.now());
        if self.looked_at != Some(applied) || retry {
            (self.looked_at, self.retry_at) = (Some(applied), None);
            self.look();
        }
    }

    /// Drops what the replica has no more, and begins to read what it has decided.
    fn look(&mut self) {
        let served: Vec<ShardState> = self.reader.states().collect();
        let reader = &self.reader;
        let loads = self.loading.is_some() || self.clock.now() < self.rest_until;
        let found = self.replica.read_now(|machine| {
            let engine = machine.engine();
            let here = served.iter().filter(|state| matches!(engine.has(state), Ok(true)));
            let here: Vec<ShardState> = here.copied().collect();
            let view = if loads { None } else { engine.view(&engine.decided()).ok() };
            Ok((here, view.and_then(|view| reader.begin(&view))))
        });
        let (here, begun) = match found {
            Ok(found) => found,
            Err(_) => {
                // The replica does not serve: it waits for another state.
                self.loading = None;
                self.fail();
                (Vec::new(), None)
            }
        };
        if here.len() < served.len() {
            self.reader.keep(|state| here.contains(state));
            self.shown.show(&self.reader, self.too_large);
        }
        if begun.is_some() {
            self.loading = begun;
        }
    }

    /// Reads a part of a version, and serves it if that was the last one.
    fn load(&mut self, mut loading: Loading) {
        let reader = &self.reader;
        let read = self.replica.read_now(|machine| {
            let view = machine.engine().view(&loading.state());
            Ok(view.map_err(Error::from).and_then(|view| reader.read_part(&mut loading, &view, PART_NODES)))
        });
        match read {
            Ok(Ok(false)) => self.loading = Some(loading),
            Ok(Ok(true)) => self.serve(loading),
            Ok(Err(Error::TooLarge)) => {
                self.too_large += 1;
                if self.too_large == 1 {
                    let group = self.replica.group;
                    tracing::warn!(%group, "a version has more nodes than pim.nodes_max: the processor proves it");
                }
                self.rest_until = self.clock.now().saturating_add(LARGE_PAUSE);
                self.retry_at = Some(self.rest_until);
                self.shown.show(&self.reader, self.too_large);
            }
            // The version was pruned or rolled back, or the state was replaced.
            Ok(Err(_)) | Err(Refusal { .. }) => self.fail(),
        }
    }

    fn serve(&mut self, loading: Loading) {
        if !self.reader.finish(loading) {
            self.looked_at = None;
            return;
        }
        self.reader.publish();
        self.shown.show(&self.reader, self.too_large);
        // A newer version may have been decided meanwhile.
        self.looked_at = None;
    }

    fn fail(&mut self) {
        self.retry_at = Some(self.clock.now().saturating_add(RETRY_PAUSE));
    }
}
