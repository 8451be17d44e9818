//! Steps `journal`, `list`, `leaf`, `request`, `envelope` and `lineage`: journals of a ledger
//! (`docs/verification.md` section 18, *Proofs*).

use alloc::vec::Vec;

use coppice_types::{Digest, LedgerId};

use super::{
    claim::{Answer, Journal, JournalsClaim, LineageClaim, QueryClaim, Record},
    failure::{Failure, Step, ensure, fail},
    log::Log,
};
use crate::{
    hash::{clue_chain, ledger_id, sha256},
    header::{Body, Header},
    journal::{Entry, HeadEntry},
    ledgers::{Cell, Clue, Envelope, Leaf, Signed, cell_key, clue_key},
    merkle,
    proof::{JournalPart, JournalsProof, LineageProof, RequestPart},
};

/// Where journals are checked: the cluster, the ledger, and the version.
struct Place<'p> {
    log: &'p Log,
    ledger: LedgerId,
    header: &'p Header,
}

pub(super) fn check_journals(log: &Log, proof: &JournalsProof<'_>) -> Result<JournalsClaim, Failure> {
    let header = log.header(&proof.header)?;
    ensure(matches!(header.body, Body::Commit), Step::Header, "not a commit")?;
    log.stands(&proof.epoch, header.stamp)?;
    let entry = super::journal_entry(&header, proof.index, &proof.entry, &proof.hashes)?;
    let Entry::Head(HeadEntry { ledger, size, root, .. }) = entry else {
        return Err(Failure::rule(Step::Journal, "not the head of a ledger"));
    };
    let place = Place { log, ledger, header: &header };
    let parts: Vec<&JournalPart<'_>> = proof.journals.iter().map(|(part, _)| part).collect();
    let leaves = place.leaves(&parts)?;
    ensure(leaves.is_sorted_by(|a, b| a.jsn < b.jsn), Step::Leaf, "journals that do not ascend")?;
    ensure(!leaves.is_empty(), Step::List, "no journal is shown")?;
    for (leaf, (_, path)) in leaves.iter().zip(&proof.journals) {
        merkle::verify_inclusion(leaf.jsn, size, &leaf.hash(), path, &root).map_err(fail(Step::List))?;
    }
    if let Some(known) = &proof.known {
        merkle::verify_consistency(known.size, size, &known.root, &root, &known.path).map_err(fail(Step::List))?;
    }
    let journals = place.journals(leaves, &parts)?;
    let known = proof.known.as_ref().map(|known| (known.size, known.root));
    Ok(JournalsClaim { header, ledger, size, root, known, journals })
}

impl Place<'_> {
    /// Checks all leaves by themselves.
    fn leaves(&self, parts: &[&JournalPart<'_>]) -> Result<Vec<Leaf>, Failure> {
        let leaf = |part: &&JournalPart<'_>| {
            let leaf = Leaf::decode(&part.leaf).map_err(fail(Step::Leaf))?;
            ensure(leaf.ledger == self.ledger, Step::Leaf, "leaf of another ledger")?;
            let (own, version) = (leaf.stamp, self.header.stamp);
            let past = own.epoch <= version.epoch && own.version <= version.version;
            ensure(past, Step::Leaf, "leaf of a later version")?;
            Ok(leaf)
        };
        parts.iter().map(leaf).collect()
    }

    /// Checks the requests, and then the envelopes, of journals whose leaves are proven.
    fn journals(&self, leaves: Vec<Leaf>, parts: &[&JournalPart<'_>]) -> Result<Vec<Journal>, Failure> {
        let request = |(leaf, part): (&Leaf, &&JournalPart<'_>)| {
            part.request.as_ref().map(|request| self.request(leaf, request)).transpose()
        };
        let signed = leaves.iter().zip(parts).map(request).collect::<Result<Vec<_>, Failure>>()?;
        let journal = |((leaf, part), signed): ((Leaf, &&JournalPart<'_>), _)| {
            let envelope = part.envelope.as_ref().map(|bytes| envelope(&leaf, bytes)).transpose()?;
            Ok(Journal { leaf, signed, envelope })
        };
        leaves.into_iter().zip(parts).zip(signed).map(journal).collect()
    }

    fn request(&self, leaf: &Leaf, part: &RequestPart<'_>) -> Result<Signed, Failure> {
        ensure(sha256(&part.signed) == leaf.request, Step::Request, "another request than the leaf's")?;
        let signed = Signed::decode(&part.signed).map_err(fail(Step::Request))?;
        ensure(signed.cluster == self.log.cluster, Step::Request, "request to another cluster")?;
        ensure(leaf.repeats(&signed), Step::Request, "the leaf does not repeat the request")?;
        if signed.founds() {
            let id = ledger_id(signed.cluster, &part.signed, leaf.ledger.0[15] & 1 == 1);
            ensure(id == leaf.ledger, Step::Request, "it founds another ledger")?;
        }
        let item = leaf.item_hash();
        let (index, of) = (u64::from(leaf.index), u64::from(leaf.of));
        merkle::verify_inclusion(index, of, &item, &part.path, &signed.items_root).map_err(fail(Step::Request))?;
        ensure(leaf.is_signed(&part.signed), Step::Request, "the leaf's key has not signed it")?;
        Ok(signed)
    }
}

fn envelope(leaf: &Leaf, bytes: &[u8]) -> Result<Envelope, Failure> {
    let own = bytes.len() as u64 == u64::from(leaf.envelope_bytes) && sha256(bytes) == leaf.commitment;
    ensure(own, Step::Envelope, "another envelope than the leaf's")?;
    let envelope = Envelope::decode(bytes).map_err(fail(Step::Envelope))?;
    let clues = envelope.clue_hashes(leaf.ledger);
    let same = clues.iter().eq(leaf.clues.iter().map(|clue| &clue.clue));
    ensure(same, Step::Envelope, "other clues than the leaf's")?;
    Ok(envelope)
}

pub(super) fn check_lineage(log: &Log, proof: &LineageProof<'_>) -> Result<LineageClaim, Failure> {
    let QueryClaim { header, answer } = super::check_query(log, &proof.query)?;
    ensure(matches!(header.body, Body::Commit), Step::Header, "not a commit")?;
    let (ledger, clue) = (proof.ledger, proof.clue);
    let shape = |holds, rule| ensure(holds, Step::Lineage, rule);
    let Answer::Range { low, high: Some(high), records } = answer else {
        return Err(Failure::rule(Step::Lineage, "not a range of a clue"));
    };
    let after = high.last_chunk().map(|ordinal| !u64::from_be_bytes(*ordinal));
    let after = after.filter(|after| *low == *clue_key(ledger, &clue) && *high == *cell_key(ledger, &clue, *after));
    let after = after.ok_or(Failure::rule(Step::Lineage, "the range of something else than the clue"))?;
    shape(proof.query.values.is_some(), "the file has no values")?;
    let place = Place { log, ledger, header: &header };
    let parts: Vec<&JournalPart<'_>> = proof.journals.iter().collect();
    let journals = place.journals(place.leaves(&parts)?, &parts)?;
    let (count, gone) = check_cells(ledger, &clue, after, &records, &journals)?;
    Ok(LineageClaim { header, ledger, clue, count, after, gone, journals })
}

/// Checks that the records and journals are all those of a clue above the ordinal `after`. Returns
/// the number of all journals with the clue, and of those that a purge has swept or kept.
fn check_cells(
    ledger: LedgerId,
    clue: &Digest,
    after: u64,
    records: &[Record<'_>],
    journals: &[Journal],
) -> Result<(u64, u64), Failure> {
    let shape = |holds, rule| ensure(holds, Step::Lineage, rule);
    let Some((first, records)) = records.split_first() else {
        shape(journals.is_empty() && after == 0, "journals of a clue that has none")?;
        return Ok((0, 0));
    };
    shape(*first.key == *clue_key(ledger, clue), "the clue's record is missing")?;
    let record = Clue::decode(value(first)?).map_err(fail(Step::Lineage))?;
    let cell = |record: &Record<'_>| Cell::decode(value(record)?).map_err(fail(Step::Lineage));
    let cells = records.iter().map(cell).collect::<Result<Vec<_>, Failure>>()?;
    shape(after <= record.count && journals.len() == cells.len(), "another number of cells or journals")?;
    // Above those that are gone no cell is missing; further below lie those of kept journals.
    let floor = after.max(record.gone);
    let whole = usize::try_from(record.count - floor).unwrap_or(usize::MAX);
    shape(cells.len() >= whole, "another number of cells or journals")?;
    let mut above = record.count + 1;
    for (at, (cell, Journal { leaf, .. })) in cells.iter().zip(journals).enumerate() {
        let named = leaf.clues.iter().find(|own| own.clue == *clue);
        let named = named.ok_or(Failure::rule(Step::Lineage, "a leaf that does not name the clue"))?.ordinal;
        let follows = if at < whole { named + 1 == above } else { named < above.min(floor + 1) && named > after };
        shape(follows, "a leaf that names the clue at another ordinal")?;
        shape(*records[at].key == *cell_key(ledger, clue, named), "a cell of another ordinal")?;
        shape((leaf.jsn, leaf.hash()) == (cell.jsn, cell.leaf), "a leaf of another cell")?;
        above = named;
    }
    let ordered = cells.is_sorted_by(|a, b| a.jsn > b.jsn);
    let last = whole == 0 || cells[0].jsn == record.last_jsn;
    shape(ordered && last, "cells out of order")?;
    if after <= record.gone {
        let over = |chain, cell: &Cell| clue_chain(&chain, cell.jsn, &cell.leaf);
        let chain = cells[..whole].iter().rev().fold(record.chain_gone, over);
        shape(chain == record.chain, "another chain than the clue's")?;
    }
    Ok((record.count, record.gone))
}

fn value<'r>(record: &'r Record<'_>) -> Result<&'r [u8], Failure> {
    record.value.as_deref().ok_or(Failure::rule(Step::Lineage, "the file has no values"))
}
