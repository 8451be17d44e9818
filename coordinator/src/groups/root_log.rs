//! The root log as this coordinator knows it: read through the root group, signed through the one
//! gate, and remembered where it can't change any more.
//!
//! Everything remembered is a cache: a coordinator that starts again learns it from the root group.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use coppice_env::watch;
use coppice_proto::{
    status,
    v1::{self, read_root_request::Read},
};
use coppice_types::{Digest, Reason, Stamp};
use coppice_verify::{checkpoint::origin, hash::journal_leaf_hash, merkle::mth};
use tokio::{sync::OnceCell, time::Instant};
use tonic::Status;

use super::{attested::Attested, keys::KeyRing, lists::NewestLists, places::Places, root::Root, wire, wire::View};
use crate::{
    lock::held,
    plan::{Commit, Leaves, Refusal},
};

/// Limit on the number of versions whose headers and leaves are remembered for reads.
const VERSIONS_MAX: usize = 256;
/// Limit on the number of sizes whose roots are remembered.
const ROOTS_MAX: usize = 4096;
/// Limit on the number of remembered places of headers.
const PLACES_MAX: usize = 256;
/// Limit on the number of versions whose journal entries are remembered.
const ENTRIES_MAX: usize = 32;
/// Entries of a version with more bytes are not remembered.
const ENTRIES_BYTES_MAX: usize = 512 << 10;
/// Limit on the number of views that are fetched in order to find one whose log can be signed.
const VIEWS_MAX: usize = 16;

/// A version's place in the log and its state leaves. They never change while the version stands.
#[derive(Clone, Debug)]
pub struct KnownVersion {
    /// Canonical bytes of the version's header.
    pub header: Bytes,
    /// The header's place in the root log.
    pub sequence: u64,
    pub leaves: Leaves,
}

/// The journal entries of a version.
type Entries = Arc<[Bytes]>;

/// The root log, with the means to read and to sign it.
#[derive(Debug)]
pub struct RootLog {
    pub root: Root,
    pub keys: Arc<KeyRing>,
    pub attested: Arc<Attested>,
    /// How long a majority may take to confirm a log that is to be signed.
    sign_timeout: Duration,
    /// Entries of the log, as far as this coordinator knows. Never shrinks.
    size: watch::Sender<u64>,
    pub newest_lists: NewestLists,
    remembered: Remembered,
}

/// Values that were seen before.
#[derive(Debug, Default)]
struct Remembered {
    /// The newest view, for `stale_ok`.
    view: Mutex<Option<Arc<View>>>,
    /// The newest view whose log was signed, with the note.
    signed: Mutex<Option<(Arc<View>, Bytes)>>,
    versions: Mutex<BTreeMap<Stamp, Arc<KnownVersion>>>,
    /// Roots of the log by size. They never change, since the log only grows.
    roots: Mutex<BTreeMap<u64, Digest>>,
    /// The places of headers in prefixes of the log, by the prefix's size and the header's
    /// sequence.
    places: Mutex<BTreeMap<(u64, u64), Arc<Places>>>,
    /// Journal entries by the sequence of their header. Those that ask for the same wait for one
    /// read.
    entries: Mutex<BTreeMap<u64, Arc<OnceCell<Entries>>>>,
}

impl RootLog {
    /// A root log without any knowledge of its content yet.
    pub fn new(root: Root, keys: Arc<KeyRing>, attested: Arc<Attested>, sign_timeout: Duration) -> Self {
        let (size, newest_lists, remembered) = (watch::Sender::new(0), NewestLists::default(), Remembered::default());
        Self { root, keys, attested, sign_timeout, size, newest_lists, remembered }
    }

    /// Fetches a linearizable view of the root group, and remembers it for `stale_ok`.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum; `WRONG_CLUSTER` if the nodes belong to another cluster.
    pub async fn view(&self) -> Result<Arc<View>, Status> {
        let view = self.root.view().await?;
        self.check_cluster(&view)?;
        *held(&self.remembered.view) = Some(view.clone());
        self.note_size(view.log_size);
        self.remember_root(view.log_size, view.log_root);
        Ok(view)
    }

    fn remember_root(&self, size: u64, root: Digest) {
        let mut roots = held(&self.remembered.roots);
        roots.insert(size, root);
        if roots.len() > ROOTS_MAX {
            // The one that was just looked up may be the smallest.
            let smallest = roots.keys().copied().find(|known| *known != size);
            smallest.map(|smallest| roots.remove(&smallest));
        }
    }

    /// The root that the log had at this size; `None` if it was never so large.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum.
    pub async fn root_at(&self, size: u64) -> Result<Option<Digest>, Status> {
        if let Some(root) = held(&self.remembered.roots).get(&size) {
            return Ok(Some(*root));
        }
        let view = self.view().await?;
        if size > view.log_size {
            return Ok(None);
        }
        let newest = view.log_size - 1;
        let read = v1::LogProofRead { indices: vec![newest], size: view.log_size, old_size: size };
        let answer = self.root.read(v1::read_root_request::Read::LogProof(read)).await?;
        let root = wire::digest_in(&answer.old_root)?;
        self.remember_root(size, root);
        Ok(Some(root))
    }

    /// The newest view that was seen; `None` if there was none.
    pub fn last_view(&self) -> Option<Arc<View>> {
        held(&self.remembered.view).clone()
    }

    /// The newest view that was seen. Fetches one if there was none.
    ///
    /// # Errors
    /// Those of [`RootLog::view`].
    pub async fn any_view(&self) -> Result<Arc<View>, Status> {
        match self.last_view() {
            Some(view) => Ok(view),
            None => self.view().await,
        }
    }

    /// Checks that the nodes belong to the cluster of this coordinator's key, whose name ends in
    /// the cluster id.
    ///
    /// # Errors
    /// `WRONG_CLUSTER` if they belong to another one.
    pub fn check_cluster(&self, view: &View) -> Result<(), Refusal> {
        let cluster = view.tail.header.cluster;
        if self.keys.origin() == origin(&view.genesis.prefix, &cluster) {
            return Ok(());
        }
        let message = format!("the nodes belong to cluster {cluster}, the key to {}", self.keys.origin());
        Err(Refusal::new(Reason::WrongCluster, message))
    }

    /// Entries of the log, as far as this coordinator knows.
    pub fn size(&self) -> u64 {
        *self.size.borrow()
    }

    /// The log's size and its changes.
    pub fn watch_size(&self) -> watch::Receiver<u64> {
        self.size.subscribe()
    }

    /// Notes that the log has at least this many entries.
    pub fn note_size(&self, size: u64) {
        self.size.send_if_modified(|known| {
            let grown = size > *known;
            *known = size.max(*known);
            grown
        });
    }

    /// Signs a log of this size and root once a majority of the root group has it. `None` if a
    /// larger log was signed meanwhile.
    async fn checkpoint(&self, size: u64, root: Digest) -> Result<Option<Bytes>, Status> {
        self.attested.sign(size, root, Instant::now() + self.sign_timeout).await
    }

    /// Returns the checkpoint over a log of this size and root, or over a newer log if a larger one
    /// was signed meanwhile.
    ///
    /// # Errors
    /// Those of [`RootLog::signed`].
    pub async fn signed_at(&self, size: u64, root: Digest) -> Result<Bytes, Status> {
        self.remember_root(size, root);
        match self.checkpoint(size, root).await? {
            Some(note) => Ok(note),
            None => Ok(self.signed(self.view().await?).await?.1),
        }
    }

    /// Signs the log of a view, or of a newer view if a larger log was signed meanwhile. Returns
    /// the view that is signed, with its checkpoint.
    ///
    /// # Errors
    /// Those of [`Attested::sign`]; `UNAVAILABLE` without a quorum.
    pub async fn signed(&self, mut view: Arc<View>) -> Result<(Arc<View>, Bytes), Status> {
        for _ in 0..VIEWS_MAX {
            if let Some(note) = self.checkpoint(view.log_size, view.log_root).await? {
                let signed = (view.clone(), note.clone());
                *held(&self.remembered.signed) = Some(signed);
                return Ok((view, note));
            }
            view = self.view().await?;
        }
        let message = "the log grew before its checkpoint was signed: ask again";
        Err(status::refuse(Reason::Unavailable, message))
    }

    /// Returns a signed log that need not be the newest: the log of the view if it is signed, else
    /// the one that was signed last. Signs only if there is none.
    ///
    /// # Errors
    /// Those of [`RootLog::signed`].
    pub async fn signed_lately(&self, view: Arc<View>) -> Result<(Arc<View>, Bytes), Status> {
        if let Some(note) = self.attested.note(view.log_size, &view.log_root) {
            return Ok((view, note));
        }
        let last = held(&self.remembered.signed).clone();
        match last {
            Some(last) => Ok(last),
            None => self.signed(view).await,
        }
    }

    /// A remembered version that stands.
    pub fn known_version(&self, stamp: Stamp) -> Option<Arc<KnownVersion>> {
        held(&self.remembered.versions).get(&stamp).cloned()
    }

    /// Reads the journal entries of the version whose header has this sequence.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum.
    pub async fn read_entries(&self, sequence: u64) -> Result<Vec<Bytes>, Status> {
        let read = Read::Journal(v1::JournalRead { sequence });
        Ok(self.root.read_settled(read, |_| true).await?.journal)
    }

    /// The journal entries of the version with this header, which has this sequence. All receipts
    /// of a version share one read.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum; `INTERNAL` if the entries do not give the header's root.
    pub async fn entries(&self, sequence: u64, header: &Bytes) -> Result<Entries, Status> {
        let cell = self.entries_cell(sequence);
        let read = async || {
            let entries: Entries = self.read_entries(sequence).await?.into();
            let hashes: Vec<Digest> = entries.iter().map(|entry| journal_leaf_hash(entry)).collect();
            let sound = mth(&hashes) == wire::header_in(header)?.journal_root;
            if sound { Ok(entries) } else { Err(wire::broken("journal of a version")) }
        };
        let entries = cell.get_or_try_init(read).await?.clone();
        if entries.iter().map(Bytes::len).sum::<usize>() > ENTRIES_BYTES_MAX {
            held(&self.remembered.entries).remove(&sequence);
        }
        Ok(entries)
    }

    fn entries_cell(&self, sequence: u64) -> Arc<OnceCell<Entries>> {
        let mut known = held(&self.remembered.entries);
        if known.len() >= ENTRIES_MAX && !known.contains_key(&sequence) {
            known.pop_first();
        }
        known.entry(sequence).or_default().clone()
    }

    /// The remembered places of the header at `sequence` in the log's first `size` entries.
    pub fn known_places(&self, size: u64, sequence: u64) -> Option<Arc<Places>> {
        held(&self.remembered.places).get(&(size, sequence)).cloned()
    }

    /// Remembers the places of a header. Forgets one in the smallest prefix if there are too many,
    /// because new proofs are made in larger prefixes.
    pub fn remember_places(&self, size: u64, sequence: u64, places: Arc<Places>) {
        let mut known = held(&self.remembered.places);
        known.insert((size, sequence), places);
        if known.len() > PLACES_MAX {
            known.pop_first();
        }
    }

    /// Remembers what a committed header and its journal say, which those that wait for receipts
    /// would all read.
    pub fn remember_commit(&self, commit: &Commit) {
        let header = &commit.tail.header;
        let known = KnownVersion {
            header: Bytes::copy_from_slice(&commit.header),
            sequence: header.sequence.0,
            leaves: commit.tail.leaves.clone(),
        };
        self.remember_version(header.stamp, Arc::new(known));
        if commit.journal.iter().map(Vec::len).sum::<usize>() > ENTRIES_BYTES_MAX {
            return;
        }
        let entries: Entries = commit.journal.iter().map(|entry| Bytes::copy_from_slice(entry)).collect();
        // Whoever reads them at this moment reads the same.
        let _ = self.entries_cell(header.sequence.0).set(entries);
    }

    /// Remembers a version. Forgets the oldest one if there are too many.
    pub fn remember_version(&self, stamp: Stamp, known: Arc<KnownVersion>) {
        let mut versions = held(&self.remembered.versions);
        if versions.len() >= VERSIONS_MAX {
            versions.pop_first();
        }
        versions.insert(stamp, known);
    }
}
