//! A node's replica of a shard or of the root group.

use std::ops::Deref;

use coppice_engine::ErasureProgress;
use coppice_proto::{convert, v1};
use coppice_types::GroupId;

use crate::{
    pim::Prover,
    replica::{AnyReplica, Member, ReplicaHandle, Status, machine::StateMachine},
    root::RootMachine,
    shard::{ShardMachine, messages},
};

/// A replica of either kind. [`AnyReplica`] has the operations of both kinds.
#[derive(Clone, Debug)]
pub enum Replica {
    Shard(ReplicaHandle<ShardMachine>),
    Root(ReplicaHandle<RootMachine>),
}

impl Deref for Replica {
    type Target = dyn AnyReplica;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shard(replica) => replica,
            Self::Root(replica) => replica,
        }
    }
}

impl Replica {
    /// The replica's current status.
    #[must_use]
    pub fn status(&self) -> Status {
        (**self).status()
    }

    /// The replica's status as other nodes and coordinators see it.
    pub(super) fn report(&self, group: GroupId, node: &str, prover: Option<&Prover>) -> v1::ReplicaReport {
        let status = self.status();
        let (disk, forest, erasures) = match self {
            Self::Shard(replica) => {
                // Read first: a clearing that ends meanwhile only claims too little.
                let cleared = replica.cleared();
                let read = |machine: &ShardMachine| {
                    let decided = machine.engine().decided();
                    let shape = machine.engine().shape(&decided).ok();
                    Ok((machine.disk_bytes(), Some((decided, shape)), machine.engine().erasures(cleared)))
                };
                replica.read_now(read).unwrap_or_default()
            }
            Self::Root(replica) => {
                let disk = replica.read_now(|machine| Ok(machine.disk_bytes()));
                (disk.unwrap_or_default(), None, ErasureProgress::default())
            }
        };
        let ids = |members: &[Member]| members.iter().map(|member| member.raft_id.0).collect();
        v1::ReplicaReport {
            group: group.number(),
            leader_raft_id: status.leader.map_or(0, |id| id.0),
            decided: forest.as_ref().map(|(decided, _)| convert::to_state(*decided)),
            shape: forest.and_then(|(_, shape)| shape).as_ref().map(messages::to_shape),
            voters: ids(&status.voters),
            learners: ids(&status.learners),
            committed: status.committed,
            erased_through: erasures.through.0,
            erasures_open: u32::try_from(erasures.open).unwrap_or(u32::MAX),
            status: Some(v1::ReplicaStatus {
                raft_id: self.raft_id().0,
                node: node.to_owned(),
                role: status.role.as_str().to_owned(),
                applied: status.applied,
                bytes_on_disk: disk,
                note: note(status.note, prover),
            }),
        }
    }
}

/// The status' note, or what the prover does if there is none.
fn note(note: String, prover: Option<&Prover>) -> String {
    match prover.map(Prover::figures) {
        Some(figures) if note.is_empty() => figures.to_string(),
        _ => note,
    }
}
