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

use coppice_types::{Bytes, Change, ClusterId, Digest, LedgerId, MemberId, Operation, ShardId, Stamp, Version};

use crate::{
    hash::{RecordBody, member_id, operation_list_hash},
    journal::{AppendEntry, Entry, HeadEntry},
    ledgers::{
        Checked, Closed, Content, DATA, Edge, Ground, Head, Leaf, Member, MemberChange, Round, envelope_key, head_key,
        is_judged_by, leaf_key, member_key,
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
    /// The leaves that judge it, if it is an order: those of [`crate::ledgers::Action::judged_by`].
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
    /// The records that requests are judged by; `None` for one that is not there.
    records: BTreeMap<Vec<u8>, Option<Bytes>>,
    /// The version behind which the audit begins, if that is not before the founding. Records that
    /// have not changed since are told.
    since: Option<Version>,
    /// Number of the journals at the beginning.
    first: u64,
    edge: Edge,
    /// Hashes of the leaves since then.
    leaves: Vec<Digest>,
    occulted: BTreeSet<u64>,
}

/// The root log, as far as requests depend on it.
#[derive(Clone, Copy)]
pub struct LogSeen<'s> {
    /// Its root at a size; `None` if it never had it.
    pub root: &'s dyn Fn(u64) -> Option<Digest>,
    /// The timestamp of a version's header, in milliseconds.
    pub time: &'s dyn Fn(Version) -> Option<u64>,
}

fn finding(jsn: Option<u64>, what: impl Into<String>) -> Finding {
    Finding { jsn, what: what.into() }
}

impl LedgerAuditor {
    /// The auditor of a ledger that is not founded yet.
    #[must_use]
    pub fn new(cluster: ClusterId, ledger: LedgerId, map: ShardMap) -> Self {
        let (records, since, first, edge, leaves, occulted) = Default::default();
        Self { cluster, ledger, map, records, since, first, edge, leaves, occulted }
    }

    /// The auditor of a ledger that begins behind a version, where the ledger had this head. The
    /// caller has verified it, and verifies what [`Self::lacks`] names.
    #[must_use]
    pub fn behind(self, version: Version, head: &Head) -> Self {
        let key = head_key(self.ledger);
        let mut begun = Self { since: Some(version), first: head.edge.size(), edge: head.edge.clone(), ..self };
        begun.believe(key, Some(head.encode().into()));
        begun
    }

    /// The version behind which the audit begins; `None` if that is before the founding.
    #[must_use]
    pub fn since(&self) -> Option<Version> {
        self.since
    }

    /// Number of the journals at the beginning.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The records that judge an append, and that must be read, with a proof, in the version behind
    /// which the audit begins.
    ///
    /// # Errors
    /// If the append was not put together from what was told.
    pub fn lacks(&self, append: &AppendEntry, told: &Told) -> Result<Vec<Vec<u8>>, Finding> {
        if self.since.is_none() {
            return Ok(Vec::new());
        }
        let mut checked = self.unsigned(append, told)?;
        let old = |jsn: &u64| *jsn < self.first;
        if let Some((from, to)) = checked.sweeps() {
            let known = |jsn| self.records.get(&leaf_key(self.ledger, jsn)).cloned().flatten();
            let leaves = (from..to).filter_map(|jsn| known(jsn).and_then(|leaf| Leaf::decode(&leaf).ok()));
            checked.take_swept(leaves.collect());
        }
        let swept = checked.sweeps().into_iter().flat_map(|(from, to)| from..to).filter(old);
        let judged = swept.chain(checked.timed_by().into_iter().filter(old));
        let keys = checked.reads().into_iter().chain(judged.map(|jsn| leaf_key(self.ledger, jsn)));
        let news: BTreeSet<Vec<u8>> = told
            .targets
            .iter()
            .filter(|leaf| leaf.jsn >= self.first)
            .map(|leaf| leaf_key(self.ledger, leaf.jsn))
            .collect();
        Ok(keys.filter(|key| !self.records.contains_key(key) && !news.contains(key)).collect())
    }

    /// Takes a record of the version behind which the audit begins, which the caller has verified.
    pub fn believe(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        self.records.insert(key, value);
    }

    /// Number of journals so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.edge.size()
    }

    /// Root of the ledger's list.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.edge.root()
    }

    /// Hash of a journal's leaf; `None` if it is none that was taken.
    #[must_use]
    pub fn leaf(&self, jsn: u64) -> Option<&Digest> {
        self.leaves.get(usize::try_from(jsn.checked_sub(self.first)?).ok()?)
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
    pub fn take(&mut self, stamp: Stamp, entries: &[Entry], told: &[Told], log: LogSeen<'_>) -> Result<(), Finding> {
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
        let ground = |key: &[u8]| self.records.get(key).cloned().flatten().or_else(|| targets.get(key).cloned());
        let now_ms = (log.time)(stamp.version).ok_or(finding(None, "a version without a header"))?;
        let mut round = Round::new(&ground, stamp, now_ms);
        let (mut derived, mut leaves, mut occulted) = (Vec::new(), Vec::new(), Vec::new());
        let mut new_keys = BTreeMap::new();
        for (append, told) in appends.iter().zip(told) {
            let jsn = Some(append.first_jsn);
            let mut checked = self.checked(append, told)?;
            if (log.root)(checked.signed.seen_size) != Some(checked.signed.seen_root) {
                return Err(finding(jsn, "its author had seen another log"));
            }
            self.verify_approvals(&mut checked, &mut new_keys);
            self.add_facts(&mut checked, &ground, log);
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
                occulted.extend(ordered.order.targets().iter().map(|target| target.jsn));
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
            match change {
                Change::Put(value) if is_judged_by(&key) => drop(self.records.insert(key.to_vec(), Some(value))),
                Change::Put(_) => {}
                Change::Delete => drop(self.records.insert(key.to_vec(), None)),
            }
        }
        leaves.iter().for_each(|leaf| self.edge.push(*leaf, &mut Vec::new()));
        self.leaves.extend(leaves);
        self.occulted.extend(occulted);
        Ok(())
    }

    /// The leaves of the journals that orders name, by their keys.
    fn targets(&self, told: &[Told]) -> Result<BTreeMap<Vec<u8>, Bytes>, Finding> {
        let mut targets = BTreeMap::new();
        for leaf in told.iter().flat_map(|told| &told.targets).filter(|leaf| leaf.jsn >= self.first) {
            if self.leaf(leaf.jsn) != Some(&leaf.hash()) {
                return Err(finding(Some(leaf.jsn), "its leaf is not the one that was appended"));
            }
            targets.insert(leaf_key(self.ledger, leaf.jsn), leaf.encode().into());
        }
        Ok(targets)
    }

    /// Gives an order the leaves and times that it depends on.
    fn add_facts(&self, checked: &mut Checked, ground: Ground<'_>, log: LogSeen<'_>) {
        let leaf = |jsn| ground(&leaf_key(self.ledger, jsn)).and_then(|leaf| Leaf::decode(&leaf).ok());
        checked.take_facts(leaf, log.time);
    }

    /// Puts the request of an append together.
    fn unsigned(&self, append: &AppendEntry, told: &Told) -> Result<Checked, Finding> {
        let signed = (append.signed.clone(), append.signature);
        let checked = Checked::of_leaves(self.cluster, signed, &told.leaves, told.envelope.as_deref());
        checked.map_err(|error| finding(Some(append.first_jsn), format!("its request: {error}")))
    }

    /// Puts the request of an append together, and verifies its signature.
    fn checked(&self, append: &AppendEntry, told: &Told) -> Result<Checked, Finding> {
        let jsn = Some(append.first_jsn);
        let mut checked = self.unsigned(append, told)?;
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
            let record = self.records.get(&member_key(self.ledger, member)).and_then(Option::as_ref);
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
