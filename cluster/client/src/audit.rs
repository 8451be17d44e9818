//! The auditor: replays the batches of a ledger that keeps its journals, and recomputes every state
//! root.
//!
//! The ledger's key, with the keys that it leads to, is trusted for one thing only: that the
//! headers are the ledger's own. All headers are read, and together they must give the root of a
//! signed checkpoint. The audit then computes by the public rules that each state root follows from
//! the batches. The headers commit to the hashes of the operation lists that it replays. The report
//! names the first version where anything differs, what differs, and in which shard. Memory holds
//! the newest state without values, and some 250 bytes for each version.
//!
//! An audit begins with the empty state of genesis, or with the state of a trusted version, which
//! it reads with proofs.

mod book;
mod continued;
mod finding;
mod ledgers;
mod start;
mod state;
#[cfg(test)]
mod tests;

use coppice_proto::{convert, v1};
use coppice_types::{Reason, ShardId, Version};
use coppice_verify::{
    check::{self, Verified},
    checkpoint::Checkpoint,
    keys::Keys,
    merkle,
    note::VerifierKey,
    proof::{Proof, ProofFile},
    shard_map::StateLeaf,
};

pub use self::{
    book::Founding,
    continued::Replayed,
    finding::{Difference, Stop},
    ledgers::{LedgerAudit, LedgerDifference, LedgerReport},
};
use self::{
    book::{Book, Line, Versions},
    finding::{RESUMES_MAX, may_resume},
    state::State,
};
use crate::{Client, Error};

/// The range of versions to audit, and the key to trust.
#[derive(Clone, Debug)]
pub struct Audit {
    /// The ledger's public key.
    pub key: VerifierKey,
    /// The first version to replay. The state of the version before it is not replayed: it is
    /// trusted because its header commits to it. 0 and 1 begin with the empty state of genesis.
    pub from: Version,
    /// The last version to replay; `None` means head.
    pub to: Option<Version>,
}

/// The progress of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The version that was replayed last.
    pub version: Version,
    /// The last version that will be replayed.
    pub to: Version,
}

/// The outcome of an audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The signed checkpoint whose log was audited.
    pub checkpoint: Checkpoint,
    /// The last version that was replayed.
    pub to: Version,
    /// Number of versions whose state root was compared and found right.
    pub compared: u64,
    /// Number of records in the replayed trees at the end, including superseded ones.
    pub records: u64,
    /// The first version that is wrong; `None` if all are right.
    pub difference: Option<Difference>,
}

impl Client {
    /// Audits the ledger up to its newest checkpoint. Calls `progress` after each version.
    ///
    /// # Errors
    /// If the ledger keeps no journals, if its headers are not those of a signed checkpoint, if the
    /// state to begin with is pruned, or if the ledger does not answer. A version that differs is
    /// not an error: the report has it.
    pub async fn audit(&self, audit: &Audit, progress: impl FnMut(Progress)) -> Result<Report, Error> {
        // The proof of growth from genesis names all key changes.
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
        let state = match before {
            Version(0) => State::new(&book.founding),
            _ => start::fetch(self, &book.founding, book.line(before), &keys).await?,
        };
        let mut replay = Replay { client: self, versions: &book, state, at: before, to, compared: 0, progress };
        let done = replay.run().await;
        let Replay { state, at, compared, .. } = replay;
        let report = Report { to: at, compared, records: state.records(), ..report };
        match done {
            Ok(()) => Ok(report),
            Err(Stop::Differs(mut difference)) => {
                if difference.shard.is_none() {
                    difference.shard = self.differing_shard(book.line(difference.stamp.version), &state, &keys).await;
                }
                Ok(Report { difference: Some(difference), ..report })
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Finds the shard whose state leaf differs from the replayed one: each shard is asked to prove
    /// its leaf. `None` if the version can no longer be read.
    async fn differing_shard(&self, line: &Line, state: &State, keys: &Keys) -> Option<ShardId> {
        for (index, leaf) in state.leaves().into_iter().enumerate() {
            if !self.has_leaf(line, (index as u64, &leaf), keys).await? {
                return Some(leaf.shard);
            }
        }
        None
    }

    async fn has_leaf(&self, line: &Line, (index, leaf): (u64, &StateLeaf), keys: &Keys) -> Option<bool> {
        let asked = if leaf.low.is_empty() { vec![0] } else { leaf.low.clone() };
        let at = Some(convert::to_stamp(line.stamp));
        let read = Some(v1::ReadOptions { at, want_proof: true, ..v1::ReadOptions::default() });
        let answer = self.get(v1::GetRequest { key: asked.into(), read }).await.ok()?;
        let file = ProofFile::decode(&answer.proof).ok()?;
        let verified = check::verify_known(&file, keys, None, &check::Question::default()).ok()?;
        let header = verified.header()?;
        if header.hash() != line.hash {
            return None;
        }
        let Proof::Query(proof) = &file.proof else { return None };
        let leaves = u64::from(header.state_leaves);
        let root = merkle::list_root(leaves, &[(index, leaf.hash())], &proof.state_hashes).ok()?;
        Some(root == header.state_root)
    }
}

/// A replay in progress.
struct Replay<'a, P> {
    client: &'a Client,
    versions: &'a Versions,
    state: State,
    /// The version that was replayed last.
    at: Version,
    /// The last version to replay.
    to: Version,
    /// Number of versions that were replayed.
    compared: u64,
    progress: P,
}

impl<P: FnMut(Progress)> Replay<'_, P> {
    async fn run(&mut self) -> Result<(), Stop> {
        let mut resumes = 0;
        while self.at < self.to {
            let before = self.at;
            let ended = self.take_stream().await;
            resumes = if self.at > before { 0 } else { resumes + 1 };
            match ended {
                Err(Stop::Failed(error)) if resumes < RESUMES_MAX && may_resume(&error) => {}
                Ok(()) if self.at < self.to => {
                    return Err(Error::Malformed("the stream of journals ended early").into());
                }
                ended => ended?,
            }
        }
        Ok(())
    }

    /// Replays the messages of one stream, until it ends or breaks.
    async fn take_stream(&mut self) -> Result<(), Stop> {
        let next = self.at.next();
        let request = v1::JournalRequest { from_version: next.0, to_version: self.to.0 };
        let mut stream = self.client.journal(request).await?;
        self.state.forget_pending();
        while self.at < self.to {
            let message = match stream.next().await {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                // It is a finding if a shard has lost what it should keep.
                Err(error) if error.reason() == Some(Reason::Corrupted) => {
                    let stamp = self.versions.line(self.at.next()).stamp;
                    return Err(Stop::Differs(Difference { stamp, shard: None, what: error.to_string() }));
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(version) = self.state.take(self.versions, self.at.next(), message)? {
                self.state.compare(self.versions.line(version))?;
                self.compared += 1;
                self.at = version;
                (self.progress)(Progress { version, to: self.to });
            }
        }
        Ok(())
    }
}
