//! Headers, the entries of the root log (`docs/verification.md` section 9).
//!
//! The bytes of a header are its log entry. The part before the body is the same for every kind, so
//! that this code can read and link headers of future kinds.
//!
//! **Invariants** of a decoded header: encoding it gives the same bytes again, and it keeps the
//! rules that concern it alone. [`Header::check_follows`] checks the rules that tie it to the
//! previous header.

pub(crate) mod part;

use alloc::{string::String, vec::Vec};

use coppice_types::{
    ClusterId, Digest, Params, Sequence, Stamp, Version,
    codec::{Error, Reader, Writer},
};

pub(crate) use self::part::check;
use self::part::read_text;
pub use self::part::{BrokenRule, PREFIX_BYTES_MAX, PRINCIPAL_BYTES_MAX, REASON_BYTES_MAX};
use crate::{
    anchor::Anchor,
    epochs::Epochs,
    hash::log_entry_hash,
    keys::{KEY_CHANGES_MAX, KeyChange},
    merkle::empty_root,
    shard_map::{ShardMap, state_root},
};

/// Largest header, in bytes.
pub const HEADER_BYTES_MAX: usize = 65_534;

/// One entry of the root log: an event of the ledger, and the state that it leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Id of the ledger.
    pub cluster: ClusterId,
    /// Index of the entry in the root log, from 0 on.
    pub sequence: Sequence,
    /// Epoch and version of the head after the event.
    pub stamp: Stamp,
    /// Milliseconds since 1970, by the clock of the coordinator that leads.
    pub timestamp_ms: u64,
    /// List root of the state leaves (section 7).
    pub state_root: Digest,
    /// Number of state leaves, at least 1.
    pub state_leaves: u32,
    /// Hash of the shard map (section 7).
    pub shard_map: Digest,
    /// List root of the version's journal (section 8); that of the empty list unless the header is
    /// a commit.
    pub journal_root: Digest,
    /// Number of journal entries.
    pub journal_leaves: u32,
    /// List root of the epoch pairs after the event (section 11).
    pub epochs_root: Digest,
    /// Number of epoch pairs, at least 1.
    pub epoch_pairs: u32,
    /// Number of rollbacks and prunes in the log so far, this header included.
    pub admin_sequence: u64,
    /// Number of key changes in the log so far, this header included; `None` in a cluster of
    /// protocol version 2, whose headers do not say it.
    pub key_changes: Option<u32>,
    /// Entry hash of the previous header; all zero in genesis.
    pub previous: Digest,
    /// The event.
    pub body: Body,
}

/// The kind of a header, with the fields of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The ledger begins.
    Genesis(Genesis),
    /// A version was committed.
    Commit,
    /// Versions were rolled back.
    Rollback(Rollback),
    /// Versions were pruned.
    Prune(Prune),
    /// The key that signs checkpoints was changed.
    Key(KeyChange),
    /// Time stamps over an earlier checkpoint were kept.
    Anchor(Anchor),
    /// A kind that this code does not know.
    Other {
        /// Number of the kind: 4, 5, or 8 to 255.
        kind: u8,
        /// The opaque bytes of the body.
        bytes: Vec<u8>,
    },
}

/// Numbers of the kinds that this code knows. A replica of the log can't proceed past a header of a
/// different kind.
pub const KINDS: [u8; 6] = [0, 1, 2, 3, 6, 7];

/// Body of the genesis header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// Origin of the checkpoints without the `/` and the cluster id: UTF-8 of at most
    /// [`PREFIX_BYTES_MAX`] bytes.
    pub prefix: String,
    /// The first Ed25519 key that signs checkpoints.
    pub public_key: [u8; 32],
    /// Limits of the ledger, and parameters that its digests depend on.
    pub params: Params,
    /// The shards of the ledger.
    pub shard_map: ShardMap,
}

/// Body of a rollback: versions above the target no longer stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollback {
    /// The newest version that still stands, by the stamp of its commit.
    pub target: Stamp,
    /// The head before the rollback.
    pub head_before: Stamp,
    /// Name of the party that asked for it, UTF-8 of at most [`PRINCIPAL_BYTES_MAX`] bytes.
    pub principal: String,
    /// Reason for it, UTF-8 of at most [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
}

impl Rollback {
    /// Whether the target is the previous head or lies behind it. An older epoch or a lower version
    /// alone is not enough.
    fn is_backward(&self) -> bool {
        self.target.version <= self.head_before.version && self.target.epoch <= self.head_before.epoch
    }
}

/// Body of a prune: versions below the boundary can no longer be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prune {
    /// The oldest version that is kept.
    pub boundary: Version,
    /// Name of the party that asked for it, UTF-8 of at most [`PRINCIPAL_BYTES_MAX`] bytes.
    pub principal: String,
    /// Reason for it, UTF-8 of at most [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
}

impl Header {
    /// The genesis header of a ledger: sequence 0, version 0, no records.
    ///
    /// # Panics
    /// If there are 2^32 shards or more, which no map has.
    #[must_use]
    pub fn genesis(cluster: ClusterId, timestamp_ms: u64, genesis: Genesis) -> Self {
        let leaves = genesis.shard_map.genesis_leaves();
        Self {
            cluster,
            sequence: Sequence(0),
            stamp: Stamp::default(),
            timestamp_ms,
            state_root: state_root(&leaves),
            state_leaves: u32::try_from(leaves.len()).expect("a shard map has fewer than 2^32 shards"),
            shard_map: genesis.shard_map.hash(),
            journal_root: empty_root(),
            journal_leaves: 0,
            epochs_root: Epochs::new().root(),
            epoch_pairs: 1,
            admin_sequence: 0,
            key_changes: genesis.params.ledgers.then_some(0),
            previous: Digest::default(),
            body: Body::Genesis(genesis),
        }
    }

    /// Number of the kind (section 9).
    #[must_use]
    pub fn kind(&self) -> u8 {
        match &self.body {
            Body::Genesis(_) => 0,
            Body::Commit => 1,
            Body::Rollback(_) => 2,
            Body::Prune(_) => 3,
            Body::Key(_) => 6,
            Body::Anchor(_) => 7,
            Body::Other { kind, .. } => *kind,
        }
    }

    /// Name of the kind (section 9); `unknown` for a number without a name.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self.kind() {
            0 => "genesis",
            1 => "commit",
            2 => "rollback",
            3 => "prune",
            4 => "reshard",
            5 => "config",
            6 => "key",
            7 => "anchor",
            _ => "unknown",
        }
    }

    /// The canonical bytes, which are the entry of the root log.
    ///
    /// # Panics
    /// If they are longer than [`HEADER_BYTES_MAX`]: the caller keeps the limits of the body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(if self.key_changes.is_some() { 2 } else { 1 });
        out.u8(self.kind());
        out.raw(self.cluster.as_bytes());
        out.u64(self.sequence.0);
        out.stamp(self.stamp);
        out.u64(self.timestamp_ms);
        out.digest(&self.state_root);
        out.u32(self.state_leaves);
        out.digest(&self.shard_map);
        out.digest(&self.journal_root);
        out.u32(self.journal_leaves);
        out.digest(&self.epochs_root);
        out.u32(self.epoch_pairs);
        out.u64(self.admin_sequence);
        if let Some(count) = self.key_changes {
            out.u32(count);
        }
        out.digest(&self.previous);
        out.str16(&self.body.encode());
        assert!(out.len() <= HEADER_BYTES_MAX, "a header fits an entry of the log");
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a header, or the header breaks a rule of [`Header::check_alone`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > HEADER_BYTES_MAX {
            return Err(Error::Malformed("header length"));
        }
        let mut input = Reader::new(bytes);
        let counts_keys = match input.u8()? {
            1 => false,
            2 => true,
            _ => return Err(Error::Malformed("header format")),
        };
        let kind = input.u8()?;
        let mut header = Self {
            cluster: ClusterId(input.bytes16()?),
            sequence: Sequence(input.u64()?),
            stamp: input.stamp()?,
            timestamp_ms: input.u64()?,
            state_root: input.digest()?,
            state_leaves: input.u32()?,
            shard_map: input.digest()?,
            journal_root: input.digest()?,
            journal_leaves: input.u32()?,
            epochs_root: input.digest()?,
            epoch_pairs: input.u32()?,
            admin_sequence: input.u64()?,
            key_changes: if counts_keys { Some(input.u32()?) } else { None },
            previous: input.digest()?,
            body: Body::Commit,
        };
        header.body = Body::decode(kind, input.str16()?)?;
        input.finish()?;
        header.check_alone().map_err(|rule| Error::Malformed(rule.0))?;
        Ok(header)
    }

    /// Entry hash of the header: its leaf in the root log.
    ///
    /// # Panics
    /// If its bytes are longer than [`HEADER_BYTES_MAX`].
    #[must_use]
    pub fn hash(&self) -> Digest {
        log_entry_hash(&self.encode())
    }

    /// Checks the rules of section 9 that concern this header alone.
    ///
    /// # Errors
    /// Names the first rule that does not hold.
    pub fn check_alone(&self) -> Result<(), BrokenRule> {
        let eventless = self.journal_root == empty_root() && self.journal_leaves == 0;
        let first = self.sequence == Sequence(0);
        let zero = self.stamp == Stamp::default() && self.previous == Digest::default() && self.admin_sequence == 0;
        let counted = |number: u32| self.key_changes.is_none_or(|count| count == number);
        let rules = [
            ("state leaves", self.state_leaves > 0),
            ("epoch pairs", self.epoch_pairs > 0),
            ("number of key changes", self.key_changes.is_none_or(|count| count as usize <= KEY_CHANGES_MAX)),
            ("journal of a header that is not a commit", eventless || matches!(self.body, Body::Commit)),
            ("admin sequence", !self.is_admin() || self.admin_sequence > 0),
            ("genesis comes first", matches!(self.body, Body::Genesis(_)) == first),
            ("numbers of genesis", !first || zero),
        ];
        check(&rules)?;
        match &self.body {
            Body::Genesis(genesis) => check(&[
                ("shard map of genesis", self.shard_map == genesis.shard_map.hash()),
                ("state leaves of genesis", self.state_leaves as usize == genesis.shard_map.shards().len()),
                // No batch leads to version 0. So it must be empty: otherwise it would prove
                // records that no auditor replays.
                ("state of genesis", self.state_root == state_root(&genesis.shard_map.genesis_leaves())),
                ("epochs of genesis", (self.epochs_root, self.epoch_pairs) == (Epochs::new().root(), 1)),
                ("header format of genesis", self.key_changes == genesis.params.ledgers.then_some(0)),
                ("shards of a cluster with ledgers", !genesis.params.ledgers || genesis.shard_map.fits_ledgers()),
            ]),
            Body::Commit => check(&[("version of a commit", self.stamp.version > Version(0))]),
            Body::Rollback(rollback) => check(&[
                ("target of a rollback", rollback.target.version == self.stamp.version),
                ("epoch of a rollback", rollback.head_before.epoch.0.checked_add(1) == Some(self.stamp.epoch.0)),
                ("target above head", rollback.is_backward()),
            ]),
            Body::Prune(prune) => check(&[("boundary above head", prune.boundary <= self.stamp.version)]),
            Body::Key(change) => {
                check(&[("number of key changes", counted(change.number))])?;
                change.check(&self.cluster)
            }
            Body::Anchor(anchor) => anchor.check(self.sequence),
            Body::Other { .. } => Ok(()),
        }
    }

    /// Checks the rules of section 9 that tie this header to the one before it.
    ///
    /// # Errors
    /// Names the first rule that does not hold.
    ///
    /// # Panics
    /// If the bytes of the previous header are longer than [`HEADER_BYTES_MAX`].
    pub fn check_follows(&self, before: &Self) -> Result<(), BrokenRule> {
        check(&[
            ("cluster", self.cluster == before.cluster),
            ("sequence", before.sequence.0.checked_add(1) == Some(self.sequence.0)),
            ("previous entry", self.previous == before.hash()),
            ("timestamps never decrease", self.timestamp_ms >= before.timestamp_ms),
            (
                "admin sequence",
                before.admin_sequence.checked_add(u64::from(self.is_admin())) == Some(self.admin_sequence),
            ),
            ("number of key changes", self.key_changes == before.key_changes_until(&self.body)),
        ])?;
        let same_epochs = (self.epochs_root, self.epoch_pairs) == (before.epochs_root, before.epoch_pairs);
        let same_shards = (self.shard_map, self.state_leaves) == (before.shard_map, before.state_leaves);
        match &self.body {
            Body::Genesis(_) => Err(BrokenRule("genesis comes first")),
            Body::Commit => check(&[
                ("epoch of a commit", self.stamp.epoch == before.stamp.epoch && same_epochs),
                ("version of a commit", before.stamp.version.0.checked_add(1) == Some(self.stamp.version.0)),
                ("shards of a commit", same_shards),
            ]),
            Body::Rollback(rollback) => check(&[("head before a rollback", rollback.head_before == before.stamp)]),
            Body::Prune(_) => check(&[
                ("state of a prune", self.stamp == before.stamp && self.state_root == before.state_root),
                ("shards and epochs of a prune", same_shards && same_epochs),
            ]),
            Body::Key(_) => check(&[
                ("state of a key change", self.stamp == before.stamp && self.state_root == before.state_root),
                ("shards and epochs of a key change", same_shards && same_epochs),
            ]),
            Body::Anchor(_) => check(&[
                ("state of an anchor", self.stamp == before.stamp && self.state_root == before.state_root),
                ("shards and epochs of an anchor", same_shards && same_epochs),
            ]),
            // Only commits and rollbacks move the head; a header of an unknown kind never does.
            Body::Other { .. } => check(&[
                ("state of an unknown kind", self.stamp == before.stamp && self.state_root == before.state_root),
                ("shards and epochs of an unknown kind", same_shards && same_epochs),
            ]),
        }
    }

    /// Number of key changes that the header behind this one names, if its body is `next`.
    ///
    /// # Panics
    /// If there are 2^32 key changes; a ledger has at most 256.
    #[must_use]
    pub fn key_changes_until(&self, next: &Body) -> Option<u32> {
        let more = u32::from(matches!(next, Body::Key(_)));
        self.key_changes.map(|count| count.checked_add(more).expect("a ledger changes its key a few times"))
    }

    /// Whether the admin sequence counts this header.
    fn is_admin(&self) -> bool {
        matches!(self.body, Body::Rollback(_) | Body::Prune(_))
    }
}

impl Body {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Genesis(genesis) => {
                out.str16(genesis.prefix.as_bytes());
                out.str16(&genesis.public_key);
                genesis.params.encode(&mut out);
                out.str16(&genesis.shard_map.encode());
            }
            Self::Commit => {}
            Self::Rollback(rollback) => {
                out.stamp(rollback.target);
                out.stamp(rollback.head_before);
                out.str16(rollback.principal.as_bytes());
                out.str16(rollback.reason.as_bytes());
            }
            Self::Prune(prune) => {
                out.u64(prune.boundary.0);
                out.str16(prune.principal.as_bytes());
                out.str16(prune.reason.as_bytes());
            }
            Self::Key(change) => change.encode(&mut out),
            Self::Anchor(anchor) => anchor.encode(&mut out),
            Self::Other { bytes, .. } => out.raw(bytes),
        }
        out.into_bytes()
    }

    fn decode(kind: u8, bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        let body = match kind {
            0 => Self::Genesis(Genesis {
                prefix: read_text(&mut input, PREFIX_BYTES_MAX, "origin prefix")?,
                public_key: input.str16()?.try_into().map_err(|_| Error::Malformed("public key length"))?,
                params: Params::decode(&mut input)?,
                shard_map: ShardMap::decode(input.str16()?)?,
            }),
            1 => Self::Commit,
            2 => Self::Rollback(Rollback {
                target: input.stamp()?,
                head_before: input.stamp()?,
                principal: read_text(&mut input, PRINCIPAL_BYTES_MAX, "principal")?,
                reason: read_text(&mut input, REASON_BYTES_MAX, "reason")?,
            }),
            3 => Self::Prune(Prune {
                boundary: Version(input.u64()?),
                principal: read_text(&mut input, PRINCIPAL_BYTES_MAX, "principal")?,
                reason: read_text(&mut input, REASON_BYTES_MAX, "reason")?,
            }),
            6 => Self::Key(KeyChange::decode(&mut input)?),
            7 => Self::Anchor(Anchor::decode(&mut input)?),
            _ => return Ok(Self::Other { kind, bytes: bytes.to_vec() }),
        };
        input.finish()?;
        Ok(body)
    }
}

#[cfg(test)]
mod tests;
