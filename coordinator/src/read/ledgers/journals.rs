//! Journals and lineages of a ledger, with their proof files (kinds 3 and 5).

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
};

use bytes::Bytes;
use coppice_proto::{convert, v1};
use coppice_types::{Digest, LedgerId, Reason, Stamp};
use coppice_verify::{
    hash::{clue_hash, journal_leaf_hash},
    journal,
    ledgers::{CLUE_BYTES_MAX, Cell, Clue, Leaf, cell_key, clue_key, envelope_key, leaf_key},
    merkle,
    proof::{JournalPart, KnownPart, RequestPart},
};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;
use tonic::Status;

use super::{Found, Payloads, Sight, decoded};
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
/// Most leaves that are read in addition, to show what was signed.
const BESIDE_MAX: usize = 16_384;
/// How many versions' journals are asked for at once.
const VERSIONS_AHEAD: usize = 8;

/// One journal, as it was read.
#[derive(Debug)]
struct Shown {
    bytes: Bytes,
    leaf: Leaf,
    envelope: Option<Bytes>,
}

impl Shown {
    fn out(&self) -> v1::LedgerJournal {
        v1::LedgerJournal {
            jsn: self.leaf.jsn,
            leaf: self.bytes.clone(),
            envelope: self.envelope.clone().unwrap_or_default(),
        }
    }

    fn part(&self, request: Option<RequestPart<'static>>) -> JournalPart<'static> {
        let envelope = self.envelope.as_ref().map(|envelope| Cow::Owned(envelope.to_vec()));
        JournalPart { leaf: Cow::Owned(self.bytes.to_vec()), request, envelope }
    }

    /// The journals of the same request.
    fn request(&self) -> Range<u64> {
        let first = self.leaf.jsn - u64::from(self.leaf.index);
        first..first + u64::from(self.leaf.of)
    }
}

/// The requested parts of journals.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    payload: bool,
    request: bool,
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
        if !(1..=JOURNALS_MAX).contains(&request.limit) {
            let message = format!("limit is 1 to {JOURNALS_MAX}, found {}", request.limit);
            return Err(Refusal::invalid(message).into());
        }
        let read = request.read.unwrap_or_default();
        self.retry(&read, |located, deadline| self.journals_at(located, request, sight, deadline)).await
    }

    async fn journals_at(
        &self,
        located: Located,
        request: &v1::GetJournalsRequest,
        sight: &Sight,
        deadline: Instant,
    ) -> Result<v1::GetJournalsResponse, Status> {
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
        let jsns: Vec<u64> = (from..size.min(from.saturating_add(u64::from(request.limit)))).collect();
        let wanted = Wanted { payload: request.want_payload, request: request.want_request };
        let _room = self.room_for(jsns.len(), &located.view.genesis.params, deadline).await?;
        let shown = self.shown(&located, found.id, &jsns, (wanted, payloads), deadline).await?;
        let proof = if request.read.is_some_and(|read| read.want_proof) {
            let known = (known > 0).then_some(known);
            self.journals_proof(&located, &found, &shown, (wanted, known), deadline).await?
        } else {
            Bytes::new()
        };
        Ok(v1::GetJournalsResponse {
            journals: shown.iter().map(Shown::out).collect(),
            size,
            root: convert::to_digest(&found.head.edge.root()),
            read_at: Some(convert::to_stamp(located.stamp)),
            proof,
        })
    }

    /// Reads leaves and, if they are wanted, envelopes.
    async fn shown(
        &self,
        located: &Located,
        ledger: LedgerId,
        jsns: &[u64],
        (wanted, payloads): (Wanted, Payloads),
        deadline: Instant,
    ) -> Result<Vec<Shown>, Status> {
        let leaves = self.leaves(located, ledger, jsns.iter().copied(), deadline).await?;
        let denied = |leaf: &Leaf| match payloads {
            Payloads::All => false,
            Payloads::Own(member) => leaf.member != member,
            Payloads::None => true,
        };
        if wanted.payload && leaves.values().any(|(_, leaf)| denied(leaf)) {
            let message = "payloads are for owners, regulators and readers, and for their authors: ask without them";
            return Err(Refusal::new(Reason::RoleMissing, message).into());
        }
        let keys = jsns.iter().filter(|_| wanted.payload).map(|jsn| envelope_key(ledger, *jsn));
        let envelopes = self.records(located, keys, deadline).await?;
        let bytes = leaves.values().map(|(bytes, _)| bytes.len());
        let bytes = bytes.chain(envelopes.values().map(|record| record.value.len())).sum();
        check_size(bytes, &located.view.genesis.params)?;
        let one = |jsn: &u64| {
            let (bytes, leaf) = leaves.get(jsn).cloned().ok_or_else(|| wire::broken("ledger: a journal is missing"))?;
            let envelope = match wanted.payload {
                false => None,
                true => {
                    let record = envelopes.get(&envelope_key(ledger, *jsn)[..]);
                    Some(record.ok_or_else(|| wire::broken("ledger: an envelope is missing"))?.value.clone())
                }
            };
            Ok(Shown { bytes, leaf, envelope })
        };
        jsns.iter().map(one).collect()
    }

    /// Reads leaves, by the number of the journal.
    async fn leaves(
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

    /// What was signed for each journal, with the path of its item.
    async fn requests(
        &self,
        located: &Located,
        ledger: LedgerId,
        shown: &[Shown],
        deadline: Instant,
    ) -> Result<Vec<RequestPart<'static>>, Status> {
        let mut leaves: BTreeMap<u64, (Bytes, Leaf)> =
            shown.iter().map(|shown| (shown.leaf.jsn, (shown.bytes.clone(), shown.leaf.clone()))).collect();
        let mut beside: Vec<u64> = shown.iter().flat_map(Shown::request).collect();
        beside.sort_unstable();
        beside.dedup();
        beside.retain(|jsn| !leaves.contains_key(jsn));
        if beside.len() > BESIDE_MAX {
            let message = format!("the requests of these journals have {} others: ask for fewer", beside.len());
            return Err(Refusal::new(Reason::LimitExceeded, message).into());
        }
        leaves.extend(self.leaves(located, ledger, beside.into_iter(), deadline).await?);
        let mut stamps: Vec<Stamp> = shown.iter().map(|shown| shown.leaf.stamp).collect();
        stamps.sort_unstable();
        stamps.dedup();
        let signed = stream::iter(stamps).map(|stamp| self.signed_in(located, ledger, stamp)).buffered(VERSIONS_AHEAD);
        let signed: Vec<BTreeMap<u64, Vec<u8>>> = signed.try_collect().await?;
        let signed: BTreeMap<u64, Vec<u8>> = signed.into_iter().flatten().collect();
        let missing = || wire::broken("ledger: a request is missing");
        let mut trees: BTreeMap<u64, merkle::ListTree> = BTreeMap::new();
        let mut parts = Vec::new();
        for journal in shown {
            let request = journal.request();
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

    /// The signed bytes of the requests to a ledger in one version, by the number of their first
    /// journal.
    async fn signed_in(
        &self,
        located: &Located,
        ledger: LedgerId,
        stamp: Stamp,
    ) -> Result<BTreeMap<u64, Vec<u8>>, Status> {
        let sequence = self.version(&located.view, stamp).await?.sequence;
        let append = |entry: &Bytes| match journal::Entry::decode(entry) {
            Ok(journal::Entry::Append(append)) if append.ledger == ledger => {
                Some(Ok((append.first_jsn, append.signed)))
            }
            Ok(_) => None,
            Err(_) => Some(Err(wire::broken("journal entry"))),
        };
        self.entries(sequence).await?.iter().filter_map(append).collect()
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
    async fn journals_proof(
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
        let version = self.version(&located.view, *appended).await?;
        let entries = self.entries(version.sequence).await?;
        let is_head = |entry: &Bytes| match journal::Entry::decode(entry) {
            Ok(journal::Entry::Head(head)) => head.ledger == *id,
            _ => false,
        };
        let index = entries.iter().position(is_head).ok_or_else(|| wire::broken("journal: no head"))?;
        let hashes: Vec<Digest> = entries.iter().map(|entry| journal_leaf_hash(entry)).collect();
        let entry = HeadEntry {
            index: u32::try_from(index).map_err(|_| wire::broken("journal"))?,
            bytes: entries[index].clone(),
            hashes: merkle::ListTree::new(hashes).proof(index as u64),
        };
        let at = Located { stamp: *appended, leaves: version.leaves.clone(), ..located.clone() };
        let header = self.header_proof(&at).await?;
        let known = known.zip(paths.known).map(|(size, (root, path))| KnownPart { size, root, path });
        let journals = parts.into_iter().zip(paths.leaves).collect();
        checked_proof(proofs::journals_file(header, entry, known, journals)?, &located.view.genesis.params)
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
        self.retry(&read, |located, deadline| self.lineage_at(located, request, sight, deadline)).await
    }

    async fn lineage_at(
        &self,
        located: Located,
        request: &v1::GetLineageRequest,
        sight: &Sight,
        deadline: Instant,
    ) -> Result<v1::GetLineageResponse, Status> {
        let Found { id, .. } = self.find(&located, request.ledger.as_ref(), deadline).await?;
        let payloads = self.sight_of(&located, id, sight, deadline).await?;
        let clue = clue_hash(id, &request.clue);
        let record = self.record(&located, clue_key(id, &clue), deadline).await?;
        let count = match record {
            Some(record) => decoded(Clue::decode(&record.value))?.count,
            None => 0,
        };
        let newest = if request.newest == 0 { count } else { count.min(u64::from(request.newest)) };
        if newest > LINEAGE_MAX {
            let message = format!("the clue has {count} journals: ask for the newest {LINEAGE_MAX} at most");
            return Err(Refusal::new(Reason::LimitExceeded, message).into());
        }
        let below = count - newest;
        let params = &located.view.genesis.params;
        let wanted = Wanted { payload: request.want_payload, request: request.want_request };
        let shown = {
            // The room is given back before the range is proven, which takes its own.
            let keys = usize::try_from(newest).unwrap_or(usize::MAX);
            let _room = self.room_for(keys, params, deadline).await?;
            let jsns = self.cells(&located, (id, &clue), below + 1..count + 1, deadline).await?;
            self.shown(&located, id, &jsns, (wanted, payloads), deadline).await?
        };
        let proof = if request.read.is_some_and(|read| read.want_proof) {
            let parts = self.parts(&located, id, &shown, wanted, deadline).await?;
            let (low, high) = (clue_key(id, &clue), cell_key(id, &clue, below));
            let range = self.prove_range(&located, &low, Some(&high)).await?;
            checked_proof(proofs::lineage_file(&range, id, clue, parts)?, params)?
        } else {
            Bytes::new()
        };
        Ok(v1::GetLineageResponse {
            journals: shown.iter().map(Shown::out).collect(),
            count,
            read_at: Some(convert::to_stamp(located.stamp)),
            proof,
        })
    }

    /// The numbers of the journals in these cells of a clue, newest first.
    async fn cells(
        &self,
        located: &Located,
        (ledger, clue): (LedgerId, &Digest),
        ordinals: Range<u64>,
        deadline: Instant,
    ) -> Result<Vec<u64>, Status> {
        let wanted = ordinals.end - ordinals.start;
        let records = self.records(located, ordinals.map(|at| cell_key(ledger, clue, at)), deadline).await?;
        if records.len() as u64 != wanted {
            return Err(wire::broken("clue: a cell is missing"));
        }
        // Younger cells have smaller keys.
        records.into_values().map(|record| Ok(decoded(Cell::decode(&record.value))?.jsn)).collect()
    }
}
