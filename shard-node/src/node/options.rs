//! What a node is started with.

use std::{collections::BTreeMap, sync::Arc};

use coppice_env::{Clock, Storage};
use coppice_types::{ClusterId, GroupId, Params};

use crate::{
    net::Connector,
    replica::{Bootstrap, Tuning},
};

/// What a node is made of.
#[derive(Debug)]
pub struct Options {
    /// Its name, by which others connect to it.
    pub node: String,
    /// The cluster that it belongs to.
    pub cluster_id: ClusterId,
    /// The parameters of the genesis header.
    pub params: Params,
    /// The nodes of the cluster by ordinal, this one among them.
    pub nodes: BTreeMap<u32, String>,
    /// The node's directory; each replica lives in `group-<number>`.
    pub storage: Arc<dyn Storage>,
    /// The way to other nodes.
    pub connector: Arc<dyn Connector>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Seeds the random delays of elections.
    pub seed: u64,
    /// The replicas to start.
    pub replicas: Vec<ReplicaOptions>,
    /// How they pace themselves.
    pub tuning: Tuning,
}

/// Which replica to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// Its group.
    pub group: GroupId,
    /// Its raft id, see [`raft_id`](crate::raft_id).
    pub raft_id: u64,
    /// How it begins if it has no directory yet; ignored otherwise.
    pub bootstrap: Bootstrap,
}
