//! `coppice-bench collect`: reads the ledger's records and root log after the load.
//!
//! Lists every change of every key of a history, for the checker, and walks the root log from its
//! first entry. It checks that each header decodes and follows the one before, and that the log has
//! the right root at the size of each checkpoint that a client received.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use coppice_client::{self as client, Client};
use coppice_proto::v1;
use coppice_types::Digest;
use coppice_verify::{
    check::{self, Claim},
    checkpoint::Checkpoint,
    hash::list_node_hash,
    header::Header,
    note::VerifierKey,
};
use serde_json::{Value, json};

use crate::{files::Files, pair, values};

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The endpoint of a coordinator.
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// For `https`.
    #[command(flatten)]
    pub files: Files,
    /// The ledger's public key.
    #[arg(long, value_name = "VKEY")]
    pub key: String,
    /// The directory of `history.jsonl` and `checkpoints.jsonl`; `changes.jsonl` and
    /// `standing.proof` are written to it.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Collects and checks; prints a summary as JSON.
///
/// # Errors
/// If the log fails a check, or the ledger doesn't answer.
pub async fn run(options: Options) -> Result<()> {
    let key = VerifierKey::parse(options.key.trim()).context("--key")?;
    let patience = Duration::from_secs(30);
    let tls = options.files.tls();
    let client = Client::new(client::Options { patience, tls, ..client::Options::new(options.endpoint.clone()) })?;
    let changes = list_changes(&client, &options.out).await?;
    let checkpoints = read_checkpoints(&options.out.join("checkpoints.jsonl"), &key)?;
    let entries = walk(&client, &checkpoints).await?;
    let standing = standing(&client, &options.out, &checkpoints, &key).await?;
    let seen = json!({
        "changes": changes, "log_entries": entries, "checkpoints": checkpoints.len(), "standing_from": standing,
    });
    println!("{seen}");
    Ok(())
}

fn lines(path: &Path) -> Result<impl Iterator<Item = Result<Value>>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    Ok(BufReader::new(file).lines().map(|line| Ok(serde_json::from_str(&line?)?)))
}

/// Writes the changes of all keys of a history. Returns their number.
async fn list_changes(client: &Client, dir: &Path) -> Result<u64> {
    let mut groups = BTreeSet::new();
    for line in lines(&dir.join("history.jsonl"))? {
        groups.insert(line?["group"].as_str().context("a line without a group")?.to_owned());
    }
    let mut out = BufWriter::new(File::create(dir.join("changes.jsonl"))?);
    let mut count = 0;
    for group in groups {
        for (index, key) in pair::keys(&group).into_iter().enumerate() {
            let request = v1::HistoryRequest { key: key.into(), ..v1::HistoryRequest::default() };
            let mut stream = client.history(request).await?;
            while let Some(message) = stream.next().await? {
                ensure!(!message.truncated, "the history of {group} was pruned");
                let Some(change) = message.change else { continue };
                let token = if change.found { values::token(&change.value)? } else { String::new() };
                let version = change.last_changed.context("a change without a stamp")?.version;
                writeln!(out, "{}", json!({ "group": group, "key": index, "value": token, "version": version }))?;
                count += 1;
            }
        }
    }
    out.flush()?;
    Ok(count)
}

fn read_checkpoints(path: &Path, key: &VerifierKey) -> Result<BTreeMap<u64, Digest>> {
    let mut checkpoints = BTreeMap::new();
    for line in lines(path)? {
        let line = line?;
        let note = line["note"].as_str().context("a line without a note")?;
        let checkpoint = Checkpoint::open(note.as_bytes(), key).context("a checkpoint of the run")?;
        let other = checkpoints.insert(checkpoint.size, checkpoint.root);
        ensure!(other.is_none_or(|other| other == checkpoint.root), "two checkpoints of size {}", checkpoint.size);
    }
    Ok(checkpoints)
}

/// The root of a growing list, by the roots of its complete subtrees, largest first.
#[derive(Debug, Default)]
struct Growing {
    size: u64,
    peaks: Vec<Digest>,
}

impl Growing {
    fn push(&mut self, leaf: Digest) {
        self.size += 1;
        let mut node = leaf;
        for _ in 0..self.size.trailing_zeros() {
            let left = self.peaks.pop().expect("as many peaks as the previous size had bits");
            node = list_node_hash(&left, &node);
        }
        self.peaks.push(node);
    }

    fn root(&self) -> Option<Digest> {
        self.peaks.iter().rev().copied().reduce(|right, left| list_node_hash(&left, &right))
    }
}

/// Reads the whole log and checks it against the checkpoints. Returns the number of entries.
async fn walk(client: &Client, checkpoints: &BTreeMap<u64, Digest>) -> Result<u64> {
    let mut stream = client.watch(v1::WatchHeadsRequest::default()).await?;
    let (mut log, mut before, mut held) = (Growing::default(), None::<Header>, 0);
    while let Some(message) = stream.next().await? {
        let header =
            Header::decode(&message.header).ok().with_context(|| format!("entry {} is not a header", log.size))?;
        ensure!(header.sequence.0 == log.size, "entry {} says that it is {}", log.size, header.sequence.0);
        if let Some(before) = &before {
            let follows = header.check_follows(before);
            follows.map_err(|rule| anyhow::anyhow!("entry {} does not follow: {rule:?}", log.size))?;
        }
        log.push(header.hash());
        before = Some(header);
        if let Some(root) = checkpoints.get(&log.size) {
            ensure!(log.root() == Some(*root), "the log had another root when it had {} entries", log.size);
            held += 1;
        }
    }
    if held != checkpoints.len() {
        bail!("the log has {} entries, fewer than a signed checkpoint", log.size);
    }
    Ok(log.size)
}

/// Lets the ledger prove that its newest checkpoint extends the first one that a client saw.
async fn standing(
    client: &Client,
    dir: &Path,
    checkpoints: &BTreeMap<u64, Digest>,
    key: &VerifierKey,
) -> Result<Option<u64>> {
    let Some(first) = checkpoints.keys().next().copied() else { return Ok(None) };
    let answer = client.checkpoint(first).await?;
    let verified = check::verify(&answer.standing, key, None).context("the standing proof")?;
    let Claim::Standing(claim) = &verified.claim else { bail!("no standing proof") };
    ensure!(claim.old_size == first, "a standing proof from {}, not from {first}", claim.old_size);
    std::fs::write(dir.join("standing.proof"), &answer.standing)?;
    Ok(Some(first))
}

#[cfg(test)]
mod tests {
    use coppice_verify::{hash::sha256, merkle};

    use super::*;

    #[test]
    fn a_growing_list_has_the_roots_of_rfc_6962() {
        let leaves: Vec<Digest> = (0..300u32).map(|number| sha256(&number.to_le_bytes())).collect();
        let mut log = Growing::default();
        for (index, leaf) in leaves.iter().enumerate() {
            log.push(*leaf);
            assert_eq!(log.root(), Some(merkle::mth(&leaves[..=index])), "{} leaves", index + 1);
        }
    }
}
