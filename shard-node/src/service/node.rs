//! The `Node` service: the replicas' status, and changes of a group's members.

use std::{sync::Arc, time::Duration};

use coppice_process::access::{Action, Caller, Claimant, Role, noted};
use coppice_proto::v1::{self, node_server::Node};
use coppice_types::{GroupId, RaftId, Reason};
use tonic::{Request, Response, Status};

use crate::{
    hosted::Hosted,
    refusal::Refusal,
    replica::{Change, Member, Role as ReplicaRole},
};

const CHANGE_MEMBER: &str = "/coppice.v1.Node/ChangeMember";
/// How long a change of members may take.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest name of a node, in bytes.
const NODE_NAME_BYTES_MAX: usize = 253;

/// Serves operators and coordinators.
#[derive(Clone, Debug)]
pub struct NodeService {
    pub hosted: Arc<Hosted>,
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_status(
        &self,
        _request: Request<v1::NodeStatusRequest>,
    ) -> Result<Response<v1::NodeStatusResponse>, Status> {
        let hosted = Arc::clone(&self.hosted);
        let runner = hosted.tuning.runner.clone();
        let report = runner.blocking(move || hosted.report()).await;
        let report = report.ok_or_else(|| Refusal::new(Reason::Internal, "the status could not be read"))?;
        Ok(Response::new(report))
    }

    async fn leads(&self, request: Request<v1::LeadsRequest>) -> Result<Response<v1::LeadsResponse>, Status> {
        let group = GroupId::from_number(request.into_inner().group);
        let status = self.hosted.replica(group).map(|replica| replica.status()).unwrap_or_default();
        Ok(Response::new(v1::LeadsResponse { leads: status.role == ReplicaRole::Leader, term: status.term }))
    }

    async fn change_member(
        &self,
        request: Request<v1::ChangeMemberRequest>,
    ) -> Result<Response<v1::ChangeMemberResponse>, Status> {
        let claimant = Claimant::of(request.extensions());
        let (caller, log) = Caller::from(&request);
        let request = request.into_inner();
        let group = GroupId::from_number(request.group);
        let v1::ChangeMemberRequest { raft_id, node, change, .. } = &request;
        let action = Action::new("change member", format!("{change} {raft_id} ({node}) in {group}"));
        if let Some(claimant) = claimant.filter(|claimant| !claimant.has(Role::Coordinator)) {
            self.check_own(&claimant, &request)?;
        }
        let answer = self.change(group, &request).await.map_err(Status::from);
        noted(log.as_ref(), &caller, action, &answer);
        answer.map(|()| Response::new(v1::ChangeMemberResponse {}))
    }
}

impl NodeService {
    async fn change(&self, group: GroupId, request: &v1::ChangeMemberRequest) -> Result<(), Refusal> {
        let change = change(request)?;
        let replica = self.hosted.replica(group);
        let replica =
            replica.ok_or_else(|| Refusal::new(Reason::NotFound, format!("no replica of {group} runs here")))?;
        replica.change(CHANGE_TIMEOUT, change).await
    }
}

impl NodeService {
    /// Refuses a node that changes the membership of another node's replicas.
    fn check_own(&self, claimant: &Claimant, request: &v1::ChangeMemberRequest) -> Result<(), Status> {
        let Some(node) = self.hosted.node_at(RaftId(request.raft_id).ordinal()) else {
            return Err(claimant.deny(CHANGE_MEMBER, "the node of the replica is not in [nodes]"));
        };
        claimant.must_be(CHANGE_MEMBER, node)?;
        match change(request)? {
            Change::AddLearner(member) => claimant.must_be(CHANGE_MEMBER, &member.node),
            Change::Promote(_) | Change::Remove(_) => Ok(()),
            Change::Lead(_) => Err(claimant.deny(CHANGE_MEMBER, "only coordinators move leaderships")),
        }
    }
}

fn change(request: &v1::ChangeMemberRequest) -> Result<Change, Refusal> {
    let invalid = |what: &str| Err(Refusal::new(Reason::InvalidArgument, what));
    let raft_id = RaftId(request.raft_id);
    if raft_id.ordinal() == 0 || raft_id.incarnation() == 0 {
        return invalid("a raft id is ordinal << 32 | incarnation, both from 1");
    }
    match request.change.as_str() {
        "add_learner" if request.node.is_empty() || request.node.len() > NODE_NAME_BYTES_MAX => {
            invalid("a new member names its node in 1 to 253 bytes")
        }
        "add_learner" => Ok(Change::AddLearner(Member { raft_id, node: request.node.clone() })),
        "promote" => Ok(Change::Promote(raft_id)),
        "remove" => Ok(Change::Remove(raft_id)),
        "lead" => Ok(Change::Lead(raft_id)),
        _ => invalid("change is add_learner, promote, remove or lead"),
    }
}

#[cfg(test)]
mod tests;
