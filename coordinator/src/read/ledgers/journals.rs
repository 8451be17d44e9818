//! Journals and lineages of a ledger, with their proof files (kinds 3 and 5).

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::Range,
};

use bytes::Bytes;
use coppice_proto::{convert, status, v1};
use coppice_types::{Digest, LedgerId, Reason, Stamp};
use coppice_verify::{
    hash::clue_hash,
    journal,
    ledgers::{CLUE_BYTES_MAX, Cell, Clue, DATA, Leaf, Mark, cell_key, clue_key, envelope_key, leaf_key, mark_key},
    merkle,
    proof::{JournalPart, KnownPart, RequestPart},
};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::{Found, Payloads, Sight, decoded, swept_refusal};
use crate::{
    groups::wire,
    plan::Refusal,
    read::{
        proofs::{self, HeadEntry},
        reads::{Located, Reads, check_size, checked_proof},
    },
};

/// Most journals of an answer.
pub const JOURNALS_MAX: u32 = 1024;
/// Most journals of a lineage.
pub const LINEAGE_MAX: u64 = 4096;
/// Most leaves that are read in addition, to show the signed bytes.
const BESIDE_MAX: usize = 16_384;
/// Most versions whose requests are shown in one answer.
const VERSIONS_MAX: usize = 256;
/// How many versions' journals are asked for at once.
const VERSIONS_AHEAD: usize = 8;

/// One journal, as it was read.
#[derive(Debug)]
pub(super) struct Shown {
    bytes: Bytes,
    leaf: Leaf,
    envelope: Option<Bytes>,
    /// Number of the journal whose order occulted this one.
    occulted_by: Option<u64>,
}

impl Shown {
    fn out(&self) -> v1::LedgerJournal {
        v1::LedgerJournal {
            jsn: self.leaf.jsn,
            leaf: self.bytes.clone(),
            envelope: self.envelope.clone().unwrap_or_default(),
            occulted_by: self.occulted_by,
            path: Bytes::new(),
        }
    }

    fn part(&self, request: Option<RequestPart<'static>>) -> JournalPart<'static> {
        let envelope = self.envelope.as_ref().map(|envelope| Cow::Owned(envelope.to_vec()));
        JournalPart { leaf: Cow::Owned(self.bytes.to_vec()), request, envelope }
    }

    /// The journals of the same request.
    fn request(&self) -> Result<Range<u64>, Status> {
        let first = self.leaf.jsn.checked_sub(u64::from(self.leaf.index));
        let request = first.and_then(|first| Some(first..first.checked_add(u64::from(self.leaf.of))?));
        request.ok_or_else(|| wire::broken("leaf of a ledger"))
    }
}

/// The marks of journals among records.
fn marks_in(
    records: &BTreeMap<Bytes, v1::ShardRecord>,
    ledger: LedgerId,
    jsns: &[u64],
) -> Result<BTreeMap<u64, Mark>, Status> {
    let found = jsns.iter().filter_map(|jsn| Some((*jsn, records.get(&mark_key(ledger, *jsn)[..])?)));
    found.map(|(jsn, record)| Ok((jsn, decoded(Mark::decode(&record.value))?))).collect()
}

/// The bytes of journals in an answer.
fn bytes_of(shown: &[Shown]) -> usize {
    shown.iter().map(|journal| journal.bytes.len() + journal.envelope.as_ref().map_or(0, Bytes::len)).sum()
}

/// The requested parts of journals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub payload: bool,
    pub request: bool,
}

impl Reads {
    /// Reads neighbouring journals of a ledger.
    ///
    /// # Errors
    /// `NOT_FOUND` for a ledger or journal that does not exist; `NOT_A_MEMBER` or `ROLE_MISSING` if
    /// the caller may not see it; `LIMIT_EXCEEDED` if the answer would be too large.
    pub async fn journals(
        &self,
        request: &v1::GetJournalsRequest,
        sight: &Sight,
    ) -> Result<v1::GetJournalsResponse, Status> {
        if request.anchor_size > 0 && request.read.is_some_and(|read| read.want_proof) {
            return Err(Refusal::invalid("below an anchor, journals come with paths and without a proof").into());
        }
        if !(1..=JOURNALS_MAX).contains(&request.limit) {
            let message = format!("limit is 1 to {JOURNALS_MAX}, found {}", request.limit);
            return Err(Refusal::invalid(message).into());
        }
        let read = request.read.unwrap_or_default();
        let answer = self.retry(&read, |located, deadline| self.journals_at(located, request, sight, deadline)).await;
        let (id, mut answer) = answer?;
        answer.marks_proof = self.marks_proof(id, &answer.journals, &read).await?;
        Ok(answer)
    }

    async fn journals_at(
        &self,
        located: Located,
        request: &v1::GetJournalsRequest,
        sight: &Sight,
        deadline: Instant,
    ) -> Result<(LedgerId, v1::GetJournalsResponse), Status> {
        let found = self.find(&located, request.ledger.as_ref(), deadline).await?;
        let payloads = self.sight_of(&located, found.id, sight, deadline).await?;
        let size = found.head.edge.size();
        let (from, known) = (request.from_jsn, request.known_size);
        if from >= size {
            let message = format!("the ledger has {size} journals: there is no journal {from}");
            return Err(Refusal::new(Reason::NotFound, message).into());
        }
        if known > size {
            let message = format!("known_size is {known}, the ledger has {size} journals");
            return Err(Refusal::invalid(message).into());
        }
        let end = size.min(from.saturating_add(u64::from(request.limit)));
        // The answer ends before the first journal that is swept.
        let at = (&located, found.head.purged);
        let (purged, swept) = self.swept(at, found.id, from..end, deadline).await?;
        let end = swept.first().copied().unwrap_or(end);
        if from == end {
            return Err(swept_refusal(from, purged).into());
        }
        let jsns: Vec<u64> = (from..end).collect();
        let wanted = Wanted { payload: request.want_payload, request: request.want_request };
        let _room = self.room_for(jsns.len(), &located.view.genesis.params, deadline).await?;
        let shown = self.shown(&located, found.id, &jsns, (wanted, payloads), deadline).await?;
        let mut journals: Vec<v1::LedgerJournal> = shown.iter().map(Shown::out).collect();
        if request.anchor_size > 0 {
            let ledger = (found.id, &found.head.edge);
            let paths = self.anchor_paths(&located, ledger, &jsns, request.anchor_size, deadline).await?;
            journals.iter_mut().zip(paths).for_each(|(journal, path)| journal.path = path);
        }
        let proof = if request.read.is_some_and(|read| read.want_proof) {
            let known = (known > 0).then_some(known);
            self.journals_proof(&located, &found, &shown, (wanted, known), deadline).await?
        } else {
            Bytes::new()
        };
        // Payloads are in the proof as well.
        check_size(bytes_of(&shown) + proof.len(), &located.view.genesis.params)?;
        let answer = v1::GetJournalsResponse {
            journals,
            size,
            root: convert::to_digest(&found.head.edge.root()),
            read_at: Some(convert::to_stamp(located.stamp)),
            proof,
            marks_proof: Bytes::new(),
        };
        Ok((found.id, answer))
    }

    /// Reads leaves and, if they are wanted, envelopes.
    pub(super) async fn shown(
        &self,
        located: &Located,
        ledger: LedgerId,
        jsns: &[u64],
        (wanted, payloads): (Wanted, Payloads),
        deadline: Instant,
    ) -> Result<Vec<Shown>, Status> {
        // Marks are those of head, so only a read of head can ask for all at once.
        let together = wanted.payload && located.is_head;
        let mut leaf_keys: Vec<Vec<u8>> = jsns.iter().map(|jsn| leaf_key(ledger, *jsn)).collect();
        if together {
            leaf_keys.extend(jsns.iter().flat_map(|jsn| [envelope_key(ledger, *jsn), mark_key(ledger, *jsn)]));
        }
        let records = self.records(located, leaf_keys, deadline).await?;
        let leaf = |jsn: &u64| {
            let record = records.get(&leaf_key(ledger, *jsn)[..])?;
            Some(decoded(Leaf::decode(&record.value)).map(|leaf| (*jsn, (record.value.clone(), leaf))))
        };
        let leaves = jsns.iter().filter_map(leaf).collect::<Result<BTreeMap<_, _>, Status>>()?;
        // A caller that may see a ledger sees its members and orders, which are no secret.
        let denied = |leaf: &Leaf| match payloads {
            _ if leaf.kind != DATA => false,
            Payloads::All => false,
            Payloads::Own(member) => leaf.member != member,
            Payloads::None => true,
        };
        if wanted.payload && leaves.values().any(|(_, leaf)| denied(leaf)) {
            let message = "payloads are for owners, regulators and readers, and for their authors: ask without them";
            return Err(Refusal::new(Reason::RoleMissing, message).into());
        }
        let marks = match wanted.payload {
            true if together => marks_in(&records, ledger, jsns)?,
            true => self.marks(located, ledger, jsns, deadline).await?,
            false => BTreeMap::new(),
        };
        let given = jsns.iter().filter(|jsn| wanted.payload && !marks.contains_key(jsn));
        let keys = given.map(|jsn| envelope_key(ledger, *jsn));
        let envelopes = if together { records } else { self.records(located, keys, deadline).await? };
        let one = |jsn: &u64| {
            let (bytes, leaf) = leaves.get(jsn).cloned().ok_or_else(|| wire::broken("ledger: a journal is missing"))?;
            let occulted_by = marks.get(jsn).map(|mark| mark.order);
            let envelope = match wanted.payload && occulted_by.is_none() {
                false => None,
                true => {
                    let record = envelopes.get(&envelope_key(ledger, *jsn)[..]);
                    let record = record.ok_or_else(|| wire::broken("ledger: an envelope is missing"))?;
                    if record.erased {
                        // Its mark came after those that were looked up. The next attempt sees it.
                        let message = "a journal was occulted while it was read: try again";
                        return Err(status::refuse(Reason::Unavailable, message));
                    }
                    Some(record.value.clone())
                }
            };
            Ok(Shown { bytes, leaf, envelope, occulted_by })
        };
        let shown = jsns.iter().map(one).collect::<Result<Vec<_>, Status>>()?;
        check_size(bytes_of(&shown), &located.view.genesis.params)?;
        Ok(shown)
    }

    /// The marks of journals at head. An older version gives no bytes that head does not give.
    async fn marks(
        &self,
        located: &Located,
        ledger: LedgerId,
        jsns: &[u64],
        deadline: Instant,
    ) -> Result<BTreeMap<u64, Mark>, Status> {
        let head = self.head_of(located).await?;
        let records = self.records(&head, jsns.iter().map(|jsn| mark_key(ledger, *jsn)), deadline).await?;
        marks_in(&records, ledger, jsns)
    }

    /// The proof of the marks of those journals of an answer that are occulted, at head. Empty if
    /// none is, or if no proof was asked for.
    async fn marks_proof(
        &self,
        ledger: LedgerId,
        journals: &[v1::LedgerJournal],
        read: &v1::ReadOptions,
    ) -> Result<Bytes, Status> {
        let occulted = journals.iter().filter(|journal| journal.occulted_by.is_some());
        let keys: Vec<Bytes> = occulted.map(|journal| mark_key(ledger, journal.jsn).into()).collect();
        if keys.is_empty() || !read.want_proof {
            return Ok(Bytes::new());
        }
        let at_head = v1::ReadOptions { want_proof: true, cosigned: read.cosigned, ..v1::ReadOptions::default() };
        let prove = |located, deadline| self.get_at(located, &keys, &at_head, deadline);
        Ok(self.retry(&at_head, prove).await?.proof)
    }

    /// Reads leaves, by the number of the journal.
    pub(super) async fn leaves(
        &self,
        located: &Located,
        ledger: LedgerId,
        jsns: impl Iterator<Item = u64>,
        deadline: Instant,
    ) -> Result<BTreeMap<u64, (Bytes, Leaf)>, Status> {
        let records = self.records(located, jsns.map(|jsn| leaf_key(ledger, jsn)), deadline).await?;
        let leaf = |record: v1::ShardRecord| {
            let leaf = decoded(Leaf::decode(&record.value))?;
            Ok((leaf.jsn, (record.value, leaf)))
        };
        records.into_values().map(leaf).collect()
    }

    /// The signed bytes of each journal, with the path of its item.
    async fn requests(
        &self,
        located: &Located,
        ledger: LedgerId,
        shown: &[Shown],
        deadline: Instant,
    ) -> Result<Vec<RequestPart<'static>>, Status> {
        let mut leaves: BTreeMap<u64, (Bytes, Leaf)> =
            shown.iter().map(|shown| (shown.leaf.jsn, (shown.bytes.clone(), shown.leaf.clone()))).collect();
        let wanted: Vec<Range<u64>> = shown.iter().map(Shown::request).collect::<Result<_, _>>()?;
        let beside: BTreeSet<u64> = wanted.iter().cloned().flatten().filter(|jsn| !leaves.contains_key(jsn)).collect();
        if beside.len() > BESIDE_MAX {
            let message = format!("the requests of these journals have {} others: ask for fewer", beside.len());
            return Err(Refusal::new(Reason::LimitExceeded, message).into());
        }
        leaves.extend(self.leaves(located, ledger, beside.into_iter(), deadline).await?);
        let stamps: BTreeSet<Stamp> = shown.iter().map(|shown| shown.leaf.stamp).collect();
        if stamps.len() > VERSIONS_MAX {
            let message = format!(
                "these journals are of {} versions, and what was signed is shown for {VERSIONS_MAX} at most: ask for \
                 fewer, or without requests",
                stamps.len()
            );
            return Err(Refusal::new(Reason::LimitExceeded, message).into());
        }
        let firsts: BTreeSet<u64> = wanted.iter().map(|request| request.start).collect();
        let signed_in = |stamp| self.signed_in(located, (ledger, stamp), &firsts);
        let signed = stream::iter(stamps).map(signed_in).buffered(VERSIONS_AHEAD).try_collect::<Vec<_>>();
        let late = |_| status::refuse(Reason::Unavailable, "the requests of these journals can't be read in time");
        let signed: BTreeMap<u64, Vec<u8>> =
            timeout_at(deadline, signed).await.map_err(late)??.into_iter().flatten().collect();
        let missing = || wire::broken("ledger: a request is missing");
        let mut trees: BTreeMap<u64, merkle::ListTree> = BTreeMap::new();
        let mut parts = Vec::new();
        for (journal, request) in shown.iter().zip(wanted) {
            let bytes = signed.get(&request.start).ok_or_else(missing)?;
            let tree = match trees.entry(request.start) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let item = |jsn| Ok(leaves.get(&jsn).ok_or_else(missing)?.1.item_hash());
                    let items: Vec<Digest> = request.clone().map(item).collect::<Result<_, Status>>()?;
                    new.insert(merkle::ListTree::new(items))
                }
            };
            let path = tree.path(u64::from(journal.leaf.index));
            parts.push(RequestPart { signed: Cow::Owned(bytes.clone()), path });
        }
        Ok(parts)
    }

    /// The signed bytes of requests to a ledger in one version, by the number of their first
    /// journal, for those that are wanted.
    async fn signed_in(
        &self,
        located: &Located,
        (ledger, stamp): (LedgerId, Stamp),
        firsts: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, Vec<u8>>, Status> {
        let (sequence, header) = self.commit_header(&located.view, stamp).await?;
        let append = |entry: &Bytes| match journal::Entry::decode(entry) {
            Ok(journal::Entry::Append(append)) if append.ledger == ledger && firsts.contains(&append.first_jsn) => {
                Some(Ok((append.first_jsn, append.signed)))
            }
            Ok(_) => None,
            Err(_) => Some(Err(wire::broken("journal entry"))),
        };
        self.log.entries(sequence, &header).await?.iter().filter_map(append).collect()
    }

    /// The parts of a proof that show these journals.
    async fn parts(
        &self,
        located: &Located,
        ledger: LedgerId,
        shown: &[Shown],
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<Vec<JournalPart<'static>>, Status> {
        if !wanted.request {
            return Ok(shown.iter().map(|journal| journal.part(None)).collect());
        }
        let requests = self.requests(located, ledger, shown, deadline).await?;
        Ok(shown.iter().zip(requests).map(|(journal, request)| journal.part(Some(request))).collect())
    }

    /// Proves journals by the entry of the ledger's head in the version that appended last.
    pub(super) async fn journals_proof(
        &self,
        located: &Located,
        Found { id, head, appended }: &Found,
        shown: &[Shown],
        (wanted, known): (Wanted, Option<u64>),
        deadline: Instant,
    ) -> Result<Bytes, Status> {
        let jsns: Vec<u64> = shown.iter().map(|shown| shown.leaf.jsn).collect();
        let paths = self.ledger_paths(located, (*id, &head.edge), &jsns, known, deadline).await?;
        let parts = self.parts(located, *id, shown, wanted, deadline).await?;
        let (sequence, header) = self.commit_header(&located.view, *appended).await?;
        let entries = self.log.entries(sequence, &header).await?;
        let entry = HeadEntry::find(&entries, &proofs::tree_of(&entries), *id);
        let entry = entry.ok_or_else(|| wire::broken("journal: no head"))?;
        let header = self.header_proof_of(located, &header, sequence).await?;
        let known = known.zip(paths.known).map(|(size, (root, path))| KnownPart { size, root, path });
        let journals = parts.into_iter().zip(paths.leaves).collect();
        checked_proof(proofs::journals_file(header, &entry, known, journals)?, &located.view.genesis.params)
    }

    /// Reads the journals with a clue, newest first.
    ///
    /// # Errors
    /// Those of [`Reads::journals`].
    pub async fn lineage(
        &self,
        request: &v1::GetLineageRequest,
        sight: &Sight,
    ) -> Result<v1::GetLineageResponse, Status> {
        if !(1..=CLUE_BYTES_MAX).contains(&request.clue.len()) {
            let message = format!("a clue has 1 to {CLUE_BYTES_MAX} bytes, found {}", request.clue.len());
            return Err(Refusal::invalid(message).into());
        }
        let read = request.read.unwrap_or_default();
        let answer = self.retry(&read, |located, deadline| self.lineage_at(located, request, sight, deadline)).await;
        let (id, mut answer) = answer?;
        answer.marks_proof = self.marks_proof(id, &answer.journals, &read).await?;
        Ok(answer)
    }

    async fn lineage_at(
        &self,
        located: Located,
        request: &v1::GetLineageRequest,
        sight: &Sight,
        deadline: Instant,
    ) -> Result<(LedgerId, v1::GetLineageResponse), Status> {
        let Found { id, head, .. } = self.find(&located, request.ledger.as_ref(), deadline).await?;
        let payloads = self.sight_of(&located, id, sight, deadline).await?;
        let clue = clue_hash(id, &request.clue);
        let record = self.record(&located, clue_key(id, &clue), deadline).await?;
        let Clue { count, gone, .. } = match record {
            Some(record) => decoded(Clue::decode(&record.value))?,
            None => Clue::default(),
        };
        let newest = if request.newest == 0 { count } else { count.min(u64::from(request.newest)) };
        let below = count - newest;
        // What a purge has swept is not there, but for what was kept.
        let whole = count - below.max(gone);
        if whole > LINEAGE_MAX {
            let message = format!("the clue has {count} journals: ask for the newest {LINEAGE_MAX} at most");
            return Err(Refusal::new(Reason::LimitExceeded, message).into());
        }
        let params = &located.view.genesis.params;
        let wanted = Wanted { payload: request.want_payload, request: request.want_request };
        let want_proof = request.read.is_some_and(|read| read.want_proof);
        // The answer holds its room to the end, with that of its proof.
        let keys = if want_proof { usize::MAX } else { usize::try_from(whole).unwrap_or(usize::MAX) };
        let _room = self.room_for(keys, params, deadline).await?;
        let mut jsns = self.cells(&located, (id, &clue), below.max(gone)..count, deadline).await?;
        jsns.append(&mut self.cells_kept(&located, (id, &clue), below..gone, LINEAGE_MAX - whole).await?);
        self.check_swept((&located, head.purged), id, &jsns, deadline).await?;
        let shown = self.shown(&located, id, &jsns, (wanted, payloads), deadline).await?;
        let proof = if want_proof {
            let parts = self.parts(&located, id, &shown, wanted, deadline).await?;
            let (low, high) = (clue_key(id, &clue), cell_key(id, &clue, below));
            let range = self.prove_range_in_room(&located, (&low, Some(&high)), true).await?;
            checked_proof(proofs::lineage_file(&range, id, clue, parts)?, params)?
        } else {
            Bytes::new()
        };
        // Payloads are in the proof as well.
        check_size(bytes_of(&shown) + proof.len(), &located.view.genesis.params)?;
        let answer = v1::GetLineageResponse {
            journals: shown.iter().map(Shown::out).collect(),
            count,
            gone,
            read_at: Some(convert::to_stamp(located.stamp)),
            proof,
            marks_proof: Bytes::new(),
        };
        Ok((id, answer))
    }

    /// The numbers of the journals in the cells behind these ordinals of a clue, newest first.
    async fn cells(
        &self,
        located: &Located,
        (ledger, clue): (LedgerId, &Digest),
        ordinals: Range<u64>,
        deadline: Instant,
    ) -> Result<Vec<u64>, Status> {
        let wanted = ordinals.end - ordinals.start;
        let records =
            self.records(located, ordinals.map(|before| cell_key(ledger, clue, before + 1)), deadline).await?;
        if records.len() as u64 != wanted {
            return Err(wire::broken("clue: a cell is missing"));
        }
        // Younger cells have smaller keys.
        records.into_values().map(|record| Ok(decoded(Cell::decode(&record.value))?.jsn)).collect()
    }

    /// The numbers of the journals behind these ordinals of a clue that a purge has kept, newest
    /// first.
    async fn cells_kept(
        &self,
        located: &Located,
        (ledger, clue): (LedgerId, &Digest),
        ordinals: Range<u64>,
        most: u64,
    ) -> Result<Vec<u64>, Status> {
        let mut jsns = Vec::new();
        if ordinals.is_empty() {
            return Ok(jsns);
        }
        let (low, high) = (cell_key(ledger, clue, ordinals.end), cell_key(ledger, clue, ordinals.start));
        for index in located.leaves.overlapping(&low, Some(&high)) {
            let mut pages = self.scan_range(located, index, (&low, Some(&high)), (u32::MAX, false), false);
            while let Some(page) = pages.next().await? {
                for record in page.records {
                    jsns.push(decoded(Cell::decode(&record.value))?.jsn);
                    if jsns.len() as u64 > most {
                        let message = format!("a lineage has at most {LINEAGE_MAX} journals: ask for the newest ones");
                        return Err(Refusal::new(Reason::LimitExceeded, message).into());
                    }
                }
            }
        }
        Ok(jsns)
    }
}
