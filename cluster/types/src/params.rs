//! The parameters of the genesis header: limits, and everything that digests depend on.

use core::fmt;

use crate::codec::{Error, Reader, Writer};

/// Limits and digest parameters (`docs/verification.md` section 9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Largest key, in bytes.
    pub key_bytes_max: u32,
    /// Largest value, in bytes.
    pub value_bytes_max: u32,
    /// Largest batch: the sum of its keys, values and metadata, in bytes.
    pub batch_bytes_max: u32,
    /// Largest gRPC message, in bytes.
    pub message_bytes_max: u32,
    /// Number of a session's last numbers that are remembered.
    pub session_window: u32,
    /// Number of entries at which the active tree is frozen.
    pub capacity: u32,
    /// Most entries of a node.
    pub fanout: u16,
    /// Weight at which a node is split.
    pub node_bytes: u32,
    /// Largest value that is stored in its leaf, in bytes. A record's weight counts its length.
    pub inline_bytes: u32,
    /// Filter bits per entry.
    pub filter_bits: u16,
    /// Most trees of one shard.
    pub tree_limit: u8,
    /// Largest ratio between the sizes of a tree and the next younger one.
    pub tier_ratio: u8,
    /// Whether shards keep the operation lists of batches.
    pub journals_kept: bool,
    /// Whether the cluster holds ledgers of members (section 18). Then it follows version 3 of the
    /// protocol, otherwise version 2.
    pub ledgers: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            key_bytes_max: 512,
            value_bytes_max: 1 << 20,
            batch_bytes_max: 8 << 20,
            message_bytes_max: 12 << 20,
            session_window: 1024,
            capacity: 80 << 10,
            fanout: 64,
            node_bytes: 4032,
            inline_bytes: 128,
            filter_bits: 10,
            tree_limit: 4,
            tier_ratio: 8,
            journals_kept: false,
            ledgers: false,
        }
    }
}

const OTHER_PROTOCOL: &str = "protocol version: this build follows only versions 2 and 3. Read the ledger with a build of its own version, and load the data to keep into a new ledger";

/// The parameter that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParams(pub &'static str);

impl fmt::Display for InvalidParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "genesis parameter out of range: {}", self.0)
    }
}

impl core::error::Error for InvalidParams {}

impl Params {
    /// The version of the protocol that the cluster follows.
    #[must_use]
    pub fn protocol_version(&self) -> u32 {
        if self.ledgers { 3 } else { 2 }
    }

    /// The least weight of a node's entry. It keeps a node from having more than `fanout` entries.
    #[must_use]
    pub fn entry_weight_min(&self) -> u32 {
        self.node_bytes.div_ceil(u32::from(self.fanout))
    }

    /// Checks that the protocol works with these parameters.
    ///
    /// # Errors
    /// Names the first parameter that is out of its range.
    pub fn check(&self) -> Result<(), InvalidParams> {
        let ranges = [
            ("key_bytes_max", (1..=512).contains(&self.key_bytes_max)),
            ("value_bytes_max", (1..=16 << 20).contains(&self.value_bytes_max)),
            ("batch_bytes_max", (self.value_bytes_max..=64 << 20).contains(&self.batch_bytes_max)),
            ("message_bytes_max", (self.batch_bytes_max..=96 << 20).contains(&self.message_bytes_max)),
            ("session_window", (1..=65_536).contains(&self.session_window)),
            ("capacity", (8..=1 << 28).contains(&self.capacity)),
            ("fanout", (4..=1024).contains(&self.fanout)),
            ("node_bytes", (self.key_bytes_max.saturating_add(72).saturating_mul(4)..=8192).contains(&self.node_bytes)),
            ("inline_bytes", self.inline_bytes <= 1024),
            ("filter_bits", (4..=32).contains(&self.filter_bits)),
            ("tree_limit", (3..=16).contains(&self.tree_limit)),
            ("tier_ratio", (2..=64).contains(&self.tier_ratio)),
            ("ledgers without journals_kept", !self.ledgers || self.journals_kept),
            ("ledgers with key_bytes_max below 256", !self.ledgers || self.key_bytes_max >= 256),
            ("ledgers with value_bytes_max below 65536", !self.ledgers || self.value_bytes_max >= 64 << 10),
            ("ledgers with inline_bytes above 128", !self.ledgers || self.inline_bytes <= 128),
        ];
        match ranges.iter().find(|(_, valid)| !valid) {
            Some((name, _)) => Err(InvalidParams(name)),
            None => Ok(()),
        }
    }

    /// Appends the canonical encoding.
    pub fn encode(&self, out: &mut Writer) {
        out.u8(if self.ledgers { 2 } else { 1 });
        out.u32(self.protocol_version());
        out.u32(self.key_bytes_max);
        out.u32(self.value_bytes_max);
        out.u32(self.batch_bytes_max);
        out.u32(self.message_bytes_max);
        out.u32(self.session_window);
        out.u32(self.capacity);
        out.u16(self.fanout);
        out.u32(self.node_bytes);
        out.u32(self.inline_bytes);
        out.u16(self.filter_bits);
        out.u8(self.tree_limit);
        out.u8(self.tier_ratio);
        out.flag(self.journals_kept);
    }

    /// Reads what `encode` wrote, and checks it.
    ///
    /// # Errors
    /// If the bytes are not parameters, have a different protocol version, or are out of range.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let ledgers = match input.u8()? {
            1 => false,
            2 => true,
            _ => return Err(Error::Malformed("parameter format")),
        };
        if input.u32()? != (Self { ledgers, ..Self::default() }).protocol_version() {
            return Err(Error::Malformed(OTHER_PROTOCOL));
        }
        let params = Self {
            key_bytes_max: input.u32()?,
            value_bytes_max: input.u32()?,
            batch_bytes_max: input.u32()?,
            message_bytes_max: input.u32()?,
            session_window: input.u32()?,
            capacity: input.u32()?,
            fanout: input.u16()?,
            node_bytes: input.u32()?,
            inline_bytes: input.u32()?,
            filter_bits: input.u16()?,
            tree_limit: input.u8()?,
            tier_ratio: input.u8()?,
            journals_kept: input.flag("journals kept")?,
            ledgers,
        };
        params.check().map_err(|error| Error::Malformed(error.0))?;
        Ok(params)
    }
}
