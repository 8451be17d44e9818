//! The settings that all processes of a cluster share: its nodes, and the founding of its ledger.

use std::collections::{BTreeMap, BTreeSet};

use coppice_types::{ClusterId, Digest, Params, codec::Writer};
use coppice_verify::{hash::sha256, ledgers::RESERVED_END, shard_map::ShardMap};
use serde::{Deserialize, Serialize};

use crate::{Failure, net::check_address};

/// Longest name of a process, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// The nodes of a cluster by name.
pub type Nodes = BTreeMap<String, Node>;

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The node's number in the cluster, from 1. It is never given to another node.
    pub ordinal: u32,
    /// `HOST:PORT` where other processes reach it.
    pub address: String,
    /// Whether the node hosts readers: a copy of every shard, which serves reads and never votes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reader: bool,
    /// The zone that the node is in, for coordinators that prefer their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

fn is_false(it: &bool) -> bool {
    !it
}

/// The ordinals of the nodes that host readers.
#[must_use]
pub fn readers(nodes: &Nodes) -> BTreeSet<u32> {
    nodes.values().filter(|node| node.reader).map(|node| node.ordinal).collect()
}

/// Checks the name of a process. `setting` is the key that holds it.
///
/// # Errors
/// If the name is empty or too long.
pub fn check_name(setting: &str, name: &str) -> Result<(), Failure> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Failure::usage(format!("{setting}: the name {name:?} must have 1 to {NAME_BYTES_MAX} bytes")))
}

/// Checks the table of nodes.
///
/// # Errors
/// If it is empty or has only readers, or two nodes share an ordinal or an address.
pub fn check_nodes(nodes: &Nodes) -> Result<(), Failure> {
    let wrong = |message: String| Err(Failure::usage(format!("nodes: {message}")));
    if nodes.is_empty() {
        return wrong("no node is named; [nodes.node-1] with ordinal and address names the first".to_owned());
    }
    let mut ordinals = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for (name, node) in nodes {
        check_name("nodes", name)?;
        if node.ordinal == 0 {
            return wrong(format!("{name} has ordinal 0; ordinals count from 1"));
        }
        if let Some(other) = ordinals.insert(node.ordinal, name) {
            return wrong(format!("{other} and {name} have the same ordinal {}", node.ordinal));
        }
        if let Some(other) = addresses.insert(&node.address, name) {
            return wrong(format!("{other} and {name} have the same address {}", node.address));
        }
        check_address(&node.address).map_err(|error| Failure::usage(format!("nodes: {name}: {error}")))?;
        node.zone.as_ref().map_or(Ok(()), |zone| check_name("nodes: zone", zone))?;
    }
    if nodes.values().all(|node| node.reader) {
        return wrong("all of them are readers, which never vote".to_owned());
    }
    Ok(())
}

/// The founding of a new ledger. All processes must have the same settings, and the settings can
/// never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ledger {
    /// Number of shards, used if `splits` is empty. Keys are split evenly by their first byte.
    pub shards: u32,
    /// The ascending keys at which shards begin, except for the first shard: text, or hex after
    /// `0x`.
    pub splits: Vec<String>,
    /// Number of records at which a partition is frozen.
    pub capacity: u32,
    /// Whether shards keep the operation lists of batches, for auditors.
    pub journals_kept: bool,
    /// Whether the cluster keeps ledgers of members. Then `journals_kept` is on, and half of the
    /// shards hold these ledgers.
    pub ledgers: bool,
}

impl Default for Ledger {
    fn default() -> Self {
        let Params { capacity, journals_kept, ledgers, .. } = Params::default();
        Self { shards: 2, splits: Vec::new(), capacity, journals_kept, ledgers }
    }
}

/// Most shards of a new ledger.
const SHARDS_MAX: u32 = 64;

impl Ledger {
    /// The limits and digest parameters.
    ///
    /// # Errors
    /// If one is out of its range.
    pub fn params(&self) -> Result<Params, Failure> {
        let (capacity, ledgers) = (self.capacity, self.ledgers);
        let journals_kept = self.journals_kept || ledgers;
        let params = Params { capacity, journals_kept, ledgers, ..Params::default() };
        params.check().map_err(|error| Failure::usage(format!("ledger: {error}")))?;
        Ok(params)
    }

    /// The first shard map.
    ///
    /// # Errors
    /// If the splits are not ascending keys.
    pub fn shard_map(&self) -> Result<ShardMap, Failure> {
        let splits = if self.splits.is_empty() {
            if !(1..=SHARDS_MAX).contains(&self.shards) {
                return Err(Failure::usage(format!("ledger: shards = {} is not 1 to {SHARDS_MAX}", self.shards)));
            }
            splits_of(self.shards, self.ledgers, even_splits)
        } else {
            self.splits.iter().map(|split| parse_key(split)).collect::<Result<Vec<_>, _>>()?
        };
        ShardMap::from_splits(&splits).map_err(|error| Failure::usage(format!("ledger: splits: {error}")))
    }

    /// A digest of the parameters and the first shards. It is the same in all processes of a
    /// cluster.
    ///
    /// # Errors
    /// If the parameters or the splits are wrong.
    pub fn digest(&self) -> Result<Digest, Failure> {
        Ok(digest(&self.params()?, &self.shard_map()?))
    }
}

/// A digest of the parameters and the first shards of a ledger.
#[must_use]
pub fn digest(params: &Params, shard_map: &ShardMap) -> Digest {
    let mut out = Writer::new();
    params.encode(&mut out);
    out.raw(&shard_map.encode());
    sha256(&out.into_bytes())
}

/// Reads a cluster id in hex.
///
/// # Errors
/// If it does not have 32 digits.
pub fn parse_cluster(text: &str) -> Result<ClusterId, Failure> {
    let id = hex::decode(text).ok().and_then(|bytes| ClusterId::from_slice(&bytes));
    id.ok_or_else(|| {
        Failure::usage(format!("cluster_id = {text:?}: not 32 hex digits"))
            .hint("It stands at the end of the name of the signing key, which `coppice keygen` makes.")
    })
}

fn parse_key(text: &str) -> Result<Vec<u8>, Failure> {
    match text.strip_prefix("0x") {
        Some(digits) => hex::decode(digits).map_err(|_| Failure::usage(format!("ledger: splits: {text}: not hex"))),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// The keys at which the shards of a new ledger begin, except the first one. `even` divides the
/// keys of clients. With ledgers of members, the first half of the shards holds those.
pub fn splits_of(shards: u32, ledgers: bool, even: impl Fn(u32) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if !ledgers || shards < 2 {
        return even(shards);
    }
    let of_ledgers = shards.div_ceil(2);
    // Reserved keys are spread by their second byte.
    let mut splits: Vec<Vec<u8>> =
        even_splits(of_ledgers).into_iter().map(|split| [&[0], &split[..]].concat()).collect();
    splits.push(RESERVED_END.to_vec());
    splits.extend(even(shards - of_ledgers));
    splits
}

/// Splits by the first byte, as evenly as possible.
fn even_splits(shards: u32) -> Vec<Vec<u8>> {
    let at = |index: u32| u8::try_from(index * 256 / shards).expect("the index is below the number of shards");
    (1..shards).map(|index| vec![at(index)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ordinal: u32, address: &str) -> Node {
        Node { ordinal, address: address.to_owned(), ..Node::default() }
    }

    fn nodes(list: &[(&str, u32, &str)]) -> Nodes {
        list.iter().map(|&(name, ordinal, address)| (name.to_owned(), node(ordinal, address))).collect()
    }

    #[test]
    fn nodes_have_ordinals_and_addresses_of_their_own() {
        assert!(check_nodes(&nodes(&[("a", 1, "h:1"), ("b", 2, "h:2"), ("c", 3, "[::1]:2")])).is_ok());
        let wrong = [
            nodes(&[]),
            nodes(&[("a", 0, "h:1")]),
            nodes(&[("a", 1, "h:1"), ("b", 1, "h:2")]),
            nodes(&[("a", 1, "h:1"), ("b", 2, "h:1")]),
            nodes(&[("a", 1, "h")]),
            nodes(&[("a", 1, "http://h:1")]),
        ];
        for nodes in wrong {
            assert!(check_nodes(&nodes).is_err(), "{nodes:?}");
        }
    }

    #[test]
    fn a_cluster_has_voters_besides_its_readers_and_zones_have_names() {
        let with = |reader: bool, zone: &str| {
            let reader = Node { reader, zone: Some(zone.to_owned()), ..node(7, "h:7") };
            Nodes::from([("a".to_owned(), Node { reader: true, ..node(1, "h:1") }), ("b".to_owned(), reader)])
        };
        assert!(check_nodes(&with(false, "here")).is_ok());
        assert_eq!(readers(&with(false, "here")), [1].into());
        let message = |nodes: &Nodes| check_nodes(nodes).expect_err("it is wrong").message;
        assert!(message(&with(true, "here")).contains("readers"));
        assert!(message(&with(false, "")).contains("zone"));
    }

    #[test]
    fn a_ledger_is_the_same_by_its_keys_however_they_are_written() {
        let digest = |ledger: Ledger| ledger.digest().expect("a ledger");
        let even = digest(Ledger::default());
        assert_eq!(even, digest(Ledger { shards: 9, splits: vec!["0x80".to_owned()], ..Ledger::default() }));
        assert_ne!(even, digest(Ledger { shards: 3, ..Ledger::default() }));
        assert_ne!(even, digest(Ledger { capacity: 128, ..Ledger::default() }));
        let ascii = Ledger { splits: vec!["m".to_owned()], ..Ledger::default() };
        assert_eq!(digest(ascii), digest(Ledger { splits: vec!["0x6d".to_owned()], ..Ledger::default() }));
        for bad in [
            Ledger { shards: 0, ..Ledger::default() },
            Ledger { capacity: 1, ..Ledger::default() },
            Ledger { splits: vec!["b".to_owned(), "a".to_owned()], ..Ledger::default() },
            Ledger { splits: vec!["0xq".to_owned()], ..Ledger::default() },
        ] {
            assert!(bad.digest().is_err(), "{bad:?}");
        }
        assert!(parse_cluster("00ff").is_err());
        assert_eq!(parse_cluster(&"0f".repeat(16)).expect("an id").0, [15; 16]);
    }
}
