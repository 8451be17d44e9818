//! The coordinator's state as others see it: its leader, its readiness, the cosigned checkpoint,
//! its anchors, and the metadata store's answer.
//!
//! Tasks set these values, and gauges, health, the API and [`Handle`](crate::Handle) show them.
//! None of them decides anything that is committed.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use coppice_env::watch;
use coppice_metadata::{Kind, Member, Metadata, Snapshot};
use coppice_proto::v1;
use coppice_types::Term;
use tokio::time::Instant;

use crate::lock::held;

/// How long an answer of the metadata store counts as recent.
const FRESH: Duration = Duration::from_secs(3);

/// The leading coordinator, as far as this one knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Name of the leading coordinator; empty if none is known.
    pub leader: String,
    /// The term, if this coordinator leads.
    pub term: Option<Term>,
}

/// Whether the coordinator can serve its role; the error says why not.
pub type Readiness = Result<(), String>;

/// A checkpoint with the cosignatures of a quorum of witnesses.
#[derive(Clone, Debug)]
pub struct Cosigned {
    /// Entries of the log under the checkpoint.
    pub size: u64,
    /// The signed note with the cosignatures.
    pub note: Bytes,
    /// When this was the newest checkpoint.
    pub since: Instant,
}

/// How far the log is stamped, as the leader's task last saw it.
#[derive(Debug, Default)]
pub struct Anchors(Mutex<AnchorTimes>);

#[derive(Debug, Default)]
struct AnchorTimes {
    /// When the newest anchor was made.
    newest: Option<Instant>,
    /// Since when an anchor has been due that is not made.
    due: Option<Instant>,
}

impl Anchors {
    /// Time since the newest anchor.
    pub fn age(&self) -> Option<Duration> {
        held(&self.0).newest.map(|at| at.elapsed())
    }

    /// How long an anchor has been due. Zero if none is.
    pub fn overdue(&self) -> Duration {
        let due = held(&self.0).due;
        due.map_or(Duration::ZERO, |due| due.elapsed())
    }

    /// Notes when the newest anchor was made. Without any, time counts from the first look.
    pub fn anchored(&self, at: Option<Instant>) {
        let mut known = held(&self.0);
        known.newest = at.or(known.newest).or_else(|| Some(Instant::now()));
    }

    /// Notes whether an anchor is due.
    pub fn is_due(&self, due: bool) {
        let mut known = held(&self.0);
        known.due = if due { known.due.or_else(|| Some(Instant::now())) } else { None };
    }
}

/// The values that a coordinator shows.
#[derive(Debug)]
pub struct Shown {
    name: String,
    /// The subject of the coordinator's certificate, if it has one.
    subject: OnceLock<String>,
    pub leadership: watch::Sender<Leadership>,
    pub readiness: watch::Sender<Readiness>,
    /// The newest cosigned checkpoint.
    pub cosigned: watch::Sender<Option<Arc<Cosigned>>>,
    pub anchors: Anchors,
    /// Whether this coordinator asks witnesses for cosignatures.
    asks_witnesses: AtomicBool,
    /// The newest answer of the metadata store, and when it came.
    registry: watch::Sender<Arc<Snapshot>>,
    registry_heard: Mutex<Option<Instant>>,
}

impl Shown {
    /// The state of a coordinator of this name that has just started.
    pub fn new(name: String) -> Self {
        Self {
            name,
            subject: OnceLock::new(),
            leadership: watch::Sender::new(Leadership::default()),
            readiness: watch::Sender::new(Err("it has just started".to_owned())),
            cosigned: watch::Sender::new(None),
            anchors: Anchors::default(),
            asks_witnesses: AtomicBool::new(false),
            registry: watch::Sender::default(),
            registry_heard: Mutex::default(),
        }
    }

    /// The coordinator's name in the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records the subject of the coordinator's certificate. Later calls have no effect.
    pub fn set_subject(&self, subject: String) {
        let _ = self.subject.set(subject);
    }

    /// The name under which the coordinator acts on its own behalf: the subject of its certificate,
    /// or without TLS its name.
    pub fn own_name(&self) -> String {
        self.subject.get().cloned().unwrap_or_else(|| format!("coordinator {}", self.name))
    }

    /// Whether this coordinator leads.
    pub fn leads(&self) -> bool {
        self.leadership.borrow().term.is_some()
    }

    /// Records that this coordinator asks witnesses for cosignatures.
    pub fn set_asks_witnesses(&self) {
        self.asks_witnesses.store(true, Ordering::Relaxed);
    }

    /// Whether this coordinator asks witnesses for cosignatures.
    pub fn asks_witnesses(&self) -> bool {
        self.asks_witnesses.load(Ordering::Relaxed)
    }

    /// Shows a cosigned checkpoint, unless a newer one is shown already.
    pub fn publish_cosigned(&self, cosigned: Cosigned) {
        self.cosigned.send_if_modified(|shown| {
            let newer = shown.as_ref().is_none_or(|shown| cosigned.size >= shown.size);
            if newer {
                *shown = Some(Arc::new(cosigned));
            }
            newer
        });
    }

    /// The newest answer of the metadata store, and its changes.
    pub fn registry(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.registry.subscribe()
    }

    /// The time since the metadata store last answered; `None` if it never did.
    pub fn registry_age(&self) -> Option<Duration> {
        let heard = *held(&self.registry_heard);
        heard.map(|heard| heard.elapsed())
    }

    /// Takes over an answer of the metadata store. While this coordinator leads, the answer does
    /// not change who leads: only the root group can end its term.
    fn note_registry(&self, snapshot: Snapshot) {
        *held(&self.registry_heard) = Some(Instant::now());
        let leader = snapshot.leader.as_ref().map(|leader| leader.name.clone());
        // If the store picked this coordinator, it has no term yet: nobody leads.
        let leader = leader.filter(|leader| *leader != self.name).unwrap_or_default();
        self.registry.send_if_modified(|known| {
            let news = **known != snapshot;
            if news {
                *known = Arc::new(snapshot);
            }
            news
        });
        self.leadership.send_if_modified(|known| {
            let news = known.term.is_none() && known.leader != leader;
            if news {
                known.leader = leader;
            }
            news
        });
    }

    /// The registered coordinators, by the metadata store's newest answer.
    pub fn coordinators(&self) -> Vec<v1::CoordinatorStatus> {
        let registry = self.registry.borrow().clone();
        let coordinators = registry.members.iter().filter(|member| member.kind == Kind::Coordinator);
        let status =
            |member: &Member| v1::CoordinatorStatus { name: member.name.clone(), address: member.address.clone() };
        coordinators.map(status).collect()
    }

    /// Whether another coordinator is registered and the metadata store could pick it. A store that
    /// has been silent for a while picks nobody.
    pub fn could_be_replaced(&self) -> bool {
        let registry = self.registry.borrow().clone();
        self.registry_age().is_some_and(|age| age < FRESH)
            && registry.members.iter().any(|member| member.kind == Kind::Coordinator && member.name != self.name)
    }

    /// The address of a coordinator; `None` if it is not registered.
    pub fn address_of(&self, coordinator: &str) -> Option<String> {
        let registry = self.registry.borrow().clone();
        let found =
            registry.members.iter().find(|member| member.kind == Kind::Coordinator && member.name == coordinator);
        found.map(|member| member.address.clone())
    }
}

/// Follows the metadata store. While it does not answer, its newest answer stays in force. Never
/// returns.
pub async fn follow(shown: Arc<Shown>, metadata: Arc<dyn Metadata>) {
    coppice_metadata::follow(metadata, |snapshot| shown.note_registry(snapshot)).await;
}
