//! The follower reads the root log, and moves the frontier.

use std::sync::Arc;

use bytes::Bytes;
use coppice_types::{Digest, Reason};
use coppice_verify::{
    hash::log_entry_hash,
    header::{Body, Header},
};
use tokio::time::{Duration, Instant, sleep};

use super::{
    check::writes_of,
    error::{Error, Evidence},
    ledger::{Headed, Shows},
    metrics::count,
    options::{Options, PART_KEYS},
    shared::Shared,
    store::{ENTRY_BYTES, Writes, Written},
};

/// Longest gap that is read with all changes. Across a longer one, headers alone are read up to the
/// head.
pub(super) const GAP_MAX: u64 = 1024;
/// Most headers that are read to bridge a gap. Beyond that, everything is dropped.
pub(super) const HEADERS_MAX: u64 = 1 << 16;
/// Bound on the writes that wait for a checkpoint, in bytes. Those beyond it are given up.
pub(super) const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Longest time for which a checkpoint may lag behind the stream.
const CHECK_PATIENCE: Duration = Duration::from_secs(10);
/// Most samples in a row that may stay without a proof. Then everything is dropped.
pub(super) const SAMPLE_FAILURES_MAX: u32 = 16;

/// A header on the stream.
struct Entry {
    header: Header,
    hash: Digest,
    encoded: Bytes,
    /// The writes of a commit, if they are known: with [`Options::keys_only`], its keys.
    writes: Option<Writes>,
}

/// Reads the root log for a cache, from one stream to the next.
pub(super) struct Follower {
    shared: Arc<Shared>,
    /// The newest entry that was applied.
    last: Option<Entry>,
    /// The entries behind it that no checkpoint covers yet, or that lie before the newest entry
    /// under it.
    queue: Vec<Entry>,
    /// Memory for the writes of the queue.
    bytes: usize,
    /// Changes can't be had: headers alone are read up to the head.
    bare: bool,
    boundary: u64,
    /// Number of samples in a row that the ledger did not prove.
    unproven: u32,
}

/// Notes that the cache is no longer followed, also if the follower is dropped.
struct Following(Arc<Shared>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.status().following = false;
    }
}

/// Reads the log until the ledger is caught in a contradiction.
pub(super) async fn follow(shared: &Arc<Shared>) -> Error {
    {
        let mut status = shared.status();
        if status.following {
            return Error::Following;
        }
        (status.following, status.broken, status.evidence) = (true, Some(Instant::now()), None);
    }
    let _following = Following(shared.clone());
    shared.drop_all();
    let mut follower = Follower::new(shared.clone());
    let mut pause = shared.pause;
    loop {
        let before = follower.sequence();
        let Err(error) = follower.run().await else { continue };
        if follower.sequence() != before {
            pause = shared.pause;
        }
        if let Some(evidence) = follower.judge(&error) {
            return shared.fail(follower.signed(evidence).await);
        }
        count(&shared.counts.cuts, 1);
        shared.status().broken.get_or_insert_with(Instant::now);
        sleep(pause).await;
        pause = (2 * pause).min(200 * shared.pause);
    }
}

impl Follower {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, last: None, queue: Vec::new(), bytes: 0, bare: false, boundary: 0, unproven: 0 }
    }

    fn sequence(&self) -> Option<u64> {
        self.last.as_ref().map(|last| last.header.sequence.0)
    }

    /// The evidence in the error of a stream, if it shows that the ledger is not to be believed.
    fn judge(&mut self, error: &Error) -> Option<Evidence> {
        if let Error::Evidence(evidence) = error {
            return Some(Evidence::clone(evidence));
        }
        if error.is_untrusted() {
            return Some(Evidence::new(format!("the stream is not proven: {error}"), &[]));
        }
        // Changes of a version can't be had if the one before is pruned. The next stream goes
        // without.
        self.bare = matches!(error.reason(), Some(Reason::Pruned | Reason::RolledBack));
        None
    }

    /// Looks for the ledger's signature under what contradicts a checkpoint: if the log was forked,
    /// its next checkpoint shows that.
    async fn signed(&self, found: Evidence) -> Evidence {
        match self.shared.ask_grown().await {
            Err(Error::Evidence(fork)) => Evidence::clone(&fork),
            _ => found,
        }
    }

    /// Reads one stream. Returns without an error if headers were read without changes up to the
    /// head, and another stream can go on with changes.
    async fn run(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        let head = shared.limited("the head", shared.ledger.head()).await?;
        let newest = head.log_size.checked_sub(1).ok_or(Error::Stream("a log without genesis"))?;
        (self.queue, self.bytes) = (Vec::new(), 0);
        if self.sequence().is_some_and(|last| head.log_size > last.saturating_add(HEADERS_MAX)) {
            self.last = None;
        }
        let (mut from, mut bare) = (newest, true);
        if let Some(last) = self.sequence() {
            from = last.checked_add(1).ok_or(Error::Stream("the sequence numbers are used up"))?;
            bare = self.bare && from < head.log_size || head.log_size > from.saturating_add(GAP_MAX);
        }
        (self.bare, self.boundary) = (false, head.boundary);
        if from >= head.log_size && shared.grown().is_none_or(|grown| from >= grown.size) {
            self.reached();
        }
        shared.note_size(from);
        tokio::select! {
            ended = self.stream(from, head.log_size, bare) => ended,
            error = mind(&shared) => Err(error),
        }
    }

    /// Reads the headers from a sequence number on.
    async fn stream(&mut self, from: u64, size: u64, bare: bool) -> Result<(), Error> {
        let shows = if bare { Shows::default() } else { shown(&self.shared.options) };
        let mut heads = self.shared.ledger.watch(from, shows).await?;
        while let Some(headed) = heads.next().await? {
            self.take(headed, bare).await?;
            if !self.queue.is_empty() {
                continue;
            }
            if bare && self.sequence().is_some_and(|last| last >= size - 1) {
                return Ok(());
            }
            self.reached();
        }
        Err(Error::Stream("it ended"))
    }

    /// Notes that the stream has come to the head.
    fn reached(&self) {
        self.shared.status().broken = None;
        self.shared.announce();
    }

    /// Checks the next header. It is applied once the log is proven to have it.
    async fn take(&mut self, headed: Headed, bare: bool) -> Result<(), Error> {
        let hash = log_entry_hash(&headed.encoded);
        let header = &headed.header;
        if let Some(before) = self.queue.last().or(self.last.as_ref())
            && (Some(header.sequence.0) != before.header.sequence.0.checked_add(1) || header.previous != before.hash)
        {
            return Err(Evidence::new("a header does not follow the one before", &headed.encoded).into());
        }
        let mut writes = None;
        if header.body == Body::Commit && !bare {
            writes = writes_of(&self.shared.options, &headed).map_err(|why| {
                let why = format!("a version's changes are not those of its journal: {why}");
                Evidence::new(why, &headed.encoded)
            })?;
        }
        self.bytes = self.bytes.saturating_add(writes.as_ref().map_or(0, size_of_writes));
        if self.bytes > QUEUE_BYTES_MAX && !self.queue.is_empty() {
            writes = None;
        }
        self.queue.push(Entry { header: headed.header, hash, encoded: headed.encoded, writes });
        self.prove().await
    }

    /// Demands a checkpoint that covers the queue. The newest header under it is one of the stream,
    /// in the queue or still to come, and has the same hash there. That hash names all headers
    /// before it, so they are applied then.
    async fn prove(&mut self) -> Result<(), Error> {
        let Some(newest) = self.queue.last() else { return Ok(()) };
        let sequence = newest.header.sequence.0;
        let until = Instant::now() + CHECK_PATIENCE;
        let mut grown = self.shared.grown();
        let grown = loop {
            if let Some(grown) = grown.filter(|grown| grown.size > sequence) {
                break grown;
            }
            let asked = self.shared.ask_grown().await?;
            if asked.size <= sequence {
                if Instant::now() >= until {
                    return Err(Error::Stream("the checkpoint lags behind it"));
                }
                sleep(self.shared.pause).await;
            }
            grown = Some(asked);
        };
        if sequence < grown.size - 1 {
            return Ok(());
        }
        if newest.hash != grown.newest {
            let why = "the log under the checkpoint has another header than the stream";
            return Err(Evidence::new(why, &newest.encoded).into());
        }
        let applied = std::mem::take(&mut self.queue);
        self.bytes = 0;
        let versions = applied.len();
        for entry in applied {
            self.apply(entry)?;
        }
        self.sample(versions).await
    }

    /// Moves the frontier.
    fn apply(&mut self, mut entry: Entry) -> Result<(), Error> {
        let (shared, stamp, writes) = (&self.shared, entry.header.stamp, entry.writes.take());
        let moved = match &entry.header.body {
            _ if self.last.is_none() => {
                shared.store().begin(stamp, self.boundary);
                shared.announce();
                Ok(())
            }
            Body::Commit => {
                let written = match &writes {
                    None => Written::Unknown,
                    Some(writes) if shared.options.keys_only => Written::Keys(writes),
                    Some(writes) => Written::Values(writes),
                };
                shared.commit(stamp, written, true, &entry.encoded).map(|_| ())
            }
            Body::Rollback(_) => {
                shared.roll_back(stamp);
                Ok(())
            }
            Body::Prune(prune) => {
                shared.store().prune(prune.boundary.0);
                count(&shared.counts.prunes, 1);
                shared.announce();
                Ok(())
            }
            _ => Ok(()),
        };
        shared.note_size(entry.header.sequence.0.saturating_add(1));
        self.last = Some(entry);
        moved
    }

    /// Proves cached keys at the frontier, so many for each version. If the ledger refuses to prove
    /// them for a while, everything is dropped.
    async fn sample(&mut self, versions: usize) -> Result<(), Error> {
        let shared = self.shared.clone();
        let wanted = shared.options.samples().saturating_mul(versions).min(PART_KEYS);
        let (at, picked) = {
            let store = shared.store();
            (store.line().frontier().unwrap_or_default(), store.sample(wanted))
        };
        if picked.is_empty() {
            return Ok(());
        }
        let keys: Vec<Bytes> = picked.iter().map(|(key, _)| key.clone()).collect();
        let got = match shared.limited("a sample", shared.read(at, &keys, true)).await {
            Ok(got) => got,
            Err(error) if error.is_untrusted() => return Err(error),
            Err(error) => return self.missed(error),
        };
        self.unproven = 0;
        for ((key, held), record) in picked.iter().zip(&got.records) {
            if held.as_ref() != record.as_ref().map(|(value, _)| value) {
                let why = format!("the cached value of `{}` is not the proven one at {at}", key.escape_ascii());
                return Err(Evidence::new(why, &got.proof).into());
            }
        }
        Ok(())
    }

    /// Counts a sample that the ledger did not prove.
    fn missed(&mut self, error: Error) -> Result<(), Error> {
        count(&self.shared.counts.sample_failures, 1);
        self.unproven += 1;
        if self.unproven < SAMPLE_FAILURES_MAX {
            return Ok(());
        }
        (self.unproven, self.last) = (0, None);
        self.shared.drop_all();
        Err(error)
    }
}

/// The parts of a commit that a cache needs. A journal has the keys of the changes as well.
fn shown(options: &Options) -> Shows {
    let (journal, values) = (options.level.proves(), !options.keys_only);
    Shows { keys: values || !journal, values, journal }
}

fn size_of_writes(writes: &Writes) -> usize {
    let one = |(key, value): (&Bytes, &Option<Bytes>)| ENTRY_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len);
    writes.iter().map(one).sum()
}

/// Returns once the stream has stayed behind the log for [`Options::stale_max`], or for twice that
/// time.
///
async fn mind(shared: &Shared) -> Error {
    let mut before = 0;
    loop {
        sleep(shared.options.stale_max).await;
        let grown = shared.ask_grown().await;
        let now = shared.applied();
        match grown {
            Err(error) if error.is_untrusted() => return error,
            Ok(grown) if now < grown.size && now == before => {
                return Error::Stream("it is silent, and the log has grown");
            }
            _ => before = now,
        }
    }
}
