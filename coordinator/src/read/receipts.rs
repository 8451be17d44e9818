//! Receipts of members' requests, made from the version that applied them: nothing that it wrote is
//! read back.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use coppice_types::{Change, LedgerId};
use coppice_verify::{
    ledgers::{Appended, Checked, Closed, Edge, Head, Leaf, head_key},
    merkle::ListTree,
    proof::{JournalPart, RequestPart},
};

use super::{
    ledgers::hashes::paths_at_edge,
    proofs::{HeadEntry, Receipts},
};

/// The receipts of a version's requests to ledgers.
#[derive(Debug)]
pub struct JournalReceipts<'r> {
    receipts: &'r Receipts,
    ledgers: BTreeMap<LedgerId, Ledger>,
}

/// A ledger that the version appended to.
#[derive(Debug)]
struct Ledger {
    entry: HeadEntry,
    edge: Edge,
    /// What the version wrote for the ledger, among it the tiles that it filled.
    written: BTreeMap<Vec<u8>, Bytes>,
}

impl Ledger {
    fn new(receipts: &Receipts, closed: &Closed) -> Option<Self> {
        let written = closed.operations.iter().filter_map(|operation| match &operation.change {
            Change::Put(value) => Some((operation.key.to_vec(), Bytes::copy_from_slice(value))),
            Change::Delete => None,
        });
        let written: BTreeMap<Vec<u8>, Bytes> = written.collect();
        let Head { edge, .. } = Head::decode(written.get(&head_key(closed.ledger))?).ok()?;
        Some(Self { entry: receipts.head(closed.ledger)?, edge, written })
    }
}

impl<'r> JournalReceipts<'r> {
    /// The receipts of a version that appended to these ledgers.
    pub fn new(receipts: &'r Receipts, closed: &[Closed]) -> Self {
        let ledger = |closed: &Closed| Some((closed.ledger, Ledger::new(receipts, closed)?));
        Self { receipts, ledgers: closed.iter().filter_map(ledger).collect() }
    }

    /// The proof file of all journals of a request. `None` if more is needed than the version
    /// wrote.
    pub fn receipt(&self, request: &Checked, appended: &Appended) -> Option<Bytes> {
        let Ledger { entry, edge, written } = self.ledgers.get(&appended.ledger)?;
        let jsns: Vec<u64> = appended.leaves.iter().map(|leaf| leaf.jsn).collect();
        let paths = paths_at_edge((appended.ledger, edge), written, &jsns)?;
        let items = ListTree::new(appended.leaves.iter().map(Leaf::item_hash).collect());
        let part = |leaf: &Leaf| JournalPart {
            leaf: Cow::Owned(leaf.encode()),
            request: Some(RequestPart {
                signed: Cow::Borrowed(&request.bytes),
                path: items.path(u64::from(leaf.index)),
            }),
            envelope: None,
        };
        let journals = appended.leaves.iter().map(part).zip(paths).collect();
        self.receipts.of_journals(entry, journals).ok()
    }
}
