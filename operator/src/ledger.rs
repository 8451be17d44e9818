//! The operator's calls to the ledger: through the coordinators' API, with time limits.

use std::time::Duration;

use coppice_client::{Client, Options, Tls};
use coppice_proto::v1;
use coppice_types::ErrorKind;
use coppice_verify::header::Header;

use crate::{
    crd::{LedgerOperationSpec, LedgerOperationStatus},
    operation::{Answer, Event, Seen, Step, begin, claim, is_ours, next},
};

/// Rollbacks and prunes wait for all groups.
const OPERATION_PATIENCE: Duration = Duration::from_secs(60);

/// The answer of a ledger about its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its groups and replicas.
    pub status: v1::StatusResponse,
    /// The state root of head.
    pub state_root: Vec<u8>,
}

/// Asks a ledger for its status.
///
/// # Errors
/// If no coordinator answers in time.
pub async fn report(endpoint: &str, tls: Option<&Tls>, patience: Duration) -> Result<Report, coppice_client::Error> {
    let client = connect(endpoint, tls, patience)?;
    // The call for head waits for the root group, without which a status is incomplete.
    let head = client.head().await?;
    let status = client.status().await?;
    // Head may have moved between the two calls, and the state root belongs to the first answer.
    let status = v1::StatusResponse { head: head.stamp, pruned_boundary: head.pruned_boundary, ..status };
    Ok(Report { status, state_root: head.state_root.to_vec() })
}

/// Hands the leadership of a group to a node.
///
/// # Errors
/// If the node doesn't lead in time.
pub async fn hand_over(
    endpoint: &str,
    tls: Option<&Tls>,
    (group, node): (&str, &str),
    patience: Duration,
) -> Result<(), coppice_client::Error> {
    connect(endpoint, tls, patience)?.transfer_leader(group, node).await
}

fn connect(endpoint: &str, tls: Option<&Tls>, patience: Duration) -> Result<Client, coppice_client::Error> {
    let mut options = Options::new(endpoint);
    options.tls = tls.cloned();
    options.patience = patience;
    options.attempt_timeout = patience;
    Client::new(options)
}

/// An operation, and the ledger that it is for.
#[derive(Debug)]
pub struct Operator<'a> {
    /// The coordinators' endpoint.
    pub endpoint: &'a str,
    /// TLS settings; `None` connects in the clear.
    pub tls: Option<&'a Tls>,
    pub spec: &'a LedgerOperationSpec,
    /// The name that the operation is recorded under: [`crate::operation::principal`].
    pub principal: &'a str,
    /// The creator of the resource, if an annotation names one.
    pub creator: Option<&'a str>,
    /// Longest wait for the ledger's status.
    pub patience: Duration,
}

impl Operator<'_> {
    /// Goes on with an operation until its status has to be written, it is over, or it has to wait.
    ///
    /// # Errors
    /// If the ledger doesn't answer. The operation goes on later from its recorded status.
    pub async fn advance(&self, status: &LedgerOperationStatus) -> Result<Step, coppice_client::Error> {
        let client = connect(self.endpoint, self.tls, self.patience)?;
        let mut step = begin(status);
        loop {
            let event = match step {
                Step::Look => Event::Looked(look(&client).await?),
                Step::Search => Event::Searched(self.search(&client, status).await?),
                Step::Ask => {
                    let answer = self.ask().await?;
                    Event::Answered(answer, self.search(&client, status).await?)
                }
                Step::Record(_) | Step::Later(_) | Step::Over => return Ok(step),
            };
            step = next(self.spec, status, event);
        }
    }

    /// Searches for our header among those that were appended since the operation began.
    async fn search(
        &self,
        client: &Client,
        status: &LedgerOperationStatus,
    ) -> Result<Option<i64>, coppice_client::Error> {
        let from_sequence = status.log_size_before.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
        let request = v1::WatchHeadsRequest { from_sequence, ..v1::WatchHeadsRequest::default() };
        let mut headers = client.watch(request).await?;
        while let Some(answer) = headers.next().await? {
            let header = coppice_client::header(&answer.header)?;
            if is_ours(&header, self.principal) {
                return Ok(Some(signed(header.sequence.0)));
            }
        }
        Ok(None)
    }

    async fn ask(&self) -> Result<Answer, coppice_client::Error> {
        let client = connect(self.endpoint, self.tls, OPERATION_PATIENCE)?;
        let principal = claim(self.principal, self.creator);
        let answer = if let Some(rollback) = &self.spec.rollback {
            let head = rollback.expected_head;
            let request = v1::RollbackRequest {
                to: Some(unsigned(rollback.to)),
                reason: rollback.reason.clone(),
                principal,
                expected_head: Some(v1::Stamp { epoch: unsigned(head.epoch), version: unsigned(head.version) }),
            };
            client.rollback(request).await
        } else if let Some(prune) = &self.spec.prune {
            let request = v1::PruneRequest {
                before: Some(unsigned(prune.before)),
                reason: prune.reason.clone(),
                principal,
                expected_head: None,
            };
            client.prune(request).await
        } else if let Some(transfer) = &self.spec.transfer {
            return Ok(match client.transfer_leader(&transfer.group, &transfer.node).await {
                Ok(()) => Answer::Done { sequence: None },
                Err(error) => Answer::Failed { kind: error.kind(), message: error.to_string() },
            });
        } else {
            return Ok(Answer::Failed { kind: ErrorKind::Invalid, message: "nothing is asked for".to_owned() });
        };
        Ok(match answer {
            Ok(answer) => match Header::decode(&answer.header) {
                Ok(header) => Answer::Done { sequence: Some(signed(header.sequence.0)) },
                Err(_) => return Err(coppice_client::Error::Malformed("the record of the operation is not a header")),
            },
            Err(error) => Answer::Failed { kind: error.kind(), message: error.to_string() },
        })
    }
}

async fn look(client: &Client) -> Result<Seen, coppice_client::Error> {
    let head = client.head().await?;
    let stamp = head.stamp.unwrap_or_default();
    Ok(Seen {
        epoch: signed(stamp.epoch),
        version: signed(stamp.version),
        boundary: signed(head.pruned_boundary),
        log_size: signed(head.log_size),
    })
}

/// Numbers of Kubernetes are signed. No number of a ledger comes near the limit.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts back; the definition excludes negative numbers.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
