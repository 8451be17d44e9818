//! The configuration that a replica is started with.

use std::sync::Arc;

use coppice_types::RaftId;

use super::{home::Identity, machine::StateMachine, site::Site};

/// How a replica without a directory begins. One that has a directory continues from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// The group is new: no genesis header knows it yet. All its first voters get the same list.
    New {
        /// Raft ids of the first voters.
        voters: Vec<RaftId>,
    },
    /// The group exists: the replica has no vote, and waits until it is added and gets a snapshot.
    Join,
}

/// One replica, and the node that it runs on.
#[derive(Debug)]
pub struct Config<M: StateMachine> {
    /// The owner of the replica's directory.
    pub identity: Identity,
    /// The way to begin if the directory is new. Ignored otherwise.
    pub bootstrap: Bootstrap,
    /// The configuration that the state machine is opened with.
    pub machine: M::Config,
    pub site: Arc<Site>,
}
