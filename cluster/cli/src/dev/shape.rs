//! The shape of a development cluster: what is chosen at the first start and holds from then on.

use coppice_types::Params;
use coppice_verify::shard_map::ShardMap;
use serde::{Deserialize, Serialize};

use crate::{args, failure::Failure, text};

/// What is chosen at the first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Version of this record.
    pub format: u32,
    /// Replicas of each group.
    pub replicas: u32,
    /// Records at which a partition is frozen.
    pub partition_capacity: u32,
    /// The keys at which shards begin, but for the first, in hex.
    pub splits: Vec<String>,
    /// Shards keep each version's operation lists.
    #[serde(default)]
    pub journals_kept: bool,
}

/// What the command line asks for; nothing of it needs to be given.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Number of shards.
    pub shards: Option<u32>,
    /// The keys at which shards begin, but for the first.
    pub splits: Vec<Vec<u8>>,
    /// Replicas of each group.
    pub replicas: Option<u32>,
    /// Records at which a partition is frozen.
    pub partition_capacity: Option<u32>,
    /// Shards keep each version's operation lists.
    pub journals_kept: bool,
}

impl Wanted {
    /// As the command line says.
    ///
    /// # Errors
    /// If a key cannot be read.
    pub fn parse(args: &args::Dev) -> Result<Self, Failure> {
        let mut splits = args.split.iter().map(|split| text::parse_key(split)).collect::<Result<Vec<_>, _>>()?;
        splits.sort_unstable();
        if splits.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Failure::usage("two --split keys are the same"));
        }
        Ok(Self {
            shards: args.shards,
            splits,
            replicas: args.replicas,
            partition_capacity: args.partition_capacity,
            journals_kept: args.journals,
        })
    }

    fn splits(&self) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        match (self.shards, self.splits.len()) {
            (None, 0) => Ok(None),
            (Some(shards), 0) => Ok(Some(text_splits(shards))),
            (Some(shards), splits) if shards as usize != splits + 1 => {
                let message = format!("{splits} --split keys make {} shards, not {shards}", splits + 1);
                Err(Failure::usage(message).hint("Leave --shards out, or give one --split less than shards."))
            }
            _ => Ok(Some(self.splits.clone())),
        }
    }

    /// The shape of a new cluster.
    ///
    /// # Errors
    /// If what is asked for contradicts itself.
    pub fn shape(&self) -> Result<Shape, Failure> {
        let splits = self.splits()?.unwrap_or_else(|| text_splits(2));
        let shape = Shape {
            format: 1,
            replicas: self.replicas.unwrap_or(3),
            partition_capacity: self.partition_capacity.unwrap_or(Params::default().capacity),
            splits: splits.iter().map(hex::encode).collect(),
            journals_kept: self.journals_kept,
        };
        shape.params().check().map_err(|error| Failure::usage(error.to_string()))?;
        shape.shard_map()?;
        Ok(shape)
    }

    /// Checks that what is asked for is what there is.
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
        if self.journals_kept && !stored.journals_kept {
            return refuse("no journals", "(false)".to_owned(), "--journals".to_owned());
        }
        Ok(())
    }
}

impl Shape {
    /// Limits and digest parameters of the genesis header.
    #[must_use]
    pub fn params(&self) -> Params {
        Params { capacity: self.partition_capacity, journals_kept: self.journals_kept, ..Params::default() }
    }

    /// The first shards.
    ///
    /// # Errors
    /// If the split keys are no such.
    pub fn shard_map(&self) -> Result<ShardMap, Failure> {
        let splits = self.splits.iter().map(|split| text::parse_hex(split)).collect::<Result<Vec<_>, _>>()?;
        ShardMap::from_splits(&splits).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Number of small letters.
const LETTERS: u32 = 26;

/// Splits that part keys of text: the small letters in even parts, by the first two of them. Bytes in even parts would leave
/// all text to one or two shards. At most 64 shards: so no two splits are the same.
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
    fn defaults_are_two_shards_of_text_of_three_replicas() {
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
    fn what_contradicts_itself_or_the_stored_shape_is_refused() {
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
        ];
        for other in others {
            assert!(other.check(&stored).is_err(), "{other:?}");
        }
    }
}
