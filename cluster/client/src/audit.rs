//! The auditor: replays the batches of a ledger that keeps its journals, and recomputes every state root.
//!
//! The ledger's key, with those that it leads to, is trusted for one thing, that the headers are its own: they are read whole and must give the root of a
//! signed checkpoint. That each state root follows from the batches is then computed here, by the public rules, from operation
//! lists whose hashes the headers commit to. Of the first version where anything differs, the report says what and in which
//! shard. Memory holds the newest state without values, and some 200 bytes for each version.
//!
//! It begins with the empty state of genesis, or with the state of a version that is trusted, which is read with its proofs.

mod book;
mod start;
mod state;
#[cfg(test)]
mod tests;

use coppice_proto::v1;
use coppice_types::{Reason, ShardId, Stamp, Version};
use coppice_verify::{
    check::{self, Verified},
    checkpoint::Checkpoint,
    keys::Keys,
    merkle,
    note::VerifierKey,
    proof::{Proof, ProofFile},
    shard_map::StateLeaf,
};

use self::{book::Book, state::State};
use crate::{Client, Error};

/// How often a stream that breaks is taken up again without any progress.
const RESUMES_MAX: u32 = 5;

/// What is to be audited.
#[derive(Clone, Debug)]
pub struct Audit {
    /// The ledger's public key.
    pub key: VerifierKey,
    /// The first version that is replayed. The state of the one before is trusted, as far as its header has its root; 0 and 1 begin with the
    /// empty state of genesis.
    pub from: Version,
    /// The last version; head if there is none.
    pub to: Option<Version>,
}

/// How far an audit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The version that was replayed last.
    pub version: Version,
    /// The last one that will be.
    pub to: Version,
}

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The checkpoint under which all of it stands.
    pub checkpoint: Checkpoint,
    /// The last version that was replayed.
    pub to: Version,
    /// Versions whose state root was compared, and found right.
    pub compared: u64,
    /// Records in the replayed trees at the end, superseded ones included.
    pub records: u64,
    /// The first version that is not what it should be.
    pub difference: Option<Difference>,
}

/// A version that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The version.
    pub stamp: Stamp,
    /// The shard, as far as it is known.
    pub shard: Option<ShardId>,
    /// What differs.
    pub what: String,
}

/// Why a replay stops.
enum Stop {
    Failed(Error),
    Differs(Difference),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Client {
    /// Audits the ledger up to its newest checkpoint.
    ///
    /// # Errors
    /// If the ledger keeps no journals, its headers are not those of a signed checkpoint, the state to begin with is pruned, or it does not
    /// answer. What differs is in the report and no error.
    pub async fn audit(&self, audit: &Audit, progress: impl FnMut(Progress)) -> Result<Report, Error> {
        // A proof of growth from genesis on tells of all key changes.
        let answer = self.checkpoint(1).await?;
        let Verified { checkpoint, keys, .. } = check::verify(&answer.standing, &audit.key, None)?;
        let report = Report { checkpoint, to: Version(0), compared: 0, records: 0, difference: None };
        let book = match Book::read(self, &report.checkpoint, &keys).await {
            Ok(book) => book,
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Differs(difference)) => return Ok(Report { difference: Some(difference), ..report }),
        };
        let head = book.head();
        let to = audit.to.unwrap_or(head);
        let missing = [to, audit.from].into_iter().find(|version| *version > head);
        if let Some(version) = missing {
            let message = format!("version {version} is above head {head} of the checkpoint");
            let (reason, kind) = (Some(Reason::NotYet), Reason::NotYet.kind());
            return Err(Error::Refused { reason, kind, message, outcome_unknown: false });
        }
        let before = Version(audit.from.0.saturating_sub(1));
        let state =
            if before == Version(0) { State::new(&book) } else { start::fetch(self, &book, before, &keys).await? };
        let report = Report { to: before, ..report };
        let mut replay = Replay { client: self, book: &book, state, to, report, progress };
        let done = replay.run().await;
        let Replay { state, mut report, .. } = replay;
        report.records = state.records();
        match done {
            Ok(()) => Ok(report),
            Err(Stop::Differs(mut difference)) => {
                if difference.shard.is_none() {
                    difference.shard = self.differing_shard(&book, &state, difference.stamp, &keys).await;
                }
                Ok(Report { difference: Some(difference), ..report })
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Which shard's leaf is not the replayed one: each shard proves its own, if the version can still be read.
    async fn differing_shard(&self, book: &Book, state: &State, stamp: Stamp, keys: &Keys) -> Option<ShardId> {
        for (index, leaf) in state.leaves().into_iter().enumerate() {
            if !self.has_leaf(book, index as u64, &leaf, stamp, keys).await? {
                return Some(leaf.shard);
            }
        }
        None
    }

    async fn has_leaf(&self, book: &Book, index: u64, leaf: &StateLeaf, stamp: Stamp, keys: &Keys) -> Option<bool> {
        let asked = if leaf.low.is_empty() { vec![0] } else { leaf.low.clone() };
        let at = Some(v1::Stamp { epoch: stamp.epoch.0, version: stamp.version.0 });
        let read = Some(v1::ReadOptions { at, want_proof: true, ..v1::ReadOptions::default() });
        let answer = self.get(v1::GetRequest { key: asked.into(), read }).await.ok()?;
        let file = ProofFile::decode(&answer.proof).ok()?;
        let verified = check::verify_known(&file, keys, None, &check::Question::default()).ok()?;
        let header = verified.header()?;
        let line = book.line(stamp.version);
        if header.hash() != line.hash {
            return None;
        }
        let Proof::Query(proof) = &file.proof else { return None };
        let leaves = u64::from(header.state_leaves);
        let root = merkle::list_root(leaves, &[(index, leaf.hash())], &proof.state_hashes).ok()?;
        Some(root == header.state_root)
    }
}

/// A replay that is under way.
struct Replay<'a, P> {
    client: &'a Client,
    book: &'a Book,
    state: State,
    /// The last version.
    to: Version,
    report: Report,
    progress: P,
}

impl<P: FnMut(Progress)> Replay<'_, P> {
    async fn run(&mut self) -> Result<(), Stop> {
        let mut resumes = 0;
        while self.report.to < self.to {
            let before = self.report.to;
            let ended = self.take_stream().await;
            resumes = if self.report.to > before { 0 } else { resumes + 1 };
            match ended {
                Err(Stop::Failed(error)) if resumes < RESUMES_MAX && may_resume(&error) => {}
                Ok(()) if self.report.to < self.to => {
                    return Err(Error::Malformed("the stream of journals ended early").into());
                }
                ended => ended?,
            }
        }
        Ok(())
    }

    /// Replays what one stream gives.
    async fn take_stream(&mut self) -> Result<(), Stop> {
        let next = self.report.to.next();
        let request = v1::JournalRequest { from_version: next.0, to_version: self.to.0 };
        let mut stream = self.client.journal(request).await?;
        self.state.forget_pending();
        while self.report.to < self.to {
            let message = match stream.next().await {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                // A shard that has lost what it should keep is a finding.
                Err(error) if error.reason() == Some(Reason::Corrupted) => {
                    let stamp = self.book.line(self.report.to.next()).stamp;
                    return Err(Stop::Differs(Difference { stamp, shard: None, what: error.to_string() }));
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(version) = self.state.take(self.book, self.report.to.next(), message)? {
                self.state.compare(self.book.line(version))?;
                self.report.compared += 1;
                self.report.to = version;
                (self.progress)(Progress { version, to: self.to });
            }
        }
        Ok(())
    }
}

fn may_resume(error: &Error) -> bool {
    use coppice_types::ErrorKind;
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Fenced | ErrorKind::Conflict)
}
