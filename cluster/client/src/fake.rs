//! A coordinator in memory, for tests: each test says how it answers, honestly or not.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use coppice_proto::{
    Channel, convert,
    v1::{self, get_header_request::Which, ledger_server::LedgerServer},
};
use coppice_types::{Change, ClusterId, Operation, Params, SessionId};
use coppice_verify::{
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::{Client, Options};

pub(crate) type Many<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;
type Handler<Q, A> = Box<dyn FnMut(Q) -> A + Send>;

/// The answers to one method. Without a handler, the method is unimplemented.
pub(crate) struct Slot<Q, A>(Arc<Mutex<Option<Handler<Q, A>>>>);

impl<Q, A> Clone for Slot<Q, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Q, A> Default for Slot<Q, A> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<Q, A> Slot<Q, A> {
    /// Answers from now on by this handler.
    pub(crate) fn set(&self, handler: impl FnMut(Q) -> A + Send + 'static) {
        *self.0.lock().expect("no handler panics") = Some(Box::new(handler));
    }

    fn ask(&self, request: Q) -> Option<A> {
        self.0.lock().expect("no handler panics").as_mut().map(|handler| handler(request))
    }
}

impl<Q, T> Slot<Q, Result<T, Status>> {
    fn answer(&self, request: Request<Q>) -> Answer<T> {
        self.ask(request.into_inner()).unwrap_or_else(|| Err(Status::unimplemented("no handler"))).map(Response::new)
    }
}

type Unary<Q, T> = Slot<Q, Result<T, Status>>;
type Flow<Q, T> = Slot<Q, Result<Many<T>, Status>>;

/// The coordinator. Clones share their handlers.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    pub commit: Unary<v1::CommitRequest, v1::CommitResponse>,
    /// Called for each batch that arrives; `None` leaves the batch unanswered.
    pub commit_stream: Slot<v1::CommitStreamRequest, Option<Result<v1::CommitStreamResponse, Status>>>,
    pub finalize: Unary<v1::FinalizeRequest, v1::CommitResponse>,
    pub open_session: Unary<v1::OpenSessionRequest, v1::OpenSessionResponse>,
    pub get: Unary<v1::GetRequest, v1::GetResponse>,
    pub batch_get: Unary<v1::BatchGetRequest, v1::BatchGetResponse>,
    pub query_batch: Flow<v1::QueryBatchRequest, v1::QueryBatchResponse>,
    pub range: Flow<v1::RangeRequest, v1::RangeResponse>,
    pub head: Unary<v1::HeadRequest, v1::HeadResponse>,
    pub get_header: Unary<v1::GetHeaderRequest, v1::GetHeaderResponse>,
    pub watch_heads: Flow<v1::WatchHeadsRequest, v1::WatchHeadsResponse>,
    pub get_checkpoint: Unary<v1::GetCheckpointRequest, v1::GetCheckpointResponse>,
    pub time: Unary<v1::TimeRequest, v1::TimeResponse>,
    pub pin: Unary<v1::PinRequest, v1::PinResponse>,
    pub status: Unary<v1::StatusRequest, v1::StatusResponse>,
    pub append: Unary<v1::AppendRequest, v1::AppendResponse>,
    pub describe_ledger: Unary<v1::DescribeLedgerRequest, v1::DescribeLedgerResponse>,
    pub get_member: Unary<v1::GetMemberRequest, v1::GetMemberResponse>,
    pub get_journals: Unary<v1::GetJournalsRequest, v1::GetJournalsResponse>,
    pub get_lineage: Unary<v1::GetLineageRequest, v1::GetLineageResponse>,
    pub get_ledger_hashes: Unary<v1::GetLedgerHashesRequest, v1::GetLedgerHashesResponse>,
    pub verify_journal: Unary<v1::VerifyJournalRequest, v1::VerifyJournalResponse>,
    pub get_ledger_records: Unary<v1::GetLedgerRecordsRequest, v1::GetLedgerRecordsResponse>,
    pub erasure_status: Unary<v1::ErasureStatusRequest, v1::ErasureStatusResponse>,
}

macro_rules! refused {
    ($($name:ident: $request:ty => $response:ty;)*) => {
        $(fn $name<'a, 'b>(
            &'a self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<$response>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(Status::unimplemented("no handler")) })
        })*
    };
}

#[tonic::async_trait]
impl v1::ledger_server::Ledger for Fake {
    type CommitStreamStream = Many<v1::CommitStreamResponse>;
    type QueryBatchStream = Many<v1::QueryBatchResponse>;
    type RangeStream = Many<v1::RangeResponse>;
    type HistoryStream = Many<v1::HistoryResponse>;
    type DiffStream = Many<v1::DiffResponse>;
    type WatchHeadsStream = Many<v1::WatchHeadsResponse>;
    type JournalStream = Many<v1::JournalResponse>;
    type WitnessStream = Many<v1::WitnessRequest>;
    type ListLedgersStream = Many<v1::ListLedgersResponse>;
    type ListMembersStream = Many<v1::ListMembersResponse>;

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        self.commit.answer(request)
    }

    async fn commit_stream(
        &self,
        request: Request<Streaming<v1::CommitStreamRequest>>,
    ) -> Answer<Many<v1::CommitStreamResponse>> {
        let slot = self.commit_stream.clone();
        let answers = request.into_inner().filter_map(move |request| match request {
            Ok(request) => slot.ask(request).unwrap_or_else(|| Some(Err(Status::unimplemented("no handler")))),
            Err(status) => Some(Err(status)),
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn finalize(&self, request: Request<v1::FinalizeRequest>) -> Answer<v1::CommitResponse> {
        self.finalize.answer(request)
    }

    async fn open_session(&self, request: Request<v1::OpenSessionRequest>) -> Answer<v1::OpenSessionResponse> {
        self.open_session.answer(request)
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<v1::GetResponse> {
        self.get.answer(request)
    }

    async fn batch_get(&self, request: Request<v1::BatchGetRequest>) -> Answer<v1::BatchGetResponse> {
        self.batch_get.answer(request)
    }

    async fn query_batch(&self, request: Request<v1::QueryBatchRequest>) -> Answer<Many<v1::QueryBatchResponse>> {
        self.query_batch.answer(request)
    }

    async fn range(&self, request: Request<v1::RangeRequest>) -> Answer<Many<v1::RangeResponse>> {
        self.range.answer(request)
    }

    async fn head(&self, request: Request<v1::HeadRequest>) -> Answer<v1::HeadResponse> {
        self.head.answer(request)
    }

    async fn get_header(&self, request: Request<v1::GetHeaderRequest>) -> Answer<v1::GetHeaderResponse> {
        self.get_header.answer(request)
    }

    async fn watch_heads(&self, request: Request<v1::WatchHeadsRequest>) -> Answer<Many<v1::WatchHeadsResponse>> {
        self.watch_heads.answer(request)
    }

    async fn get_checkpoint(&self, request: Request<v1::GetCheckpointRequest>) -> Answer<v1::GetCheckpointResponse> {
        self.get_checkpoint.answer(request)
    }

    async fn time(&self, request: Request<v1::TimeRequest>) -> Answer<v1::TimeResponse> {
        self.time.answer(request)
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Answer<v1::PinResponse> {
        self.pin.answer(request)
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        self.status.answer(request)
    }

    async fn append(&self, request: Request<v1::AppendRequest>) -> Answer<v1::AppendResponse> {
        self.append.answer(request)
    }

    async fn describe_ledger(&self, request: Request<v1::DescribeLedgerRequest>) -> Answer<v1::DescribeLedgerResponse> {
        self.describe_ledger.answer(request)
    }

    async fn get_member(&self, request: Request<v1::GetMemberRequest>) -> Answer<v1::GetMemberResponse> {
        self.get_member.answer(request)
    }

    async fn get_journals(&self, request: Request<v1::GetJournalsRequest>) -> Answer<v1::GetJournalsResponse> {
        self.get_journals.answer(request)
    }

    async fn get_lineage(&self, request: Request<v1::GetLineageRequest>) -> Answer<v1::GetLineageResponse> {
        self.get_lineage.answer(request)
    }

    async fn get_ledger_hashes(
        &self,
        request: Request<v1::GetLedgerHashesRequest>,
    ) -> Answer<v1::GetLedgerHashesResponse> {
        self.get_ledger_hashes.answer(request)
    }

    async fn verify_journal(&self, request: Request<v1::VerifyJournalRequest>) -> Answer<v1::VerifyJournalResponse> {
        self.verify_journal.answer(request)
    }

    async fn get_ledger_records(
        &self,
        request: Request<v1::GetLedgerRecordsRequest>,
    ) -> Answer<v1::GetLedgerRecordsResponse> {
        self.get_ledger_records.answer(request)
    }

    async fn erasure_status(&self, request: Request<v1::ErasureStatusRequest>) -> Answer<v1::ErasureStatusResponse> {
        self.erasure_status.answer(request)
    }

    refused! {
        stage: v1::StageRequest => v1::StageResponse;
        discard: v1::DiscardRequest => v1::DiscardResponse;
        history: v1::HistoryRequest => Many<v1::HistoryResponse>;
        diff: v1::DiffRequest => Many<v1::DiffResponse>;
        prune: v1::PruneRequest => v1::AdminResponse;
        rollback: v1::RollbackRequest => v1::AdminResponse;
        rotate_key: v1::RotateKeyRequest => v1::AdminResponse;
        anchor: v1::AnchorRequest => v1::AnchorResponse;
        get_interval: v1::GetIntervalRequest => v1::GetIntervalResponse;
        unpin: v1::UnpinRequest => v1::UnpinResponse;
        list_pins: v1::ListPinsRequest => v1::ListPinsResponse;
        transfer_leader: v1::TransferLeaderRequest => v1::TransferLeaderResponse;
        journal: v1::JournalRequest => Many<v1::JournalResponse>;
        witness: Streaming<v1::WitnessAnswer> => Many<v1::WitnessRequest>;
        list_ledgers: v1::ListLedgersRequest => Many<v1::ListLedgersResponse>;
        list_members: v1::ListMembersRequest => Many<v1::ListMembersResponse>;
    }
}

impl Fake {
    /// A coordinator whose sessions have this highest number.
    pub(crate) fn with_session(highest_number: u64) -> Self {
        let fake = Self::default();
        fake.open_session.set(move |_| Ok(v1::OpenSessionResponse { highest_number, ..Default::default() }));
        fake
    }

    /// A coordinator that serves the sample ledger at head, with proofs, and commits to it.
    pub(crate) fn honest(ledger: &Arc<Mutex<Ledger>>) -> Self {
        let fake = Self::with_session(0);
        let of = Arc::clone(ledger);
        fake.get.set(move |request: v1::GetRequest| Ok(get(&of.lock().expect("no panic"), &request.key)));
        let of = Arc::clone(ledger);
        fake.batch_get.set(move |request: v1::BatchGetRequest| {
            let ledger = of.lock().expect("no panic");
            let keys: Vec<&[u8]> = request.keys.iter().map(AsRef::as_ref).collect();
            let proof = ledger.prove_keys(ledger.head(), &keys, true).encode().expect("a small file").into();
            let records = request.keys.iter().map(|key| record(key)).collect();
            Ok(v1::BatchGetResponse { records, read_at: Some(convert::to_stamp(ledger.head())), proof })
        });
        let of = Arc::clone(ledger);
        fake.range.set(move |request: v1::RangeRequest| Ok(many(range(&of.lock().expect("no panic"), &request))));
        let of = Arc::clone(ledger);
        fake.get_header.set(move |request| {
            let Some(Which::Sequence(at)) = request.which else { return Err(Status::unimplemented("by version")) };
            let at = usize::try_from(at).expect("a small log");
            Ok(v1::GetHeaderResponse { header: of.lock().expect("no panic").headers[at].encode().into() })
        });
        let of = Arc::clone(ledger);
        fake.commit.set(move |request: v1::CommitRequest| {
            Ok(commit(&mut of.lock().expect("no panic"), &request.session_id, request.number, request.batch))
        });
        let of = Arc::clone(ledger);
        fake.commit_stream.set(move |request: v1::CommitStreamRequest| {
            let mut ledger = of.lock().expect("no panic");
            let commit = Some(commit(&mut ledger, &request.session_id, request.number, request.batch));
            Some(Ok(v1::CommitStreamResponse { number: request.number, commit }))
        });
        fake
    }

    pub(crate) fn channel(&self) -> Channel {
        Channel::new(LedgerServer::new(self.clone()))
    }
}

/// A client of these coordinators, in this order.
pub(crate) fn client(fakes: &[&Fake], options: &Options) -> Client {
    let route = |(at, fake): (usize, &&Fake)| (format!("http://coordinator-{at}:1"), fake.channel());
    Client::over(fakes.iter().enumerate().map(route).collect(), 1, options)
}

/// A stream of these messages.
pub(crate) fn many<T: Send + 'static>(messages: Vec<T>) -> Many<T> {
    Box::pin(tokio_stream::iter(messages.into_iter().map(Ok)))
}

/// The sample ledger: two shards, and one version that puts `a`, `b` and `x`.
pub(crate) fn ledger() -> Ledger {
    let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
    let mut ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
    let put = |key: &[u8]| Operation { key: key.to_vec().into(), change: Change::Put(key.repeat(3).into()) };
    let operations = vec![put(b"a"), put(b"b"), put(b"x")];
    ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("a batch");
    ledger
}

/// The record of a key in the first version of the sample ledger.
pub(crate) fn record(key: &[u8]) -> v1::Record {
    let key = Bytes::copy_from_slice(key);
    if ![&b"a"[..], b"b", b"x"].contains(&&key[..]) {
        return v1::Record { key, ..v1::Record::default() };
    }
    let last_changed = Some(v1::Stamp { epoch: 0, version: 1 });
    v1::Record { found: true, value: key.repeat(3).into(), key, last_changed }
}

/// The true answer to a read of a key at head.
pub(crate) fn get(ledger: &Ledger, key: &[u8]) -> v1::GetResponse {
    let proof = ledger.prove_keys(ledger.head(), &[key], true).encode().expect("a small file").into();
    v1::GetResponse { record: Some(record(key)), read_at: Some(convert::to_stamp(ledger.head())), proof }
}

/// The true answer to a read of a range at head.
pub(crate) fn range(ledger: &Ledger, request: &v1::RangeRequest) -> Vec<v1::RangeResponse> {
    let (low, high) = (&request.low[..], request.high.as_deref());
    let keys = [&b"a"[..], b"b", b"x"].into_iter().filter(|key| *key >= low && high.is_none_or(|high| *key < high));
    let proof = ledger.prove_range(ledger.head(), low, high, true).encode().expect("a small file").into();
    let end = v1::RangeEnd { more: false, read_at: Some(convert::to_stamp(ledger.head())), proof };
    vec![v1::RangeResponse { records: keys.map(record).collect(), end: Some(end) }]
}

/// Commits a batch, and gives its receipt.
pub(crate) fn commit(ledger: &mut Ledger, session: &[u8], number: u64, batch: Option<v1::Batch>) -> v1::CommitResponse {
    let operation = |it: v1::Operation| Operation {
        key: it.key.to_vec().into(),
        change: match it.change {
            Some(v1::operation::Change::Put(value)) => Change::Put(value.to_vec().into()),
            _ => Change::Delete,
        },
    };
    let batch = batch.expect("a batch was sent");
    let operations = batch.operations.into_iter().map(operation).collect();
    let session = SessionId::from_slice(session).map(|id| (id, number));
    let commit = Commit { session, operations, metadata: batch.metadata.to_vec() };
    let at = ledger.commit(&[commit]).expect("a batch");
    v1::CommitResponse {
        stamp: Some(convert::to_stamp(at)),
        header: ledger.newest().encode().into(),
        receipt: ledger.receipt(at, 0).encode().expect("a small file").into(),
        ..v1::CommitResponse::default()
    }
}

/// A batch that puts one key.
pub(crate) fn put(key: &str) -> v1::Batch {
    let change = Some(v1::operation::Change::Put(Bytes::from_static(b"value")));
    let operations = vec![v1::Operation { key: key.as_bytes().to_vec().into(), change }];
    v1::Batch { operations, ..v1::Batch::default() }
}
