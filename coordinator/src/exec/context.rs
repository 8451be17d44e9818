//! What every part of a coordinator shares.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use coppice_env::{Clock, Rng, watch};
use coppice_metadata::Snapshot;
use coppice_types::{Digest, Params, Reason, Version};
use coppice_verify::checkpoint::origin;
use tokio::time::Instant;

use super::{
    attested::Attested, keys::KeyRing, links::Links, retention::Retention, root::Root, shards::Shards, wire::View,
};
use crate::{
    health::Readiness,
    metrics::Metrics,
    plan::{Leaves, Refusal},
    publish::Cosigned,
    room::{Room, Taken},
};

/// Most versions whose leaves and headers are remembered for reads.
const VERSIONS_MAX: usize = 256;
/// Most views that are taken to have one whose log is signed.
const VIEWS_MAX: usize = 16;
/// Bytes that a value is taken to have until it was read, if the ledger allows for more.
const VALUE_BYTES: u32 = 1 << 20;

/// Bounds and deadlines; the defaults suit a cluster in one place.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most batches that wait or are being decided.
    pub queue_max: usize,
    /// Most bytes of batches that wait or are being decided.
    pub queue_bytes_max: u32,
    /// Most batches of one `CommitStream` that are under way.
    pub stream_batches_max: usize,
    /// Most batches of one version.
    pub batches_per_version_max: usize,
    /// How long a batch may wait before it is refused.
    pub commit_timeout: Duration,
    /// How long a shard may take for a prepare before the version goes on without it.
    pub prepare_timeout: Duration,
    /// How long the root group may take for one call.
    pub root_timeout: Duration,
    /// How long one node may take before another is asked.
    pub attempt_timeout: Duration,
    /// How long a read may look for a replica that has its state.
    pub read_timeout: Duration,
    /// How long a rollback or prune may take.
    pub admin_timeout: Duration,
    /// After how much idleness shards are told what was decided.
    pub finalize_after: Duration,
    /// Most stages at once.
    pub stages_max: usize,
    /// Most stages of one caller.
    pub stages_per_caller_max: usize,
    /// Most sessions that one caller uses through this coordinator within a minute.
    pub sessions_per_caller_max: usize,
    /// Most pins of one caller through this coordinator.
    pub pins_per_caller_max: usize,
    /// Most streams that follow the log.
    pub follows_max: usize,
    /// Most of them of one caller.
    pub follows_per_caller_max: usize,
    /// How long a stage lives.
    pub stage_age_max: Duration,
    /// How far the leader's clock may be from the median of the root replicas'.
    pub clock_skew_max: Duration,
    /// Which versions the leader keeps; all, if nothing is said.
    pub retention: Option<Retention>,
    /// How often the leader looks for versions to prune by policy.
    pub retention_interval: Duration,
    /// How long a leadership lease lasts without being kept alive.
    pub lease: Duration,
    /// How long a leader goes on that the root group does not answer.
    pub root_silence_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            queue_bytes_max: 64 << 20,
            stream_batches_max: 64,
            batches_per_version_max: 1024,
            commit_timeout: Duration::from_secs(30),
            prepare_timeout: Duration::from_secs(10),
            root_timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(3),
            read_timeout: Duration::from_secs(10),
            admin_timeout: Duration::from_secs(20),
            finalize_after: Duration::from_millis(100),
            stages_max: 16,
            stages_per_caller_max: 8,
            sessions_per_caller_max: 1024,
            pins_per_caller_max: 64,
            follows_max: 1024,
            follows_per_caller_max: 64,
            stage_age_max: Duration::from_secs(60),
            clock_skew_max: Duration::from_secs(1),
            retention: None,
            retention_interval: Duration::from_secs(10),
            lease: Duration::from_secs(2),
            root_silence_max: Duration::from_millis(1500),
        }
    }
}

/// Who leads, as far as this coordinator knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Name of the leading coordinator; empty if none is known.
    pub leader: String,
    /// The term, if this coordinator leads.
    pub term: Option<u64>,
}

/// A version's place in the log and its state leaves: they never change while it stands.
#[derive(Clone, Debug)]
pub struct KnownVersion {
    /// Canonical bytes of its header.
    pub header: Bytes,
    /// The header's place in the root log.
    pub sequence: u64,
    /// Its state leaves.
    pub leaves: Leaves,
}

/// What every part of a coordinator shares.
#[derive(Debug)]
pub struct Context {
    /// This coordinator's name.
    pub name: String,
    /// The subject of its certificate, if it has one.
    pub subject: OnceLock<String>,
    /// Channels to the nodes.
    pub links: Arc<Links>,
    /// The root group.
    pub root: Root,
    /// The shards.
    pub shards: Shards,
    /// The ledger's keys, and those that are here.
    pub keys: Arc<KeyRing>,
    /// Signs checkpoints.
    pub attested: Arc<Attested>,
    /// Bounds and deadlines.
    pub limits: Limits,
    /// What is counted.
    pub metrics: Metrics,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Names of stages.
    pub rng: Mutex<Box<dyn Rng>>,
    /// Size of the root log, as far as this coordinator knows.
    pub log_size: watch::Sender<u64>,
    /// Who leads.
    pub leadership: watch::Sender<Leadership>,
    /// Whether this coordinator can serve its role.
    pub readiness: watch::Sender<Readiness>,
    /// Witnesses are asked for cosignatures here.
    pub asks_witnesses: AtomicBool,
    /// The newest checkpoint that enough witnesses have cosigned.
    pub cosigned: watch::Sender<Option<Arc<Cosigned>>>,
    /// What the metadata store said last.
    pub registry: watch::Sender<Arc<Snapshot>>,
    /// When it said it.
    pub registry_heard: Mutex<Option<Instant>>,
    /// The newest state of the root group that was seen, for `stale_ok`.
    pub last_view: Mutex<Option<Arc<View>>>,
    /// Bytes that answers may have in memory while they are made.
    answers: Room,
    /// (epoch, version) to what stands there.
    versions: Mutex<BTreeMap<(u64, u64), Arc<KnownVersion>>>,
    /// The newest of them whose log was signed, with the note.
    last_signed: Mutex<Option<(Arc<View>, Bytes)>>,
}

impl Context {
    /// Joins the parts.
    pub fn new(
        name: String,
        links: Arc<Links>,
        root: Root,
        (keys, attested): (Arc<KeyRing>, Arc<Attested>),
        limits: Limits,
        clock: Arc<dyn Clock>,
        rng: Box<dyn Rng>,
    ) -> Self {
        Self {
            name,
            subject: OnceLock::new(),
            shards: Shards::new(links.clone(), root.clone()),
            links,
            root,
            keys,
            attested,
            limits,
            metrics: Metrics::new(),
            clock,
            rng: Mutex::new(rng),
            log_size: watch::Sender::new(0),
            leadership: watch::Sender::new(Leadership::default()),
            readiness: watch::Sender::new(Err("it has just started".to_owned())),
            asks_witnesses: AtomicBool::new(false),
            cosigned: watch::Sender::new(None),
            registry: watch::Sender::default(),
            registry_heard: Mutex::default(),
            last_view: Mutex::default(),
            answers: Room::default(),
            versions: Mutex::default(),
            last_signed: Mutex::default(),
        }
    }

    /// What this coordinator is called where it acts by itself: the subject of its certificate, or its name without TLS.
    #[must_use]
    pub fn own_name(&self) -> String {
        self.subject.get().cloned().unwrap_or_else(|| format!("coordinator {}", self.name))
    }

    /// Signs a log of this size and root, once a majority of the root group has it. `None` if a
    /// larger one was signed meanwhile.
    ///
    /// # Errors
    /// As [`Attested::sign`].
    async fn checkpoint(&self, size: u64, root: Digest) -> Result<Option<Bytes>, tonic::Status> {
        self.attested.sign(size, root, Instant::now() + self.limits.root_timeout).await
    }

    /// The checkpoint over a log of this size and root, or over a newer one if a larger log was
    /// signed meanwhile.
    ///
    /// # Errors
    /// As [`Context::signed`].
    pub async fn signed_at(&self, size: u64, root: Digest) -> Result<Bytes, tonic::Status> {
        match self.checkpoint(size, root).await? {
            Some(note) => Ok(note),
            None => Ok(self.signed(self.view().await?).await?.1),
        }
    }

    /// Signs the log that a view shows, or that of a newer one if a larger log was signed
    /// meanwhile; gives the view that is signed.
    ///
    /// # Errors
    /// As [`Attested::sign`]; `UNAVAILABLE` without a quorum.
    pub async fn signed(&self, mut view: Arc<View>) -> Result<(Arc<View>, Bytes), tonic::Status> {
        for _ in 0..VIEWS_MAX {
            if let Some(note) = self.checkpoint(view.log_size, view.log_root).await? {
                *self.last_signed.lock().expect("no holder of the lock panics") = Some((view.clone(), note.clone()));
                return Ok((view, note));
            }
            view = self.view().await?;
        }
        let message = "the log grew before its checkpoint was signed: ask again";
        Err(coppice_proto::status::refuse(Reason::Unavailable, message))
    }

    /// A signed log that need not be the newest: the one that the view shows, or else the last one
    /// that was shown, or else as [`Context::signed`].
    ///
    /// # Errors
    /// As there.
    pub async fn signed_lately(&self, view: Arc<View>) -> Result<(Arc<View>, Bytes), tonic::Status> {
        if let Some(note) = self.attested.note(view.log_size, &view.log_root) {
            return Ok((view, note));
        }
        let last = self.last_signed.lock().expect("no holder of the lock panics").clone();
        match last {
            Some(last) => Ok(last),
            None => self.signed(view).await,
        }
    }

    /// Shows a cosigned checkpoint from now on, unless a newer one is shown already.
    pub fn publish_cosigned(&self, cosigned: Cosigned) {
        self.cosigned.send_if_modified(|shown| {
            let newer = shown.as_ref().is_none_or(|shown| cosigned.size >= shown.size);
            if newer {
                *shown = Some(Arc::new(cosigned));
            }
            newer
        });
    }

    /// The key's name ends in the id of its cluster.
    ///
    /// # Errors
    /// If the nodes belong to another one.
    pub fn check_cluster(&self, view: &View) -> Result<(), Refusal> {
        let cluster = view.tail.header.cluster;
        if self.keys.origin() == origin(&view.genesis.prefix, &cluster) {
            return Ok(());
        }
        let message = format!("the nodes belong to cluster {cluster}, the key to {}", self.keys.origin());
        Err(Refusal::new(Reason::WrongCluster, message))
    }

    /// A linearizable view of the root group, which is remembered for `stale_ok`.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum.
    pub async fn view(&self) -> Result<Arc<View>, tonic::Status> {
        let view = self.root.view().await?;
        self.check_cluster(&view)?;
        *self.last_view.lock().expect("no holder of the lock panics") = Some(view.clone());
        self.log_size.send_if_modified(|size| {
            let grown = view.log_size > *size;
            *size = view.log_size.max(*size);
            grown
        });
        Ok(view)
    }

    /// The remembered state of a version that stands.
    pub fn known_version(&self, epoch: u64, version: Version) -> Option<Arc<KnownVersion>> {
        self.versions.lock().expect("no holder of the lock panics").get(&(epoch, version.0)).cloned()
    }

    /// Waits for room to make an answer to a caller with the values of so many keys; with all that
    /// a message holds, if there are too many.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if there is none before the deadline.
    pub async fn room(
        &self,
        caller: &str,
        keys: usize,
        params: &Params,
        deadline: Instant,
    ) -> Result<Taken, tonic::Status> {
        let each = params.value_bytes_max.min(VALUE_BYTES) + params.key_bytes_max;
        let bytes = u32::try_from(keys).unwrap_or(u32::MAX).saturating_mul(each);
        self.answers.take(caller, bytes.min(params.message_bytes_max), deadline).await
    }

    /// Remembers a version.
    pub fn remember_version(&self, epoch: u64, version: Version, known: Arc<KnownVersion>) {
        let mut versions = self.versions.lock().expect("no holder of the lock panics");
        if versions.len() >= VERSIONS_MAX {
            versions.pop_first();
        }
        versions.insert((epoch, version.0), known);
    }

    /// 16 random bytes.
    pub fn random_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        self.rng.lock().expect("no holder of the lock panics").fill(&mut id);
        id
    }
}
