//! The ledgers' part of one version: each request is judged against the state so far, and the
//! records that follow from it are derived (section 18, *Appending*).
//!
//! The same function runs where versions are formed and where they are audited. A refused request
//! changes nothing.

mod orders;

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt;

use coppice_types::{Bytes, Change, Digest, LedgerId, MemberId, Operation, Stamp};

use super::{
    checked::{Checked, CheckedItem, Content},
    leaf::{Leaf, LeafClue},
    list::Tile,
    members::{Agency, Founding, LaneEnd, Member, MemberChange, Policy, Roles},
    places::{
        author_key, cell_key, clue_key, envelope_key, founding_key, head_key, key_key, leaf_key, member_key, name_key,
        tile_key,
    },
    records::{AuthorOf, Cell, Clue, Head},
    request::Condition,
};
use crate::{
    hash::{clue_chain, member_id},
    merkle::mth,
};

/// The reason why a request was refused. The request had no effect, and its number in its lane is
/// not used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such ledger.
    NoLedger,
    /// The ledger takes orders, and nothing else.
    Closed,
    /// A ledger of this name exists.
    NameTaken,
    /// The ledger has no such member, or the agent is not the member's.
    NotAMember,
    /// The signer has no key, or another key than the one that signed.
    Signature,
    /// The signer lacks the role for it.
    Role(&'static str),
    /// The request is not the next one of its lane, which is this one.
    Lane(u64),
    /// The cluster is in another epoch.
    Epoch,
    /// The ledger has this many journals, and not as many as the request says.
    Size(u64),
    /// A clue has this many journals, and not as many as the request says.
    Count(u64),
    /// The change of members is not possible.
    Members(&'static str),
    /// Not all that must sign an order have signed it.
    Incomplete(&'static str),
    /// The order is not possible.
    Order(&'static str),
    /// A record of the ledger can't be read. The state is damaged.
    Damaged,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLedger => f.write_str("there is no such ledger"),
            Self::Closed => f.write_str("the ledger is closed: it takes nothing but orders"),
            Self::NameTaken => f.write_str("a ledger of this name exists"),
            Self::NotAMember => f.write_str("the ledger has no such member or agent"),
            Self::Signature => f.write_str("the signature is not of the key in force of the signer"),
            Self::Role(role) => write!(f, "the signer is not {role}"),
            Self::Lane(next) => write!(f, "the next request of this lane is number {next}"),
            Self::Epoch => f.write_str("the request was signed for another epoch: read the head, and sign again"),
            Self::Size(size) => write!(f, "the ledger has {size} journals"),
            Self::Count(count) => write!(f, "the clue has {count} journals"),
            Self::Members(rule) | Self::Order(rule) => f.write_str(rule),
            Self::Incomplete(missing) => write!(f, "the order is not signed by {missing}"),
            Self::Damaged => f.write_str("a record of the ledger can't be read"),
        }
    }
}

impl core::error::Error for Refusal {}

/// A request that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// Number of the first journal.
    pub first_jsn: u64,
    /// The leaves, in the order of the items.
    pub leaves: Vec<Leaf>,
    /// List root of the leaf hashes.
    pub leaves_root: Digest,
    /// The puts and deletes that follow from it, in order. For an auditor, envelopes are empty.
    pub operations: Vec<Operation>,
}

/// The state of a ledger after all requests of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// Number of journals before the version.
    pub size_before: u64,
    /// Number of journals after it.
    pub size: u64,
    /// Root of the ledger's list.
    pub root: Digest,
    /// The puts that follow from it, in order: full tiles, changed members, the head.
    pub operations: Vec<Operation>,
}

/// Reads the value of a reserved key in the state before the version.
pub type Ground<'g> = &'g dyn Fn(&[u8]) -> Option<Bytes>;

/// The ledgers' part of a version that is being formed.
pub struct Round<'g> {
    ground: Ground<'g>,
    stamp: Stamp,
    now_ms: u64,
    ledgers: BTreeMap<LedgerId, Open>,
    /// Names of ledgers that this version gives (true) or frees.
    names: BTreeMap<String, bool>,
}

impl fmt::Debug for Round<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round").field("stamp", &self.stamp).field("ledgers", &self.ledgers).finish_non_exhaustive()
    }
}

/// A ledger with the changes of this version.
#[derive(Debug)]
struct Open {
    size_before: u64,
    head: Head,
    tiles: Vec<Tile>,
    /// Changed members and clues, and new keys.
    members: BTreeMap<MemberId, Member>,
    clues: BTreeMap<Digest, Clue>,
    keys: BTreeMap<[u8; 32], MemberId>,
    /// Other records that orders and new authors have changed; `None` for those that are deleted.
    changed: BTreeMap<Bytes, Option<Bytes>>,
    /// The policy, if the ledger is founded in this version.
    policy: Option<Policy>,
}

fn put(key: Vec<u8>, value: impl Into<Bytes>) -> Operation {
    Operation { key: key.into(), change: Change::Put(value.into()) }
}

impl<'g> Round<'g> {
    /// The ledgers' part of the version `stamp`. Its header's timestamp is `now_ms`, or later.
    #[must_use]
    pub fn new(ground: Ground<'g>, stamp: Stamp, now_ms: u64) -> Self {
        Self { ground, stamp, now_ms, ledgers: BTreeMap::new(), names: BTreeMap::new() }
    }

    /// Judges a request, and applies it unless it is refused.
    ///
    /// # Errors
    /// The reason for the refusal. Then nothing has changed.
    pub fn append(&mut self, request: &Checked) -> Result<Appended, Refusal> {
        let mut draft = self.draft(request)?;
        draft.note_request(request);
        if let Content::Founding(founding) = &request.content {
            self.names.insert(founding.name.clone(), true);
        }
        if let Some(name) = draft.freed.take() {
            self.names.insert(name, false);
        }
        let open = self.ledgers.entry(request.ledger).or_insert_with(|| Open::new(draft.head.clone()));
        Ok(open.apply(request, draft, self.stamp))
    }

    /// Judges a request, and applies nothing.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn judge(&self, request: &Checked) -> Result<(), Refusal> {
        self.draft(request).map(drop)
    }

    fn draft(&self, request: &Checked) -> Result<Draft, Refusal> {
        if request.signed.epoch != self.stamp.epoch {
            return Err(Refusal::Epoch);
        }
        let open = self.ledgers.get(&request.ledger);
        let Self { ground, stamp, now_ms, .. } = *self;
        let view = View { ground, ledger: request.ledger, open, stamp, now_ms };
        let mut draft = match &request.content {
            Content::Founding(founding) => {
                let known = self.names.get(&founding.name).copied();
                let taken = known.unwrap_or_else(|| ground(&name_key(&founding.name)).is_some());
                // A request can't found its ledger again after the ledger's name was deleted.
                if taken || view.head()?.is_some() {
                    return Err(Refusal::NameTaken);
                }
                found(request, founding)?
            }
            Content::Data => view.judge(request)?,
            Content::Members(changes) => {
                let mut draft = view.judge(request)?;
                for (at, change) in changes.iter().enumerate() {
                    view.change(request, (at, change), &mut draft)?;
                }
                draft
            }
            Content::Order(_) => view.judge(request)?,
        };
        draft.clues = view.clues(request)?;
        draft.head = view.head()?.unwrap_or_default();
        if let Content::Order(ordered) = &request.content {
            view.order(request, ordered, &mut draft)?;
        }
        Ok(draft)
    }

    /// Ends the version: what each changed ledger is after it, in order of their ids.
    #[must_use]
    pub fn close(self) -> Vec<Closed> {
        self.ledgers.into_iter().map(|(ledger, open)| open.close(ledger)).collect()
    }
}

/// What a request changes, but for its journals.
#[derive(Debug, Default)]
struct Draft {
    members: BTreeMap<MemberId, Member>,
    keys: BTreeMap<[u8; 32], MemberId>,
    /// The records of its clues.
    clues: BTreeMap<Digest, Clue>,
    /// The head that it finds, with what an order changes in it.
    head: Head,
    /// The author's number, if it had no journal before.
    author: Option<(u64, AuthorOf)>,
    /// What an order does to other records.
    effect: Vec<Operation>,
    /// The name that an order frees.
    freed: Option<String>,
}

impl Draft {
    /// Takes over the request's number in its lane, and its journals.
    fn note_request(&mut self, request: &Checked) {
        let (signed, first_jsn) = (&request.signed, self.head.edge.size());
        if let Some(signer) = self.members.get_mut(&signed.signer()) {
            signer.set_lane(LaneEnd { lane: signed.lane, number: signed.number, first_jsn });
        }
        if let Some(member) = self.members.get_mut(&signed.member) {
            if member.journals.is_none() {
                self.head.authors += 1;
                self.author = Some((self.head.authors, AuthorOf { member: signed.member, first_jsn }));
            }
            member.count(first_jsn, u64::from(signed.items));
        }
    }
}

/// Judges the request that founds a ledger.
fn found(request: &Checked, founding: &Founding) -> Result<Draft, Refusal> {
    let mut draft = Draft::default();
    for grant in &founding.members {
        let id = member_id(&grant.name);
        draft.members.insert(id, Member::new(&grant.name, grant.roles, None, grant.key, 0));
        draft.keys.insert(grant.key, id);
    }
    let signed = &request.signed;
    let founder = draft.members.get(&signed.member).ok_or(Refusal::NotAMember)?;
    if founder.key_at(0) != request.verified() {
        return Err(Refusal::Signature);
    }
    if !founder.roles.has(Roles::OWNER) {
        return Err(Refusal::Role("an owner"));
    }
    if signed.number != 1 {
        return Err(Refusal::Lane(1));
    }
    // A new ledger has no journals and no clues.
    for condition in &signed.conditions {
        match condition {
            Condition::Size(0) | Condition::Count(_, 0) => {}
            Condition::Size(_) => return Err(Refusal::Size(0)),
            Condition::Count(..) => return Err(Refusal::Count(0)),
        }
    }
    Ok(draft)
}

/// A ledger as a request finds it.
struct View<'v> {
    ground: Ground<'v>,
    ledger: LedgerId,
    open: Option<&'v Open>,
    stamp: Stamp,
    now_ms: u64,
}

impl View<'_> {
    fn read<T>(
        &self,
        key: &[u8],
        decode: impl Fn(&[u8]) -> Result<T, coppice_types::codec::Error>,
    ) -> Result<Option<T>, Refusal> {
        let value = match self.changed(key) {
            Some(changed) => changed.clone(),
            None => (self.ground)(key),
        };
        value.map(|value| decode(&value).map_err(|_| Refusal::Damaged)).transpose()
    }

    /// What this version has made of a record so far; `None` if it has not changed it.
    fn changed(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        self.open.and_then(|open| open.changed.get(key))
    }

    fn head(&self) -> Result<Option<Head>, Refusal> {
        match self.open {
            Some(open) => Ok(Some(open.head.clone())),
            None => self.read(&head_key(self.ledger), Head::decode),
        }
    }

    fn size(&self) -> Result<u64, Refusal> {
        self.head()?.map(|head| head.edge.size()).ok_or(Refusal::NoLedger)
    }

    fn member(&self, id: MemberId) -> Result<Option<Member>, Refusal> {
        match self.open.and_then(|open| open.members.get(&id)) {
            Some(member) => Ok(Some(member.clone())),
            None => self.read(&member_key(self.ledger, id), Member::decode),
        }
    }

    fn clue(&self, clue: &Digest) -> Result<Clue, Refusal> {
        match self.open.and_then(|open| open.clues.get(clue)) {
            Some(known) => Ok(*known),
            None => Ok(self.read(&clue_key(self.ledger, clue), Clue::decode)?.unwrap_or_default()),
        }
    }

    /// Whether a key was ever given to a member.
    fn is_known(&self, key: &[u8; 32]) -> bool {
        let here = self.open.is_some_and(|open| open.keys.contains_key(key));
        here || (self.ground)(&key_key(self.ledger, key)).is_some()
    }

    /// The clues that a request needs: those of its journals, and of those that it sweeps.
    fn clues(&self, request: &Checked) -> Result<BTreeMap<Digest, Clue>, Refusal> {
        let swept = request.swept().iter().flat_map(|leaf| &leaf.clues).map(|clue| &clue.clue);
        let clues = request.items.iter().flat_map(|item| &item.clues).chain(swept);
        clues.map(|clue| Ok((*clue, self.clue(clue)?))).collect()
    }

    /// Judges author, role, lane and conditions. Returns the member and the agent.
    fn judge(&self, request: &Checked) -> Result<Draft, Refusal> {
        let signed = &request.signed;
        let size = self.size()?;
        let orders = matches!(request.content, Content::Order(_));
        if !orders && self.head()?.is_some_and(|head| head.is_closed) {
            return Err(Refusal::Closed);
        }
        let member = self.member(signed.member)?.filter(|member| member.agency.is_none());
        let member = member.ok_or(Refusal::NotAMember)?;
        let mut draft = Draft::default();
        let signer = match signed.agent {
            None => member.clone(),
            Some(agent) => {
                let agent = self.member(agent)?.ok_or(Refusal::NotAMember)?;
                let agency = agent.agency.as_ref().filter(|agency| agency.principal == signed.member);
                self.judge_agency(agency.ok_or(Refusal::NotAMember)?, request, size)?;
                agent
            }
        };
        if signer.key_at(size).is_none() || signer.key_at(size) != request.verified() {
            return Err(Refusal::Signature);
        }
        match &request.content {
            Content::Members(changes) => {
                changes.iter().try_for_each(|change| self.judge_role(signed.member, &member, change))?;
            }
            Content::Order(ordered) => {
                let lacking = member.lacks_for(&ordered.order.action);
                lacking.map_or(Ok(()), |role| Err(Refusal::Role(role)))?;
            }
            _ if member.roles.has(Roles::WRITER) => {}
            _ => return Err(Refusal::Role("a writer")),
        }
        let next = signer.lane(signed.lane) + 1;
        if signed.number != next {
            return Err(Refusal::Lane(next));
        }
        for condition in &signed.conditions {
            match condition {
                Condition::Size(expected) if *expected != size => return Err(Refusal::Size(size)),
                Condition::Size(_) => {}
                Condition::Count(clue, expected) => {
                    let count = self.clue(clue)?.count;
                    if count != *expected {
                        return Err(Refusal::Count(count));
                    }
                }
            }
        }
        draft.members.insert(signed.member, member);
        draft.members.insert(signed.signer(), signer);
        Ok(draft)
    }

    fn judge_agency(&self, agency: &Agency, request: &Checked, size: u64) -> Result<(), Refusal> {
        let last = size + u64::from(request.signed.items) - 1;
        if agency.until.is_some_and(|until| last >= until) {
            return Err(Refusal::Role("an agent any more"));
        }
        let within = |prefix: &Option<Vec<u8>>| prefix.as_ref().is_some_and(|it| it.starts_with(&agency.prefix));
        // An auditor may not see the clues, only their hashes.
        let fits = |item: &CheckedItem| item.envelope.is_none() || within(&item.common_prefix);
        if agency.prefix.is_empty() || request.items.iter().all(fits) {
            Ok(())
        } else {
            Err(Refusal::Role("an agent for these clues"))
        }
    }

    /// Judges whether the author has the role for a change, by the state before the request.
    fn judge_role(&self, id: MemberId, author: &Member, change: &MemberChange) -> Result<(), Refusal> {
        let owner = author.roles.has(Roles::OWNER);
        let may = match change {
            MemberChange::Grant(_) | MemberChange::Roles(..) => owner,
            MemberChange::Agent { .. } => author.roles.has(Roles::WRITER),
            MemberChange::Key { .. } | MemberChange::Revoke(_) | MemberChange::Dispute(..) => {
                let agency = self.member(change.about())?.and_then(|about| about.agency);
                owner || change.about() == id || agency.is_some_and(|agency| agency.principal == id)
            }
        };
        let agent = matches!(change, MemberChange::Agent { .. });
        let wanted = if agent { "a writer" } else { "an owner, or the member itself" };
        if may { Ok(()) } else { Err(Refusal::Role(wanted)) }
    }

    /// Judges whether one change of members is possible, and applies it to the draft.
    fn change(
        &self,
        request: &Checked,
        (at, change): (usize, &MemberChange),
        draft: &mut Draft,
    ) -> Result<(), Refusal> {
        // The next journal makes the change, which holds from the journal after it on.
        let from = self.size()? + 1;
        let about = change.about();
        if change.joins() && self.policy()?.occult == 2 {
            return Err(Refusal::Members("an owner that may occult alone has no other members"));
        }
        let known = match draft.members.get(&about) {
            Some(member) => Some(member.clone()),
            None => self.member(about)?,
        };
        if let Some(key) = change.new_key() {
            if draft.keys.contains_key(key) || self.is_known(key) {
                return Err(Refusal::Members("the new key was a member's before"));
            }
            draft.keys.insert(*key, about);
        }
        let member = changed(request, (at, change), known, from)?;
        draft.members.insert(about, member);
        Ok(())
    }
}

/// The record of a member after a change.
fn changed(
    request: &Checked,
    (at, change): (usize, &MemberChange),
    known: Option<Member>,
    from: u64,
) -> Result<Member, Refusal> {
    let taken = Refusal::Members("a member or agent of this name exists");
    let mut member = match change {
        MemberChange::Grant(grant) => {
            let new = Member::new(&grant.name, grant.roles, None, grant.key, from);
            return if known.is_none() { Ok(new) } else { Err(taken) };
        }
        MemberChange::Agent { name, key, prefix, until } => {
            let agency = Agency { principal: request.signed.member, prefix: prefix.clone(), until: *until };
            let new = Member::new(name, Roles::WRITER, Some(agency), *key, from);
            return if known.is_none() { Ok(new) } else { Err(taken) };
        }
        _ => known.ok_or(Refusal::Members("there is no such member"))?,
    };
    match change {
        MemberChange::Roles(_, roles) => {
            if member.agency.is_some() {
                return Err(Refusal::Members("an agent has no roles of its own"));
            }
            member.roles = *roles;
        }
        MemberChange::Key { key, .. } => {
            if !request.agrees(at) {
                return Err(Refusal::Members("the new key has not signed that it agrees"));
            }
            if !member.change_key(*key, from) {
                return Err(Refusal::Members("the member has had too many keys"));
            }
        }
        MemberChange::Revoke(_) => member.end_key(from),
        MemberChange::Dispute(_, first) => {
            member.disputed_from = Some(member.disputed_from.map_or(*first, |before| before.min(*first)));
        }
        MemberChange::Grant(_) | MemberChange::Agent { .. } => {}
    }
    Ok(member)
}

impl Open {
    fn new(head: Head) -> Self {
        let size_before = head.edge.size();
        let (members, clues, keys, changed) = Default::default();
        Self { size_before, head, tiles: Vec::new(), members, clues, keys, changed, policy: None }
    }

    /// Applies a request that was judged.
    fn apply(&mut self, request: &Checked, draft: Draft, stamp: Stamp) -> Appended {
        let ledger = request.ledger;
        let first_jsn = self.head.edge.size();
        let touched: Vec<Digest> = draft.clues.keys().copied().collect();
        self.clues.extend(draft.clues);
        let Head { is_closed, purged, authors, .. } = draft.head;
        self.head = Head { is_closed, purged, authors, edge: core::mem::take(&mut self.head.edge) };
        let (mut leaves, mut hashes, mut operations) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..request.items.len() {
            let (leaf, hash) = self.leaf(request, index, stamp, &mut operations);
            hashes.push(hash);
            leaves.push(leaf);
        }
        operations.extend(touched.iter().map(|clue| put(clue_key(ledger, clue), self.clues[clue].encode())));
        if let Content::Founding(founding) = &request.content {
            operations.push(put(name_key(&founding.name), Vec::from(ledger.0)));
            operations.push(put(founding_key(ledger), founding.encode()));
            self.policy = Some(founding.policy.clone());
        }
        let owner = |(key, member): (&[u8; 32], &MemberId)| put(key_key(ledger, key), Vec::from(member.0));
        operations.extend(draft.keys.iter().map(owner));
        let effect_at = operations.len();
        operations.extend(draft.author.map(|(number, author)| put(author_key(ledger, number), author.encode())));
        operations.extend(draft.effect);
        self.changed.extend(operations[effect_at..].iter().map(|Operation { key, change }| {
            let value = match change {
                Change::Put(value) => Some(value.clone()),
                Change::Delete => None,
            };
            (key.clone(), value)
        }));
        self.members.extend(draft.members);
        self.keys.extend(draft.keys);
        Appended { ledger, first_jsn, leaves, leaves_root: mth(&hashes), operations }
    }

    /// Makes the next leaf, and appends its puts.
    fn leaf(
        &mut self,
        request: &Checked,
        index: usize,
        stamp: Stamp,
        operations: &mut Vec<Operation>,
    ) -> (Leaf, Digest) {
        let (ledger, jsn) = (request.ledger, self.head.edge.size());
        let (item, signed) = (&request.items[index], &request.signed);
        let clues = item.clues.iter().map(|clue| LeafClue { clue: *clue, ordinal: self.clues[clue].count + 1 });
        let leaf = Leaf {
            kind: item.kind,
            ledger,
            jsn,
            stamp,
            member: signed.member,
            agent: signed.agent,
            key: *request.verified().expect("a judged request is signed"),
            lane: signed.lane,
            number: signed.number,
            index: u32::try_from(index).expect("items are limited"),
            of: signed.items,
            request: request.hash,
            signature: request.signature,
            commitment: item.commitment,
            envelope_bytes: item.envelope_bytes,
            clues: clues.collect(),
        };
        let bytes = leaf.encode();
        let hash = crate::hash::ledger_leaf_hash(&bytes);
        operations.push(put(leaf_key(ledger, jsn), bytes));
        operations.push(put(envelope_key(ledger, jsn), item.envelope.clone().unwrap_or_default()));
        for LeafClue { clue, ordinal } in &leaf.clues {
            let known = self.clues.get_mut(clue).expect("its clues were read");
            let chain = clue_chain(&known.chain, jsn, &hash);
            *known = Clue { count: *ordinal, last_jsn: jsn, chain, ..*known };
            let cell = Cell { jsn, leaf: hash };
            operations.push(put(cell_key(ledger, clue, *ordinal), cell.encode()));
        }
        self.head.edge.push(hash, &mut self.tiles);
        (leaf, hash)
    }

    fn close(self, ledger: LedgerId) -> Closed {
        let tile = |tile: Tile| put(tile_key(ledger, tile.level, tile.index), tile.hashes);
        let mut operations: Vec<Operation> = self.tiles.into_iter().map(tile).collect();
        operations.extend(self.members.iter().map(|(id, member)| put(member_key(ledger, *id), member.encode())));
        operations.push(put(head_key(ledger), self.head.encode()));
        let Head { edge, .. } = self.head;
        Closed { ledger, size_before: self.size_before, size: edge.size(), root: edge.root(), operations }
    }
}

#[cfg(test)]
mod tests;
