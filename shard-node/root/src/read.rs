//! Reads of the root group's state, all as of the newest command applied.

use std::sync::Arc;

use coppice_env::bug::{Bug, planted};
use coppice_types::{ClusterId, Digest, Epoch, Params, Sequence, SessionId, ShardId, Stamp, Term, Version};
use coppice_verify::header::{Body, Header};

use crate::{
    Error, Root,
    chunk::{Chunk, States, index_path},
    command::Command,
    pins::Pin,
    sessions::Session,
    state::{Ledger, state_root},
    timeline::{Admin, Unreadable},
    times::newest_at,
    types::{AdminEntry, AnchorPlace, EpochPair, KeyTurn, Operation, ShardBoundary, ShardMap, StateLeaf, VersionState},
};

/// Limit on the number of headers of one read. A read ends with the bundle, so it may return fewer.
pub const HEADERS_PER_READ_MAX: usize = 256;
/// Bytes of headers after which a read ends.
const HEADERS_BYTES_SOFT_MAX: usize = 1 << 20;

/// The facts that every reader needs, all of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Canonical bytes of the genesis header.
    pub genesis: Arc<[u8]>,
    /// Canonical bytes of the log's newest header.
    pub newest: Arc<[u8]>,
    /// Entries in the root log.
    pub log_size: u64,
    /// Root of the root log.
    pub log_root: Digest,
    /// The newest header's inclusion path in the log.
    pub newest_path: Vec<Digest>,
    /// The newest standing version.
    pub head: Stamp,
    /// The oldest version kept.
    pub pruned_boundary: Version,
    /// All epoch pairs, oldest first.
    pub epochs: Vec<EpochPair>,
    /// State leaves of the head, in key order.
    pub leaves: Vec<StateLeaf>,
    /// Term of the newest leader.
    pub term: Term,
    /// Name of the newest leader.
    pub leader: String,
    /// The ledger's keys after that of genesis, oldest first.
    pub keys: Vec<KeyTurn>,
    /// The newest version that appended to a ledger of members; 0 before the first.
    pub ledger_floor: Version,
    /// The newest anchor with stamps; `None` before the first.
    pub anchor: Option<AnchorPlace>,
}

/// The newest version at a time: canonical bytes and places of its header, and of that of the
/// version after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtTime {
    /// The version's name.
    pub stamp: Stamp,
    /// Header of the version.
    pub header: (Sequence, Vec<u8>),
    /// Header of the version after it; `None` if the version is head.
    pub next: Option<(Sequence, Vec<u8>)>,
}

impl Root {
    fn ledger(&self) -> Result<&Ledger, Error> {
        self.state.ledger.as_ref().ok_or(Error::NoGenesis)
    }

    /// The facts that every reader needs.
    ///
    /// # Errors
    /// [`Error::NoGenesis`]; [`Error::Corrupted`] if a file is damaged.
    pub fn view(&self) -> Result<View, Error> {
        let ledger = self.ledger()?;
        Ok(View {
            genesis: Arc::clone(&ledger.genesis_bytes),
            newest: Arc::clone(&ledger.newest_bytes),
            log_size: ledger.log.size(),
            log_root: ledger.log.root(),
            newest_path: ledger.log.newest_path(&self.store)?,
            head: ledger.timeline.head(),
            pruned_boundary: ledger.timeline.boundary(),
            epochs: ledger.timeline.epochs().pairs().to_vec(),
            leaves: ledger.leaves(&ledger.states),
            term: self.state.term,
            leader: self.state.leader.clone(),
            keys: ledger.keys.clone(),
            ledger_floor: ledger.ledgers.floor(),
            anchor: ledger.anchor,
        })
    }

    /// The pins that live at this time, by name.
    pub fn pins(&self, clock_ms: u64) -> impl Iterator<Item = Pin> + '_ {
        let ledger = self.state.ledger.as_ref();
        ledger.into_iter().flat_map(move |ledger| ledger.pins.living(clock_ms.max(ledger.newest.timestamp_ms)))
    }

    /// The living pin of the oldest version.
    #[must_use]
    pub fn oldest_pin(&self, clock_ms: u64) -> Option<Pin> {
        let ledger = self.state.ledger.as_ref()?;
        ledger.pins.oldest(clock_ms.max(ledger.newest.timestamp_ms))
    }

    /// Term of the newest leader; 0 before the first.
    #[must_use]
    pub fn term(&self) -> Term {
        self.state.term
    }

    /// Entries in the root log.
    #[must_use]
    pub fn log_size(&self) -> u64 {
        self.state.ledger.as_ref().map_or(0, |ledger| ledger.log.size())
    }

    /// Root of the root log. Replicas at the same applied index must agree on it.
    #[must_use]
    pub fn log_root(&self) -> Digest {
        self.state.ledger.as_ref().map_or_else(coppice_verify::merkle::empty_root, |ledger| ledger.log.root())
    }

    /// The newest header; `None` before genesis.
    #[must_use]
    pub fn newest_header(&self) -> Option<&Header> {
        self.state.ledger.as_ref().map(|ledger| &ledger.newest)
    }

    /// The ledger's name; `None` before genesis.
    #[must_use]
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.state.ledger.as_ref().map(|ledger| ledger.cluster)
    }

    /// The ledger's parameters; `None` before genesis.
    #[must_use]
    pub fn params(&self) -> Option<&Params> {
        self.state.ledger.as_ref().map(Ledger::params)
    }

    /// The ledger's shards; `None` before genesis.
    #[must_use]
    pub fn shard_map(&self) -> Option<&ShardMap> {
        self.state.ledger.as_ref().map(|ledger| &ledger.genesis.shard_map)
    }

    /// A standing version. If an epoch is given, the version must have stood in that epoch.
    ///
    /// After a rollback, head has two names: its new one and that of the target. The answer holds
    /// the original one. Without an epoch, a number above head is [`Error::RolledBack`] if such a
    /// version existed before a rollback.
    ///
    /// # Errors
    /// [`Error::RolledBack`], [`Error::NotYet`], [`Error::Pruned`], in this order;
    /// [`Error::Corrupted`] if a file is damaged.
    pub fn version(&self, version: Version, epoch: Option<Epoch>) -> Result<VersionState, Error> {
        let ledger = self.ledger()?;
        let found = ledger.timeline.find(version, epoch).map_err(|why| unreadable(ledger, version, epoch, why))?;
        let header = ledger.log.entry(found.sequence.0, &self.store)?;
        let decoded = decode(&header, found.sequence)?;
        let leaves = ledger.leaves(&self.states_after(ledger, found.sequence)?);
        if decoded.stamp != found.stamp || state_root(&leaves) != decoded.state_root {
            return Err(Error::corrupted("index", format!("leaves of version {version} are not its header's")));
        }
        Ok(VersionState { header, sequence: found.sequence, stamp: found.stamp, leaves })
    }

    /// Place and canonical bytes of the header of a version that stands, even if it was pruned.
    ///
    /// # Errors
    /// [`Error::RolledBack`], [`Error::NotYet`]; [`Error::Corrupted`] if a file is damaged.
    pub fn version_header(&self, version: Version, epoch: Option<Epoch>) -> Result<(Sequence, Vec<u8>), Error> {
        let ledger = self.ledger()?;
        let found =
            ledger.timeline.find_header(version, epoch).map_err(|why| unreadable(ledger, version, epoch, why))?;
        Ok((found.sequence, ledger.log.entry(found.sequence.0, &self.store)?))
    }

    /// The newest version that stands and whose header is not later than a time, even if it was
    /// pruned.
    ///
    /// # Errors
    /// [`Error::BeforeGenesis`]; [`Error::Corrupted`] if a file is damaged.
    pub fn version_at(&self, time_ms: u64) -> Result<AtTime, Error> {
        let ledger = self.ledger()?;
        let genesis_ms = decode(&ledger.genesis_bytes, Sequence(0))?.timestamp_ms;
        if time_ms < genesis_ms {
            return Err(Error::BeforeGenesis { time_ms, genesis_ms });
        }
        let head = ledger.timeline.head().version;
        let guess = self.times.guess(time_ms);
        let mut time_of = |version| self.time_of(ledger, Version(version));
        let mut version = Version(newest_at(time_ms, head.0, guess, &mut time_of)?);
        while planted(Bug::TieBroken) && version.0 > 0 && time_of(version.0 - 1)? == time_of(version.0)? {
            version.0 -= 1;
        }
        let header = self.version_header(version, None)?;
        let next = if version < head { Some(self.version_header(version.next(), None)?) } else { None };
        Ok(AtTime { stamp: decode(&header.1, header.0)?.stamp, header, next })
    }

    /// The first version that the index of times does not cover.
    #[must_use]
    pub fn times_indexed(&self) -> Version {
        self.times.next()
    }

    /// Time of the header of a standing version, in ms since 1970.
    fn time_of(&self, ledger: &Ledger, version: Version) -> Result<u64, Error> {
        let (sequence, _) = ledger.timeline.row(version);
        let header = decode(&ledger.log.entry(sequence.0, &self.store)?, sequence)?;
        if header.stamp.version == version {
            return Ok(header.timestamp_ms);
        }
        Err(Error::corrupted("log", format!("header {sequence} is not that of version {version}")))
    }

    /// Lets the index of times follow the state: forgets what was rolled back, and covers at most
    /// the versions of one bundle. If their headers can't be read, a later call tries again;
    /// searches do without the index until then.
    pub(crate) fn index_times(&mut self) {
        let Some(ledger) = &self.state.ledger else { return };
        let head = ledger.timeline.head().version;
        self.times.truncate(head);
        if self.times.next() > head || self.times.is_full() {
            return;
        }
        let (sequence, count) = ledger.timeline.row(self.times.next());
        if sequence == ledger.newest.sequence {
            self.times.push(ledger.newest.timestamp_ms);
            return;
        }
        let count = usize::try_from(count).map_or(HEADERS_PER_READ_MAX, |count| count.min(HEADERS_PER_READ_MAX));
        let Ok(headers) = ledger.log.entries(sequence.0, count, &self.store) else { return };
        for header in headers {
            let Ok(header) = Header::decode(&header) else { return };
            self.times.push(header.timestamp_ms);
        }
    }

    /// Canonical bytes of one header.
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Corrupted`] if a file is damaged.
    pub fn header(&self, sequence: Sequence) -> Result<Vec<u8>, Error> {
        self.ledger()?.log.entry(sequence.0, &self.store)
    }

    /// Canonical bytes of the headers that begin at `from`: at most `limit`, possibly fewer, and at
    /// least one before the log's end.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if a file is damaged.
    pub fn headers(&self, from: Sequence, limit: u32) -> Result<Vec<Vec<u8>>, Error> {
        let limit = usize::try_from(limit).map_or(HEADERS_PER_READ_MAX, |limit| limit.min(HEADERS_PER_READ_MAX));
        let mut headers = self.ledger()?.log.entries(from.0, limit, &self.store)?;
        let mut bytes = 0;
        let fitting = headers.iter().take_while(|header| {
            let fits = bytes < HEADERS_BYTES_SOFT_MAX;
            bytes += header.len();
            fits
        });
        let fitting = fitting.count();
        headers.truncate(fitting);
        Ok(headers)
    }

    /// Path of entry `index` in the first `size` entries of the log (RFC 9162).
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Corrupted`] if a file is damaged.
    pub fn inclusion(&self, index: Sequence, size: u64) -> Result<Vec<Digest>, Error> {
        self.ledger()?.log.inclusion(index.0, size, &self.store)
    }

    /// Path which shows that the first `old_size` entries are a prefix of the first `size` (RFC
    /// 9162).
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Corrupted`] if a file is damaged.
    pub fn consistency(&self, old_size: u64, size: u64) -> Result<Vec<Digest>, Error> {
        self.ledger()?.log.consistency(old_size, size, &self.store)
    }

    /// The first `width` hashes, 1 to 256, of a tile of the root log.
    ///
    /// # Errors
    /// [`Error::NoTile`]; [`Error::Corrupted`] if a file is damaged.
    pub fn tile(&self, level: u8, number: u64, width: usize) -> Result<Vec<u8>, Error> {
        self.ledger()?.log.tile_prefix(usize::from(level), number, width, &self.store)
    }

    /// Root of the first `size` entries.
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Corrupted`] if a file is damaged.
    pub fn root_at(&self, size: u64) -> Result<Digest, Error> {
        self.ledger()?.log.root_at(size, &self.store)
    }

    /// Encoded journal entries of one header; none if it is not a commit.
    ///
    /// # Errors
    /// [`Error::NoEntry`]; [`Error::Corrupted`] if a file is damaged.
    pub fn journal(&self, sequence: Sequence) -> Result<Vec<Vec<u8>>, Error> {
        let ledger = self.ledger()?;
        let missing = Error::NoEntry { asked: sequence.0, size: ledger.log.size() };
        let (number, at) = ledger.chunk_of(sequence).ok_or(missing)?;
        let damaged = |what: &str| Error::corrupted(&crate::journal::journal_path(number), what);
        let place = self.in_chunk(ledger, number, |chunk| chunk.place(at))?;
        let place = place.ok_or_else(|| damaged("the index has no such header"))?;
        let command = self.journal.read(&self.store, number, place)?;
        match Command::decode(&command) {
            Ok(Command::AppendHeader(append)) if append.header == self.header(sequence)? => Ok(append.journal),
            Ok(Command::TakeOver(_)) if sequence == Sequence(0) => Ok(Vec::new()),
            _ => Err(damaged("not the record of the header")),
        }
    }

    /// An open session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.state.ledger.as_ref()?.sessions.get(id)
    }

    /// All open sessions, most recently used first.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.state.ledger.iter().flat_map(|ledger| ledger.sessions.iter())
    }

    /// Up to `limit` admin operations after a number, in order, with every shard's part in each of
    /// them.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if a file is damaged.
    pub fn admin_after(&self, number: u64, limit: usize) -> Result<Vec<AdminEntry>, Error> {
        let ledger = self.ledger()?;
        let admins = ledger.timeline.admins_after(number).take(limit);
        admins.map(|(number, admin)| self.admin(ledger, number, admin)).collect()
    }

    fn admin(&self, ledger: &Ledger, number: u64, admin: Admin) -> Result<AdminEntry, Error> {
        let damaged = |what| Error::corrupted("log", format!("header {} {what}", admin.sequence));
        let header = decode(&ledger.log.entry(admin.sequence.0, &self.store)?, admin.sequence)?;
        let operation = match header.body {
            Body::Rollback(rollback) => {
                let target = decode(&ledger.log.entry(admin.target.0, &self.store)?, admin.target)?;
                if target.stamp.version != rollback.target.version {
                    return Err(damaged("has another target"));
                }
                Operation::Rollback { to: target.stamp, epoch: header.stamp.epoch }
            }
            Body::Prune(prune) => Operation::Prune { before: prune.boundary },
            _ => return Err(damaged("is not an admin operation")),
        };
        let before = admin.sequence.0.checked_sub(1).ok_or_else(|| damaged("comes before all others"))?;
        let before = Sequence(before);
        let newest = self.states_after(ledger, before)?;
        let boundary = self.states_after(ledger, admin.target)?;
        let shards =
            ledger.genesis.shard_map.shards().iter().filter_map(|shard| boundary_of(shard.id, &boundary, &newest));
        Ok(AdminEntry { admin_sequence: number, sequence: admin.sequence, operation, shards: shards.collect() })
    }

    /// The states of all shards after a header.
    pub(crate) fn states_after(&self, ledger: &Ledger, sequence: Sequence) -> Result<States, Error> {
        let missing = Error::NoEntry { asked: sequence.0, size: ledger.log.size() };
        let (number, at) = ledger.chunk_of(sequence).ok_or(missing)?;
        self.in_chunk(ledger, number, |chunk| chunk.states_after(at))
    }

    /// Reads from the index of a chunk. The growing chunk's index is in memory, the others are
    /// files.
    fn in_chunk<T>(&self, ledger: &Ledger, number: u64, read: impl FnOnce(&Chunk) -> T) -> Result<T, Error> {
        if number == self.journal.end().chunk {
            return Ok(read(&ledger.chunk));
        }
        let load = || Chunk::from_file(number, &self.store.read(&index_path(number))?).map(|(chunk, _)| chunk);
        Ok(read(&*self.chunks.get_or(number, load)?))
    }
}

fn boundary_of(shard: ShardId, boundary: &States, newest: &States) -> Option<ShardBoundary> {
    Some(ShardBoundary { shard, boundary: *boundary.get(&shard)?, newest: *newest.get(&shard)? })
}

fn decode(header: &[u8], sequence: Sequence) -> Result<Header, Error> {
    Header::decode(header).map_err(|error| Error::corrupted("log", format!("header {sequence}: {error}")))
}

fn unreadable(ledger: &Ledger, version: Version, epoch: Option<Epoch>, why: Unreadable) -> Error {
    match why {
        Unreadable::RolledBack => Error::RolledBack { epoch, version },
        Unreadable::Pruned => Error::Pruned { version, boundary: ledger.timeline.boundary() },
        Unreadable::NotYet => Error::NotYet { version, head: ledger.timeline.head() },
    }
}
