//! The state that a node's services share: the replicas by group, the site, and the connections to
//! other nodes.

mod replica;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
    time::Duration,
};

use bytes::Bytes;
use coppice_env::{SimRng, watch};
use coppice_proto::{
    Channel, convert,
    v1::{self, node_client::NodeClient},
};
use coppice_types::{Digest, GroupId, Reason};
use coppice_verify::header::KINDS;

pub use replica::Replica;

use crate::{
    net::peers::Unreachable,
    pim::{Modules, PimOptions, Prover},
    refusal::Refusal,
    replica::{ReplicaHandle, Site},
    root::RootMachine,
    shard::ShardMachine,
};

/// Progress of the groups that did not run here when the node started.
#[derive(Debug, Default)]
pub(crate) struct Forming {
    /// The digest of the parameters and the first shards that the node was configured with.
    pub ledger: Option<Digest>,
    /// Groups that had no replica here when the node started, and are to be formed or joined.
    pub expected: BTreeSet<GroupId>,
    /// Groups whose replica here has pledged but not begun.
    pub pledged: BTreeSet<GroupId>,
    /// Groups whose replica has begun here since the node started.
    pub started: BTreeSet<GroupId>,
}

/// The state that the services of one node share. It dereferences to its [`Site`].
#[derive(Debug)]
pub struct Hosted {
    /// The part that the replicas share, too.
    pub site: Arc<Site>,
    /// The signal that the node ends, so that endless streams end, too.
    pub closing: watch::Sender<bool>,
    /// The progress of groups that are being formed, which other nodes ask for.
    pub(crate) forming: RwLock<Forming>,
    pub(crate) replicas: RwLock<BTreeMap<GroupId, Replica>>,
    /// The memory modules of a node with readers, if there are any.
    modules: Option<Modules>,
    /// What makes proofs in them, for each shard.
    provers: RwLock<BTreeMap<GroupId, Arc<Prover>>>,
    /// Channels for calls to other nodes, one for each node.
    asking: Mutex<BTreeMap<String, Channel>>,
}

impl Deref for Hosted {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Hosted {
    /// A node without replicas. `site` makes the site from a callback, which is called with the
    /// name of an unreachable node.
    pub(crate) fn new(weak: &Weak<Self>, site: impl FnOnce(Unreachable) -> Site) -> Self {
        let weak = weak.clone();
        let unreachable: Unreachable = Arc::new(move |node: &str| {
            if let Some(hosted) = weak.upgrade() {
                hosted.unreachable(node);
            }
        });
        Self {
            site: Arc::new(site(unreachable)),
            closing: watch::Sender::new(false),
            forming: RwLock::default(),
            replicas: RwLock::default(),
            modules: None,
            provers: RwLock::default(),
            asking: Mutex::default(),
        }
    }

    /// The replica of a group that runs here.
    #[must_use]
    pub fn replica(&self, group: GroupId) -> Option<Replica> {
        self.replicas.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// Has memory modules make proofs for the readers that are started from now on.
    pub(crate) fn with_modules(self, options: Option<&PimOptions>) -> Self {
        let options = options.filter(|_| self.hosts_readers());
        Self { modules: options.and_then(Modules::open), ..self }
    }

    /// Starts the prover of a shard's replica, if the node has memory modules.
    pub(crate) fn start_prover(&self, replica: &ReplicaHandle<ShardMachine>) {
        let Some(modules) = &self.modules else { return };
        let rng = SimRng::new(self.seed ^ replica.raft_id.0 ^ u64::from(replica.group.number()).rotate_left(48));
        if let Some(prover) = modules.start(replica, &self.clock, Box::new(rng)) {
            self.provers.write().unwrap_or_else(PoisonError::into_inner).insert(replica.group, prover);
        }
    }

    /// Takes the prover of a shard, which the caller closes.
    pub(crate) fn take_prover(&self, group: GroupId) -> Option<Arc<Prover>> {
        self.provers.write().unwrap_or_else(PoisonError::into_inner).remove(&group)
    }

    /// What makes proofs of a shard in memory modules, if there are any.
    #[must_use]
    pub fn prover(&self, group: GroupId) -> Option<Arc<Prover>> {
        self.provers.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned()
    }

    /// All replicas that run here.
    #[must_use]
    pub fn all(&self) -> BTreeMap<GroupId, Replica> {
        self.replicas.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The replica of a shard's group that runs here.
    ///
    /// # Errors
    /// `UNAVAILABLE` if there is none.
    pub fn shard(&self, group: GroupId) -> Result<ReplicaHandle<ShardMachine>, Refusal> {
        match self.replica(group) {
            Some(Replica::Shard(replica)) => Ok(replica),
            _ if group == GroupId::Root => Err(Refusal::new(Reason::InvalidArgument, "group 0 is the root group")),
            _ => Err(Refusal::new(Reason::Unavailable, format!("no replica of {group} runs here"))),
        }
    }

    /// The replica of the root group that runs here.
    ///
    /// # Errors
    /// `UNAVAILABLE` if there is none.
    pub fn root(&self) -> Result<ReplicaHandle<RootMachine>, Refusal> {
        match self.replica(GroupId::Root) {
            Some(Replica::Root(replica)) => Ok(replica),
            _ => Err(Refusal::new(Reason::Unavailable, "no replica of the root group runs here")),
        }
    }

    /// Ends the queues to other nodes, and endless streams.
    pub(crate) fn hang_up(&self) {
        self.peers.stop();
        self.closing.send_replace(true);
    }

    /// The status of the node and of all its replicas.
    #[must_use]
    pub fn report(&self) -> v1::NodeStatusResponse {
        let replicas = self.all();
        let forming = self.forming.read().unwrap_or_else(PoisonError::into_inner);
        let started: BTreeSet<GroupId> = forming.started.iter().chain(replicas.keys()).copied().collect();
        let (pledged, ledger) = (forming.pledged.clone(), forming.ledger);
        drop(forming);
        v1::NodeStatusResponse {
            node: self.node.clone(),
            replicas: replicas
                .iter()
                .map(|(group, replica)| replica.report(*group, &self.node, self.prover(*group).as_deref()))
                .collect(),
            cluster_id: Bytes::copy_from_slice(self.cluster.as_bytes()),
            ledger: ledger.as_ref().map(convert::to_digest).unwrap_or_default(),
            pledged: pledged.iter().map(|group| group.number()).collect(),
            started: started.iter().map(|group| group.number()).collect(),
            header_kinds: KINDS.iter().map(|kind| u32::from(*kind)).collect(),
        }
    }

    /// A client of another node's `Node` service. All such calls to a node share one connection.
    pub(crate) fn ask(&self, node: &str) -> NodeClient<Channel> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = asking.entry(node.to_owned()).or_insert_with(|| self.connector.channel(node));
        NodeClient::new(channel.clone())
    }

    /// Takes another node's beat, and wakes the replicas whose groups it does not name any more.
    pub(crate) fn beat(&self, node: &str, beat: &v1::Beat) {
        for group in self.sleepers.heard(node, beat, self.clock.now()) {
            self.wake(group, Duration::ZERO);
        }
    }

    /// Wakes the replicas of groups with a member whose node was silent for `limit`.
    pub(crate) fn wake_overdue(&self, limit: Duration) {
        for (group, silence) in self.sleepers.overdue(self.clock.now(), limit) {
            self.wake(group, silence);
        }
    }

    fn wake(&self, group: GroupId, silence: Duration) {
        if let Some(replica) = self.replica(group) {
            replica.wake(silence);
        }
    }

    fn unreachable(&self, node: &str) {
        for replica in self.all().values() {
            replica.unreachable(node);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
