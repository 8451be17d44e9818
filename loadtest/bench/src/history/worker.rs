//! One client. Its choices follow from its seed; the answers that it gets are recorded.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use coppice_client::{self as client, Client, Error};
use coppice_env::{Rng, SimRng};
use coppice_proto::v1;
use coppice_types::{Batch, Change, Condition, Operation, Precondition, Reason, SessionId};
use coppice_verify::{hash::sha256, note::VerifierKey};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    options::{GRACE, Options},
    recorder::{Line, Recorder},
};
use crate::{
    pair::{self, Seen},
    values,
};

/// The longest time that a client waits for one answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time for which the SDK repeats a request, if repetitions are left to it.
const PATIENCE: Duration = Duration::from_secs(6);
/// The pause before a retry, which goes through another coordinator.
const PAUSE: Duration = Duration::from_millis(150);
/// One in this many proofs is kept for the offline verifier.
const PROOF_EVERY: u64 = 8;

/// The outcome of one attempt of a write, as the client knows it.
#[derive(Debug)]
enum Told {
    /// The write was applied.
    Applied(Box<v1::CommitResponse>),
    /// The write's precondition did not hold.
    Refused,
    /// The attempt had no effect and will have none.
    Nothing,
    /// The attempt may have been applied, or may still be.
    Unknown,
}

struct Write {
    group: String,
    values: [Option<String>; 2],
    condition: Option<(usize, Seen, bool)>,
}

/// An open session and the number of its next batch.
struct Numbered {
    id: SessionId,
    number: u64,
}

pub struct Worker {
    id: u32,
    rng: SimRng,
    clients: Vec<Client>,
    at: usize,
    sessions: bool,
    session: Option<Numbered>,
    written: u64,
    pause: Duration,
    recorder: Arc<Recorder>,
    stopped: watch::Receiver<bool>,
    deadline: Option<Instant>,
}

impl Worker {
    /// Three of four clients write in sessions; every second client accepts no answer without a
    /// proof.
    pub fn new(
        id: u32,
        options: &Options,
        key: VerifierKey,
        recorder: Arc<Recorder>,
        stopped: watch::Receiver<bool>,
    ) -> Result<Self> {
        ensure!(!options.endpoints.is_empty(), "no coordinators");
        let all = options.endpoints.join(",");
        // Half of the clients leave retries and the choice of coordinators to the SDK; the others
        // do both themselves.
        let (endpoints, patience) = if id % 8 < 4 {
            (options.endpoints.as_slice(), Duration::ZERO)
        } else {
            (std::slice::from_ref(&all), PATIENCE)
        };
        let tls = options.files.tls();
        let connect = |endpoint: &String| {
            Client::new(client::Options {
                tls: tls.clone(),
                attempt_timeout: ATTEMPT_TIMEOUT,
                patience,
                trust: id.is_multiple_of(2).then(|| key.clone()),
                ..client::Options::new(endpoint.clone())
            })
        };
        Ok(Self {
            id,
            rng: SimRng::new(options.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(id))),
            clients: endpoints.iter().map(connect).collect::<Result<_, _>>()?,
            at: usize::try_from(id)? % endpoints.len(),
            sessions: id % 4 != 3,
            session: None,
            written: 0,
            pause: Duration::from_millis(options.pause_ms),
            recorder,
            stopped,
            deadline: None,
        })
    }

    /// Works until the client is stopped.
    pub async fn run(mut self) -> Result<()> {
        while !*self.stopped.borrow() {
            let choice = self.rng.next_u64();
            let group = self.recorder.group(choice);
            match self.rng.below(100) {
                0..30 => drop(self.read(&group).await?),
                30..55 => self.write_plain(group).await?,
                _ => self.write_conditional(group).await?,
            }
            let pause = self.pause.mul_f64(0.5 + self.rng.below(100) as f64 / 100.0);
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.stopped.changed() => {}
            }
        }
        Ok(())
    }

    fn next_coordinator(&mut self) {
        self.at = (self.at + 1) % self.clients.len();
    }

    /// Reads both keys of a group; `None` if there was no answer.
    async fn read(&mut self, group: &str) -> Result<Option<[Seen; 2]>> {
        let call = self.recorder.now();
        let keys = pair::keys(group).into_iter().map(Into::into).collect();
        let request = v1::BatchGetRequest { keys, read: None };
        let response = match self.clients[self.at].batch_get(request).await {
            Ok(response) => response,
            Err(error) => {
                self.told("read", &error)?;
                self.next_coordinator();
                return Ok(None);
            }
        };
        let answered = self.recorder.now();
        if !response.proof.is_empty() && self.rng.below(PROOF_EVERY) == 0 {
            self.recorder.proof("read", &response.proof)?;
        }
        let (seen, version) = match (pair::seen(group, &response.records), &response.read_at) {
            (Ok(seen), Some(at)) => (seen, at.version),
            (Err(error), _) => return self.recorder.finding(self.id, &format!("{error:#}")).map(|()| None),
            (_, None) => return self.recorder.finding(self.id, "an answer of no version").map(|()| None),
        };
        self.recorder.line(&Line {
            client: self.id,
            group: group.to_owned(),
            kind: "read",
            call,
            answered,
            outcome: "ok",
            values: [Some(seen[0].token.clone()), Some(seen[1].token.clone())],
            condition: None,
            version: Some(version),
            retried: false,
        })?;
        Ok(Some(seen))
    }

    /// New values for one key or both. An empty text stands for a deletion.
    fn new_values(&mut self) -> [Option<String>; 2] {
        self.written += 1;
        let token = format!("{}-{}", self.id, self.written);
        match self.rng.below(10) {
            0 | 1 => [Some(token), None],
            2 => [None, Some(token)],
            3 => [Some(String::new()), Some(token)],
            _ => [Some(token.clone()), Some(token)],
        }
    }

    async fn write_plain(&mut self, group: String) -> Result<()> {
        let values = self.new_values();
        self.write(Write { group, values, condition: None }).await
    }

    /// Reads, and writes on the condition that nothing has changed; sometimes only after a pause.
    async fn write_conditional(&mut self, group: String) -> Result<()> {
        let Some(seen) = self.read(&group).await? else { return Ok(()) };
        if self.rng.below(5) == 0 {
            sleep(self.pause * 4).await;
        }
        let key = usize::from(self.rng.below(2) == 1);
        let by_stamp = self.rng.below(2) == 1;
        let values = self.new_values();
        self.write(Write { group, values, condition: Some((key, seen[key].clone(), by_stamp)) }).await
    }

    /// Sends a write and records its outcome. In a session, repeats it until the outcome is known
    /// or the time is up.
    async fn write(&mut self, write: Write) -> Result<()> {
        let batch = client::batch(batch_of(&write));
        let call = self.recorder.now();
        let (mut maybe, mut attempts) = (false, 0);
        loop {
            attempts += 1;
            let told = self.attempt(&batch).await?;
            let (outcome, version) = match told {
                Told::Applied(response) => ("ok", Some(self.applied(&response)?)),
                // An earlier attempt with an unknown outcome may still take effect after this one,
                // where its condition holds.
                Told::Refused if !maybe => ("refused", None),
                Told::Refused => ("unknown", None),
                Told::Nothing if !self.sessions => return Ok(()),
                Told::Unknown if !self.sessions => ("unknown", None),
                Told::Nothing | Told::Unknown => {
                    maybe |= matches!(told, Told::Unknown);
                    self.next_coordinator();
                    if !self.is_over() {
                        sleep(PAUSE).await;
                        continue;
                    }
                    if !maybe {
                        return Ok(());
                    }
                    ("unknown", None)
                }
            };
            if outcome == "unknown" {
                // The attempt may have used up the number: the next batch begins another session.
                self.session = None;
                self.next_coordinator();
            }
            return self.recorder.line(&Line {
                client: self.id,
                group: write.group,
                kind: "write",
                call,
                answered: if outcome == "unknown" { 0 } else { self.recorder.now() },
                outcome,
                values: write.values,
                condition: write.condition.map(|(key, seen, _)| condition_json(key, &seen)),
                version,
                retried: attempts > 1,
            });
        }
    }

    /// Whether the load is over and the time to learn the last outcomes has passed.
    fn is_over(&mut self) -> bool {
        if self.deadline.is_none() && *self.stopped.borrow() {
            self.deadline = Some(Instant::now() + GRACE);
        }
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn applied(&mut self, response: &v1::CommitResponse) -> Result<u64> {
        if let Some(session) = &mut self.session {
            session.number += 1;
        }
        self.recorder.checkpoint(self.id, &response.checkpoint)?;
        if !response.receipt.is_empty() && self.rng.below(PROOF_EVERY) == 0 {
            self.recorder.proof("receipt", &response.receipt)?;
        }
        if response.replayed {
            self.recorder.count("replayed");
        }
        match &response.stamp {
            Some(stamp) => Ok(stamp.version),
            None => self.recorder.finding(self.id, "a commit of no version").map(|()| 0),
        }
    }

    async fn attempt(&mut self, batch: &v1::Batch) -> Result<Told> {
        let client = self.clients[self.at].clone();
        let answer = if self.sessions {
            let (id, number) = match &self.session {
                Some(session) => (session.id, session.number),
                None => (self.new_session_id(), 1),
            };
            match client.open_session(id).await {
                Ok(session) => {
                    self.session = Some(Numbered { id, number });
                    session.commit_as(number, batch.clone(), false).await
                }
                Err(error) => {
                    self.told("open", &error)?;
                    // The batch was not sent.
                    return Ok(Told::Nothing);
                }
            }
        } else {
            client.commit(batch.clone(), false).await
        };
        match answer {
            Ok(response) => Ok(Told::Applied(Box::new(response))),
            Err(error) => self.told("write", &error),
        }
    }

    fn new_session_id(&mut self) -> SessionId {
        let mut id = [0; 16];
        self.rng.fill(&mut id);
        SessionId(id)
    }

    /// The fate of a request that failed, by its error. An answer that fails verification is a
    /// finding.
    fn told(&self, what: &str, error: &Error) -> Result<Told> {
        let name = error.reason().map_or("no reason", Reason::name);
        self.recorder.count(&format!("{what}: {name}"));
        Ok(match error {
            Error::Unproven(_) | Error::Untrusted(_) | Error::Malformed(_) => {
                self.recorder.finding(self.id, &format!("{what}: {error}"))?;
                Told::Unknown
            }
            Error::Endpoint { .. } | Error::Tls(_) => Told::Nothing,
            Error::Unavailable { outcome_unknown: false, .. } => Told::Nothing,
            Error::Unavailable { .. } | Error::Refused { outcome_unknown: true, .. } => Told::Unknown,
            Error::Refused { reason: Some(reason), .. } => match reason {
                Reason::PreconditionFailed => Told::Refused,
                Reason::ResourceExhausted | Reason::QuotaExceeded | Reason::DiskFull | Reason::NotLeader => {
                    Told::Nothing
                }
                Reason::SessionMismatch | Reason::RequestExpired | Reason::RolledBack | Reason::InvalidArgument => {
                    self.recorder.finding(self.id, &format!("{what}: {error}"))?;
                    Told::Unknown
                }
                _ => Told::Unknown,
            },
            Error::Refused { .. } => Told::Unknown,
        })
    }
}

fn batch_of(write: &Write) -> Batch {
    let keys = pair::keys(&write.group);
    let operation = |(key, value): (&Vec<u8>, &Option<String>)| {
        let change = match value.as_deref()? {
            "" => Change::Delete,
            token => Change::Put(values::value(token).into()),
        };
        Some(Operation { key: key.clone().into(), change })
    };
    let precondition = |(key, seen, by_stamp): &(usize, Seen, bool)| Precondition {
        key: keys[*key].clone(),
        condition: match seen.changed {
            None => Condition::Absent,
            // Each value is written only once, so a key has the value exactly as long as it has the
            // stamp.
            Some(stamp) if *by_stamp => Condition::LastChanged(stamp),
            Some(_) => Condition::ValueHash(sha256(&values::value(&seen.token))),
        },
    };
    Batch {
        operations: keys.iter().zip(&write.values).filter_map(operation).collect(),
        preconditions: write.condition.iter().map(precondition).collect(),
        ..Batch::default()
    }
}

fn condition_json(key: usize, seen: &Seen) -> Value {
    json!({ "key": key, "value": seen.token })
}
