//! The audit of one ledger of members: whether its journals, records and orders are those that its
//! members signed (`docs/verification.md` section 18).
//!
//! The auditor takes the journals of versions in their order, with the leaves that a server tells.
//! It judges each request again by the rules of an append, and derives all operations that follow.
//! The server's data is believed only as far as hashes in the headers lead to it. So a coordinator
//! that leaves out a cell, repeats an ordinal, skips a signature or condition, or hides content
//! without an order, is found at the version where it did so.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};

use coppice_types::{Bytes, Change, ClusterId, Digest, LedgerId, MemberId, Operation, ShardId, Stamp};

use crate::{
    hash::{RecordBody, member_id, operation_list_hash},
    journal::{AppendEntry, Entry, HeadEntry},
    ledgers::{
        Checked, Closed, Content, DATA, Leaf, Member, MemberChange, Round, envelope_key, is_judged_by, leaf_key,
        member_key,
    },
    shard_map::ShardMap,
};

/// A server's data about an append, in addition to its entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The leaves of its journals, in order.
    pub leaves: Vec<Leaf>,
    /// The envelope, if the append is one journal that holds no data.
    pub envelope: Option<Vec<u8>>,
    /// The leaves of the journals that it occults, if it is an order.
    pub targets: Vec<Leaf>,
}

/// A rule that a ledger breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The journal at fault; `None` if no single one is.
    pub jsn: Option<u64>,
    /// A description of what is wrong.
    pub what: String,
}

/// The state of a ledger, as its requests so far leave it.
#[derive(Debug)]
pub struct LedgerAuditor {
    cluster: ClusterId,
    ledger: LedgerId,
    map: ShardMap,
    /// The records that requests are judged by.
    records: BTreeMap<Vec<u8>, Bytes>,
    /// Hashes of the leaves.
    leaves: Vec<Digest>,
    occulted: BTreeSet<u64>,
}

/// The root of the log at a size; `None` if the log never had it.
pub type Seen<'s> = &'s dyn Fn(u64) -> Option<Digest>;

fn finding(jsn: Option<u64>, what: impl Into<String>) -> Finding {
    Finding { jsn, what: what.into() }
}

impl LedgerAuditor {
    /// The auditor of a ledger that is not founded yet.
    #[must_use]
    pub fn new(cluster: ClusterId, ledger: LedgerId, map: ShardMap) -> Self {
        let (records, leaves, occulted) = Default::default();
        Self { cluster, ledger, map, records, leaves, occulted }
    }

    /// Number of journals so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.leaves.len() as u64
    }

    /// Root of the ledger's list.
    #[must_use]
    pub fn root(&self) -> Digest {
        crate::merkle::mth(&self.leaves)
    }

    /// Hash of a journal's leaf.
    #[must_use]
    pub fn leaf(&self, jsn: u64) -> Option<&Digest> {
        self.leaves.get(usize::try_from(jsn).ok()?)
    }

    /// The journals that orders have occulted.
    #[must_use]
    pub fn occulted(&self) -> &BTreeSet<u64> {
        &self.occulted
    }

    /// The appends to the ledger among the entries of a version.
    pub fn appends<'e>(&self, entries: &'e [Entry]) -> impl Iterator<Item = &'e AppendEntry> + use<'e> {
        let ledger = self.ledger;
        entries.iter().filter_map(move |entry| match entry {
            Entry::Append(append) if append.ledger == ledger => Some(append),
            _ => None,
        })
    }

    /// Takes the entries of the next version, with what was told of each append to the ledger, in
    /// their order.
    ///
    /// # Errors
    /// The first rule that is broken. The auditor must not be used then.
    pub fn take(&mut self, stamp: Stamp, entries: &[Entry], told: &[Told], seen: Seen<'_>) -> Result<(), Finding> {
        let appends: Vec<&AppendEntry> = self.appends(entries).collect();
        let heads: Vec<&HeadEntry> = entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Head(head) if head.ledger == self.ledger => Some(head),
                _ => None,
            })
            .collect();
        if appends.is_empty() && heads.is_empty() {
            return Ok(());
        }
        if appends.len() != told.len() {
            return Err(finding(None, "other appends than those of its journal"));
        }
        let targets = self.targets(told)?;
        let ground = |key: &[u8]| self.records.get(key).or_else(|| targets.get(key)).cloned();
        let mut round = Round::new(&ground, stamp);
        let (mut derived, mut leaves, mut occulted) = (Vec::new(), Vec::new(), Vec::new());
        let mut new_keys = BTreeMap::new();
        for (append, told) in appends.iter().zip(told) {
            let jsn = Some(append.first_jsn);
            let mut checked = self.checked(append, told)?;
            let named = (checked.signed.seen_size, checked.signed.seen_root);
            if seen(named.0) != Some(named.1) {
                return Err(finding(jsn, "its author had seen another log"));
            }
            self.verify_approvals(&mut checked, &mut new_keys);
            let appended = round.append(&checked).map_err(|refusal| finding(jsn, refusal.to_string()))?;
            if appended.ledger != self.ledger {
                return Err(finding(jsn, "it founds another ledger"));
            }
            let same = appended.first_jsn == append.first_jsn
                && checked.signed.items == append.count
                && appended.leaves_root == append.leaves_root;
            if !same {
                return Err(finding(jsn, "its leaves are not those that follow from what was signed"));
            }
            if let Some((derived, _)) = appended.leaves.iter().zip(&told.leaves).find(|(derived, told)| derived != told)
            {
                return Err(finding(Some(derived.jsn), "its leaf is not the one that follows from what was signed"));
            }
            if self.lists(&appended.operations, &appended.leaves) != append.shards {
                return Err(finding(jsn, "its records are not those that follow from what was signed"));
            }
            if let Content::Order(ordered) = &checked.content {
                occulted.extend(ordered.order.targets.iter().map(|target| target.jsn));
            }
            leaves.extend(appended.leaves.iter().map(Leaf::hash));
            derived.extend(appended.operations);
        }
        let closed = round.close();
        let ([closed], [head]) = (&closed[..], &heads[..]) else {
            return Err(finding(None, "a version has a head where the ledger is appended to, and only there"));
        };
        self.check_head(closed, head)?;
        derived.extend(closed.operations.iter().cloned());
        for Operation { key, change } in derived {
            if let Change::Put(value) = change
                && is_judged_by(&key)
            {
                self.records.insert(key.to_vec(), value);
            }
        }
        self.leaves.extend(leaves);
        self.occulted.extend(occulted);
        Ok(())
    }

    /// The leaves of the journals that orders name, by their keys.
    fn targets(&self, told: &[Told]) -> Result<BTreeMap<Vec<u8>, Bytes>, Finding> {
        let mut targets = BTreeMap::new();
        for leaf in told.iter().flat_map(|told| &told.targets) {
            if self.leaf(leaf.jsn) != Some(&leaf.hash()) {
                return Err(finding(Some(leaf.jsn), "its leaf is not the one that was appended"));
            }
            targets.insert(leaf_key(self.ledger, leaf.jsn), leaf.encode().into());
        }
        Ok(targets)
    }

    /// Puts the request of an append together, and verifies its signature.
    fn checked(&self, append: &AppendEntry, told: &Told) -> Result<Checked, Finding> {
        let jsn = Some(append.first_jsn);
        let signed = (append.signed.clone(), append.signature);
        let checked = Checked::of_leaves(self.cluster, signed, &told.leaves, told.envelope.as_deref());
        let mut checked = checked.map_err(|error| finding(jsn, format!("its request: {error}")))?;
        let key = told.leaves.first().map(|leaf| leaf.key);
        if checked.content == Content::Data && told.leaves.iter().any(|leaf| leaf.kind != DATA) {
            return Err(finding(jsn, "its journals are of another kind than its request"));
        }
        if key.is_some_and(|key| checked.verify(&key)) {
            Ok(checked)
        } else {
            Err(finding(jsn, "its author has not signed it"))
        }
    }

    /// Verifies the approvals of an order under all keys that their members have had, also those of
    /// this version, which `new_keys` gathers.
    fn verify_approvals(&self, checked: &mut Checked, new_keys: &mut BTreeMap<MemberId, Vec<[u8; 32]>>) {
        match &checked.content {
            Content::Members(changes) => {
                let keys = changes.iter().filter_map(|change| Some((change.about(), *MemberChange::new_key(change)?)));
                keys.for_each(|(member, key)| new_keys.entry(member).or_default().push(key));
            }
            Content::Founding(founding) => {
                let keys = founding.members.iter().map(|grant| (member_id(&grant.name), grant.key));
                keys.for_each(|(member, key)| new_keys.entry(member).or_default().push(key));
            }
            Content::Data | Content::Order(_) => {}
        }
        checked.verify_approvals(|member| {
            let record = self.records.get(&member_key(self.ledger, member));
            let known = record.and_then(|record| Member::decode(record).ok()).map(|member| member.keys);
            let known = known.into_iter().flatten().map(|span| span.key);
            known.chain(new_keys.get(&member).into_iter().flatten().copied()).collect()
        });
    }

    fn check_head(&self, closed: &Closed, head: &HeadEntry) -> Result<(), Finding> {
        let same = (closed.size_before, closed.size, closed.root) == (head.size_before, head.size, head.root)
            && self.lists(&closed.operations, &[]) == head.shards;
        if same { Ok(()) } else { Err(finding(None, "its head is not the one that its appends leave")) }
    }

    /// The hashes of the operation lists of an entry, by shard. Envelopes count by their
    /// commitments.
    fn lists(&self, operations: &[Operation], leaves: &[Leaf]) -> Vec<(ShardId, Digest)> {
        let envelopes: BTreeMap<Vec<u8>, RecordBody> = leaves
            .iter()
            .map(|leaf| {
                let body = RecordBody::Put { value_len: leaf.envelope_bytes, value_hash: leaf.commitment };
                (envelope_key(self.ledger, leaf.jsn), body)
            })
            .collect();
        let mut shards: BTreeMap<ShardId, Vec<(&[u8], RecordBody)>> = BTreeMap::new();
        for Operation { key, change } in operations {
            let body = envelopes.get(&key[..]).copied().unwrap_or_else(|| RecordBody::of(change));
            shards.entry(self.map.shard_of(key).id).or_default().push((key, body));
        }
        shards.into_iter().map(|(shard, list)| (shard, operation_list_hash(list))).collect()
    }
}
