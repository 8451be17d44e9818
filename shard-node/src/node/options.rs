//! The options that a node is started with.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use coppice_env::{Clock, Storage};
use coppice_types::{ClusterId, GroupId, Params, RaftId};

use crate::{
    net::Connector,
    pim::PimOptions,
    replica::{Bootstrap, Tuning},
};

/// The options that a node is started with.
#[derive(Debug)]
pub struct Options {
    /// The node's name, which other nodes use to connect to it.
    pub node: String,
    pub cluster_id: ClusterId,
    /// The parameters of the genesis header.
    pub params: Params,
    /// The nodes of the cluster by ordinal, including this one.
    pub nodes: BTreeMap<u32, String>,
    /// The ordinals of the nodes that host readers, which never vote.
    pub readers: BTreeSet<u32>,
    /// The node's directory; each replica lives in `group-<number>`.
    pub storage: Arc<dyn Storage>,
    pub connector: Arc<dyn Connector>,
    pub clock: Arc<dyn Clock>,
    /// Seeds the random delays of elections.
    pub seed: u64,
    /// The replicas to start.
    pub replicas: Vec<ReplicaOptions>,
    /// Intervals and limits of the replicas.
    pub tuning: Tuning,
    /// Memory modules that compute, which only readers use.
    pub pim: Option<PimOptions>,
}

/// A replica to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaOptions {
    pub group: GroupId,
    pub raft_id: RaftId,
    /// How the replica begins if it has no directory yet; ignored otherwise.
    pub bootstrap: Bootstrap,
}
