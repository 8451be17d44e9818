//! The service of a ledger that passes reads on to a cluster, and refuses everything else.

use std::{future::Future, pin::Pin};

use coppice_client::{Client, Error, Stream};
use coppice_proto::{
    status,
    v1::{self, ledger_server::Ledger},
};
use coppice_types::Reason;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Messages of a stream that wait for a slow browser.
const WAITING_MAX: usize = 2;

type Answer<T> = Result<Response<T>, Status>;
type Many<T> = ReceiverStream<Result<T, Status>>;

/// Passes reads on by this client, which trusts no key: the browser judges the answers.
#[derive(Clone)]
pub struct Forward(pub Client);

/// The refusal that a cluster gave, or what became of the call.
fn refused(error: Error) -> Status {
    match error.reason() {
        Some(reason) => status::refuse(reason, error.to_string()),
        None => Status::new(status::code(error.kind()), error.to_string()),
    }
}

fn answered<T>(answer: Result<T, Error>) -> Answer<T> {
    answer.map(Response::new).map_err(refused)
}

/// A stream, read as fast as the browser reads it.
fn passed<T: Send + 'static>(answer: Result<Stream<T>, Error>) -> Answer<Many<T>> {
    let mut messages = answer.map_err(refused)?;
    let (sender, receiver) = tokio::sync::mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                next = messages.next() => next,
                () = sender.closed() => return,
            };
            let (message, is_last) = match next {
                Ok(None) => return,
                Ok(Some(message)) => (Ok(message), false),
                Err(error) => (Err(refused(error)), true),
            };
            if sender.send(message).await.is_err() || is_last {
                return;
            }
        }
    });
    Ok(Response::new(ReceiverStream::new(receiver)))
}

macro_rules! refuse {
    ($($name:ident: $request:ty => $response:ty;)*) => {
        $(fn $name<'a, 'b>(
            &'a self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<$response>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(status::refuse(Reason::Denied, "a console only reads")) })
        })*
    };
}

#[tonic::async_trait]
impl Ledger for Forward {
    type CommitStreamStream = Many<v1::CommitStreamResponse>;
    type RangeStream = Many<v1::RangeResponse>;
    type HistoryStream = Many<v1::HistoryResponse>;
    type DiffStream = Many<v1::DiffResponse>;
    type WatchHeadsStream = Many<v1::WatchHeadsResponse>;
    type JournalStream = Many<v1::JournalResponse>;
    type ListLedgersStream = Many<v1::ListLedgersResponse>;
    type ListMembersStream = Many<v1::ListMembersResponse>;
    type QueryBatchStream = Many<v1::QueryBatchResponse>;
    type WitnessStream = Many<v1::WitnessRequest>;

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<v1::GetResponse> {
        answered(self.0.get(request.into_inner()).await)
    }

    async fn range(&self, request: Request<v1::RangeRequest>) -> Answer<Many<v1::RangeResponse>> {
        passed(self.0.range(request.into_inner()).await)
    }

    async fn history(&self, request: Request<v1::HistoryRequest>) -> Answer<Many<v1::HistoryResponse>> {
        passed(self.0.history(request.into_inner()).await)
    }

    async fn diff(&self, request: Request<v1::DiffRequest>) -> Answer<Many<v1::DiffResponse>> {
        passed(self.0.diff(request.into_inner()).await)
    }

    async fn head(&self, _: Request<v1::HeadRequest>) -> Answer<v1::HeadResponse> {
        answered(self.0.head().await)
    }

    async fn watch_heads(&self, request: Request<v1::WatchHeadsRequest>) -> Answer<Many<v1::WatchHeadsResponse>> {
        passed(self.0.watch(request.into_inner()).await)
    }

    async fn get_checkpoint(&self, request: Request<v1::GetCheckpointRequest>) -> Answer<v1::GetCheckpointResponse> {
        let v1::GetCheckpointRequest { old_size, cosigned } = request.into_inner();
        answered(match cosigned {
            true => self.0.cosigned_checkpoint(old_size).await,
            false => self.0.checkpoint(old_size).await,
        })
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        answered(self.0.status().await)
    }

    async fn list_ledgers(&self, request: Request<v1::ListLedgersRequest>) -> Answer<Many<v1::ListLedgersResponse>> {
        passed(self.0.list_ledgers(request.into_inner()).await)
    }

    async fn describe_ledger(&self, request: Request<v1::DescribeLedgerRequest>) -> Answer<v1::DescribeLedgerResponse> {
        answered(self.0.describe_ledger(request.into_inner()).await)
    }

    async fn list_members(&self, request: Request<v1::ListMembersRequest>) -> Answer<Many<v1::ListMembersResponse>> {
        passed(self.0.list_members(request.into_inner()).await)
    }

    async fn get_journals(&self, request: Request<v1::GetJournalsRequest>) -> Answer<v1::GetJournalsResponse> {
        answered(self.0.get_journals(request.into_inner()).await)
    }

    async fn get_lineage(&self, request: Request<v1::GetLineageRequest>) -> Answer<v1::GetLineageResponse> {
        answered(self.0.get_lineage(request.into_inner()).await)
    }

    refuse! {
        commit: v1::CommitRequest => v1::CommitResponse;
        commit_stream: Streaming<v1::CommitStreamRequest> => Many<v1::CommitStreamResponse>;
        stage: v1::StageRequest => v1::StageResponse;
        finalize: v1::FinalizeRequest => v1::CommitResponse;
        discard: v1::DiscardRequest => v1::DiscardResponse;
        open_session: v1::OpenSessionRequest => v1::OpenSessionResponse;
        batch_get: v1::BatchGetRequest => v1::BatchGetResponse;
        query_batch: v1::QueryBatchRequest => Many<v1::QueryBatchResponse>;
        witness: Streaming<v1::WitnessAnswer> => Many<v1::WitnessRequest>;
        get_header: v1::GetHeaderRequest => v1::GetHeaderResponse;
        time: v1::TimeRequest => v1::TimeResponse;
        prune: v1::PruneRequest => v1::AdminResponse;
        rollback: v1::RollbackRequest => v1::AdminResponse;
        rotate_key: v1::RotateKeyRequest => v1::AdminResponse;
        anchor: v1::AnchorRequest => v1::AnchorResponse;
        get_interval: v1::GetIntervalRequest => v1::GetIntervalResponse;
        pin: v1::PinRequest => v1::PinResponse;
        unpin: v1::UnpinRequest => v1::UnpinResponse;
        list_pins: v1::ListPinsRequest => v1::ListPinsResponse;
        transfer_leader: v1::TransferLeaderRequest => v1::TransferLeaderResponse;
        journal: v1::JournalRequest => Many<v1::JournalResponse>;
        append: v1::AppendRequest => v1::AppendResponse;
        get_member: v1::GetMemberRequest => v1::GetMemberResponse;
        get_ledger_hashes: v1::GetLedgerHashesRequest => v1::GetLedgerHashesResponse;
        verify_journal: v1::VerifyJournalRequest => v1::VerifyJournalResponse;
        get_ledger_records: v1::GetLedgerRecordsRequest => v1::GetLedgerRecordsResponse;
        erasure_status: v1::ErasureStatusRequest => v1::ErasureStatusResponse;
    }
}
