//! The node as its replicas see it: names, storage, clock, tuning, and the queues to other nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use coppice_env::{Clock, Storage};
use coppice_types::{ClusterId, Params, RaftId};

use super::{durations::Durations, reserve::Reserve, sleep::Sleepers, tuning::Tuning};
use crate::net::{connector::Connector, peers::Peers};

/// How many nodes of unknown ordinals are remembered, by raft id.
const LEARNED_MAX: usize = 1024;

/// The environment that all replicas of a node share.
#[derive(Debug)]
pub struct Site {
    /// The node's name.
    pub node: String,
    pub cluster: ClusterId,
    /// The genesis parameters.
    pub params: Params,
    /// The largest message of the API.
    pub message_bytes_max: usize,
    /// The node's directory.
    pub storage: Arc<dyn Storage>,
    /// The reserve of that directory's disk.
    pub reserve: Reserve,
    pub connector: Arc<dyn Connector>,
    pub clock: Arc<dyn Clock>,
    /// Seeds the random delays of elections.
    pub seed: u64,
    pub tuning: Tuning,
    /// The runtime for asynchronous work.
    pub runtime: tokio::runtime::Handle,
    /// The queues to other nodes.
    pub peers: Peers,
    pub durations: Durations,
    /// The replicas of this node that sleep.
    pub sleepers: Sleepers,
    /// The cluster's nodes by ordinal.
    pub(crate) nodes: BTreeMap<u32, String>,
    /// The ordinals of the nodes that host readers.
    pub(crate) readers: BTreeSet<u32>,
    /// Nodes of ordinals that are not in `nodes`, by raft id.
    pub(crate) learned: RwLock<BTreeMap<RaftId, String>>,
}

impl Site {
    /// The node that hosts a raft id.
    #[must_use]
    pub fn node_of(&self, raft_id: RaftId) -> Option<String> {
        let known = self.nodes.get(&raft_id.ordinal()).cloned();
        known.or_else(|| self.learned.read().unwrap_or_else(PoisonError::into_inner).get(&raft_id).cloned())
    }

    /// Notes which node hosts a raft id whose ordinal was unknown when this node started.
    pub fn learn_node(&self, raft_id: RaftId, node: &str) {
        if self.node_of(raft_id).is_none() {
            let mut learned = self.learned.write().unwrap_or_else(PoisonError::into_inner);
            if learned.len() < LEARNED_MAX {
                learned.insert(raft_id, node.to_owned());
            }
        }
    }

    /// This node's ordinal.
    #[must_use]
    pub fn ordinal(&self) -> Option<u32> {
        self.nodes.iter().find(|(_, name)| **name == self.node).map(|(&ordinal, _)| ordinal)
    }

    /// Whether a replica is a reader: it serves and never votes.
    #[must_use]
    pub fn is_reader(&self, raft_id: RaftId) -> bool {
        self.readers.contains(&raft_id.ordinal())
    }

    /// Whether this node hosts readers.
    #[must_use]
    pub fn hosts_readers(&self) -> bool {
        self.ordinal().is_some_and(|ordinal| self.readers.contains(&ordinal))
    }

    /// The names of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.values().map(String::as_str)
    }

    /// The node of an ordinal.
    #[must_use]
    pub fn node_at(&self, ordinal: u32) -> Option<&str> {
        self.nodes.get(&ordinal).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{SimClock, SimStorage};

    use super::*;
    use crate::{
        DuplexNet,
        replica::tests::{raft_id, site},
    };

    fn of_three() -> Site {
        site(&DuplexNet::new(), SimStorage::new().storage(), Arc::new(SimClock::default()), Tuning::default())
    }

    #[tokio::test]
    async fn a_replica_is_found_by_the_ordinal_in_its_id_whatever_a_message_says() {
        let site = of_three();
        let returned = RaftId::new(2, 77);
        assert_eq!(site.node_of(returned).as_deref(), Some("node-2"), "every incarnation is on one node");
        site.learn_node(returned, "an impostor");
        assert_eq!(site.node_of(returned).as_deref(), Some("node-2"));
        assert_eq!((site.ordinal(), site.node_at(3), site.node_at(4)), (Some(1), Some("node-3"), None));
        assert_eq!(Site { node: "node-9".to_owned(), ..of_three() }.ordinal(), None, "it is not in its own list");
    }

    #[tokio::test]
    async fn nodes_of_unknown_ordinals_are_learned_once_and_in_bounded_number() {
        let site = of_three();
        assert_eq!(site.node_of(raft_id(4)), None);
        site.learn_node(raft_id(4), "node-4");
        site.learn_node(raft_id(4), "an impostor");
        assert_eq!(site.node_of(raft_id(4)).as_deref(), Some("node-4"));
        let many = u32::try_from(LEARNED_MAX).expect("small");
        (5..5 + 2 * many).for_each(|ordinal| site.learn_node(raft_id(ordinal), "flood"));
        assert_eq!(site.learned.read().expect("nobody panicked").len(), LEARNED_MAX);
        assert_eq!(site.node_of(raft_id(4)).as_deref(), Some("node-4"), "what was learned first stays");
    }
}
