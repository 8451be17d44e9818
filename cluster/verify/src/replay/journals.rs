//! Ledgers of members in the model: versions of appends, and the proofs of their journals.

use alloc::{borrow::Cow, collections::BTreeMap, vec::Vec};

use coppice_types::{Bytes, Digest, LedgerId, Operation, Stamp};

use super::ledger::Ledger;
use crate::{
    hash::{ledger_leaf_hash, sha256},
    journal::{AppendEntry, Entry, HeadEntry},
    ledgers::{
        Appended, Cell, Checked, Clue, Head, Leaf, Refusal, Round, cell_key, clue_key, envelope_key, head_key, leaf_key,
    },
    merkle,
    proof::{JournalPart, JournalsProof, KnownPart, LineageProof, Proof, ProofFile, RequestPart},
};

/// The parts of each journal that a proof shows besides its leaf.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// The author's request.
    pub request: bool,
    /// Its payload.
    pub envelope: bool,
}

impl Ledger {
    /// Commits a version of these requests; those that are refused leave no trace. Without an
    /// applied one there is no version, and the stamp is that of the head.
    ///
    /// # Panics
    /// If a merge does not apply, which would be a bug of the model.
    pub fn append_requests(&mut self, requests: &[Checked]) -> (Stamp, Vec<Result<Appended, Refusal>>) {
        let (before, stamp) = (self.epochs.stamp_of(self.head().version), self.next_stamp());
        let ground = |key: &[u8]| self.value(before, key).map(Bytes::copy_from_slice);
        let mut round = Round::new(&ground, stamp, self.next_time_ms());
        let answers: Vec<_> = requests.iter().map(|request| round.append(&self.with_facts(before, request))).collect();
        let closed = round.close();
        if closed.is_empty() {
            return (before, answers);
        }
        let mut journal = Vec::new();
        let mut operations: Vec<&Operation> = Vec::new();
        for (request, appended) in requests.iter().zip(&answers) {
            let Ok(appended) = appended else { continue };
            journal.push(Entry::Append(AppendEntry {
                ledger: appended.ledger,
                signed: request.bytes.clone(),
                signature: request.signature,
                first_jsn: appended.first_jsn,
                count: request.signed.items,
                leaves_root: appended.leaves_root,
                shards: self.lists(&appended.operations),
            }));
            operations.extend(&appended.operations);
        }
        for head in &closed {
            let (ledger, size_before, size, root) = (head.ledger, head.size_before, head.size, head.root);
            let shards = self.lists(&head.operations);
            journal.push(Entry::Head(HeadEntry { ledger, size_before, size, root, shards }));
            operations.extend(&head.operations);
        }
        let stamp = self.write(journal, &operations).expect("merges apply");
        for appended in answers.iter().flatten() {
            self.leaf_hashes.entry(appended.ledger).or_default().extend(appended.leaves.iter().map(Leaf::hash));
        }
        (stamp, answers)
    }

    /// A request with the leaves and times that it depends on, as a coordinator adds them.
    #[must_use]
    pub fn with_facts(&self, stamp: Stamp, request: &Checked) -> Checked {
        let leaf = |jsn| self.value(stamp, &leaf_key(request.ledger, jsn)).map(Leaf::decode);
        let leaf = |jsn| leaf(jsn).map(|leaf| leaf.expect("the model wrote it"));
        let versions = self.versions.iter().map(|(stamp, version)| (stamp.version, version.header.timestamp_ms));
        let times: BTreeMap<_, _> = versions.collect();
        let mut facts = request.clone();
        facts.take_facts(leaf, |version| times.get(&version).copied());
        facts
    }

    /// Number of journals of a ledger in a version.
    ///
    /// # Panics
    /// If there is no such ledger there.
    #[must_use]
    pub fn size_of(&self, stamp: Stamp, ledger: LedgerId) -> u64 {
        let head = self.value(stamp, &head_key(ledger)).expect("the ledger is founded");
        Head::decode(head).expect("the model wrote it").edge.size()
    }

    fn leaf(&self, stamp: Stamp, ledger: LedgerId, jsn: u64) -> Leaf {
        let leaf = self.value(stamp, &leaf_key(ledger, jsn)).expect("the journal is there");
        Leaf::decode(leaf).expect("the model wrote it")
    }

    /// A proof of journals by the head entry of a version that appended to their ledger, at the
    /// newest checkpoint. With `known`, it continues the list of that many journals.
    ///
    /// # Panics
    /// If the version did not append to the ledger, or a journal is not there.
    #[must_use]
    pub fn prove_journals(
        &self,
        stamp: Stamp,
        ledger: LedgerId,
        numbers: &[u64],
        known: Option<u64>,
        shown: Shown,
    ) -> ProofFile<'static> {
        let entries = &self.versions[&stamp].journal;
        let is_head = |entry: &Entry| matches!(entry, Entry::Head(head) if head.ledger == ledger);
        let index = entries.iter().position(is_head).expect("the version appended to the ledger");
        let hashes: Vec<Digest> = entries.iter().map(Entry::hash).collect();
        let size = self.size_of(stamp, ledger);
        // What a purge has swept is in no state any more.
        let hash = |jsn: u64| match self.value(stamp, &leaf_key(ledger, jsn)) {
            Some(leaf) => ledger_leaf_hash(leaf),
            None => self.leaf_hashes[&ledger][jsn as usize],
        };
        let leaves: Vec<Digest> = (0..size).map(hash).collect();
        let known = known.map(|known| KnownPart {
            size: known,
            root: merkle::mth(&leaves[..known as usize]),
            path: merkle::consistency_path(&leaves, known),
        });
        let journal = |jsn: &u64| {
            let path = merkle::inclusion_path(&leaves, *jsn);
            (self.journal_part(stamp, ledger, *jsn, shown), path)
        };
        let log_size = self.headers.len() as u64;
        let proof = JournalsProof {
            log: self.log_part(log_size),
            header: self.header_part(stamp, log_size),
            epoch: self.epoch_part(stamp, log_size),
            index: index as u32,
            entry: Cow::Owned(entries[index].encode()),
            hashes: merkle::list_proof(&hashes, &[index as u64]),
            known,
            journals: numbers.iter().map(journal).collect(),
        };
        ProofFile { cluster: self.cluster, proof: Proof::Journals(proof) }
    }

    /// A lineage of a clue in a version, at the newest checkpoint: the `newest` journals, or all.
    ///
    /// # Panics
    /// If there is no such ledger.
    #[must_use]
    pub fn prove_lineage(
        &self,
        stamp: Stamp,
        ledger: LedgerId,
        clue: Digest,
        newest: Option<u64>,
        shown: Shown,
    ) -> ProofFile<'static> {
        let record = self.value(stamp, &clue_key(ledger, &clue));
        let record = record.map(|record| Clue::decode(record).expect("the model wrote it")).unwrap_or_default();
        let after = newest.map_or(0, |newest| record.count.saturating_sub(newest));
        let high = cell_key(ledger, &clue, after);
        let query = self.prove_range(stamp, &clue_key(ledger, &clue), Some(&high), true);
        let Proof::Query(query) = query.proof else { unreachable!("a range is a query") };
        let cell = |ordinal| self.value(stamp, &cell_key(ledger, &clue, ordinal)).map(Cell::decode);
        let numbers =
            (after + 1..=record.count).rev().filter_map(cell).map(|cell| cell.expect("the model wrote it").jsn);
        let journals = numbers.map(|jsn| self.journal_part(stamp, ledger, jsn, shown)).collect();
        let proof = LineageProof { query, ledger, clue, journals };
        ProofFile { cluster: self.cluster, proof: Proof::Lineage(proof) }
    }

    fn journal_part(&self, stamp: Stamp, ledger: LedgerId, jsn: u64, shown: Shown) -> JournalPart<'static> {
        let leaf = self.leaf(stamp, ledger, jsn);
        let envelope = self.value(stamp, &envelope_key(ledger, jsn)).filter(|_| shown.envelope);
        JournalPart {
            leaf: Cow::Owned(leaf.encode()),
            request: shown.request.then(|| self.request_part(stamp, &leaf)),
            envelope: envelope.map(|envelope| Cow::Owned(envelope.to_vec())),
        }
    }

    fn request_part(&self, stamp: Stamp, leaf: &Leaf) -> RequestPart<'static> {
        let first = leaf.jsn - u64::from(leaf.index);
        let items = (first..first + u64::from(leaf.of)).map(|jsn| self.leaf(stamp, leaf.ledger, jsn));
        let items: Vec<Digest> = items.map(|leaf| leaf.item_hash()).collect();
        let signed = self.versions[&leaf.stamp].journal.iter().find_map(|entry| match entry {
            Entry::Append(append) if sha256(&append.signed) == leaf.request => Some(append.signed.clone()),
            _ => None,
        });
        RequestPart {
            signed: Cow::Owned(signed.expect("the request of a leaf is in its version")),
            path: merkle::inclusion_path(&items, u64::from(leaf.index)),
        }
    }
}
