//! The auditor: replays every version that stands, by the library of `coppice audit`.
//!
//! It replays what the witness has mirrored, from the version that it replayed last. Each version
//! is replayed once; its journal is the one that the mirrored header commits to. After a restart,
//! or a rollback of replayed versions, the state is read with proofs, and believed by a state root
//! that was replayed before.
//!
//! **Invariants.** [`Auditor::replay`] returns only after each version that stands at the size was
//! replayed and led to the state root in its header. Memory holds the newest state without values,
//! and a bounded number of versions. A crash loses no more than the work since the progress was
//! written.

pub mod progress;
pub mod standing;

use std::sync::{Arc, Mutex};

use coppice_client::{
    Client, Error as ClientError,
    audit::{Difference, Replayed, Stop as Stopped},
};
use coppice_env::{
    Storage,
    bug::{self, Bug},
};
use coppice_types::{Reason, Version, chain};
use coppice_verify::{audit::Line, header::Header, keys::Keys};
use serde_json::json;

pub use self::standing::{Finding, Stop};
use self::{
    progress::Progress,
    standing::{Place, Standing, find},
};
use crate::{
    error::{Error, damaged},
    mirror::{Grown, Mirror},
    witness::Witness,
};

/// Most versions of one stream of journals.
const VERSIONS_MAX: usize = 1024;
/// The progress is written after so many versions.
const WRITE_EVERY: u64 = 8 * VERSIONS_MAX as u64;

/// The verified log, as the witness has it.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Its newest checkpoint, as a note.
    pub note: String,
    /// The number of its entries.
    pub size: u64,
    /// The ledger's keys there.
    pub keys: Keys,
    /// Indices of its key changes, ascending.
    pub changes: Vec<u64>,
}

impl Verified {
    /// The log of a witness; `None` if there is none yet.
    #[must_use]
    pub fn of(witness: &Witness) -> Option<Self> {
        let note = witness.tip()?;
        Some(Self { note, size: witness.size(), keys: witness.keys(), changes: witness.changes_from(0) })
    }
}

/// What an auditor says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The version that was replayed last.
    pub version: u64,
    /// Records in its state, including superseded ones.
    pub records: u64,
    /// Versions that were rolled back before they were replayed.
    pub vanished: u64,
}

/// The replay of a mirrored log.
#[derive(Debug)]
pub struct Auditor {
    storage: Arc<dyn Storage>,
    mirror: Mirror,
    standing: Standing,
    progress: Progress,
    /// Versions that were replayed since the progress was written.
    unwritten: u64,
    /// The state at [`Progress::at`]; `None` if it must be read.
    state: Option<Replayed>,
}

impl Auditor {
    /// The auditor of a folder, with its mirror. Its state machine signs no smaller size than the
    /// one that was audited last: a version may have stood there that was never replayed.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open(storage: Arc<dyn Storage>, mirror: Mirror, machine: &mut Witness) -> Result<Self, Error> {
        let progress = Progress::read(&*storage)?;
        machine.sign_from(machine.size());
        Ok(Self { storage, mirror, standing: Standing::default(), progress, unwritten: 0, state: None })
    }

    /// How far it is.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            version: self.progress.at.map_or(0, |place| place.version.0),
            records: self.state.as_ref().map_or(0, Replayed::records),
            vanished: self.progress.vanished,
        }
    }

    /// Audits a verified log, and takes it into the auditor's state machine, which then signs it. A
    /// wrong version halts that. Returns false if there is nothing to do.
    ///
    /// # Errors
    /// If the ledger does not tell what is needed, or the disk refuses. The next call goes on.
    ///
    /// # Panics
    /// If another holder of the state machine has panicked.
    pub async fn audit(&mut self, machine: &Mutex<Witness>, client: &Client, log: &Verified) -> Result<bool, Error> {
        let locked = || machine.lock().expect("no holder panics");
        let from = locked().size();
        let halted = locked().is_halted();
        if halted || log.size <= from {
            return Ok(false);
        }
        if !bug::planted(Bug::SignedBeforeReplay) {
            match self.replay(client, &log.keys, log.size).await {
                Ok(()) => {}
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Found(finding)) => {
                    tracing::error!(version = %finding.stamp, what = finding.what, "the ledger is wrong");
                    locked().find(&finding.file(&log.note, &self.mirror))?;
                    return Ok(false);
                }
            }
        }
        let changes = log.changes.iter().copied().filter(|index| *index >= from).collect();
        let mut machine = locked();
        // Below a rollback that is new, versions stood that were not replayed.
        let least = self.standing.least();
        if least > from {
            machine.sign_from(least);
        }
        machine.advance(log.note.as_bytes(), &Grown { from, to: log.size, changes })?;
        Ok(true)
    }

    /// Replays the versions that stand in the first `size` entries of the mirror, which are
    /// verified. `keys` are the ledger's there.
    ///
    /// # Errors
    /// [`Stop::Failed`] if the ledger does not tell what is needed, or the disk refuses; the next
    /// call goes on. [`Stop::Found`] if the ledger is wrong.
    pub async fn replay(&mut self, client: &Client, keys: &Keys, size: u64) -> Result<(), Stop> {
        let done = self.replay_up_to(client, keys, size).await;
        match &done {
            Ok(()) | Err(Stop::Failed(Error::Unavailable(_))) => {}
            // Neither the state nor the rules are of use any more.
            Err(_) => (self.state, self.standing) = (None, Standing::default()),
        }
        done
    }

    async fn replay_up_to(&mut self, client: &Client, keys: &Keys, size: u64) -> Result<(), Stop> {
        self.standing.extend(&self.mirror, size)?;
        if self.progress.counted < size {
            let vanished = self.standing.vanished(&self.mirror, self.progress.counted)?;
            self.progress.counted = size;
            if vanished > 0 {
                self.progress.vanished += vanished;
                self.write()?;
            }
        }
        self.stand_on(client, keys, size).await?;
        loop {
            let after = self.progress.at.map_or(0, |place| place.sequence);
            let found = self.standing.behind(&self.mirror, after, VERSIONS_MAX)?;
            if found.is_empty() {
                break;
            }
            self.go_on(client, found).await?;
            if self.unwritten >= WRITE_EVERY {
                self.write()?;
            }
        }
        if self.unwritten > 0 { Ok(self.write()?) } else { Ok(()) }
    }

    /// Makes sure that there is the state of a version that stands.
    async fn stand_on(&mut self, client: &Client, keys: &Keys, size: u64) -> Result<(), Stop> {
        let founding = self.standing.founding().ok_or_else(|| Error::Refused("the log is empty".to_owned()))?.clone();
        if self.progress.at.is_some_and(|place| !self.is_in_log(place, size)) {
            tracing::warn!("the mirror does not have the version that was replayed last: the audit begins again");
            (self.progress.at, self.state) = (None, None);
        }
        let mut wanted = self.progress.at;
        if let Some(place) = wanted
            && !self.standing.stands(place.sequence, place.version)
        {
            let target = self.standing.bound_behind(place.sequence).unwrap_or_default();
            tracing::info!(from = place.version.0, to = target.0, "replayed versions were rolled back");
            self.state = None;
            wanted = find(&self.mirror, size, target)?.map(|(place, _)| place).filter(|_| target > Version(0));
        }
        if self.state.is_some() {
            return Ok(());
        }
        self.progress.at = wanted;
        self.state = Some(match wanted {
            None => Replayed::genesis(founding),
            Some(place) => {
                let header = self.header(place)?;
                let line = Line::of(&header);
                match Replayed::fetch(client, founding.clone(), &line, keys).await {
                    Ok(state) => state,
                    Err(error) if error.reason() == Some(Reason::Pruned) => {
                        tracing::warn!(
                            version = place.version.0,
                            "the audited state is pruned: replaying from genesis"
                        );
                        self.progress.at = None;
                        Replayed::genesis(founding)
                    }
                    Err(error) => return Err(told(&error)),
                }
            }
        });
        Ok(())
    }

    async fn go_on(&mut self, client: &Client, found: Vec<(u64, Line)>) -> Result<(), Stop> {
        let places: Vec<Place> = found
            .iter()
            .map(|(sequence, line)| Place { sequence: *sequence, version: line.stamp.version, hash: line.hash })
            .collect();
        let state = self.state.as_mut().ok_or_else(|| damaged("audit: there is no state"))?;
        let first = state.at();
        let lines = found.into_iter().map(|(_, line)| line).collect();
        let done = state.go_on(client, lines).await;
        let replayed = (state.at().0 - first.0) as usize;
        if let Some(last) = replayed.checked_sub(1).and_then(|last| places.get(last)) {
            self.progress.at = Some(*last);
            self.unwritten += replayed as u64;
        }
        done.map_err(|stop| match stop {
            Stopped::Failed(error) => told(&error),
            Stopped::Differs(Difference { stamp, shard, what }) => {
                let entry = places.iter().find(|place| place.version == stamp.version).map(|place| place.sequence);
                Stop::Found(Finding { stamp, entry, shard: shard.map(|shard| shard.0), what })
            }
        })
    }

    fn write(&mut self) -> Result<(), Error> {
        self.progress.write(&*self.storage)?;
        self.unwritten = 0;
        Ok(())
    }

    fn is_in_log(&self, place: Place, size: u64) -> bool {
        place.sequence < size && self.header(place).is_ok()
    }

    fn header(&self, place: Place) -> Result<Header, Error> {
        let entry = self.mirror.entry(place.sequence)?;
        let header = Header::decode(&entry).ok().filter(|header| header.hash() == place.hash);
        header.ok_or_else(|| damaged(format!("log: entry {} has changed", place.sequence)))
    }
}

/// A failure of the ledger. The caller tries again later.
fn told(error: &ClientError) -> Stop {
    Stop::Failed(Error::Unavailable(format!("the ledger's journals: {}", chain(error))))
}

impl Finding {
    /// The file that says it, and how others check it. `note` is the ledger's checkpoint up to
    /// which the log was audited, `mirror` has its entries.
    #[must_use]
    pub fn file(&self, note: &str, mirror: &Mirror) -> Vec<u8> {
        let entry = self.entry.and_then(|index| mirror.entry(index).ok()).map(hex::encode);
        let version = self.stamp.version.0;
        let file = json!({
            "finding": "this version does not follow from its batches, or breaks a rule of the log",
            "epoch": self.stamp.epoch.0,
            "version": version,
            "shard": self.shard,
            "what": self.what,
            "entry": self.entry,
            "header": entry,
            "checkpoint": note,
            "check": format!("coppice audit --from {} --to {version} --key PUBKEY", version.max(1)),
        });
        format!("{file:#}\n").into_bytes()
    }
}
