//! Requests of members: their bounds and shards on the way in, and their part of a version.
//!
//! The rules of a request, and the records that follow from it, are those of
//! [`coppice_verify::ledgers::Round`]. Here the records are routed to shards.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use bytes::Bytes;
use coppice_env::bug::{Bug, planted};
use coppice_proto::v1;
use coppice_types::{Change, ClusterId, Digest, Operation, Params, Reason, ShardId};
use coppice_verify::{
    hash,
    journal::{AppendEntry, Entry, HeadEntry},
    ledgers::{
        self, Action, Appended, Checked, Closed, Content, Envelope, Item, Leaf, LeafClue, RESERVED_END, cell_key,
        head_key, name_key,
    },
};

use super::{
    map::Leaves,
    refusal::Refusal,
    request::{Put, Request, Write, limit, list_hash},
};

/// Bytes that a journal adds to a prepare, beside its envelope and clues: keys, leaf, kept
/// operations and its share of tiles.
const JOURNAL_BYTES: u64 = 640;
/// Bytes that a clue adds: its place in the leaf, its cell and its record.
const CLUE_BYTES: u64 = 480;
/// Bytes that a request adds: the ledger's head, and the records of author and signer.
const REQUEST_BYTES: u64 = 16 << 10;
/// Bytes that a grant or a change of a member adds: the member's record, and that of its key.
const MEMBER_BYTES: u64 = 4 << 10;
/// Bytes that a journal of an order adds: its mark, and its share of kept operations.
const TARGET_BYTES: u64 = 160;

/// Checks the form of a member's request. Its signature is not looked at.
///
/// # Errors
/// `INVALID_ARGUMENT` for a request that breaks a rule of form; `BAD_SIGNATURE` if there is none;
/// `LIMIT_EXCEEDED` for a payload above a limit of the genesis header.
pub fn check_append(request: v1::AppendRequest, cluster: ClusterId, params: &Params) -> Result<Checked, Refusal> {
    if !params.ledgers {
        return Err(Refusal::invalid("this cluster was founded without ledgers of members"));
    }
    let v1::AppendRequest { signed, signature, items, .. } = request;
    let signature = signature[..].try_into().map_err(|_| {
        let message = format!("a signature has 64 bytes, found {}", signature.len());
        Refusal::new(Reason::BadSignature, message)
    })?;
    limit("items_max", ledgers::ITEMS_MAX as u32, items.len() as u64)?;
    let mut bytes = 0;
    for item in &items {
        limit("value_bytes_max", params.value_bytes_max, item.envelope.len() as u64)?;
        bytes += item.envelope.len() as u64;
    }
    limit("batch_bytes_max", params.batch_bytes_max, bytes)?;
    let items = items.iter().map(item).collect::<Result<Vec<_>, _>>()?;
    let request = ledgers::Request { signed: signed.to_vec(), signature, items };
    request.check(cluster).map_err(malformed)
}

fn item(item: &v1::LedgerItem) -> Result<Item, Refusal> {
    let kind = u8::try_from(item.kind).map_err(|_| Refusal::invalid("kinds of journals are below 256"))?;
    Ok(Item { kind, envelope: Envelope::decode(&item.envelope).map_err(malformed)? })
}

fn malformed(error: coppice_types::codec::Error) -> Refusal {
    Refusal::invalid(format!("the request does not decode: {error}"))
}

impl Request {
    /// Routes a member's request, whose form and signature were checked.
    ///
    /// # Errors
    /// `LIMIT_EXCEEDED` if its records may not fit a message.
    pub fn append(checked: Checked, map: &Leaves, params: &Params) -> Result<Self, Refusal> {
        let bytes = append_bytes(&checked);
        limit("message_bytes_max", params.message_bytes_max, bytes)?;
        let involved = involved(&checked, map);
        Ok(Self {
            writes: BTreeMap::new(),
            checks: Vec::new(),
            expected_head: None,
            exclusive: false,
            session: None,
            ordered: false,
            batch_hash: checked.hash,
            metadata_hash: Digest::default(),
            list_hashes: BTreeMap::new(),
            involved,
            bytes,
            append: Some(Box::new(checked)),
        })
    }

    /// Whether the request is an order of members.
    #[must_use]
    pub fn is_order(&self) -> bool {
        self.append.as_ref().is_some_and(|append| matches!(append.content, Content::Order(_)))
    }
}

/// The shards that may hold records of a request.
fn involved(checked: &Checked, map: &Leaves) -> BTreeSet<ShardId> {
    if checked.ledger.is_spread() {
        let shards = &map.all()[map.overlapping(&[0], Some(RESERVED_END))];
        return shards.iter().map(|leaf| leaf.shard).collect();
    }
    let mut shards = BTreeSet::from([map.route(&head_key(checked.ledger))]);
    if let Content::Founding(founding) = &checked.content {
        shards.insert(map.route(&name_key(&founding.name)));
    }
    // The last sweep may free the ledger's name. All names lie in one shard.
    if checked.sweeps().is_some() {
        shards.insert(map.route(&name_key("")));
    }
    shards
}

/// An upper bound of the bytes that a request adds to a prepare.
fn append_bytes(checked: &Checked) -> u64 {
    let item = |item: &ledgers::CheckedItem| {
        u64::from(item.envelope_bytes) + JOURNAL_BYTES + CLUE_BYTES * item.clues.len() as u64
    };
    let content = match &checked.content {
        Content::Data => 0,
        // The founding's payload is kept twice.
        Content::Founding(founding) => {
            u64::from(checked.items[0].envelope_bytes) + MEMBER_BYTES * founding.members.len() as u64
        }
        Content::Members(changes) => MEMBER_BYTES * changes.len() as u64,
        Content::Order(ordered) => order_bytes(&ordered.order.action, checked),
    };
    REQUEST_BYTES + content + checked.items.iter().map(item).sum::<u64>()
}

/// An upper bound of the bytes of what an order does.
fn order_bytes(action: &Action, checked: &Checked) -> u64 {
    match action {
        Action::Occult(targets) => TARGET_BYTES * targets.len() as u64,
        Action::Retain { journals, .. } => TARGET_BYTES * (journals.len() as u64 + 1),
        Action::Purge(_) | Action::Recall { .. } => TARGET_BYTES,
        Action::Sweep { .. } => {
            // Leaf and envelope go; so do cells, and the clues' records change.
            let leaf = |leaf: &Leaf| 2 * TARGET_BYTES + CLUE_BYTES * leaf.clues.len() as u64;
            2 * TARGET_BYTES + checked.swept().iter().map(leaf).sum::<u64>()
        }
    }
}

/// One entry of a journal, with the operations that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub entry: Entry,
    /// The operations by shard, each list in the order of the entry's operations.
    pub writes: BTreeMap<ShardId, Vec<Write>>,
}

impl Part {
    /// The part of a request that was applied.
    #[must_use]
    pub fn append(checked: &Checked, appended: &Appended, map: &Leaves) -> Self {
        let mut operations = Cow::Borrowed(&appended.operations);
        if planted(Bug::CellLeftOut)
            && let Some(leaf) = appended.leaves.iter().find(|leaf| leaf.clues.len() > 1)
        {
            let LeafClue { clue, ordinal } = leaf.clues[1];
            operations.to_mut().retain(|operation| operation.key != cell_key(leaf.ledger, &clue, ordinal));
        }
        let (writes, shards) = route(&operations, &envelopes(&appended.leaves), map);
        let entry = Entry::Append(AppendEntry {
            ledger: appended.ledger,
            signed: checked.bytes.clone(),
            signature: checked.signature,
            first_jsn: appended.first_jsn,
            count: checked.signed.items,
            leaves_root: appended.leaves_root,
            shards,
        });
        Self { entry, writes }
    }

    /// The part of a ledger that a version appended to.
    #[must_use]
    pub fn head(closed: &Closed, map: &Leaves) -> Self {
        let (writes, shards) = route(&closed.operations, &BTreeMap::new(), map);
        let entry = Entry::Head(HeadEntry {
            ledger: closed.ledger,
            size_before: closed.size_before,
            size: closed.size,
            root: closed.root,
            shards,
        });
        Self { entry, writes }
    }
}

/// The places of the envelopes among the operations of an append, with their hashes: behind each
/// leaf lies its envelope, and then a cell for each clue.
fn envelopes(leaves: &[Leaf]) -> BTreeMap<usize, Digest> {
    let mut at = 0;
    let place = |leaf: &Leaf| {
        let place = at + 1;
        at += 2 + leaf.clues.len();
        (place, leaf.commitment)
    };
    leaves.iter().map(place).collect()
}

type Routed = (BTreeMap<ShardId, Vec<Write>>, Vec<(ShardId, Digest)>);

/// Routes operations to shards, with the hash of each shard's list. Values at the places in `known`
/// have the hashes given there.
fn route(operations: &[Operation], known: &BTreeMap<usize, Digest>, map: &Leaves) -> Routed {
    let value = |(at, operation): (usize, &Operation)| match &operation.change {
        Change::Put(value) if !known.contains_key(&at) => Some(value.clone()),
        _ => None,
    };
    let values: Vec<Bytes> = operations.iter().enumerate().filter_map(value).collect();
    let mut hashes = hash::sha256_each(&values.iter().map(Bytes::as_ref).collect::<Vec<_>>()).into_iter();
    let mut writes: BTreeMap<ShardId, Vec<Write>> = BTreeMap::new();
    for (at, operation) in operations.iter().enumerate() {
        let put = match &operation.change {
            Change::Put(value) => {
                let hash = known.get(&at).copied().or_else(|| hashes.next());
                Some(Put { value: value.clone(), value_hash: hash.expect("each other value was hashed") })
            }
            Change::Delete => None,
        };
        writes.entry(map.route(&operation.key)).or_default().push(Write { key: operation.key.clone(), put });
    }
    let shards = writes.iter().map(|(&shard, list)| (shard, list_hash(list))).collect();
    (writes, shards)
}

impl From<ledgers::Refusal> for Refusal {
    fn from(refusal: ledgers::Refusal) -> Self {
        use ledgers::Refusal as Of;
        let reason = match &refusal {
            Of::NoLedger => Reason::NotFound,
            Of::NameTaken | Of::Closed | Of::Members(_) | Of::Order(_) => Reason::NotPossible,
            Of::NotAMember => Reason::NotAMember,
            Of::Signature => Reason::BadSignature,
            Of::Role(_) => Reason::RoleMissing,
            Of::Incomplete(_) => Reason::OrderIncomplete,
            Of::Lane(_) => Reason::Lane,
            Of::Epoch => Reason::StaleView,
            Of::Size(_) => Reason::LedgerChanged,
            Of::Count(_) => Reason::ClueChanged,
            Of::Damaged => Reason::Corrupted,
        };
        Self::new(reason, refusal.to_string())
    }
}
