//! The shape of a development cluster: choices that are made at the first start and hold from then
//! on.

use coppice_process::ledger::splits_of;
use coppice_types::Params;
use coppice_verify::shard_map::ShardMap;
use serde::{Deserialize, Serialize};

use crate::{args, bytes, failure::Failure};

/// The choices of the first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Version of this record's format.
    pub format: u32,
    /// Replicas of each group.
    pub replicas: u32,
    /// Number of records at which a partition is frozen.
    pub partition_capacity: u32,
    /// The keys at which shards begin, except the first shard, in hex.
    pub splits: Vec<String>,
    /// Whether shards keep each version's operation lists.
    #[serde(default)]
    pub journals_kept: bool,
    /// Whether the cluster keeps ledgers of members.
    #[serde(default)]
    pub ledgers: bool,
}

/// The shape that the command line asks for; every part is optional.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Number of shards.
    pub shards: Option<u32>,
    /// The keys at which shards begin, except the first shard.
    pub splits: Vec<Vec<u8>>,
    /// Replicas of each group.
    pub replicas: Option<u32>,
    /// Number of records at which a partition is frozen.
    pub partition_capacity: Option<u32>,
    /// Whether shards keep each version's operation lists.
    pub journals_kept: bool,
    /// Whether the cluster keeps ledgers of members, and with them journals.
    pub ledgers: bool,
}

impl Wanted {
    /// Reads the options of the command line.
    pub fn parse(args: &args::Dev) -> Result<Self, Failure> {
        let mut splits = args.split.iter().map(|split| bytes::parse_key(split)).collect::<Result<Vec<_>, _>>()?;
        splits.sort_unstable();
        if splits.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Failure::usage("two --split keys are the same"));
        }
        Ok(Self {
            shards: args.shards,
            splits,
            replicas: args.replicas,
            partition_capacity: args.partition_capacity,
            journals_kept: args.journals || args.ledgers,
            ledgers: args.ledgers,
        })
    }

    fn splits(&self) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        match (self.shards, self.splits.len()) {
            (None, 0) => Ok(None),
            (Some(shards), 0) => Ok(Some(splits_of(shards, self.ledgers, text_splits))),
            (Some(shards), splits) if shards as usize != splits + 1 => {
                let message = format!("{splits} --split keys make {} shards, not {shards}", splits + 1);
                Err(Failure::usage(message).hint("Leave --shards out, or give one --split fewer than shards."))
            }
            _ => Ok(Some(self.splits.clone())),
        }
    }

    /// The shape of a new cluster.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn shape(&self) -> Result<Shape, Failure> {
        let splits = self.splits()?.unwrap_or_else(|| splits_of(2, self.ledgers, text_splits));
        let shape = Shape {
            format: 1,
            replicas: self.replicas.unwrap_or(3),
            partition_capacity: self.partition_capacity.unwrap_or(Params::default().capacity),
            splits: splits.iter().map(hex::encode).collect(),
            journals_kept: self.journals_kept,
            ledgers: self.ledgers,
        };
        shape.params().check().map_err(|error| Failure::usage(error.to_string()))?;
        shape.shard_map()?;
        Ok(shape)
    }

    /// Checks the options against an existing shape.
    ///
    /// # Errors
    /// Names the first difference.
    pub fn check(&self, stored: &Shape) -> Result<(), Failure> {
        let refuse = |what: &str, has: String, wanted: String| {
            let failure = Failure::usage(format!("the data directory has {what} {has}, not {wanted}"));
            Err(failure
                .hint("The shape is chosen at the first start: leave the option out, or use another --data-dir."))
        };
        if let Some(splits) = self.splits()? {
            let splits: Vec<String> = splits.iter().map(hex::encode).collect();
            if splits != stored.splits {
                return refuse("the split keys (in hex)", format!("{:?}", stored.splits), format!("{splits:?}"));
            }
        }
        if let Some(replicas) = self.replicas.filter(|replicas| *replicas != stored.replicas) {
            return refuse("--replicas", stored.replicas.to_string(), replicas.to_string());
        }
        if let Some(capacity) = self.partition_capacity.filter(|capacity| *capacity != stored.partition_capacity) {
            return refuse("--partition-capacity", stored.partition_capacity.to_string(), capacity.to_string());
        }
        if self.ledgers && !stored.ledgers {
            return refuse("--ledgers", "off".to_owned(), "on".to_owned());
        }
        if self.journals_kept && !stored.journals_kept {
            return refuse("--journals", "off".to_owned(), "on".to_owned());
        }
        Ok(())
    }
}

impl Shape {
    /// Limits and digest parameters of the genesis header.
    #[must_use]
    pub fn params(&self) -> Params {
        let (capacity, journals_kept, ledgers) = (self.partition_capacity, self.journals_kept, self.ledgers);
        Params { capacity, journals_kept, ledgers, ..Params::default() }
    }

    /// The shards of the genesis header.
    ///
    /// # Errors
    /// If the split keys are malformed.
    pub fn shard_map(&self) -> Result<ShardMap, Failure> {
        let splits = self.splits.iter().map(|split| bytes::parse_hex(split)).collect::<Result<Vec<_>, _>>()?;
        ShardMap::from_splits(&splits).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Number of lower-case letters.
const LETTERS: u32 = 26;

/// Keys that divide texts evenly: the lower-case letters in even parts, by the first two of them.
/// An even division of the bytes would put all texts into one or two shards. There are at most 64
/// shards, so no two splits are equal.
fn text_splits(shards: u32) -> Vec<Vec<u8>> {
    let letter = |index: u32| b'a' + u8::try_from(index % LETTERS).expect("below the number of letters");
    let at = |index: u32| {
        let place = index * LETTERS * LETTERS / shards;
        match (letter(place / LETTERS), letter(place)) {
            (first, b'a') => vec![first],
            (first, second) => vec![first, second],
        }
    };
    (1..shards).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_two_shards_of_text_with_three_replicas() {
        let shape = Wanted::default().shape().expect("the defaults hold");
        assert_eq!(
            (shape.replicas, shape.partition_capacity, shape.splits.clone()),
            (3, 81_920, vec![hex::encode("n")])
        );
        assert_eq!(shape.shard_map().expect("one split").shards().len(), 2);
        assert_eq!(text_splits(4), [&b"gn"[..], b"n", b"tn"]);
        assert!(text_splits(1).is_empty());
        for shards in 1..=64 {
            let splits = text_splits(shards);
            assert_eq!(splits.len() + 1, shards as usize);
            assert!(splits.windows(2).all(|pair| pair[0] < pair[1]), "{splits:?}");
        }
    }

    #[test]
    fn ledgers_get_half_of_the_shards() {
        let hex = |shards| {
            let wanted = Wanted { shards: Some(shards), ledgers: true, journals_kept: true, ..Wanted::default() };
            let shape = wanted.shape().expect("it holds");
            assert!(shape.shard_map().expect("the splits ascend").fits_ledgers());
            shape.splits
        };
        assert!(hex(1).is_empty());
        assert_eq!(hex(2), ["01"]);
        assert_eq!(hex(4), ["0080".to_owned(), "01".to_owned(), hex::encode("n")]);
        assert_eq!(hex(64).len(), 63);
    }

    #[test]
    fn a_shape_that_contradicts_itself_or_the_stored_one_is_refused() {
        let wanted = |shards, splits: &[&str]| Wanted {
            shards,
            splits: splits.iter().map(|split| split.as_bytes().to_vec()).collect(),
            ..Wanted::default()
        };
        assert!(wanted(Some(2), &["a", "b"]).shape().is_err());
        assert!(wanted(Some(3), &["a", "b"]).shape().is_ok());
        assert!(Wanted { partition_capacity: Some(2), ..Wanted::default() }.shape().is_err());
        let stored = wanted(None, &["m"]).shape().expect("one split");
        for fine in [Wanted::default(), wanted(Some(2), &["m"]), Wanted { replicas: Some(3), ..Wanted::default() }] {
            assert!(fine.check(&stored).is_ok(), "{fine:?}");
        }
        let others = [
            wanted(Some(2), &[]),
            wanted(None, &["n"]),
            Wanted { replicas: Some(1), ..Wanted::default() },
            Wanted { partition_capacity: Some(128), ..Wanted::default() },
            Wanted { journals_kept: true, ..Wanted::default() },
            Wanted { ledgers: true, ..Wanted::default() },
        ];
        for other in others {
            assert!(other.check(&stored).is_err(), "{other:?}");
        }
    }
}
