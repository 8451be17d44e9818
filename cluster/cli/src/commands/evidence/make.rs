//! `coppice evidence make`: finds what two checkpoints and a log prove together.

use std::{borrow::Cow, path::Path};

use coppice_types::ClusterId;
use coppice_verify::{
    checkpoint::{self, Checkpoint},
    evidence::{Evidence, Shown, Verdict},
    header::{Body, Header},
    keys::KeyChange,
    note::{self, VerifierKey},
    proof::ProofFile,
};

use super::{
    checked,
    log::{TileLog, has},
    show,
};
use crate::{
    args::EvidenceMake,
    commands::verify::parse_vkey,
    failure::{Code, Failure},
    input,
    output::{self, Output},
    text::{self, count},
};

/// A checkpoint of the command line.
struct Given {
    note: Vec<u8>,
    checkpoint: Checkpoint,
    /// The key changes of the proof file that has it.
    changes: Vec<Header>,
}

impl Given {
    fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = input::read(path)?;
        let (note, changes) = match ProofFile::decode(&bytes) {
            Ok(file) => {
                let log = file.proof.log();
                let changes = log.key_changes.iter().filter_map(|part| Header::decode(&part.header).ok());
                (log.checkpoint.to_vec(), changes.collect())
            }
            Err(_) => (bytes, Vec::new()),
        };
        let checkpoint = Checkpoint::claimed(&note).map_err(|error| {
            Failure::usage(format!("{}: neither a proof file nor a checkpoint: {error}", text::path(path)))
        })?;
        Ok(Self { note, checkpoint, changes })
    }

    fn is_signed_by(&self, key: &[u8; 32]) -> bool {
        VerifierKey::new(&self.checkpoint.origin, key).is_ok_and(|key| note::open(&self.note, &key).is_ok())
    }
}

pub async fn make(args: &EvidenceMake, output: Output) -> Result<(), Failure> {
    let key = args.key.as_deref().map(parse_vkey).transpose()?;
    let given = [Given::read(&args.a)?, Given::read(&args.b)?];
    let (file, verdict) = prove(given, args.from.as_deref(), key).await?;
    match args.out.as_deref() {
        None => output::raw(&file),
        Some(path) => {
            output::file(path, &file)?;
            show(&verdict, output.beside(Some(path)))
        }
    }
}

/// The evidence file of two checkpoints, and what it proves under the key, or else under the first
/// key of the log.
async fn prove(given: [Given; 2], from: Option<&str>, key: Option<VerifierKey>) -> Result<(Vec<u8>, Verdict), Failure> {
    let [one, other] = given;
    if one.checkpoint.origin != other.checkpoint.origin {
        return Err(Failure::usage("the two checkpoints are of different logs"));
    }
    let [small, large] = if one.checkpoint.size <= other.checkpoint.size { [one, other] } else { [other, one] };
    let mut log = from.map(TileLog::open).transpose()?;
    let known = Known::gather(&small, &large, log.as_mut()).await?;
    let evidence = match log.as_mut() {
        Some(log) => find(&small, &large, log, &known).await?,
        None => of_one_size(&small, &large),
    };
    let evidence = evidence.ok_or_else(|| agreement(&small, &large, from.is_some()))?;
    let nameless = || Failure::usage("the log of --from begins with no genesis: name the ledger's key with --key");
    let key = key.or(known.first).ok_or_else(nameless)?;
    let key_changes = known.changes.into_iter().map(|(_, change)| change).collect();
    checked(&Evidence { key_changes, ..evidence }, &key)
}

/// The reason why there is no evidence.
fn agreement(small: &Given, large: &Given, has_log: bool) -> Failure {
    let [old, new] = [small, large].map(|given| count(given.checkpoint.size, "entry"));
    if has_log || small.checkpoint.size == large.checkpoint.size {
        return Failure::new(Code::NotFound, format!("no evidence: the checkpoints of {old} and {new} agree"));
    }
    Failure::usage(format!("--from is missing: only the log can show whether {new} go on from {old}"))
}

/// The keys of the ledger, as far as the log and the files tell.
struct Known {
    /// The key of genesis.
    first: Option<VerifierKey>,
    /// The key changes by number, each with its header.
    changes: Vec<(Header, KeyChange)>,
}

impl Known {
    async fn gather(small: &Given, large: &Given, log: Option<&mut TileLog>) -> Result<Self, Failure> {
        let mut headers: Vec<Header> = small.changes.iter().chain(&large.changes).cloned().collect();
        if let Some(log) = log {
            for given in [large, small] {
                if has(log, &given.checkpoint).await? {
                    headers.extend(log.headers_of_keys(given.checkpoint.size).await?);
                    break;
                }
            }
        }
        let mut known = Self { first: None, changes: Vec::new() };
        for header in headers.into_iter().filter(|header| is_of(&large.checkpoint.origin, &header.cluster)) {
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

/// Whether an origin is of a cluster.
fn is_of(origin: &str, cluster: &ClusterId) -> bool {
    origin.rsplit_once('/').is_some_and(|(prefix, _)| checkpoint::origin(prefix, cluster) == origin)
}

/// The evidence of two checkpoints of one size.
fn of_one_size<'a>(a: &'a Given, b: &'a Given) -> Option<Evidence<'a>> {
    let differ = a.checkpoint.size == b.checkpoint.size && a.checkpoint.root != b.checkpoint.root;
    let shown = Shown::Root { size: a.checkpoint.size, root: b.checkpoint.root };
    differ.then(|| with(a, b, shown, Vec::new()))
}

fn with<'a>(a: &'a Given, b: &'a Given, shown: Shown<'a>, path: Vec<coppice_types::Digest>) -> Evidence<'a> {
    Evidence { key_changes: Vec::new(), shown, path, a: Cow::Borrowed(&a.note), b: Cow::Borrowed(&b.note) }
}

/// The evidence of two checkpoints, by the log of one of them.
async fn find<'a>(
    small: &'a Given,
    large: &'a Given,
    log: &mut TileLog,
    known: &Known,
) -> Result<Option<Evidence<'a>>, Failure> {
    if let Some(evidence) = of_one_size(small, large) {
        return Ok(Some(evidence));
    }
    let (old, new) = (&small.checkpoint, &large.checkpoint);
    if !has(log, new).await? {
        // The log can still say that the larger checkpoint is signed by a replaced key.
        return match (has(log, old).await?, known.replaced(large)) {
            (true, Some(change)) => late(large, small, log, change).await,
            (true, None) => Err(log
                .lacks("it is that of the smaller checkpoint; the log of the larger one")
                .hint("Only the log of the larger checkpoint can show a contradiction.")),
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
) -> Result<Option<Evidence<'a>>, Failure> {
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
