//! The public API: checks a request, hands it to the sequencer or the readers, and answers.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_process::access::{Action, Caller, may_also, recorded};
use coppice_proto::{
    status,
    timeout::asked,
    v1::{self, ledger_server::Ledger},
};
use coppice_types::{ErrorKind, GroupId, Params, PinId, Reason, SessionId, Version};
use coppice_verify::{header::Genesis, note::VerifierKey};
use opentelemetry::context::FutureExt;
use tokio::{
    sync::{OnceCell, Semaphore, mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap};

use crate::{
    exec::{
        AdminRequest, Asked, Command, Entry, Permit, StageCommand, Wanted,
        context::{Context, Limits},
        hex, stage_id,
        trace::Trace,
        wire::{self, View},
    },
    forward::Forward,
    lead, metrics,
    plan::{self, Leaves, Refusal},
    proofs,
    quotas::{self, Quotas},
    reads::{Reads, Sink},
    survey::Survey,
};

/// Messages of a stream that are made ahead of the client.
const STREAM_AHEAD: usize = 1;
/// How long one node may take to tell its status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a status waits for the root group: an election takes less.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// No pin lives longer.
const PIN_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Of the header of a key change.
const KEY_KIND: u8 = 6;

/// Serves `coppice.v1.Ledger`.
#[derive(Clone, Debug)]
pub struct Api {
    context: Arc<Context>,
    reads: Reads,
    commands: mpsc::Sender<Command>,
    /// Batches that may wait or be under way, and their bytes.
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
    genesis: Arc<OnceCell<(Params, Leaves)>>,
    forward: Forward,
    quotas: Arc<Quotas>,
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

impl Api {
    /// The API of one coordinator.
    ///
    /// `message_bytes` is the size of the largest message: one always fits the queue.
    pub fn new(context: Arc<Context>, commands: mpsc::Sender<Command>, message_bytes: usize, forward: Forward) -> Self {
        let room_max = message_bytes.max(context.limits.queue_bytes_max as usize);
        let room = Arc::new(Semaphore::new(room_max));
        let places = Arc::new(Semaphore::new(context.limits.queue_max));
        metrics::show_queue((&places, context.limits.queue_max), (&room, room_max));
        let (reads, quotas) = (Reads::new(context.clone()), Arc::new(Quotas::new(&context.limits)));
        Self { reads, context, commands, places, room, genesis: Arc::default(), forward, quotas }
    }

    /// Parameters and shards of the ledger: from the first view, since they never change.
    async fn genesis(&self) -> Result<&(Params, Leaves), Status> {
        let found = || async {
            let view = self.reads.view(true).await?;
            let Genesis { params, shard_map, .. } = &view.genesis;
            Ok((params.clone(), Leaves::new(shard_map.genesis_leaves())?))
        };
        self.genesis.get_or_try_init(found).await
    }

    fn send(&self, command: Command) -> Result<(), Status> {
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.full(),
            mpsc::error::TrySendError::Closed(_) => stopping(),
        })
    }

    fn full(&self) -> Status {
        let message = format!("queue_max is {}: too many batches wait; try again later", self.context.limits.queue_max);
        status::refuse(Reason::ResourceExhausted, message)
    }

    /// What it shares with every part of the coordinator.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The bounds that it works in.
    pub(crate) fn limits(&self) -> &Limits {
        &self.context.limits
    }

    /// Checks and routes a batch.
    pub(crate) async fn admit(
        &self,
        batch: Option<v1::Batch>,
        session: Option<(SessionId, u64)>,
    ) -> Result<plan::Request, Status> {
        let batch = batch.ok_or_else(|| Refusal::invalid("a batch is missing"))?;
        let (params, map) = self.genesis().await?;
        Ok(plan::Request::admit(batch, session, map, params)?)
    }

    /// Hands a batch to the sequencer once there is room for it; gives where its answer will come.
    pub(crate) async fn queue(
        &self,
        request: Arc<plan::Request>,
        want_receipt: bool,
        limit: Duration,
    ) -> Result<oneshot::Receiver<Result<v1::CommitResponse, Status>>, Status> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| stopping())?;
        let room = self.room.clone().acquire_many_owned(weight(&request)).await.map_err(|_| stopping())?;
        let slot = self.commands.reserve().await.map_err(|_| stopping())?;
        let (reply, receive) = oneshot::channel();
        let deadline = Instant::now() + limit;
        // The batches of a stream are not traced: a stream lasts.
        let (came, trace) = (Instant::now(), Trace::new());
        slot.send(Command::Commit(Entry {
            request,
            reply,
            deadline,
            want_receipt,
            came,
            trace,
            _permits: [place, room],
        }));
        Ok(receive)
    }

    /// An entry for the sequencer, and where its answer will come.
    fn entry(
        &self,
        request: Arc<plan::Request>,
        want_receipt: bool,
        limit: Duration,
    ) -> Result<(Entry, oneshot::Receiver<Result<v1::CommitResponse, Status>>), Status> {
        let permits = self.permits(&request)?;
        let (reply, receive) = oneshot::channel();
        let deadline = Instant::now() + limit;
        let (came, trace) = (Instant::now(), Trace::current());
        Ok((Entry { request, reply, deadline, want_receipt, came, trace, _permits: permits }, receive))
    }

    /// A place in the queue, and room there.
    fn permits(&self, request: &plan::Request) -> Result<[Permit; 2], Status> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| self.full())?;
        let room = self.room.clone().try_acquire_many_owned(weight(request)).map_err(|_| {
            let bytes_max = self.context.limits.queue_bytes_max;
            let message = format!("queue_bytes_max is {bytes_max}: too much waits; try again later");
            status::refuse(Reason::ResourceExhausted, message)
        })?;
        Ok([place, room])
    }

    /// Waits for the sequencer's answer. Without one the outcome is unknown: a session tells later.
    async fn answer<T>(&self, receive: oneshot::Receiver<Result<T, Status>>, limit: Duration) -> Result<T, Status> {
        match timeout(limit, receive).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(stopping()),
            Err(_) => Err(status::refuse(Reason::Unavailable, "not decided in time; the outcome is unknown")),
        }
    }

    /// How long a batch may wait: no longer than its client does.
    fn limit(&self, metadata: &MetadataMap) -> Duration {
        let limit = self.context.limits.commit_timeout;
        asked(metadata).map_or(limit, |asked| asked.min(limit))
    }

    /// How long a caller waits for the outcome of a write.
    fn patience(&self) -> Duration {
        self.context.limits.commit_timeout + self.context.limits.root_timeout
    }

    /// What callers have of it.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    async fn commit_here(
        &self,
        request: v1::CommitRequest,
        caller: &str,
        limit: Duration,
    ) -> Answer<v1::CommitResponse> {
        let came = Instant::now();
        let answer = self.commit_batch(request, caller, limit).await;
        self.context.metrics.answered(came, answer.as_ref());
        answer.map(Response::new)
    }

    async fn commit_batch(
        &self,
        request: v1::CommitRequest,
        caller: &str,
        limit: Duration,
    ) -> Result<v1::CommitResponse, Status> {
        let session = session_of(&request.session_id, request.number)?;
        if let Some((id, _)) = session {
            self.quotas.use_session(caller, id)?;
        }
        let batch = Arc::new(self.admit(request.batch, session).await?);
        let (entry, receive) = self.entry(batch, request.want_receipt, limit)?;
        self.send(Command::Commit(entry))?;
        self.answer(receive, self.patience()).await
    }

    /// Pins a version within the caller's quota.
    async fn pin_for(&self, caller: &str, request: &v1::PinRequest) -> Answer<v1::PinResponse> {
        let id = PinId::from_slice(&request.pin_id).ok_or_else(|| Refusal::invalid("a pin id has 16 bytes"))?;
        let is_new = self.quotas.pin(caller, id, Duration::from_millis(request.ttl_ms).min(PIN_TIME_MAX))?;
        let pinned = self.context.root.set_pin(request).await;
        let pinned = pinned.inspect_err(|error| {
            if is_new && is_final(error) {
                self.quotas.unpin(id);
            }
        });
        Ok(Response::new(pinned?))
    }

    async fn stage_here(&self, request: v1::StageRequest, caller: &str) -> Answer<v1::StageResponse> {
        let parent = request.parent_stage_id;
        let parent = if parent.is_empty() { None } else { Some(stage_id(&parent)?) };
        let request = Arc::new(self.admit(request.batch, None).await?);
        let place = self.quotas.stages.take(caller)?;
        let permits = self.permits(&request)?;
        let (reply, receive) = oneshot::channel();
        self.send(Command::Stage(StageCommand::Stage { request, parent, reply, _permits: permits, place }))?;
        Ok(Response::new(self.answer(receive, self.patience()).await?))
    }

    async fn finalize_here(&self, request: v1::FinalizeRequest) -> Answer<v1::CommitResponse> {
        let came = Instant::now();
        let answer = self.finalize_stage(request).await;
        self.context.metrics.answered(came, answer.as_ref());
        answer.map(Response::new)
    }

    async fn finalize_stage(&self, request: v1::FinalizeRequest) -> Result<v1::CommitResponse, Status> {
        let id = stage_id(&request.stage_id)?;
        let nothing = Arc::new(self.admit(Some(v1::Batch::default()), None).await?);
        let (entry, receive) = self.entry(nothing, request.want_receipt, self.context.limits.commit_timeout)?;
        self.send(Command::Stage(StageCommand::Finalize { id, entry }))?;
        self.answer(receive, self.patience()).await
    }

    async fn discard_here(&self, request: v1::DiscardRequest) -> Answer<v1::DiscardResponse> {
        let id = stage_id(&request.stage_id)?;
        let (reply, receive) = oneshot::channel();
        self.send(Command::Stage(StageCommand::Discard { id, reply }))?;
        Ok(Response::new(self.answer(receive, self.patience()).await?))
    }

    async fn administer(
        &self,
        wanted: Wanted,
        Asked { principal, reason }: Asked,
        expected_head: Option<v1::Stamp>,
    ) -> Answer<v1::AdminResponse> {
        let (reply, receive) = oneshot::channel();
        self.send(Command::Admin(AdminRequest { wanted, principal, reason, expected_head, reply }))?;
        let limit = self.patience() + self.context.limits.admin_timeout;
        Ok(Response::new(self.answer(receive, limit).await?))
    }
}

/// What a batch takes of the queue's bytes.
fn weight(request: &plan::Request) -> u32 {
    u32::try_from(request.bytes.max(1)).unwrap_or(u32::MAX)
}

/// It was refused, and had no effect.
fn is_final(error: &Status) -> bool {
    status::reason(error).is_some() && status::kind(error) != ErrorKind::Unavailable
}

pub(crate) fn stopping() -> Status {
    status::refuse(Reason::Unavailable, "the coordinator stopped; the outcome is unknown")
}

pub(crate) fn session_of(id: &Bytes, number: u64) -> Result<Option<(SessionId, u64)>, Refusal> {
    if id.is_empty() {
        return if number == 0 { Ok(None) } else { Err(Refusal::invalid("a number needs a session_id")) };
    }
    let id = SessionId::from_slice(id).ok_or_else(|| Refusal::invalid("a session_id has 16 bytes"))?;
    if number == 0 {
        return Err(Refusal::invalid("numbers of a session count from 1"));
    }
    Ok(Some((id, number)))
}

/// Runs a stream's work as a task; what it sends is bounded by what the client takes.
fn stream<T, F, Fut>(work: F) -> Answer<Messages<T>>
where
    T: Send + 'static,
    F: FnOnce(Sink<T>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), Status>> + Send + 'static,
{
    let (sink, messages) = mpsc::channel(STREAM_AHEAD);
    let working = async move {
        let errors = sink.clone();
        let failed = tokio::select! {
            biased;
            // A client that has gone needs no work, which may wait long for groups that are away.
            () = errors.closed() => return,
            done = work(sink) => done.err(),
        };
        if let Some(error) = failed {
            let _ = errors.send(Err(error)).await;
        }
    };
    tokio::spawn(working.with_context(Trace::current()));
    Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
}

#[tonic::async_trait]
impl Ledger for Api {
    type CommitStreamStream = Messages<v1::CommitStreamResponse>;
    type RangeStream = Messages<v1::RangeResponse>;
    type HistoryStream = Messages<v1::HistoryResponse>;
    type DiffStream = Messages<v1::DiffResponse>;
    type WatchHeadsStream = Messages<v1::WatchHeadsResponse>;
    type JournalStream = Messages<v1::JournalResponse>;

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        // Within a session it is committed once, however often it is sent.
        let repeatable = !request.get_ref().session_id.is_empty();
        let (limit, caller) = (self.limit(request.metadata()), quotas::caller(&request));
        let here = |request| self.commit_here(request, &caller, limit);
        self.forward.route(request, repeatable, here, async |leader, request| leader.commit(request).await).await
    }

    async fn commit_stream(
        &self,
        request: Request<Streaming<v1::CommitStreamRequest>>,
    ) -> Answer<Self::CommitStreamStream> {
        let caller = Caller::of(request.extensions(), request.metadata());
        let leader = self.forward.leader(&caller)?;
        let (api, batches) = (self.clone(), request.into_inner());
        if let Some(leader) = leader {
            return Ok(Response::new(Box::pin(self.forward.pass(leader, &caller, batches).await?)));
        }
        stream(move |sink| async move { crate::stream::serve(api, caller.name.to_string(), batches, sink).await })
    }

    async fn stage(&self, request: Request<v1::StageRequest>) -> Answer<v1::StageResponse> {
        let caller = quotas::caller(&request);
        let here = |request| self.stage_here(request, &caller);
        self.forward.route(request, false, here, async |leader, request| leader.stage(request).await).await
    }

    async fn finalize(&self, request: Request<v1::FinalizeRequest>) -> Answer<v1::CommitResponse> {
        let here = |request| self.finalize_here(request);
        self.forward.route(request, false, here, async |leader, request| leader.finalize(request).await).await
    }

    async fn discard(&self, request: Request<v1::DiscardRequest>) -> Answer<v1::DiscardResponse> {
        let here = |request| self.discard_here(request);
        self.forward.route(request, true, here, async |leader, request| leader.discard(request).await).await
    }

    async fn open_session(&self, request: Request<v1::OpenSessionRequest>) -> Answer<v1::OpenSessionResponse> {
        let caller = quotas::caller(&request);
        let id = request.into_inner().session_id;
        let id = SessionId::from_slice(&id).ok_or_else(|| Refusal::invalid("a session_id has 16 bytes"))?;
        let is_new = self.quotas.use_session(&caller, id)?;
        let opened = self.context.root.open_session(id).await;
        let answer = opened.inspect_err(|error| {
            if is_new && is_final(error) {
                self.quotas.forget_session(&caller, id);
            }
        })?;
        // If the queue is full, the leader asks the root group when it meets the session.
        let _ = self.commands.try_send(Command::SessionOpened(id, answer.highest_number));
        Ok(Response::new(answer))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<v1::GetResponse> {
        let reads = self.reads.by(&quotas::caller(&request));
        let request = request.into_inner();
        let answer = reads.batch_get(&[request.key], &request.read.unwrap_or_default()).await?;
        let v1::BatchGetResponse { records, read_at, proof } = answer;
        Ok(Response::new(v1::GetResponse { record: records.into_iter().next(), read_at, proof }))
    }

    async fn batch_get(&self, request: Request<v1::BatchGetRequest>) -> Answer<v1::BatchGetResponse> {
        let reads = self.reads.by(&quotas::caller(&request));
        let request = request.into_inner();
        Ok(Response::new(reads.batch_get(&request.keys, &request.read.unwrap_or_default()).await?))
    }

    async fn range(&self, request: Request<v1::RangeRequest>) -> Answer<Self::RangeStream> {
        let (reads, request) = (self.reads.by(&quotas::caller(&request)), request.into_inner());
        stream(move |sink| async move { reads.range(&request, &sink).await })
    }

    async fn history(&self, request: Request<v1::HistoryRequest>) -> Answer<Self::HistoryStream> {
        let (reads, request) = (self.reads.clone(), request.into_inner());
        stream(move |sink| async move { reads.history(&request, &sink).await })
    }

    async fn diff(&self, request: Request<v1::DiffRequest>) -> Answer<Self::DiffStream> {
        let (reads, request) = (self.reads.clone(), request.into_inner());
        stream(move |sink| async move { reads.diff(&request, &sink).await })
    }

    async fn head(&self, request: Request<v1::HeadRequest>) -> Answer<v1::HeadResponse> {
        let stale_ok = request.into_inner().stale_ok;
        let view = self.reads.view(stale_ok).await?;
        let signed = if stale_ok { self.context.signed_lately(view).await } else { self.context.signed(view).await };
        let (view, checkpoint) = signed?;
        let header = &view.tail.header;
        Ok(Response::new(v1::HeadResponse {
            cluster_id: Bytes::copy_from_slice(&header.cluster.0),
            stamp: Some(wire::stamp_out(header.stamp)),
            state_root: wire::bytes_of(&header.state_root),
            log_size: view.log_size,
            timestamp_ms: header.timestamp_ms,
            pruned_boundary: view.boundary.0,
            checkpoint,
        }))
    }

    async fn get_header(&self, request: Request<v1::GetHeaderRequest>) -> Answer<v1::GetHeaderResponse> {
        use v1::{get_header_request::Which, read_root_request::Read};
        let missing = |what: String| status::refuse(Reason::NotFound, what);
        let header = match request.into_inner().which {
            Some(Which::Version(version)) => {
                let answer = self.context.root.read(Read::Version(v1::VersionRead { version, epoch: None })).await?;
                answer.header
            }
            Some(Which::Sequence(from_sequence)) => {
                let answer = self.context.root.read(Read::Headers(v1::HeadersRead { from_sequence, limit: 1 })).await?;
                let header = answer.headers.into_iter().next();
                header.ok_or_else(|| missing(format!("the root log has no entry {from_sequence} yet")))?
            }
            None => return Err(Refusal::invalid("version or sequence is missing").into()),
        };
        Ok(Response::new(v1::GetHeaderResponse { header }))
    }

    async fn watch_heads(&self, request: Request<v1::WatchHeadsRequest>) -> Answer<Self::WatchHeadsStream> {
        let wanted = request.get_ref();
        if wanted.want_changed_keys || wanted.want_changed_values {
            // Who reads the log need not be one who reads records.
            may_also(request.extensions(), "/coppice.v1.Ledger/Diff")?;
        }
        let place = if wanted.follow { Some(self.quotas.follows.take(&quotas::caller(&request))?) } else { None };
        let (reads, request) = (self.reads.clone(), request.into_inner());
        stream(move |sink| async move {
            let _place = place;
            reads.watch(&request, &sink).await
        })
    }

    async fn journal(&self, request: Request<v1::JournalRequest>) -> Answer<Self::JournalStream> {
        let (reads, request) = (self.reads.clone(), request.into_inner());
        stream(move |sink| async move { reads.journal(request, &sink).await })
    }

    async fn get_checkpoint(&self, request: Request<v1::GetCheckpointRequest>) -> Answer<v1::GetCheckpointResponse> {
        let v1::GetCheckpointRequest { old_size, cosigned } = request.into_inner();
        let ground = if cosigned {
            let deadline = Instant::now() + self.context.limits.read_timeout;
            proofs::Ground::cosigned(&self.context, old_size.max(1), deadline).await?
        } else {
            proofs::Ground::newest(&self.context, self.context.view().await?).await?
        };
        let standing =
            if old_size == 0 { Bytes::new() } else { proofs::standing_file(&self.context, &ground, old_size).await? };
        let checkpoint = ground.checkpoint();
        Ok(Response::new(v1::GetCheckpointResponse { checkpoint, standing }))
    }

    async fn prune(&self, request: Request<v1::PruneRequest>) -> Answer<v1::AdminResponse> {
        let (caller, log) = Caller::from(&request);
        let v1::PruneRequest { before, reason, principal, .. } = request.get_ref();
        let action = Action::new("prune", before.map_or_else(String::new, |before| format!("before {before}")));
        let action = action.because(reason, principal);
        let here = async |v1::PruneRequest { before, reason, principal, expected_head }| {
            let before = before
                .ok_or_else(|| Refusal::invalid("before is missing: a prune names the oldest version to keep"))?;
            let asked = Asked::check(&caller, &principal, reason)?;
            self.administer(Wanted::Prune(Version(before)), asked, expected_head).await
        };
        let done = self.forward.route(request, false, here, async |leader, request| leader.prune(request).await);
        recorded(log.as_ref(), &caller, action, done).await
    }

    async fn rollback(&self, request: Request<v1::RollbackRequest>) -> Answer<v1::AdminResponse> {
        let (caller, log) = Caller::from(&request);
        let v1::RollbackRequest { to, reason, principal, .. } = request.get_ref();
        let action = Action::new("rollback", to.map_or_else(String::new, |to| format!("to {to}")));
        let action = action.because(reason, principal);
        let here = async |v1::RollbackRequest { to, reason, principal, expected_head }| {
            let to = to.ok_or_else(|| {
                Refusal::invalid("to is missing: a rollback names the version that becomes head again")
            })?;
            let asked = Asked::check(&caller, &principal, reason)?;
            self.administer(Wanted::Rollback(Version(to)), asked, expected_head).await
        };
        let done = self.forward.route(request, false, here, async |leader, request| leader.rollback(request).await);
        recorded(log.as_ref(), &caller, action, done).await
    }

    async fn rotate_key(&self, request: Request<v1::RotateKeyRequest>) -> Answer<v1::AdminResponse> {
        let (caller, log) = Caller::from(&request);
        let v1::RotateKeyRequest { vkey, reason, principal, .. } = request.get_ref();
        let action = Action::new("rotate key", format!("to {vkey}")).because(reason, principal);
        let here = async |v1::RotateKeyRequest { vkey, reason, principal, expected_head }| {
            let asked = Asked::check(&caller, &principal, reason)?;
            let key = VerifierKey::parse(&vkey).map_err(|error| Refusal::invalid(format!("vkey: {error}")))?;
            if key.name() != self.context.keys.origin() {
                let message = format!("the new key's name is {}, not {}", key.name(), self.context.keys.origin());
                return Err(Refusal::invalid(message).into());
            }
            let limit = self.context.limits.admin_timeout;
            Survey::of(&self.context.links, limit).await.check_kind(KEY_KIND)?;
            self.administer(Wanted::Key(key.public_key()), asked, expected_head).await
        };
        let done = self.forward.route(request, false, here, async |leader, request| leader.rotate_key(request).await);
        recorded(log.as_ref(), &caller, action, done).await
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Answer<v1::PinResponse> {
        let (caller, log) = Caller::from(&request);
        let request = request.into_inner();
        let version = request.version.map_or_else(String::new, |version| format!("version {version}"));
        let target = format!("{version} by pin {} for {} ms", hex(&request.pin_id), request.ttl_ms);
        let name = caller.name.to_string();
        let done = self.pin_for(&name, &request);
        recorded(log.as_ref(), &caller, Action::new("pin", target), done).await
    }

    async fn unpin(&self, request: Request<v1::UnpinRequest>) -> Answer<v1::UnpinResponse> {
        let (caller, log) = Caller::from(&request);
        let request = request.into_inner();
        let done = async {
            let answer = self.context.root.drop_pin(&request).await?;
            if let Some(id) = PinId::from_slice(&request.pin_id) {
                self.quotas.unpin(id);
            }
            Ok(Response::new(answer))
        };
        recorded(log.as_ref(), &caller, Action::new("unpin", format!("pin {}", hex(&request.pin_id))), done).await
    }

    async fn list_pins(&self, _request: Request<v1::ListPinsRequest>) -> Answer<v1::ListPinsResponse> {
        let answer = self.context.root.read(v1::read_root_request::Read::Pins(true)).await?;
        Ok(Response::new(v1::ListPinsResponse { pins: answer.pins }))
    }

    async fn transfer_leader(&self, request: Request<v1::TransferLeaderRequest>) -> Answer<v1::TransferLeaderResponse> {
        let (caller, log) = Caller::from(&request);
        let request = request.into_inner();
        let deadline = Instant::now() + self.context.limits.admin_timeout;
        let action = Action::new("transfer leader", format!("of {} to {}", request.group, request.node));
        let done = lead::transfer(&self.context, &request, deadline);
        recorded(log.as_ref(), &caller, action, done).await?;
        Ok(Response::new(v1::TransferLeaderResponse {}))
    }

    async fn status(&self, _request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let view = timeout(HEAD_TIMEOUT, self.context.view());
        let (view, survey) = tokio::join!(view, Survey::of(&self.context.links, STATUS_TIMEOUT));
        // Without a majority of the root group the nodes still tell how they do.
        let view = match view {
            Ok(Ok(view)) => Some(view),
            Ok(Err(error)) if !matches!(status::kind(&error), ErrorKind::Unavailable | ErrorKind::Exhausted) => {
                return Err(error);
            }
            Ok(Err(_)) | Err(_) => None,
        };
        let groups = match &view {
            Some(view) => groups_of(view, &survey),
            None => survey.groups().map(|id| survey.group(id, v1::GroupStatus::default())).collect(),
        };
        let leadership = self.context.leadership.borrow().clone();
        let last = self.context.last_view.lock().expect("no holder of the lock panics").clone();
        let cluster = view.as_ref().or(last.as_ref()).map(|view| view.tail.header.cluster);
        let told = view.map(|view| (wire::stamp_out(view.head()), view.boundary.0, view.term));
        let (head, pruned_boundary, term) =
            told.map_or((None, 0, 0), |(head, boundary, term)| (Some(head), boundary, term));
        Ok(Response::new(v1::StatusResponse {
            cluster_id: cluster.map(|cluster| Bytes::copy_from_slice(&cluster.0)).unwrap_or_default(),
            origin: self.context.keys.origin().to_owned(),
            vkey: self.context.keys.current(),
            head,
            pruned_boundary,
            term,
            leader: leadership.leader,
            groups,
            coordinators: self.context.coordinators(),
            unreachable: survey.silent,
        }))
    }
}

/// The groups of a ledger whose root group answers.
fn groups_of(view: &View, survey: &Survey) -> Vec<v1::GroupStatus> {
    let shards = view.tail.leaves.all().iter().map(|leaf| {
        let known = v1::GroupStatus {
            low: Bytes::copy_from_slice(&leaf.low),
            high: leaf.high.as_deref().map(Bytes::copy_from_slice),
            shard_version: leaf.version.0,
            digest: wire::bytes_of(&leaf.digest),
            ..v1::GroupStatus::default()
        };
        survey.group(GroupId::Shard(leaf.shard), known)
    });
    std::iter::once(survey.group(GroupId::Root, v1::GroupStatus::default())).chain(shards).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_needs_both_its_parts() {
        let id = Bytes::from_static(&[7; 16]);
        assert_eq!(session_of(&Bytes::new(), 0), Ok(None));
        assert_eq!(session_of(&id, 1), Ok(Some((SessionId([7; 16]), 1))));
        for (id, number) in [(Bytes::new(), 1), (id, 0), (Bytes::from_static(&[7; 15]), 1)] {
            let refusal = session_of(&id, number).expect_err("the session is not whole");
            assert_eq!(refusal.reason, Reason::InvalidArgument);
        }
    }
}
