//! The headers of a log, read completely and checked against its checkpoint.

use coppice_proto::v1;
use coppice_types::{Digest, Params, Sequence, Stamp, Version, codec};
pub use coppice_verify::audit::Line;
use coppice_verify::{
    audit::Chain,
    checkpoint::{Checkpoint, origin},
    hash,
    header::{Body, Genesis, Header},
    journal::Entry,
    keys::{KeyChange, Keys},
    merkle,
    shard_map::ShardMap,
};

use super::finding::{Difference, RESUMES_MAX, Stop, may_resume};
use crate::{Client, Error};

/// The parts of genesis by which versions are replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// The ledger's limits and digest parameters.
    pub params: Params,
    /// The shards of genesis.
    pub shard_map: ShardMap,
}

impl Founding {
    /// What a genesis header says.
    #[must_use]
    pub fn of(genesis: &Genesis) -> Self {
        Self { params: genesis.params.clone(), shard_map: genesis.shard_map.clone() }
    }
}

/// Successive versions that stand at one checkpoint.
///
/// Invariant: there is at least one line, and their versions are successive.
#[derive(Debug)]
pub struct Versions {
    /// The parts of genesis by which they are replayed.
    pub founding: Founding,
    lines: Vec<Line>,
}

/// All versions that stand at a checkpoint, and its log.
#[derive(Debug)]
pub struct Book {
    /// The versions, from genesis on.
    pub versions: Versions,
    /// The oldest version that no prune of the log has dropped.
    pub pruned: Version,
    log: LogTree,
}

/// The hashes of a log's complete subtrees, level by level from its entries on.
#[derive(Debug, Default)]
struct LogTree {
    levels: Vec<Vec<Digest>>,
}

impl LogTree {
    fn size(&self) -> u64 {
        self.levels.first().map_or(0, |entries| entries.len() as u64)
    }

    fn push(&mut self, entry: Digest) {
        let mut hash = entry;
        for level in 0.. {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            let hashes = &mut self.levels[level];
            hashes.push(hash);
            let [.., left, right] = &hashes[..] else { return };
            if !hashes.len().is_multiple_of(2) {
                return;
            }
            hash = hash::list_node_hash(left, right);
        }
    }

    /// The root at a size; `None` if the log is shorter.
    fn root(&self, size: u64) -> Option<Digest> {
        if size == 0 {
            return Some(merkle::empty_root());
        }
        let mut complete = |level: u32, index: u64| {
            let index = usize::try_from(index).map_err(|_| ())?;
            self.levels.get(level as usize).and_then(|hashes| hashes.get(index)).copied().ok_or(())
        };
        merkle::subtree_root_with(0, size, &mut complete).ok()
    }
}

impl Book {
    /// Reads all headers under a checkpoint that the newest of the keys signed.
    pub async fn read(client: &Client, checkpoint: &Checkpoint, keys: &Keys) -> Result<Self, Stop> {
        let mut reader = LogReader::default();
        let mut resumes = 0;
        while reader.log.size() < checkpoint.size {
            let before = reader.log.size();
            let ended = reader.read_stream(client, checkpoint, keys).await;
            resumes = if reader.log.size() > before { 0 } else { resumes + 1 };
            match ended {
                Err(Stop::Failed(error)) if resumes < RESUMES_MAX && may_resume(&error) => {}
                Ok(()) if reader.log.size() < checkpoint.size => {
                    return Err(Error::Malformed("the stream of headers ended early").into());
                }
                ended => ended?,
            }
        }
        if reader.log.root(checkpoint.size) != Some(checkpoint.root) {
            return Err(Error::Untrusted("the headers are not those that the checkpoint signs").into());
        }
        reader.check_keys(keys)?;
        reader.book().ok_or(Stop::Failed(Error::Malformed("the log is empty")))
    }

    /// The book of a log with this first key, as if its checkpoint were signed.
    #[cfg(test)]
    pub fn of(headers: &[Header], key: &coppice_verify::note::VerifierKey) -> Result<Self, Stop> {
        let size = headers.len() as u64;
        let checkpoint = Checkpoint { origin: key.name().to_owned(), size, root: Digest::default() };
        let keys = Keys::new(key.clone());
        let mut reader = LogReader::default();
        for header in headers {
            reader.take(header.clone(), &checkpoint, &keys)?;
        }
        reader.book().ok_or(Stop::Failed(Error::Malformed("the log is empty")))
    }

    /// The timestamp of a version's header, in milliseconds; `None` if it is above head.
    pub fn time_ms(&self, version: Version) -> Option<u64> {
        let line = self.versions.lines.get(usize::try_from(version.0).ok()?)?;
        Some(line.timestamp_ms)
    }

    /// The root of the log at a size up to that of the checkpoint.
    pub fn log_root(&self, size: u64) -> Option<Digest> {
        self.log.root(size)
    }
}

impl std::ops::Deref for Book {
    type Target = Versions;

    fn deref(&self) -> &Versions {
        &self.versions
    }
}

impl Versions {
    /// The versions with these lines; `None` if there are none, or they are not successive.
    pub fn new(founding: Founding, lines: Vec<Line>) -> Option<Self> {
        let follow = |pair: &[Line]| pair[0].stamp.version.next() == pair[1].stamp.version;
        let sound = !lines.is_empty() && lines.windows(2).all(follow);
        sound.then_some(Self { founding, lines })
    }

    /// The log's entry for one of the versions.
    pub fn line(&self, version: Version) -> &Line {
        let index = version.0 - self.lines[0].stamp.version.0;
        &self.lines[usize::try_from(index).expect("the versions are counted in memory")]
    }

    /// The header and journal entries in the first message of a version, which must be `next`.
    pub fn entries(&self, next: Version, message: &v1::JournalResponse) -> Result<(Header, Vec<Entry>), Stop> {
        let header = crate::header(&message.header)?;
        let version = header.stamp.version;
        if version > self.head() || hash::log_entry_hash(&message.header) != self.line(version).hash {
            let moved = "versions changed or were rolled back since the audit began: audit again";
            return Err(Error::Untrusted(moved).into());
        }
        // Only versions that stand are streamed, so neither admin entries nor rollbacks leave a
        // gap.
        if version != next {
            return Err(Error::Malformed("a stream of journals that leaves a version out or repeats one").into());
        }
        let line = self.line(version);
        let differs = |what: &str| Stop::Differs(Difference { stamp: line.stamp, shard: None, what: what.to_owned() });
        let hashes: Vec<Digest> = message.entries.iter().map(|entry| hash::journal_leaf_hash(entry)).collect();
        let (root, leaves) = line.journal;
        if merkle::mth(&hashes) != root || hashes.len() as u64 != u64::from(leaves) {
            return Err(differs("the journal in the root group is not the one that its header commits to"));
        }
        let entries = message.entries.iter().map(|entry| Entry::decode(entry)).collect::<Result<Vec<Entry>, _>>();
        Ok((header, entries.map_err(|_| differs("a malformed journal entry"))?))
    }

    /// The newest version.
    pub fn head(&self) -> Version {
        self.lines.last().expect("there is one").stamp.version
    }
}

#[derive(Default)]
struct LogReader {
    log: LogTree,
    chain: Chain,
    key_changes: Vec<(Sequence, KeyChange)>,
    pruned: Version,
    founding: Option<Founding>,
}

impl LogReader {
    async fn read_stream(&mut self, client: &Client, checkpoint: &Checkpoint, keys: &Keys) -> Result<(), Stop> {
        let request = v1::WatchHeadsRequest { from_sequence: self.log.size(), ..v1::WatchHeadsRequest::default() };
        let mut stream = client.watch(request).await?;
        while self.log.size() < checkpoint.size {
            let Some(message) = stream.next().await? else { return Ok(()) };
            let header = Header::decode(&message.header).map_err(|error| self.undecodable(error))?;
            self.log.push(hash::log_entry_hash(&message.header));
            self.take(header, checkpoint, keys)?;
        }
        Ok(())
    }

    /// An entry that is not a header, or that breaks a rule of its own. The difference names the
    /// version before it, which is the last one known.
    fn undecodable(&self, error: codec::Error) -> Stop {
        let stamp = self.chain.lines().last().map_or_else(Stamp::default, |line| line.stamp);
        let what = format!("entry {} of its log, after this version: {error}", self.log.size());
        Stop::Differs(Difference { stamp, shard: None, what })
    }

    /// Checks that the log has exactly the key changes that its checkpoint was proven by.
    fn check_keys(&self, keys: &Keys) -> Result<(), Stop> {
        let changes = self.key_changes.iter().map(|(sequence, change)| (*sequence, change));
        let found = keys.follow(changes).map_err(Error::Untrusted)?;
        if found == *keys && self.key_changes.len() == keys.changes().count() {
            return Ok(());
        }
        Err(Error::Untrusted("the log has different key changes than the proof of its checkpoint").into())
    }

    /// Checks the rules of the log, and keeps the versions that stand.
    fn take(&mut self, header: Header, checkpoint: &Checkpoint, keys: &Keys) -> Result<(), Stop> {
        let stamp = header.stamp;
        let broken =
            |what: String| Stop::Differs(Difference { stamp, shard: None, what: format!("its header: {what}") });
        match &header.body {
            Body::Genesis(genesis) => {
                let named = origin(&genesis.prefix, &header.cluster) == checkpoint.origin;
                if !named || genesis.public_key != keys.first().public_key() {
                    return Err(broken("genesis names a different origin or key than the checkpoint's".to_owned()));
                }
                self.founding.get_or_insert_with(|| Founding::of(genesis));
            }
            Body::Key(change) => self.key_changes.push((header.sequence, change.clone())),
            Body::Prune(prune) => self.pruned = prune.boundary,
            _ => {}
        }
        self.chain.take(header).map_err(|rule| broken(rule.to_string()))
    }

    fn book(self) -> Option<Book> {
        let versions = Versions::new(self.founding?, self.chain.into_lines())?;
        Some(Book { versions, pruned: self.pruned, log: self.log })
    }
}
