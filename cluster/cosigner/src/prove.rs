//! Finds what two checkpoints and a log prove together.

use std::borrow::Cow;

use coppice_types::Digest;
use coppice_verify::{
    checkpoint::{Checkpoint, cluster_of},
    evidence::{self, Evidence, Shown, Verdict},
    header::{Body, Header},
    keys::KeyChange,
    note::{self, VerifierKey},
};

use crate::{error::Error, tiles::TileLog};

/// A checkpoint that somebody has, with the headers of key changes that came with it.
#[derive(Clone, Debug)]
pub struct Given {
    /// The signed note.
    pub note: Vec<u8>,
    /// The checkpoint in it.
    pub checkpoint: Checkpoint,
    /// The key changes of the proof file that had it, if there was one.
    pub changes: Vec<Header>,
}

impl Given {
    /// A note by itself.
    ///
    /// # Errors
    /// If it is no checkpoint.
    pub fn note(note: Vec<u8>) -> Result<Self, note::Error> {
        let checkpoint = Checkpoint::claimed(&note)?;
        Ok(Self { note, checkpoint, changes: Vec::new() })
    }

    fn is_signed_by(&self, key: &[u8; 32]) -> bool {
        VerifierKey::new(&self.checkpoint.origin, key).is_ok_and(|key| note::open(&self.note, &key).is_ok())
    }
}

/// The reason why there is no evidence file.
#[derive(Debug, thiserror::Error)]
pub enum NoEvidence {
    /// The checkpoints are of different logs.
    #[error("the two checkpoints are of different logs")]
    OtherLog,
    /// Only the log can tell.
    #[error("only the log can show whether the {1} entries of one go on from the {0} of the other")]
    NoLog(u64, u64),
    /// The ledger's key is not known.
    #[error("the log begins with no genesis, so the ledger's key is unknown")]
    NoKey,
    /// The checkpoints agree.
    #[error("the checkpoints of {0} and {1} entries agree")]
    Agree(u64, u64),
    /// What was found proves nothing.
    #[error("{0}")]
    Proves(String),
    /// The log could not be read.
    #[error(transparent)]
    Log(#[from] Error),
}

/// The evidence file of two checkpoints, and what it proves under the key, or else under the first
/// key of the log.
///
/// # Errors
/// If there is no evidence, or the log does not show it.
pub async fn prove(
    given: [Given; 2],
    mut log: Option<TileLog>,
    key: Option<VerifierKey>,
) -> Result<(Vec<u8>, Verdict), NoEvidence> {
    let [one, other] = given;
    if one.checkpoint.origin != other.checkpoint.origin {
        return Err(NoEvidence::OtherLog);
    }
    let [small, large] = if one.checkpoint.size <= other.checkpoint.size { [one, other] } else { [other, one] };
    let known = Known::gather(&small, &large, log.as_mut()).await?;
    let evidence = match log.as_mut() {
        Some(log) => find(&small, &large, log, &known).await?,
        None => of_one_size(&small, &large),
    };
    let evidence = evidence.ok_or_else(|| agreement(&small, &large, log.is_some()))?;
    let key = key.or(known.first).ok_or(NoEvidence::NoKey)?;
    let key_changes = known.changes.into_iter().map(|(_, change)| change).collect();
    checked(&Evidence { key_changes, ..evidence }, &key)
}

/// The bytes of a file that holds under a key, and what it proves.
///
/// # Errors
/// If it proves nothing, or does not fit an evidence file.
pub fn checked(evidence: &Evidence<'_>, key: &VerifierKey) -> Result<(Vec<u8>, Verdict), NoEvidence> {
    let file = evidence.encode().map_err(|error| NoEvidence::Proves(error.to_string()))?;
    let verdict = evidence::verify(&file, key, None).map_err(|failure| NoEvidence::Proves(failure.to_string()))?;
    Ok((file, verdict))
}

/// The reason why there is no evidence.
fn agreement(small: &Given, large: &Given, has_log: bool) -> NoEvidence {
    let (old, new) = (small.checkpoint.size, large.checkpoint.size);
    if has_log || old == new { NoEvidence::Agree(old, new) } else { NoEvidence::NoLog(old, new) }
}

/// The keys of the ledger, as far as the log and the files tell.
struct Known {
    /// The key of genesis.
    first: Option<VerifierKey>,
    /// The key changes by number, each with its header.
    changes: Vec<(Header, KeyChange)>,
}

impl Known {
    async fn gather(small: &Given, large: &Given, log: Option<&mut TileLog>) -> Result<Self, Error> {
        let mut headers: Vec<Header> = small.changes.iter().chain(&large.changes).cloned().collect();
        if let Some(log) = log {
            for given in [large, small] {
                if log.has(&given.checkpoint).await? {
                    headers.extend(log.headers_of_keys(given.checkpoint.size).await?);
                    break;
                }
            }
        }
        let mut known = Self { first: None, changes: Vec::new() };
        let cluster = cluster_of(&large.checkpoint.origin);
        for header in headers.into_iter().filter(|header| Some(header.cluster) == cluster) {
            match &header.body {
                Body::Genesis(genesis) => {
                    known.first = VerifierKey::new(&large.checkpoint.origin, &genesis.public_key).ok();
                }
                Body::Key(change) if known.changes.iter().all(|(other, _)| *other != header) => {
                    let change = change.clone();
                    known.changes.push((header, change));
                }
                _ => {}
            }
        }
        known.changes.sort_by_key(|(_, change)| change.number);
        Ok(known)
    }

    /// The first change away from a key that signed this checkpoint, below its size.
    fn replaced(&self, given: &Given) -> Option<&Header> {
        let late = |(header, change): &&(Header, KeyChange)| {
            header.sequence.0 < given.checkpoint.size && given.is_signed_by(&change.old)
        };
        self.changes.iter().find(late).map(|(header, _)| header)
    }
}

/// The evidence of two checkpoints of one size.
fn of_one_size<'a>(a: &'a Given, b: &'a Given) -> Option<Evidence<'a>> {
    let differ = a.checkpoint.size == b.checkpoint.size && a.checkpoint.root != b.checkpoint.root;
    let shown = Shown::Root { size: a.checkpoint.size, root: b.checkpoint.root };
    differ.then(|| with(a, b, shown, Vec::new()))
}

fn with<'a>(a: &'a Given, b: &'a Given, shown: Shown<'a>, path: Vec<Digest>) -> Evidence<'a> {
    Evidence { key_changes: Vec::new(), shown, path, a: Cow::Borrowed(&a.note), b: Cow::Borrowed(&b.note) }
}

/// The evidence of two checkpoints, by the log of one of them.
async fn find<'a>(
    small: &'a Given,
    large: &'a Given,
    log: &mut TileLog,
    known: &Known,
) -> Result<Option<Evidence<'a>>, Error> {
    if let Some(evidence) = of_one_size(small, large) {
        return Ok(Some(evidence));
    }
    let (old, new) = (&small.checkpoint, &large.checkpoint);
    if !log.has(new).await? {
        // The log can still say that the larger checkpoint is signed by a replaced key.
        return match (log.has(old).await?, known.replaced(large)) {
            (true, Some(change)) => late(large, small, log, change).await,
            (true, None) => Err(log.lacks("it is that of the smaller checkpoint; the log of the larger one")),
            (false, _) => Err(log.lacks("the log of either checkpoint")),
        };
    }
    let root = log.root(old.size).await?.ok_or_else(|| log.lacks("a tile"))?;
    if root != old.root {
        let path = log.consistency(old.size, new.size).await?.ok_or_else(|| log.lacks("a tile"))?;
        return Ok(Some(with(small, large, Shown::Root { size: old.size, root }, path)));
    }
    // The log goes on. A key that was replaced in it convicts itself.
    for given in [small, large] {
        if let Some(change) = known.replaced(given) {
            return late(given, given, log, change).await;
        }
    }
    Ok(None)
}

/// The evidence that note A is signed by a key that this change replaced in the log of B.
async fn late<'a>(
    a: &'a Given,
    b: &'a Given,
    log: &mut TileLog,
    change: &Header,
) -> Result<Option<Evidence<'a>>, Error> {
    let (index, size) = (change.sequence.0, b.checkpoint.size);
    if index >= size {
        return Ok(None);
    }
    let path = log.inclusion(index, size).await?.ok_or_else(|| log.lacks("a tile"))?;
    let entry = Cow::Owned(change.encode());
    Ok(Some(with(a, b, Shown::KeyChange { index, entry }, path)))
}

#[cfg(test)]
mod tests;
