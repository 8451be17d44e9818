//! The headers of a log, read whole and held against its checkpoint.

use coppice_proto::v1;
use coppice_types::{Digest, Params, Sequence, Stamp, Version};
use coppice_verify::{
    checkpoint::{Checkpoint, origin},
    epochs::Epochs,
    hash,
    header::{Body, Header},
    keys::{KeyChange, Keys},
    merkle,
    shard_map::ShardMap,
};

use super::{Difference, RESUMES_MAX, Stop, may_resume};
use crate::{Client, Error};

/// What the log says of a version that stands.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name.
    pub stamp: Stamp,
    /// Hash of the header's entry in the log.
    pub hash: Digest,
    /// What its state should come to.
    pub state_root: Digest,
    /// What its journal hashes to, and how many entries that has.
    pub journal: (Digest, u32),
}

/// The versions that stand at a checkpoint.
#[derive(Debug)]
pub struct Book {
    /// Digest parameters.
    pub params: Params,
    /// The shards.
    pub shard_map: ShardMap,
    lines: Vec<Line>,
}

impl Book {
    /// Reads the headers under a checkpoint that the newest of the keys signed.
    pub async fn read(client: &Client, checkpoint: &Checkpoint, keys: &Keys) -> Result<Self, Stop> {
        let mut reader = Reader::default();
        let mut resumes = 0;
        while reader.size < checkpoint.size {
            let before = reader.size;
            let ended = reader.read_stream(client, checkpoint, keys).await;
            resumes = if reader.size > before { 0 } else { resumes + 1 };
            match ended {
                Err(Stop::Failed(error)) if resumes < RESUMES_MAX && may_resume(&error) => {}
                Ok(()) if reader.size < checkpoint.size => {
                    return Err(Error::Malformed("the stream of headers ended early").into());
                }
                ended => ended?,
            }
        }
        if reader.root() != checkpoint.root {
            return Err(Error::Untrusted("the headers are not those that the checkpoint signs").into());
        }
        reader.check_keys(keys)?;
        reader.book.ok_or(Stop::Failed(Error::Malformed("the log is empty")))
    }

    /// The book of a model's log.
    #[cfg(test)]
    pub fn model(ledger: &coppice_verify::replay::Ledger) -> Self {
        let checkpoint = ledger.checkpoint(ledger.headers.len() as u64);
        let keys = Keys::new(ledger.key.verifier().clone());
        let mut reader = Reader::default();
        for header in &ledger.headers {
            assert!(reader.take(header.clone(), &checkpoint, &keys).is_ok(), "the model follows the rules");
        }
        reader.book.expect("the log begins with genesis")
    }

    /// What the log says of a version up to head.
    pub fn line(&self, version: Version) -> &Line {
        &self.lines[usize::try_from(version.0).expect("versions of the book are counted in memory")]
    }

    /// The newest version.
    pub fn head(&self) -> Version {
        self.lines.last().expect("genesis is a version").stamp.version
    }
}

#[derive(Default)]
struct Reader {
    size: u64,
    /// Roots of complete subtrees, largest first: one for each bit of the size.
    peaks: Vec<Digest>,
    before: Option<Header>,
    epochs: Epochs,
    key_changes: Vec<(Sequence, KeyChange)>,
    book: Option<Book>,
}

impl Reader {
    async fn read_stream(&mut self, client: &Client, checkpoint: &Checkpoint, keys: &Keys) -> Result<(), Stop> {
        let request = v1::WatchHeadsRequest { from_sequence: self.size, ..v1::WatchHeadsRequest::default() };
        let mut stream = client.watch(request).await?;
        while self.size < checkpoint.size {
            let Some(message) = stream.next().await? else { return Ok(()) };
            let header = crate::header(&message.header)?;
            self.push(hash::log_entry_hash(&message.header));
            self.take(header, checkpoint, keys)?;
        }
        Ok(())
    }

    /// The log has the key changes that its checkpoint was proven by, and no others.
    fn check_keys(&self, keys: &Keys) -> Result<(), Stop> {
        let changes = self.key_changes.iter().map(|(sequence, change)| (*sequence, change));
        let found = keys.follow(changes).map_err(Error::Untrusted)?;
        if found == *keys && self.key_changes.len() == keys.changes().count() {
            return Ok(());
        }
        Err(Error::Untrusted("the log has other key changes than the proof of its checkpoint").into())
    }

    fn push(&mut self, entry: Digest) {
        let mut peak = entry;
        for _ in 0..self.size.trailing_ones() {
            let left = self.peaks.pop().expect("every bit of the size has a peak");
            peak = hash::list_node_hash(&left, &peak);
        }
        self.peaks.push(peak);
        self.size += 1;
    }

    fn root(&self) -> Digest {
        let peaks = self.peaks.iter().rev().copied();
        peaks.reduce(|right, left| hash::list_node_hash(&left, &right)).unwrap_or_else(merkle::empty_root)
    }

    /// Checks the rules of the log, and keeps what stands.
    fn take(&mut self, header: Header, checkpoint: &Checkpoint, keys: &Keys) -> Result<(), Stop> {
        let broken = |what: String| {
            Stop::Differs(Difference { stamp: header.stamp, shard: None, what: format!("its header: {what}") })
        };
        header.check_alone().map_err(|rule| broken(rule.to_string()))?;
        if let Some(before) = &self.before {
            header.check_follows(before).map_err(|rule| broken(rule.to_string()))?;
        }
        let line = Line {
            stamp: header.stamp,
            hash: header.hash(),
            state_root: header.state_root,
            journal: (header.journal_root, header.journal_leaves),
        };
        match (&header.body, &mut self.book) {
            (Body::Genesis(genesis), None) => {
                let named = origin(&genesis.prefix, &header.cluster) == checkpoint.origin;
                if !named || genesis.public_key != keys.first().public_key() {
                    return Err(broken("genesis names another origin or key than the checkpoint's".to_owned()));
                }
                let (params, shard_map) = (genesis.params.clone(), genesis.shard_map.clone());
                self.book = Some(Book { params, shard_map, lines: vec![line] });
            }
            (Body::Commit, Some(book)) => {
                if header.stamp.version.0 != book.lines.len() as u64 {
                    return Err(broken("versions have gaps".to_owned()));
                }
                book.lines.push(line);
            }
            (Body::Rollback(rollback), Some(book)) => {
                let kept = usize::try_from(rollback.target.version.0).ok().and_then(|target| target.checked_add(1));
                let kept = kept.filter(|kept| *kept <= book.lines.len());
                book.lines.truncate(kept.ok_or_else(|| broken("a rollback to a version above head".to_owned()))?);
                if header.stamp.epoch <= self.epochs.current() {
                    return Err(broken("a rollback that raises no epoch".to_owned()));
                }
                self.epochs.roll_back(header.stamp.epoch, rollback.target.version);
                let root = book.lines.last().map(|line| line.state_root);
                if root != Some(header.state_root) {
                    return Err(broken("a rollback to another state root than its target's".to_owned()));
                }
            }
            (Body::Key(change), Some(_)) => self.key_changes.push((header.sequence, change.clone())),
            (_, None) => return Err(broken("the log does not begin with genesis".to_owned())),
            _ => {}
        }
        if self.epochs.root() != header.epochs_root {
            return Err(broken("epochs that its rollbacks do not lead to".to_owned()));
        }
        self.before = Some(header);
        Ok(())
    }
}
