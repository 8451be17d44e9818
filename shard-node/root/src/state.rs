//! The state of the root group, except for sealed files and the journal, and the file that saves
//! it.
//!
//! Its size grows with shards, sessions and admin operations, and by some 50 bytes for each sealed
//! file, but not with versions.

use std::sync::Arc;

use coppice_types::{
    ClusterId, Digest, Params, Sequence, Term,
    codec::{self, Reader, Writer},
};
use coppice_verify::{
    header::{Body, Genesis, Header},
    keys::KEY_CHANGES_MAX,
};

use crate::{
    Error,
    chunk::{Chunk, States, decode_states, encode_states},
    codec::{checked, len32, list, with_checksum},
    journal::{End, Place},
    ledgers::Ledgers,
    log::Log,
    pins::Pins,
    sealed::{Kind, Sealed, seal},
    sessions::Sessions,
    store::Store,
    tiles::{TILE_WIDTH, split_index},
    timeline::Timeline,
    types::{AnchorPlace, KeyTurn, ShardState, StateLeaf},
};

/// First bytes of a saved state without pins and key changes.
const MAGIC: &[u8; 8] = b"copstt01";
/// First bytes of a saved state with pins, which follow the ledger.
const MAGIC_PINS: &[u8; 8] = b"copstt02";
/// First bytes of a saved state with key changes. The pins, possibly none, and then the keys follow
/// the ledger.
const MAGIC_KEYS: &[u8; 8] = b"copstt03";

/// First bytes of the saved state of a cluster with ledgers. Pins, keys and ledgers, each possibly
/// none, follow the ledger.
const MAGIC_LEDGERS: &[u8; 8] = b"copstt04";

/// First bytes of a saved state with an anchor. Pins and keys, each possibly none, then ledgers in
/// a cluster with ledgers, and then the place of the newest anchor follow the ledger.
const MAGIC_ANCHORS: &[u8; 8] = b"copstt05";

/// Everything that commands change.
#[derive(Debug)]
pub(crate) struct State {
    /// Term of the newest leader; 0 before the first.
    pub(crate) term: Term,
    /// Name of the newest leader.
    pub(crate) leader: String,
    /// Clock of the replica that proposed the leader's take-over.
    pub(crate) leader_clock_ms: u64,
    /// The ledger; `None` before genesis.
    pub(crate) ledger: Option<Ledger>,
    /// Every file that never changes again.
    pub(crate) sealed: Vec<Sealed>,
}

/// A founded ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) cluster: ClusterId,
    pub(crate) genesis_bytes: Arc<[u8]>,
    pub(crate) genesis: Arc<Genesis>,
    pub(crate) newest_bytes: Arc<[u8]>,
    pub(crate) newest: Header,
    pub(crate) log: Log,
    /// States of all shards at the head.
    pub(crate) states: States,
    pub(crate) timeline: Timeline,
    pub(crate) sessions: Sessions,
    pub(crate) pins: Pins,
    /// The keys after that of genesis.
    pub(crate) keys: Vec<KeyTurn>,
    /// The ledgers of members.
    pub(crate) ledgers: Ledgers,
    /// The newest anchor with stamps.
    pub(crate) anchor: Option<AnchorPlace>,
    /// Index of the growing chunk.
    pub(crate) chunk: Chunk,
}

impl State {
    /// The state before the first command.
    pub(crate) fn new() -> Self {
        Self { term: Term(0), leader: String::new(), leader_clock_ms: 0, ledger: None, sealed: Vec::new() }
    }

    /// The bytes of the file that saves this state, when the journal ends at `journal`.
    pub(crate) fn file(&self, journal: &End) -> Vec<u8> {
        let mut out = Writer::new();
        let keyed = self.ledger.as_ref().is_some_and(|ledger| !ledger.keys.is_empty());
        let pinned = self.ledger.as_ref().is_some_and(|ledger| !ledger.pins.is_empty());
        let with_ledgers = self.ledger.as_ref().is_some_and(|ledger| ledger.params().ledgers);
        let anchor = self.ledger.as_ref().and_then(|ledger| ledger.anchor);
        out.raw(match (anchor, with_ledgers, keyed, pinned) {
            (Some(_), ..) => MAGIC_ANCHORS,
            (None, true, ..) => MAGIC_LEDGERS,
            (None, false, true, _) => MAGIC_KEYS,
            (None, false, false, true) => MAGIC_PINS,
            (None, false, false, false) => MAGIC,
        });
        out.u64(journal.chunk);
        out.u64(journal.len);
        out.digest(&journal.chain);
        out.u64(self.term.0);
        out.str16(self.leader.as_bytes());
        out.u64(self.leader_clock_ms);
        out.u32(len32(self.sealed.len()));
        self.sealed.iter().for_each(|sealed| sealed.encode(&mut out));
        out.flag(self.ledger.is_some());
        if let Some(ledger) = &self.ledger {
            ledger.encode(&mut out);
            if pinned || keyed || with_ledgers || anchor.is_some() {
                ledger.pins.encode(&mut out);
            }
            if keyed || with_ledgers || anchor.is_some() {
                encode_keys(&ledger.keys, &mut out);
            }
            if with_ledgers {
                ledger.ledgers.encode(&mut out);
            }
            if let Some(AnchorPlace { sequence, stamped_size, timestamp_ms }) = anchor {
                out.u64(sequence.0);
                out.u64(stamped_size);
                out.u64(timestamp_ms);
            }
        }
        with_checksum(out.into_bytes())
    }

    /// Reads a saved state, and the end of the journal at that time.
    pub(crate) fn from_file(name: &str, bytes: &[u8]) -> Result<(Self, End), Error> {
        let body = checked(bytes).ok_or_else(|| Error::corrupted(name, "the checksum differs"))?;
        Self::decode(body).map_err(|error| Error::corrupted(name, error.to_string()))
    }

    fn decode(bytes: &[u8]) -> Result<(Self, End), codec::Error> {
        let mut input = Reader::new(bytes);
        let magic = input.take(MAGIC.len())?;
        let known = [MAGIC, MAGIC_PINS, MAGIC_KEYS, MAGIC_LEDGERS, MAGIC_ANCHORS];
        if !known.iter().any(|known| magic == *known) {
            return Err(codec::Error::Malformed("magic"));
        }
        let journal = End { chunk: input.u64()?, len: input.u64()?, chain: input.digest()? };
        let mut state = Self {
            term: Term(input.u64()?),
            leader: String::from_utf8(input.str16()?.to_vec()).map_err(|_| codec::Error::Malformed("leader"))?,
            leader_clock_ms: input.u64()?,
            sealed: list(&mut input, Sealed::decode)?,
            ledger: if input.flag("ledger")? { Some(Ledger::decode(&mut input)?) } else { None },
        };
        if magic != MAGIC {
            let ledger = state.ledger.as_mut().ok_or(codec::Error::Malformed("pins without a ledger"))?;
            ledger.pins = Pins::decode(&mut input)?;
            if magic == MAGIC_PINS && ledger.pins.is_empty() {
                return Err(codec::Error::Malformed("pins"));
            }
            if magic != MAGIC_PINS {
                ledger.keys = decode_keys(&mut input, ledger.log.size())?;
            }
            if magic == MAGIC_KEYS && ledger.keys.is_empty() {
                return Err(codec::Error::Malformed("keys"));
            }
            if magic == MAGIC_LEDGERS || magic == MAGIC_ANCHORS && ledger.params().ledgers {
                ledger.ledgers = Ledgers::decode(&mut input, ledger.timeline.head().version)?;
            }
            if magic == MAGIC_ANCHORS {
                ledger.anchor = Some(decode_anchor(&mut input, ledger.log.size())?);
            }
        }
        let with_ledgers = state.ledger.as_ref().is_some_and(|ledger| ledger.params().ledgers);
        if magic != MAGIC_ANCHORS && with_ledgers != (magic == MAGIC_LEDGERS) {
            return Err(codec::Error::Malformed("ledgers"));
        }
        input.finish()?;
        if !state.fits(&journal) {
            return Err(codec::Error::Malformed("end of the journal"));
        }
        Ok((state, journal))
    }
}

impl State {
    /// Whether the journal ends in the same chunk as the log, after the records that the index
    /// names.
    fn fits(&self, journal: &End) -> bool {
        match &self.ledger {
            Some(ledger) => {
                journal.chunk == split_index(ledger.log.size()).0 && journal.len >= ledger.chunk.journal_len()
            }
            None => journal.chunk == 0,
        }
    }
}

impl Ledger {
    /// The ledger right after its genesis header, whose record lies at `place`.
    pub(crate) fn found(header: Header, bytes: &[u8], place: Place, store: &mut Store) -> Self {
        let Body::Genesis(genesis) = &header.body else { panic!("only a genesis header founds a ledger") };
        let leaves = genesis.shard_map.genesis_leaves();
        let states: States = leaves.iter().map(|leaf| (leaf.shard, state_of(leaf))).collect();
        let mut ledger = Self {
            cluster: header.cluster,
            genesis_bytes: bytes.into(),
            genesis: Arc::new(genesis.clone()),
            newest_bytes: bytes.into(),
            newest: header.clone(),
            log: Log::new(),
            states: States::new(),
            timeline: Timeline::new(),
            sessions: Sessions::default(),
            pins: Pins::default(),
            keys: Vec::new(),
            ledgers: Ledgers::default(),
            anchor: None,
            chunk: Chunk::default(),
        };
        // A log of one entry fills no tile.
        let mut sealed = Vec::new();
        ledger.append(header, bytes, place, states, store, &mut sealed);
        assert!(sealed.is_empty(), "genesis seals nothing");
        ledger
    }

    /// Appends a header to log and index. If that fills the chunk, `seal_chunk` must follow.
    pub(crate) fn append(
        &mut self,
        header: Header,
        bytes: &[u8],
        place: Place,
        changed: States,
        store: &mut Store,
        sealed: &mut Vec<Sealed>,
    ) {
        assert_eq!(header.sequence.0, self.log.size(), "the header is the log's next entry");
        assert_eq!(self.chunk.len(), split_index(self.log.size()).1, "log and index grow together");
        self.states.extend(&changed);
        self.chunk.push(place, changed);
        self.log.push(bytes, store, sealed);
        self.newest = header;
        self.newest_bytes = bytes.into();
    }

    pub(crate) fn chunk_is_full(&self) -> bool {
        self.chunk.len() == TILE_WIDTH
    }

    /// Seals the index of the full chunk, whose journal ended at `journal`, and starts the next
    /// chunk.
    pub(crate) fn seal_chunk(&mut self, journal: &End, store: &mut Store, sealed: &mut Vec<Sealed>) {
        let full = std::mem::replace(&mut self.chunk, Chunk::new(self.states.clone()));
        assert_eq!(split_index(self.log.size()), (journal.chunk + 1, 0), "a chunk ends where its bundle does");
        seal(store, sealed, Kind::Index, journal.chunk, full.file(journal));
        sealed.push(Sealed { kind: Kind::Journal, number: journal.chunk, len: journal.len, hash: journal.chain });
    }

    /// The key that signs checkpoints of the whole log.
    pub(crate) fn current_key(&self) -> [u8; 32] {
        self.keys.last().map_or(self.genesis.public_key, |turn| turn.public_key)
    }

    pub(crate) fn params(&self) -> &Params {
        &self.genesis.params
    }

    /// These states as leaves in key order.
    pub(crate) fn leaves(&self, states: &States) -> Vec<StateLeaf> {
        let shards = self.genesis.shard_map.shards().iter();
        shards
            .filter_map(|shard| {
                let state = states.get(&shard.id)?;
                let (low, high) = (shard.low.clone(), shard.high.clone());
                Some(StateLeaf { shard: shard.id, low, high, version: state.version, digest: state.digest })
            })
            .collect()
    }

    /// The chunk of a header and the header's place in it; `None` beyond the log's end.
    pub(crate) fn chunk_of(&self, sequence: Sequence) -> Option<(u64, usize)> {
        (sequence.0 < self.log.size()).then(|| split_index(sequence.0))
    }

    fn encode(&self, out: &mut Writer) {
        out.str16(&self.genesis_bytes);
        out.str16(&self.newest_bytes);
        self.log.encode(out);
        encode_states(&self.states, out);
        self.timeline.encode(out);
        self.sessions.encode(out);
        self.chunk.encode(out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, codec::Error> {
        let genesis_bytes: Arc<[u8]> = input.str16()?.into();
        let newest_bytes: Arc<[u8]> = input.str16()?.into();
        let founding = Header::decode(&genesis_bytes)?;
        let Body::Genesis(genesis) = founding.body else { return Err(codec::Error::Malformed("genesis")) };
        let ledger = Self {
            cluster: founding.cluster,
            genesis: Arc::new(genesis),
            newest: Header::decode(&newest_bytes)?,
            genesis_bytes,
            newest_bytes,
            log: Log::decode(input)?,
            states: decode_states(input)?,
            timeline: Timeline::decode(input)?,
            sessions: Sessions::decode(input)?,
            pins: Pins::default(),
            keys: Vec::new(),
            ledgers: Ledgers::default(),
            anchor: None,
            chunk: Chunk::decode(input)?,
        };
        let consistent = ledger.newest.sequence.0.checked_add(1) == Some(ledger.log.size())
            && ledger.newest.stamp == ledger.timeline.head()
            && split_index(ledger.log.size()).1 == ledger.chunk.len();
        if consistent { Ok(ledger) } else { Err(codec::Error::Malformed("parts that belong together")) }
    }
}

fn encode_keys(keys: &[KeyTurn], out: &mut Writer) {
    out.u32(len32(keys.len()));
    for turn in keys {
        out.u64(turn.sequence.0);
        out.raw(&turn.public_key);
    }
}

fn decode_keys(input: &mut Reader<'_>, log_size: u64) -> Result<Vec<KeyTurn>, codec::Error> {
    let turn = |input: &mut Reader<'_>| {
        let sequence = Sequence(input.u64()?);
        Ok(KeyTurn { sequence, public_key: input.digest()?.0 })
    };
    let keys: Vec<KeyTurn> = list(input, turn)?;
    let ascend = keys.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
    let inside = keys.last().is_none_or(|turn| turn.sequence.0 < log_size);
    let inside = inside && keys.first().is_none_or(|turn| turn.sequence.0 > 0);
    if ascend && inside && keys.len() <= KEY_CHANGES_MAX { Ok(keys) } else { Err(codec::Error::Malformed("keys")) }
}

fn decode_anchor(input: &mut Reader<'_>, log_size: u64) -> Result<AnchorPlace, codec::Error> {
    let sequence = Sequence(input.u64()?);
    let place = AnchorPlace { sequence, stamped_size: input.u64()?, timestamp_ms: input.u64()? };
    let fits = (1..=place.sequence.0).contains(&place.stamped_size) && place.sequence.0 < log_size;
    if fits { Ok(place) } else { Err(codec::Error::Malformed("place of an anchor")) }
}

pub(crate) fn state_of(leaf: &StateLeaf) -> ShardState {
    ShardState { version: leaf.version, digest: leaf.digest }
}

pub(crate) fn state_root(leaves: &[StateLeaf]) -> Digest {
    coppice_verify::shard_map::state_root(leaves)
}
