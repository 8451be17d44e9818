//! The node as its replicas see it: names, storage, clock, tuning, and the queues to other nodes.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use coppice_env::{Clock, Storage};
use coppice_types::{ClusterId, Params, RaftId};

use super::{durations::Durations, tuning::Tuning};
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
    /// The cluster's nodes by ordinal.
    pub(crate) nodes: BTreeMap<u32, String>,
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
