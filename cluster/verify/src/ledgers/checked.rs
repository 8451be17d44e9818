//! Requests whose form was checked: all that can be judged without the ledger's state.
//!
//! Hashing and signatures cost far more than the rest, so this part runs beside the sequencer.

use alloc::{collections::BTreeMap, vec::Vec};

use coppice_types::{Bytes, ClusterId, Digest, LedgerId, MemberId, Version, codec::Error};

use super::{
    envelope::Envelope,
    leaf::Leaf,
    list::tiles_at,
    members::{Founding, MemberChange, key_consent},
    order::{Action, Approval, Ordered, PurgeOrder},
    places::{
        author_key, clue_key, founding_key, head_key, key_key, leaf_key, mark_key, member_key, name_key, purge_key,
        retained_key, retains_key, tile_key,
    },
    request::{DATA, FOUNDING, Item, MEMBERS, ORDER, Request, Signed, is_signed},
};
use crate::{
    hash::{item_hash, ledger_id, sha256},
    merkle::mth,
};

/// One item, hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedItem {
    /// Kind of the journal.
    pub kind: u8,
    /// The canonical bytes of its envelope; `None` for an auditor, who may not see them.
    pub envelope: Option<Bytes>,
    /// Their number.
    pub envelope_bytes: u32,
    /// Their SHA-256.
    pub commitment: Digest,
    /// Hashes of its clues in the ledger, in the author's order.
    pub clues: Vec<Digest>,
    /// The longest bytes with which every clue begins; `None` without clues, or without envelope.
    pub common_prefix: Option<Vec<u8>>,
}

/// The content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Journals with data.
    Data,
    /// The journal that founds a ledger.
    Founding(Founding),
    /// A journal that changes members.
    Members(Vec<MemberChange>),
    /// A journal that orders.
    Order(Ordered),
}

/// A request of sound form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The signed fields.
    pub signed: Signed,
    /// The signed bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of the signed bytes.
    pub hash: Digest,
    /// The signature over them.
    pub signature: [u8; 64],
    /// Id of the ledger, also of one that the request founds.
    pub ledger: LedgerId,
    /// The items.
    pub items: Vec<CheckedItem>,
    /// The kind of the items, with their content.
    pub content: Content,
    /// The key under which the signature was verified; `None` if it was not.
    verified: Option<[u8; 32]>,
    /// For each change of members, whether a new key has signed that it agrees, where one must.
    agreed: Vec<bool>,
    /// For each approval of an order, the key under which it was verified.
    approved: Vec<Option<[u8; 32]>>,
    /// The leaves of the journals that an order sweeps.
    swept: Vec<Leaf>,
    /// The timestamps of the headers that an order depends on, in milliseconds, by version.
    times: BTreeMap<Version, u64>,
}

impl Request {
    /// Checks the form of a request to this cluster. The signature is left to [`Checked::verify`].
    ///
    /// # Errors
    /// If the signed bytes are no request to this cluster, do not cover the items, or mix kinds.
    pub fn check(self, cluster: ClusterId) -> Result<Checked, Error> {
        let signed = Signed::decode(&self.signed)?;
        let item = |item: &Item| {
            let envelope = Bytes::from(item.envelope.encode());
            let length = u32::try_from(envelope.len()).map_err(|_| Error::Malformed("length of an envelope"))?;
            Ok(CheckedItem {
                kind: item.kind,
                envelope_bytes: length,
                commitment: sha256(&envelope),
                clues: item.envelope.clue_hashes(signed.ledger),
                common_prefix: common_prefix(&item.envelope.clues),
                envelope: Some(envelope),
            })
        };
        let items = self.items.iter().map(item).collect::<Result<Vec<_>, _>>()?;
        let payload = self.items.first().map(|item| item.envelope.payload.as_slice());
        Checked::new(cluster, signed, (self.signed, self.signature), items, payload)
    }
}

impl Checked {
    /// Puts a request together from what an auditor may see: the signed bytes, the leaves that are
    /// said to have followed, and for all but data the envelope of the one journal.
    ///
    /// # Errors
    /// If the signed bytes are no request to this cluster, or do not cover these journals.
    pub fn of_leaves(
        cluster: ClusterId,
        (bytes, signature): (Vec<u8>, [u8; 64]),
        leaves: &[Leaf],
        envelope: Option<&[u8]>,
    ) -> Result<Self, Error> {
        let item = |leaf: &Leaf| CheckedItem {
            kind: leaf.kind,
            envelope: None,
            envelope_bytes: leaf.envelope_bytes,
            commitment: leaf.commitment,
            clues: leaf.clues.iter().map(|clue| clue.clue).collect(),
            common_prefix: None,
        };
        let items: Vec<CheckedItem> = leaves.iter().map(item).collect();
        let envelope = match envelope {
            Some(bytes) if items.first().is_none_or(|item| item.commitment != sha256(bytes)) => {
                return Err(Error::Malformed("envelope of another journal"));
            }
            Some(bytes) => Some(Envelope::decode(bytes)?),
            None => None,
        };
        let signed = Signed::decode(&bytes)?;
        Self::new(
            cluster,
            signed,
            (bytes, signature),
            items,
            envelope.as_ref().map(|envelope| envelope.payload.as_slice()),
        )
    }

    /// A request with these items. `bytes` are the signed bytes, and `payload` is the payload of
    /// the first item.
    fn new(
        cluster: ClusterId,
        signed: Signed,
        (bytes, signature): (Vec<u8>, [u8; 64]),
        items: Vec<CheckedItem>,
        payload: Option<&[u8]>,
    ) -> Result<Self, Error> {
        if signed.cluster != cluster {
            return Err(Error::Malformed("cluster of a request"));
        }
        let hash = |item: &CheckedItem| item_hash(item.kind, &item.commitment, item.envelope_bytes, &item.clues);
        let hashes: Vec<Digest> = items.iter().map(hash).collect();
        if items.len() != signed.items as usize || mth(&hashes) != signed.items_root {
            return Err(Error::Malformed("items of a request"));
        }
        let content = content(&signed, &items, payload)?;
        let ledger = match &content {
            Content::Founding(founding) => ledger_id(cluster, &bytes, founding.spread),
            _ => signed.ledger,
        };
        let hash = sha256(&bytes);
        let (verified, agreed, approved) = Default::default();
        let (swept, times) = Default::default();
        Ok(Self { signed, bytes, hash, signature, ledger, items, content, verified, agreed, approved, swept, times })
    }
}

/// Reads the content of a request, whose items are of one kind.
fn content(signed: &Signed, items: &[CheckedItem], payload: Option<&[u8]>) -> Result<Content, Error> {
    let kinds = Error::Malformed("kinds of a request's items");
    if !signed.founds() && items.iter().all(|item| item.kind == DATA) {
        return Ok(Content::Data);
    }
    let ([item], None, Some(payload)) = (items, signed.agent, payload) else { return Err(kinds) };
    match item.kind {
        FOUNDING if signed.founds() && item.clues.is_empty() => Ok(Content::Founding(Founding::decode(payload)?)),
        MEMBERS if !signed.founds() => Ok(Content::Members(MemberChange::decode_all(payload)?)),
        ORDER if !signed.founds() => {
            let ordered = Ordered::decode(payload)?;
            if ordered.is_approved_by(signed.member) {
                return Err(Error::Malformed("approval by an order's author"));
            }
            Ok(Content::Order(ordered))
        }
        _ => Err(kinds),
    }
}

fn common_prefix(clues: &[Vec<u8>]) -> Option<Vec<u8>> {
    let (first, others) = clues.split_first()?;
    let mut prefix = first.clone();
    for clue in others {
        let same = prefix.iter().zip(clue).take_while(|(a, b)| a == b).count();
        prefix.truncate(same);
    }
    Some(prefix)
}

impl Checked {
    /// Verifies the signature under a key. Returns whether it holds.
    pub fn verify(&mut self, key: &[u8; 32]) -> bool {
        let holds = is_signed(key, &self.bytes, &self.signature);
        if holds {
            self.verified = Some(*key);
            self.agreed = self.consents();
        }
        holds
    }

    /// Verifies the consents of new keys. They cost a signature each, so this is done once, and for
    /// requests that are signed.
    fn consents(&self) -> Vec<bool> {
        let Content::Members(changes) = &self.content else { return Vec::new() };
        let agrees = |change: &MemberChange| match change {
            MemberChange::Key { member, key, consent, .. } => {
                let message = key_consent(self.signed.cluster, self.ledger, *member, key);
                is_signed(key, &message, consent)
            }
            _ => true,
        };
        changes.iter().map(agrees).collect()
    }

    /// Whether the change of members at this place has the consent that it needs.
    pub(super) fn agrees(&self, at: usize) -> bool {
        self.agreed.get(at).copied().unwrap_or(false)
    }

    /// The members that approve an order beside its author.
    #[must_use]
    pub fn approving(&self) -> Vec<MemberId> {
        match &self.content {
            Content::Order(ordered) => ordered.approvals.iter().map(|approval| approval.member).collect(),
            Content::Data | Content::Founding(_) | Content::Members(_) => Vec::new(),
        }
    }

    /// Verifies the approvals of an order, each under the keys that `keys_of` names for the member.
    /// Whether the key is the one in force is judged where the order is applied. Returns whether
    /// all of them hold.
    pub fn verify_approvals(&mut self, keys_of: impl Fn(MemberId) -> Vec<[u8; 32]>) -> bool {
        let Content::Order(Ordered { order, approvals }) = &self.content else { return true };
        let message = order.message(self.signed.cluster, self.ledger);
        let verified =
            |approval: &Approval| keys_of(approval.member).into_iter().find(|key| approval.is_signed(key, &message));
        self.approved = approvals.iter().map(verified).collect();
        self.approved.iter().all(Option::is_some)
    }

    /// The key under which the approval at this place was verified; `None` if it was not.
    pub(super) fn approved(&self, at: usize) -> Option<&[u8; 32]> {
        self.approved.get(at).and_then(Option::as_ref)
    }

    /// The key under which the signature was verified; `None` if it was not.
    #[must_use]
    pub fn verified(&self) -> Option<&[u8; 32]> {
        self.verified.as_ref()
    }

    /// The journals that an order sweeps: the first one, and the one behind the last. Their leaves
    /// must be given by [`Checked::take_swept`].
    #[must_use]
    pub fn sweeps(&self) -> Option<(u64, u64)> {
        match &self.content {
            Content::Order(Ordered { order, .. }) => match order.action {
                Action::Sweep { from, to, .. } => Some((from, to)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Takes the leaves of the journals that an order sweeps. A leaf never changes, so they hold
    /// wherever the order is applied.
    pub fn take_swept(&mut self, leaves: Vec<Leaf>) {
        self.swept = leaves;
    }

    /// The leaves of the journals that an order sweeps.
    #[must_use]
    pub fn swept(&self) -> &[Leaf] {
        &self.swept
    }

    /// The journals for whose versions an order depends on the header's timestamp, which
    /// [`Checked::take_time`] must give.
    #[must_use]
    pub fn timed_by(&self) -> Vec<u64> {
        match &self.content {
            Content::Order(Ordered { order, .. }) => match &order.action {
                Action::Sweep { purge, .. } => Vec::from([*purge]),
                Action::Purge(purge) => purge.absent.iter().map(|absent| absent.revocation).collect(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// Takes the timestamp of the header of a version, in milliseconds.
    pub fn take_time(&mut self, version: Version, time_ms: u64) {
        self.times.insert(version, time_ms);
    }

    pub(super) fn time_of(&self, version: Version) -> Option<u64> {
        self.times.get(&version).copied()
    }

    /// Takes the leaves and times that an order depends on. `leaf` gives the leaf of a journal, and
    /// `time_ms` the timestamp of a version's header, in milliseconds.
    pub fn take_facts(&mut self, leaf: impl Fn(u64) -> Option<Leaf>, time_ms: impl Fn(Version) -> Option<u64>) {
        if let Some((from, to)) = self.sweeps() {
            self.take_swept((from..to).filter_map(&leaf).collect());
        }
        for version in self.timed_by().into_iter().filter_map(&leaf).map(|leaf| leaf.stamp.version) {
            time_ms(version).into_iter().for_each(|time_ms| self.take_time(version, time_ms));
        }
    }

    /// The keys of all records that [`super::Round::append`] reads.
    #[must_use]
    pub fn reads(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::from([head_key(self.ledger), member_key(self.ledger, self.signed.member)]);
        keys.extend(self.signed.agent.map(|agent| member_key(self.ledger, agent)));
        keys.extend(self.items.iter().flat_map(|item| &item.clues).map(|clue| clue_key(self.ledger, clue)));
        let counted = self.signed.conditions.iter().filter_map(|condition| match condition {
            super::Condition::Count(clue, _) => Some(clue_key(self.ledger, clue)),
            super::Condition::Size(_) => None,
        });
        keys.extend(counted);
        match &self.content {
            Content::Data => {}
            Content::Founding(founding) => keys.push(name_key(&founding.name)),
            Content::Members(changes) => {
                keys.extend(changes.iter().map(|change| member_key(self.ledger, change.about())));
                keys.extend(changes.iter().filter_map(MemberChange::new_key).map(|key| key_key(self.ledger, key)));
                // The ledger's policy says whether another member may join.
                keys.extend(changes.iter().any(MemberChange::joins).then(|| founding_key(self.ledger)));
            }
            Content::Order(Ordered { order, approvals }) => {
                keys.push(founding_key(self.ledger));
                keys.extend(approvals.iter().map(|approval| member_key(self.ledger, approval.member)));
                self.reads_of_order(&order.action, &mut keys);
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The keys of the records that judge what an order does.
    fn reads_of_order(&self, action: &Action, keys: &mut Vec<Vec<u8>>) {
        let ledger = self.ledger;
        let of = |jsn: u64| [leaf_key(ledger, jsn), retained_key(ledger, jsn)];
        if !matches!(action, Action::Occult(_)) {
            keys.push(purge_key(ledger));
        }
        match action {
            Action::Occult(targets) => {
                keys.extend(targets.iter().flat_map(|target| of(target.jsn)));
                keys.extend(targets.iter().map(|target| mark_key(ledger, target.jsn)));
            }
            Action::Purge(PurgeOrder { before, size, authors, absent, .. }) => {
                keys.push(leaf_key(ledger, *before));
                keys.extend(tiles_at(*size).map(|(level, index)| tile_key(ledger, level, index)));
                keys.extend((1..=u64::from(*authors) + 1).map(|number| author_key(ledger, number)));
                keys.extend(absent.iter().map(|absent| member_key(ledger, absent.member)));
                keys.extend(absent.iter().map(|absent| leaf_key(ledger, absent.revocation)));
            }
            Action::Retain { journals, .. } => {
                keys.extend(journals.iter().flat_map(|jsn| of(*jsn)));
                keys.push(retains_key(ledger, self.signed.member));
            }
            Action::Recall { .. } => {}
            Action::Sweep { from, to, .. } => {
                keys.extend((*from..*to).map(|jsn| retained_key(ledger, jsn)));
                let clues = self.swept.iter().flat_map(|leaf| &leaf.clues);
                keys.extend(clues.map(|clue| clue_key(ledger, &clue.clue)));
            }
        }
    }
}
