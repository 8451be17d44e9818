//! Simulated clients. Each sends commits, reads, stages, prunes and rollbacks as its seed says, and
//! records the answers.

mod library;
mod queries;
mod reads;
mod writes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_env::{Rng, SimRng, watch};
use coppice_proto::{Channel, convert, v1, v1::ledger_client::LedgerClient};
use coppice_types::Stamp;
use coppice_verify::{check, checkpoint::Checkpoint, note::VerifierKey};
use tokio::time::timeout;
use tonic::Status;

use crate::{
    history::Scribe,
    life::Life,
    net::Net,
    shape::{self, Shape},
};

/// Longest time that a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(4000);
/// One of this many clients uses the client library.
const LIBRARY_EVERY: u64 = 3;

/// The behaviour of the clients in one part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Random calls.
    Chaos,
    /// Each client shows that everything works again, and stops.
    Calm,
    /// Clients stop.
    Over,
}

#[derive(Debug)]
pub struct Client {
    id: u64,
    rng: SimRng,
    shape: Arc<Shape>,
    scribe: Scribe,
    channels: Vec<Channel>,
    /// Index of the coordinator that it talks to.
    at: usize,
    verifier: VerifierKey,
    /// The records that it read last, for preconditions.
    seen: BTreeMap<String, Option<(Bytes, Stamp)>>,
    /// Stamps that it was told of.
    stamps: Vec<Stamp>,
    head: Stamp,
    /// The largest log size that it was told of.
    log_size: u64,
    /// The client library, if the client writes and reads only through it.
    library: Option<library::Library>,
    session: Option<writes::Session>,
    batches: u64,
}

type Heard<T> = Result<T, Status>;

impl Client {
    /// A client that can reach these coordinators.
    #[must_use]
    pub fn new(id: u64, shape: Arc<Shape>, scribe: Scribe, net: &Net, coordinators: &[String]) -> Self {
        let life = Life::new(&format!("client-{id}"), 1, None);
        let seed = shape.seed.wrapping_mul(1009) ^ (id << 32);
        let rng = SimRng::new(seed);
        let verifier = shape::signing_key().verifier().clone();
        let library = id.is_multiple_of(LIBRARY_EVERY).then(|| {
            let routes = coordinators.iter().map(|name| (name.clone(), net.channel(&life, name)));
            library::Library::new(routes.collect(), seed, verifier.clone())
        });
        Self {
            id,
            rng,
            shape,
            scribe,
            channels: coordinators.iter().map(|name| net.channel(&life, name)).collect(),
            at: 0,
            verifier,
            seen: BTreeMap::new(),
            stamps: Vec::new(),
            head: Stamp::default(),
            log_size: 0,
            library,
            session: None,
            batches: 0,
        }
    }

    /// Works until the faults stop. Then it shows that each shard takes writes.
    pub async fn run(mut self, mut phase: watch::Receiver<Phase>) {
        self.at = usize::try_from(self.rng.below(self.channels.len() as u64)).expect("coordinators are few");
        while *phase.borrow_and_update() == Phase::Chaos {
            self.act().await;
            let pause = if self.rng.chance(100) { 200 } else { 25 };
            tokio::time::sleep(Duration::from_millis(self.rng.below(pause))).await;
        }
        self.settle().await;
        let mut left = self.shape.probes();
        while let Some(probe) = left.last().filter(|_| *phase.borrow() == Phase::Calm).cloned() {
            if self.probe(&probe).await {
                left.pop();
            }
        }
        while *phase.borrow() == Phase::Calm && !self.read_head().await {}
        // Sound witnesses cosign again after calls whose answers were lost.
        let wanted = self.log_size;
        while self.id == 1
            && self.shape.can_be_cosigned()
            && *phase.borrow() == Phase::Calm
            && !self.read_cosigned(wanted).await
        {}
    }

    async fn act(&mut self) {
        if self.rng.chance(self.shape.admin_per_mille) {
            return self.administer().await;
        }
        match self.rng.below(100) {
            0..46 => self.write().await,
            46..72 => self.read_keys().await,
            72..77 => self.read_range().await,
            77..80 => self.read_batch().await,
            80..86 => {
                self.read_head().await;
            }
            86..90 => self.look_at_log().await,
            90..95 => self.stage().await,
            // With wrong clocks, pins end at other times.
            95..97 if !self.shape.faults.clocks => self.pin().await,
            _ => self.at = usize::try_from(self.rng.below(self.channels.len() as u64)).expect("coordinators are few"),
        }
    }

    fn ledger(&self) -> LedgerClient<Channel> {
        LedgerClient::new(self.channels[self.at].clone())
    }

    /// Waits for an answer up to the limit. If none comes, the client turns to another coordinator.
    async fn hear<T>(&mut self, answer: impl Future<Output = Heard<T>>) -> Heard<T> {
        let answer = match timeout(PATIENCE, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded("no answer")),
        };
        if let Err(status) = &answer
            && coppice_proto::status::kind(status) == coppice_types::ErrorKind::Unavailable
        {
            self.at = (self.at + 1) % self.channels.len();
            tokio::time::sleep(Duration::from_millis(5 + self.rng.below(40))).await;
        }
        answer
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() {
            return None;
        }
        let at = usize::try_from(self.rng.below(items.len() as u64)).expect("there are not so many");
        Some(items[at].clone())
    }

    fn learn(&mut self, stamp: Stamp) {
        if self.stamps.len() >= 64 {
            self.stamps.remove(0);
        }
        self.stamps.push(stamp);
    }

    /// Opens a signed checkpoint and records it.
    fn note_checkpoint(&self, note: &[u8], what: &str) {
        let next = shape::next_signing_key();
        // At the end, the log shows which of the two keys should have signed it.
        let opened = [&self.verifier, next.verifier()].map(|key| Checkpoint::open(note, key).map(|it| (key, it)));
        let [first, second] = opened;
        match first.or(second) {
            Ok((key, checkpoint)) => {
                let mut history = self.scribe.lock();
                history.signers.insert((checkpoint.size, key.public_key()));
                history.checkpoint(checkpoint.size, checkpoint.root);
            }
            Err(error) => self.scribe.wrong(format!("checkpoints: {what} does not open: {error}")),
        }
    }

    /// Verifies a proof file; a failure is a finding.
    fn verify<'a>(&self, file: &'a [u8], what: &str) -> Option<check::Verified<'a>> {
        match check::verify(file, &self.verifier, None) {
            Ok(verified) => {
                let (checkpoint, mut history) = (&verified.checkpoint, self.scribe.lock());
                history.signers.insert((checkpoint.size, verified.keys.in_force(checkpoint.size).public_key()));
                history.checkpoint(checkpoint.size, checkpoint.root);
                drop(history);
                Some(verified)
            }
            Err(failure) => {
                self.scribe.wrong(format!("proofs: {what} does not verify: {failure:?}"));
                None
            }
        }
    }
}

fn stamp(stamp: Option<v1::Stamp>) -> Stamp {
    convert::from_stamp(stamp.unwrap_or_default())
}
