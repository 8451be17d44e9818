//! Newtypes for every number and name that has a meaning of its own.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The next number.
            ///
            /// # Panics
            /// On overflow, which no counter of a ledger reaches.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("counters never reach their maximum"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The number of a committed state: cluster-wide and without gaps. A blockchain's block height.
    Version(u64)
);
number!(
    /// A number that every rollback raises, so that (epoch, version) never names two states.
    Epoch(u64)
);
number!(
    /// The index of a header in the root log.
    Sequence(u64)
);
number!(
    /// The number of a leadership, allotted by the root group.
    Term(u64)
);
number!(
    /// The name of a shard. It is never used again.
    ShardId(u32)
);

/// The name of a state: (epoch, version).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The epoch in which the version was committed.
    pub epoch: Epoch,
    /// The version.
    pub version: Version,
}

impl Stamp {
    /// A stamp of plain numbers, epoch first.
    #[must_use]
    pub const fn new(epoch: u64, version: u64) -> Self {
        Self { epoch: Epoch(epoch), version: Version(version) }
    }
}

/// `EPOCH.VERSION`, as commands read and print it.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.version)
    }
}

/// Reads the text that `Display` writes.
impl core::str::FromStr for Stamp {
    type Err = ParseStamp;

    fn from_str(text: &str) -> Result<Self, ParseStamp> {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (epoch, version) = text.split_once('.').filter(|(e, v)| digits(e) && digits(v)).ok_or(ParseStamp)?;
        let number = |text: &str| text.parse().map_err(|_| ParseStamp);
        Ok(Self::new(number(epoch)?, number(version)?))
    }
}

/// The text is not `EPOCH.VERSION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseStamp;

impl fmt::Display for ParseStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not EPOCH.VERSION, as in 0.17")
    }
}

impl core::error::Error for ParseStamp {}

/// A raft group: the root group or one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupId {
    /// The root group; number 0 on the wire.
    Root,
    /// The group of a shard; its number on the wire is the shard id + 1.
    Shard(ShardId),
}

impl GroupId {
    /// The group's number on the wire and in directory names.
    ///
    /// # Panics
    /// For the shard id `u32::MAX`, which is never allotted.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Root => 0,
            Self::Shard(shard) => shard.next().0,
        }
    }

    /// The group with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        match number.checked_sub(1) {
            None => Self::Root,
            Some(shard) => Self::Shard(ShardId(shard)),
        }
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::Shard(shard) => write!(f, "shard-{shard}"),
        }
    }
}

macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident($len:literal)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Reads a slice of exactly the right length; `None` for any other length.
            #[must_use]
            pub fn from_slice(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }

            /// Returns the bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

bytes!(
    /// A SHA-256 hash.
    Digest(32)
);
bytes!(
    /// The name of a cluster: 16 random bytes.
    ClusterId(16)
);
bytes!(
    /// The name of a client's session: 16 bytes that the client chooses.
    SessionId(16)
);
bytes!(
    /// The name of a pin: 16 bytes that the client chooses.
    PinId(16)
);
bytes!(
    /// The name of a ledger of members, derived from the request that founds it.
    LedgerId(16)
);

impl LedgerId {
    /// Whether the ledger's records are spread over all shards. Those of a compact ledger lie side
    /// by side.
    #[must_use]
    pub const fn is_spread(&self) -> bool {
        self.0[15] & 1 == 1
    }
}

bytes!(
    /// The name of a member or agent in a ledger, derived from its readable name.
    MemberId(16)
);
