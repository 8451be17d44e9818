//! The rules of orders, and what they do: they occult journals, or purge them in steps (section
//! 18, *Appending* and *Purged journals*).

use alloc::vec::Vec;

use coppice_types::{Bytes, Change, Digest, MemberId, Operation};

use super::{Draft, Refusal, View, put};
use crate::{
    hash::clue_chain,
    ledgers::{
        checked::Checked,
        leaf::{Leaf, LeafClue},
        members::{Founding, Policy, Roles},
        order::{Absent, Action, Mark, Ordered, PurgeOrder, Target},
        places::{
            author_key, cell_key, envelope_key, founding_key, leaf_key, mark_key, name_key, purge_key, retained_key,
            retains_key, tile_key,
        },
        records::{AuthorOf, Purge, PurgeState, Retained, Retains},
        request::DATA,
    },
};

const DAY_MS: u64 = 86_400_000;
const WRONG_PURGE: Refusal = Refusal::Order("the ledger's newest purge is another one, or in another state");

fn rule(holds: bool, refusal: Refusal) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(refusal) }
}

fn delete(key: Vec<u8>) -> Operation {
    Operation { key: key.into(), change: Change::Delete }
}

/// The members that have signed an order, with the roles of all of them.
struct Signers {
    members: Vec<MemberId>,
    roles: Roles,
}

impl View<'_> {
    fn founding(&self) -> Result<Founding, Refusal> {
        self.read(&founding_key(self.ledger), Founding::decode)?.ok_or(Refusal::Damaged)
    }

    pub(super) fn policy(&self) -> Result<Policy, Refusal> {
        match self.open.and_then(|open| open.policy.clone()) {
            Some(policy) => Ok(policy),
            None => self.founding().map(|founding| founding.policy),
        }
    }

    /// Judges an order, and adds what it does to the draft.
    pub(super) fn order(&self, request: &Checked, ordered: &Ordered, draft: &mut Draft) -> Result<(), Refusal> {
        let size = draft.head.edge.size();
        let signers = self.signers(request, ordered, draft, size)?;
        let in_time =
            rule(size <= ordered.order.until, Refusal::Order("the ledger has more journals than the order allows"));
        match &ordered.order.action {
            Action::Occult(targets) => {
                self.may_occult(&signers)?;
                in_time?;
                targets.iter().try_for_each(|target| self.target(target, draft.head.purged))?;
                let mark = Bytes::from(Mark { order: size }.encode());
                let mark = |target: &Target| put(mark_key(self.ledger, target.jsn), mark.clone());
                draft.effect.extend(targets.iter().map(mark));
                Ok(())
            }
            Action::Purge(order) => {
                in_time?;
                self.purge(request, order, &signers, draft)
            }
            Action::Retain { purge, journals } => {
                in_time?;
                self.retain(request, (*purge, journals), draft)
            }
            Action::Recall { purge } => {
                in_time?;
                self.recall(request, *purge, draft)
            }
            Action::Sweep { purge, from, to } => {
                in_time?;
                self.sweep(request, (*purge, *from, *to), draft)
            }
        }
    }

    /// The author and the members that approve, whose signatures must be of their keys in force.
    fn signers(&self, request: &Checked, ordered: &Ordered, draft: &Draft, size: u64) -> Result<Signers, Refusal> {
        let author = request.signed.member;
        let roles = draft.members.get(&author).map(|author| author.roles).unwrap_or_default();
        let mut signers = Signers { members: Vec::from([author]), roles };
        for (at, approval) in ordered.approvals.iter().enumerate() {
            let member = self.member(approval.member)?.filter(|member| member.agency.is_none());
            let member = member.ok_or(Refusal::Incomplete("a member that it names"))?;
            let key = member.key_at(size);
            let signed = key.is_some() && key == request.approved(at);
            rule(signed, Refusal::Incomplete("the key in force of a member that it names"))?;
            signers.members.push(approval.member);
            signers.roles = signers.roles.and(member.roles);
        }
        Ok(signers)
    }

    fn may_occult(&self, signers: &Signers) -> Result<(), Refusal> {
        let occult = self.policy()?.occult;
        rule(occult != 0, Refusal::Order("the ledger's policy lets nobody occult"))?;
        rule(signers.roles.has(Roles::OWNER), Refusal::Incomplete("an owner"))?;
        rule(occult != 1 || signers.roles.has(Roles::REGULATOR), Refusal::Incomplete("a regulator"))
    }

    /// Judges whether a journal can be occulted: it is older than the version and not swept, holds
    /// data, and is not occulted yet.
    fn target(&self, target: &Target, purged: u64) -> Result<(), Refusal> {
        let is_marked = self.read(&mark_key(self.ledger, target.jsn), Mark::decode)?.is_some();
        rule(!is_marked, Refusal::Order("a journal of the order is occulted already"))?;
        let is_there = target.jsn >= purged || self.retained(target.jsn)?;
        rule(is_there, Refusal::Order("a journal of the order was purged"))?;
        // A journal of this very version is not there yet.
        let leaf = self.leaf(target.jsn)?;
        let leaf = leaf.ok_or(Refusal::Order("the ledger had no journal of such a number before"))?;
        rule(leaf.hash() == target.leaf, Refusal::Order("a journal of the order has another leaf"))?;
        rule(leaf.kind == DATA, Refusal::Order("only journals with data are occulted"))
    }

    fn leaf(&self, jsn: u64) -> Result<Option<Leaf>, Refusal> {
        self.read(&leaf_key(self.ledger, jsn), Leaf::decode)
    }

    fn retained(&self, jsn: u64) -> Result<bool, Refusal> {
        Ok(self.read(&retained_key(self.ledger, jsn), Retained::decode)?.is_some())
    }

    fn newest_purge(&self) -> Result<Option<Purge>, Refusal> {
        self.read(&purge_key(self.ledger), Purge::decode)
    }

    /// The newest purge, if it is this one.
    fn purge_of(&self, order: u64) -> Result<Purge, Refusal> {
        self.newest_purge()?.filter(|purge| purge.order == order).ok_or(WRONG_PURGE)
    }

    fn purge(
        &self,
        request: &Checked,
        order: &PurgeOrder,
        signers: &Signers,
        draft: &mut Draft,
    ) -> Result<(), Refusal> {
        let head = &mut draft.head;
        let size = head.edge.size();
        let newest = self.newest_purge()?;
        rule(!newest.is_some_and(|purge| purge.is_open()), Refusal::Order("another purge of the ledger is under way"))?;
        rule(order.before > head.purged, Refusal::Order("these journals are purged already"))?;
        let tile = |level, index| self.tile(level, index);
        let seen = if order.size <= size { head.edge.before(order.size, tile) } else { None };
        let had = seen.is_some_and(|edge| edge.root() == order.root);
        rule(had, Refusal::Order("the ledger never had the root that the order names"))?;
        // A closed ledger has no name any more, or loses it by the purge that has closed it.
        rule(!(order.closes && head.is_closed), Refusal::Order("the ledger is closed already"))?;
        let all = order.before == size;
        rule(all || !order.closes, Refusal::Order("an order that closes a ledger purges all of its journals"))?;
        let begins = all || self.leaf(order.before)?.is_some_and(|leaf| leaf.index == 0);
        rule(begins, Refusal::Order("the purge would end within a request"))?;
        self.affected(request, order, signers)?;
        head.is_closed |= order.closes;
        let purge = Purge {
            order: size,
            stamp: self.stamp,
            before: order.before,
            closes: order.closes,
            state: PurgeState::Pending,
            swept: newest.map(|purge| purge.swept).unwrap_or_default(),
        };
        draft.effect.push(put(purge_key(self.ledger), purge.encode()));
        Ok(())
    }

    /// The hashes of a tile that is full, also of one that became so in this version.
    fn tile(&self, level: u8, index: u64) -> Option<Vec<u8>> {
        let new = self.open.and_then(|open| open.tiles.iter().find(|tile| (tile.level, tile.index) == (level, index)));
        new.map(|tile| tile.hashes.clone())
            .or_else(|| (self.ground)(&tile_key(self.ledger, level, index)).map(|tile| tile.to_vec()))
    }

    /// Judges whether all have signed that have a journal below the purge, or are absent.
    fn affected(&self, request: &Checked, order: &PurgeOrder, signers: &Signers) -> Result<(), Refusal> {
        let missing = Refusal::Incomplete("all members whose journals it purges");
        for number in 1..=u64::from(order.authors) {
            let author = self.author(number)?.ok_or(Refusal::Incomplete("so many authors as it names"))?;
            let is_absent = order.absent.iter().any(|absent| absent.member == author.member);
            rule(is_absent || signers.members.contains(&author.member), missing.clone())?;
        }
        let next = self.author(u64::from(order.authors) + 1)?;
        rule(next.is_none_or(|next| next.first_jsn >= order.before), missing)?;
        let days = self.policy()?.absent_days;
        order.absent.iter().try_for_each(|absent| self.absent(request, absent, days))?;
        let stands_in = order.absent.is_empty() || signers.roles.has(Roles::REGULATOR);
        rule(stands_in, Refusal::Incomplete("a regulator, in the place of absent members"))
    }

    fn author(&self, number: u64) -> Result<Option<AuthorOf>, Refusal> {
        self.read(&author_key(self.ledger, number), AuthorOf::decode)
    }

    /// Judges whether a member has had no key for so many days.
    fn absent(&self, request: &Checked, absent: &Absent, days: u32) -> Result<(), Refusal> {
        let refusal = Refusal::Incomplete("a member that it calls absent, and that is not");
        let member = self.member(absent.member)?.ok_or(refusal.clone())?;
        let ended = member.keys.last().and_then(|span| span.until);
        rule(days > 0 && ended == absent.revocation.checked_add(1), refusal.clone())?;
        let leaf = self.leaf(absent.revocation)?.ok_or(refusal.clone())?;
        let since = request.time_of(leaf.stamp.version).ok_or(refusal.clone())?;
        rule(since.saturating_add(u64::from(days) * DAY_MS) <= self.now_ms, refusal)
    }

    fn retain(&self, request: &Checked, (order, journals): (u64, &[u64]), draft: &mut Draft) -> Result<(), Refusal> {
        let purge = self.purge_of(order)?;
        rule(purge.state == PurgeState::Pending, WRONG_PURGE)?;
        let among = |jsn: Option<u64>| jsn.is_some_and(|jsn| journals.binary_search(&jsn).is_ok());
        for jsn in journals {
            let within = (draft.head.purged..purge.before).contains(jsn);
            rule(within, Refusal::Order("the purge does not take a journal that is to be kept"))?;
            rule(!self.retained(*jsn)?, Refusal::Order("a journal of the order is kept already"))?;
            let leaf = self.leaf(*jsn)?.filter(|leaf| leaf.kind == DATA);
            let leaf = leaf.ok_or(Refusal::Order("only journals with data need to be kept"))?;
            let is_whole = (leaf.index == 0 || among(jsn.checked_sub(1)))
                && (leaf.index + 1 == leaf.of || among(jsn.checked_add(1)));
            rule(is_whole, Refusal::Order("journals are kept with all others of their request"))?;
        }
        let member = request.signed.member;
        let known = self.read(&retains_key(self.ledger, member), Retains::decode)?;
        let before = known.filter(|known| known.purge == order).map_or(0, |known| known.count);
        let count = u32::try_from(journals.len()).ok().and_then(|more| before.checked_add(more));
        let count = count.filter(|count| self.policy().is_ok_and(|policy| *count <= policy.retain_max));
        let count = count.ok_or(Refusal::Order("the ledger's policy lets a member keep fewer journals"))?;
        let retained = Bytes::from(Retained { order: draft.head.edge.size(), member }.encode());
        let retained = |jsn: &u64| put(retained_key(self.ledger, *jsn), retained.clone());
        draft.effect.extend(journals.iter().map(retained));
        draft.effect.push(put(retains_key(self.ledger, member), Retains { purge: order, count }.encode()));
        Ok(())
    }

    fn recall(&self, request: &Checked, order: u64, draft: &mut Draft) -> Result<(), Refusal> {
        let purge = self.purge_of(order)?;
        rule(purge.state == PurgeState::Pending, WRONG_PURGE)?;
        let author = draft.members.get(&request.signed.member).ok_or(Refusal::NotAMember)?;
        let is_affected = author.journals.is_some_and(|(first, _, _)| first < purge.before);
        let wanted = "an owner, a regulator, or a member whose journals would be purged";
        rule(author.may_order() || is_affected, Refusal::Role(wanted))?;
        draft.head.is_closed &= !purge.closes;
        let purge = Purge { state: PurgeState::Recalled, ..purge };
        draft.effect.push(put(purge_key(self.ledger), purge.encode()));
        Ok(())
    }

    fn sweep(&self, request: &Checked, (order, from, to): (u64, u64, u64), draft: &mut Draft) -> Result<(), Refusal> {
        let purge = self.purge_of(order)?;
        rule(purge.is_open(), WRONG_PURGE)?;
        let next = from == draft.head.purged && to <= purge.before;
        rule(next, Refusal::Order("a sweep begins where the one before ended, and stays below the purge's end"))?;
        if purge.state == PurgeState::Pending {
            let notice_ms = u64::from(self.policy()?.notice_s) * 1000;
            let since = request.time_of(purge.stamp.version).filter(|_| purge.stamp.version < self.stamp.version);
            let over = since.is_some_and(|since| since.saturating_add(notice_ms) <= self.now_ms);
            rule(over, Refusal::Order("the purge's time of notice is not over"))?;
        }
        let occulted = (from..to).any(|jsn| self.changed(&mark_key(self.ledger, jsn)).is_some());
        rule(!occulted, Refusal::Order("a journal was occulted in this version: sweep it in the next one"))?;
        let swept = request.swept();
        rule(swept.iter().map(|leaf| leaf.jsn).eq(from..to), Refusal::Damaged)?;
        for leaf in swept {
            self.sweep_journal(leaf, draft)?;
        }
        draft.head.purged = to;
        let is_done = to == purge.before;
        let state = if is_done { PurgeState::Swept } else { PurgeState::Sweeping };
        let done = Purge { state, swept: self.stamp.version, ..purge };
        draft.effect.push(put(purge_key(self.ledger), done.encode()));
        if is_done && purge.closes {
            let name = self.founding()?.name;
            draft.effect.push(delete(name_key(&name)));
            draft.freed = Some(name);
        }
        Ok(())
    }

    fn sweep_journal(&self, leaf: &Leaf, draft: &mut Draft) -> Result<(), Refusal> {
        let (ledger, jsn, hash): (_, u64, Digest) = (self.ledger, leaf.jsn, leaf.hash());
        for LeafClue { clue, ordinal } in &leaf.clues {
            let record = draft.clues.get_mut(clue).filter(|record| record.gone + 1 == *ordinal);
            let record = record.ok_or(Refusal::Damaged)?;
            record.gone = *ordinal;
            record.chain_gone = clue_chain(&record.chain_gone, jsn, &hash);
        }
        if leaf.kind != DATA || self.retained(jsn)? {
            return Ok(());
        }
        draft.effect.extend([leaf_key(ledger, jsn), envelope_key(ledger, jsn)].map(delete));
        let cell = |clue: &LeafClue| delete(cell_key(ledger, &clue.clue, clue.ordinal));
        draft.effect.extend(leaf.clues.iter().map(cell));
        Ok(())
    }
}
