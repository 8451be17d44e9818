//! Transfers the leadership of a group to the replica on a chosen node.
//!
//! Raft gives that replica an election timeout to catch up; otherwise the old leader stays. So the
//! leader is asked again until the replica leads or the deadline passes. Repeating the request is
//! harmless.

use std::time::Duration;

use coppice_proto::v1::{self, node_client::NodeClient};
use coppice_types::{GroupId, Reason};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{groups::links::Links, plan::Refusal};

/// Pause between two checks of whether the replica leads.
const LOOK: Duration = Duration::from_millis(50);
/// Number of checks before the leader is asked again. Raft gives up sooner.
const LOOKS: usize = 20;

/// Transfers the leadership.
///
/// # Errors
/// If the node or group is unknown, if the replica has no vote or says that it should not lead, or
/// if it does not lead by the deadline.
pub async fn transfer(
    links: &Links,
    request: &v1::TransferLeaderRequest,
    deadline: Instant,
) -> Result<(), tonic::Status> {
    let v1::TransferLeaderRequest { group, node } = request;
    let refuse = |reason, words: String| tonic::Status::from(Refusal::new(reason, words));
    let (_, client) = links
        .all_nodes()
        .find(|(name, _)| *name == node.as_str())
        .ok_or_else(|| refuse(Reason::NotFound, format!("there is no node {node}")))?;
    loop {
        let mut client = client.clone();
        let answer = timeout_at(deadline, client.node_status(v1::NodeStatusRequest {})).await;
        let answer = answer.map_err(|_| refuse(Reason::Unavailable, format!("{node} does not answer")))??.into_inner();
        let found = answer.replicas.into_iter().find_map(|report| {
            let of = GroupId::from_number(report.group);
            Some((of, report.status?)).filter(|(of, _)| of.to_string() == *group)
        });
        let missing = || refuse(Reason::NotFound, format!("{node} has no replica of a group {group}"));
        let (id, status) = found.ok_or_else(missing)?;
        match status.role.as_str() {
            "leader" => return Ok(()),
            "follower" | "candidate" if status.note.is_empty() => {}
            role => {
                // A replica that says why it should not lead would hand the leadership on at once.
                let why = if status.note.is_empty() { format!("it is {role}") } else { status.note };
                return Err(refuse(Reason::Unavailable, format!("{node} can't lead {group}: {why}")));
            }
        }
        let change = v1::ChangeMemberRequest {
            group: id.number(),
            raft_id: status.raft_id,
            node: node.clone(),
            change: "lead".to_owned(),
        };
        let ask = |channel| {
            let change = change.clone();
            async move { NodeClient::new(channel).change_member(change).await }
        };
        links.to_leader(id, deadline, ask).await?;
        for _ in 0..LOOKS {
            let asked = timeout_at(deadline, client.leads(v1::LeadsRequest { group: id.number() })).await;
            if asked.is_ok_and(|answer| answer.is_ok_and(|answer| answer.into_inner().leads)) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(refuse(
                    Reason::Unavailable,
                    format!("{node} does not lead {group} yet: it is slow, or far behind"),
                ));
            }
            sleep(LOOK).await;
        }
    }
}
