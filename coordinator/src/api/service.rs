//! The public API: checks a request, passes it to the sequencer or the readers, and answers.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_process::access::{Action, Caller, Claimant, may_also, recorded};
use coppice_proto::{
    convert, status,
    v1::{self, ledger_server::Ledger},
};
use coppice_types::{ErrorKind, GroupId, PinId, Reason, SessionId, Version, escape::guard};
use coppice_verify::note::VerifierKey;
use opentelemetry::context::FutureExt;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{
    appends::{MemberKeys, sight},
    forward::Forward,
    intake::{Intake, answer, session_of},
    lead,
};
use crate::{
    anchor::Orders,
    groups::{
        links::Links,
        survey::{DONE, Survey},
        wire::View,
    },
    log::witness::streams::Streams,
    plan::Refusal,
    quotas,
    read::{
        interval::interval,
        proofs::{self, SignedPrefix},
        reads::{Reads, Sink},
    },
    shown::Shown,
    write::{
        command::{AdminRequest, Asked, Command, StageCommand, Wanted, hex, stage_id},
        trace::Trace,
    },
};

/// Number of messages of a stream that are made before the client takes them.
const STREAM_AHEAD: usize = 1;
/// How long one node may take to report its status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a status request waits for the root group. An election takes less.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest life of a pin.
const PIN_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The right to call it is the right to read journals, and the keys of ledgers of members.
const JOURNAL: &str = "/coppice.v1.Ledger/Journal";
/// What a cosigner's stream is, for denials.
const WITNESS: &str = "/coppice.v1.Ledger/Witness";
/// How long a cosigner's stream may take to say whose it is.
const FIRST_MESSAGE_MAX: Duration = Duration::from_secs(5);
/// The kind number of the header of a key change.
const KEY_KIND: u8 = 6;

/// Serves `coppice.v1.Ledger`.
#[derive(Clone, Debug)]
pub struct Api {
    pub(super) intake: Intake,
    pub(super) reads: Reads,
    pub(super) keys: Arc<MemberKeys>,
    forward: Forward,
    links: Arc<Links>,
    shown: Arc<Shown>,
    /// Orders anchors; `None` if no authority is configured.
    anchors: Option<Orders>,
    streams: Streams,
}

/// A stream of messages to a client.
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
/// The answer to a unary call.
pub type Answer<T> = Result<Response<T>, Status>;

impl Api {
    pub fn new(
        intake: Intake,
        reads: Reads,
        forward: Forward,
        links: Arc<Links>,
        shown: Arc<Shown>,
        anchors: Option<Orders>,
        streams: Streams,
    ) -> Self {
        Self { intake, reads, keys: Arc::default(), forward, links, shown, anchors, streams }
    }

    async fn commit_here(
        &self,
        request: v1::CommitRequest,
        caller: &str,
        limit: Duration,
    ) -> Answer<v1::CommitResponse> {
        let came = Instant::now();
        let answer = self.commit_batch(request, caller, limit).await;
        self.intake.metrics.answered(came, answer.as_ref().map(|answer| answer.replayed));
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
            self.intake.quotas.use_session(caller, id)?;
        }
        let batch = Arc::new(self.intake.admit(request.batch, session).await?);
        let (entry, receive) = self.intake.entry(batch, request.want_receipt, limit)?;
        self.intake.send(Command::Commit(entry))?;
        Ok(answer(receive, self.intake.patience()).await?.response)
    }

    /// Pins a version within the caller's quota.
    async fn pin_for(&self, caller: &str, request: &v1::PinRequest) -> Answer<v1::PinResponse> {
        let id = PinId::from_slice(&request.pin_id).ok_or_else(|| Refusal::invalid("a pin id must have 16 bytes"))?;
        let is_new = self.intake.quotas.pin(caller, id, Duration::from_millis(request.ttl_ms).min(PIN_TIME_MAX))?;
        let pinned = self.intake.log.root.set_pin(request).await;
        let pinned = pinned.inspect_err(|error| {
            if is_new && is_final(error) {
                self.intake.quotas.unpin(id);
            }
        });
        Ok(Response::new(pinned?))
    }

    async fn stage_here(&self, request: v1::StageRequest, caller: &str) -> Answer<v1::StageResponse> {
        let parent = request.parent_stage_id;
        let parent = if parent.is_empty() { None } else { Some(stage_id(&parent)?) };
        let request = Arc::new(self.intake.admit(request.batch, None).await?);
        let slot = self.intake.quotas.stages.take(caller)?;
        let permits = self.intake.permits(&request)?;
        let (reply, receive) = oneshot::channel();
        self.intake.send(Command::Stage(StageCommand::Stage { request, parent, reply, _permits: permits, slot }))?;
        Ok(Response::new(answer(receive, self.intake.patience()).await?))
    }

    async fn finalize_here(&self, request: v1::FinalizeRequest) -> Answer<v1::CommitResponse> {
        let came = Instant::now();
        let answer = self.finalize_stage(request).await;
        self.intake.metrics.answered(came, answer.as_ref().map(|answer| answer.replayed));
        answer.map(Response::new)
    }

    async fn finalize_stage(&self, request: v1::FinalizeRequest) -> Result<v1::CommitResponse, Status> {
        let id = stage_id(&request.stage_id)?;
        let nothing = Arc::new(self.intake.admit(Some(v1::Batch::default()), None).await?);
        let (entry, receive) = self.intake.entry(nothing, request.want_receipt, self.intake.limits.commit_timeout)?;
        self.intake.send(Command::Stage(StageCommand::Finalize { id, entry }))?;
        Ok(answer(receive, self.intake.patience()).await?.response)
    }

    async fn discard_here(&self, request: v1::DiscardRequest) -> Answer<v1::DiscardResponse> {
        let id = stage_id(&request.stage_id)?;
        let (reply, receive) = oneshot::channel();
        self.intake.send(Command::Stage(StageCommand::Discard { id, reply }))?;
        Ok(Response::new(answer(receive, self.intake.patience()).await?))
    }

    async fn administer(
        &self,
        wanted: Wanted,
        Asked { principal, reason }: Asked,
        expected_head: Option<v1::Stamp>,
    ) -> Answer<v1::AdminResponse> {
        let (reply, receive) = oneshot::channel();
        self.intake.send(Command::Admin(AdminRequest { wanted, principal, reason, expected_head, reply }))?;
        let limit = self.intake.patience() + self.intake.limits.admin_timeout;
        Ok(Response::new(answer(receive, limit).await?))
    }
}

/// Whether the request was refused and had no effect.
fn is_final(error: &Status) -> bool {
    status::reason(error).is_some() && status::kind(error) != ErrorKind::Unavailable
}

/// Runs a stream's work as a task, which makes at most a few messages ahead of the client.
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
            // The work ends with its client, since it might wait long for groups that don't answer.
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
    type QueryBatchStream = Messages<v1::QueryBatchResponse>;
    type RangeStream = Messages<v1::RangeResponse>;
    type HistoryStream = Messages<v1::HistoryResponse>;
    type DiffStream = Messages<v1::DiffResponse>;
    type WatchHeadsStream = Messages<v1::WatchHeadsResponse>;
    type JournalStream = Messages<v1::JournalResponse>;
    type WitnessStream = Messages<v1::WitnessRequest>;
    type ListLedgersStream = Messages<v1::ListLedgersResponse>;
    type ListMembersStream = Messages<v1::ListMembersResponse>;

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        // Within a session a batch is committed only once, however often it is sent.
        let repeatable = !request.get_ref().session_id.is_empty();
        let (limit, caller) = (self.intake.limit(request.metadata()), quotas::caller(&request));
        let here = |request| self.commit_here(request, &caller, limit);
        self.forward.route(request, repeatable, here, async |leader, request| leader.commit(request).await).await
    }

    async fn commit_stream(
        &self,
        request: Request<Streaming<v1::CommitStreamRequest>>,
    ) -> Answer<Self::CommitStreamStream> {
        let caller = Caller::of(request.extensions(), request.metadata());
        let limit = self.intake.limit(request.metadata());
        let leader = self.forward.leader(&caller, limit).await?;
        let (intake, batches) = (self.intake.clone(), request.into_inner());
        if let Some(leader) = leader {
            return Ok(Response::new(Box::pin(self.forward.pass(leader, &caller, batches).await?)));
        }
        stream(move |sink| async move { super::stream::serve(intake, caller.name.to_string(), batches, sink).await })
    }

    async fn witness(&self, request: Request<Streaming<v1::WitnessAnswer>>) -> Answer<Self::WitnessStream> {
        let claimant = Claimant::of(request.extensions());
        let (streams, mut answers) = (self.streams.clone(), request.into_inner());
        let first = timeout(FIRST_MESSAGE_MAX, answers.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("the stream begins with nothing"))??;
        let name = first.ok_or_else(|| Status::invalid_argument("the stream begins with nothing"))?.name;
        if let Some(claimant) = claimant {
            claimant.must_be(WITNESS, &name)?;
        }
        if !streams.expects(&name) {
            let what = format!("no cosigner has the address stream:{}", guard(&name));
            return Err(status::refuse(Reason::NotFound, what));
        }
        stream(move |sink| async move { streams.serve(&name, answers, sink).await })
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
        let id = SessionId::from_slice(&id).ok_or_else(|| Refusal::invalid("a session_id must have 16 bytes"))?;
        let is_new = self.intake.quotas.use_session(&caller, id)?;
        let opened = self.intake.log.root.open_session(id).await;
        let answer = opened.inspect_err(|error| {
            if is_new && is_final(error) {
                self.intake.quotas.forget_session(&caller, id);
            }
        })?;
        self.intake.tell_opened(id, answer.highest_number);
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

    async fn query_batch(&self, request: Request<v1::QueryBatchRequest>) -> Answer<Self::QueryBatchStream> {
        let (reads, request) = (self.reads.by(&quotas::caller(&request)), request.into_inner());
        stream(move |sink| async move { reads.query_batch(request, &sink).await })
    }

    async fn range(&self, request: Request<v1::RangeRequest>) -> Answer<Self::RangeStream> {
        if request.get_ref().without_values {
            // The records of ledgers are not for readers, even without their values.
            may_also(request.extensions(), JOURNAL)?;
        }
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
        let signed =
            if stale_ok { self.intake.log.signed_lately(view).await } else { self.intake.log.signed(view).await };
        let (view, checkpoint) = signed?;
        let header = &view.tail.header;
        Ok(Response::new(v1::HeadResponse {
            cluster_id: Bytes::copy_from_slice(&header.cluster.0),
            stamp: Some(convert::to_stamp(header.stamp)),
            state_root: convert::to_digest(&header.state_root),
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
                let answer = self
                    .intake
                    .log
                    .root
                    .read(Read::Version(v1::VersionRead { version, epoch: None, header_only: false }))
                    .await?;
                answer.header
            }
            Some(Which::Sequence(from_sequence)) => {
                let answer =
                    self.intake.log.root.read(Read::Headers(v1::HeadersRead { from_sequence, limit: 1 })).await?;
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
            // The right to read the log does not include the right to read records.
            may_also(request.extensions(), "/coppice.v1.Ledger/Diff")?;
        }
        if wanted.want_journal {
            // A journal names keys, and those of ledgers of members are for auditors.
            let ledgers = self.intake.log.any_view().await?.genesis.params.ledgers;
            may_also(request.extensions(), if ledgers { JOURNAL } else { "/coppice.v1.Ledger/Diff" })?;
        }
        let slot = if wanted.follow { Some(self.intake.quotas.follows.take(&quotas::caller(&request))?) } else { None };
        let (reads, request) = (self.reads.clone(), request.into_inner());
        stream(move |sink| async move {
            let _slot = slot;
            reads.watch(&request, &sink).await
        })
    }

    async fn journal(&self, request: Request<v1::JournalRequest>) -> Answer<Self::JournalStream> {
        let (reads, request) = (self.reads.clone(), request.into_inner());
        stream(move |sink| async move { reads.journal(request, &sink).await })
    }

    async fn append(&self, request: Request<v1::AppendRequest>) -> Answer<v1::AppendResponse> {
        let (limit, caller) = (self.intake.limit(request.metadata()), quotas::caller(&request));
        // A lane applies a request only once, however often it is sent.
        let here = |request| self.append_here(request, &caller, limit);
        self.forward.route(request, true, here, async |leader, request| leader.append(request).await).await
    }

    async fn list_ledgers(&self, request: Request<v1::ListLedgersRequest>) -> Answer<Self::ListLedgersStream> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        let request = request.into_inner();
        stream(move |sink| async move { reads.ledgers(&request, &sight, &sink).await })
    }

    async fn describe_ledger(&self, request: Request<v1::DescribeLedgerRequest>) -> Answer<v1::DescribeLedgerResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        Ok(Response::new(reads.describe(request.get_ref(), &sight).await?))
    }

    async fn list_members(&self, request: Request<v1::ListMembersRequest>) -> Answer<Self::ListMembersStream> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        let request = request.into_inner();
        stream(move |sink| async move { reads.members(&request, &sight, &sink).await })
    }

    async fn get_member(&self, request: Request<v1::GetMemberRequest>) -> Answer<v1::GetMemberResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        Ok(Response::new(reads.member(request.get_ref(), &sight).await?))
    }

    async fn get_journals(&self, request: Request<v1::GetJournalsRequest>) -> Answer<v1::GetJournalsResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        Ok(Response::new(reads.journals(request.get_ref(), &sight).await?))
    }

    async fn get_lineage(&self, request: Request<v1::GetLineageRequest>) -> Answer<v1::GetLineageResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        Ok(Response::new(reads.lineage(request.get_ref(), &sight).await?))
    }

    async fn get_ledger_hashes(
        &self,
        request: Request<v1::GetLedgerHashesRequest>,
    ) -> Answer<v1::GetLedgerHashesResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        Ok(Response::new(reads.ledger_hashes(request.get_ref(), &sight).await?))
    }

    async fn verify_journal(&self, request: Request<v1::VerifyJournalRequest>) -> Answer<v1::VerifyJournalResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        Ok(Response::new(reads.verify_journal(request.into_inner(), &sight).await?))
    }

    async fn get_ledger_records(
        &self,
        request: Request<v1::GetLedgerRecordsRequest>,
    ) -> Answer<v1::GetLedgerRecordsResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        Ok(Response::new(reads.ledger_records(request.get_ref(), &sight).await?))
    }

    async fn erasure_status(&self, request: Request<v1::ErasureStatusRequest>) -> Answer<v1::ErasureStatusResponse> {
        let (reads, sight) = (self.reads.by(&quotas::caller(&request)), sight(request.extensions()));
        let ordered = reads.ordered(request.get_ref(), &sight).await?;
        let survey = Survey::of(&self.links, STATUS_TIMEOUT).await;
        let shards = ordered.shards.into_iter().map(GroupId::Shard);
        let replicas: Vec<_> = shards.flat_map(|shard| survey.erasure(shard, ordered.stamp.version)).collect();
        let done = !replicas.is_empty() && replicas.iter().all(|replica| replica.state == DONE);
        let ordered = Some(convert::to_stamp(ordered.stamp));
        Ok(Response::new(v1::ErasureStatusResponse { ordered, replicas, done }))
    }

    async fn get_checkpoint(&self, request: Request<v1::GetCheckpointRequest>) -> Answer<v1::GetCheckpointResponse> {
        let v1::GetCheckpointRequest { old_size, cosigned } = request.into_inner();
        let log = &self.intake.log;
        let prefix = if cosigned {
            let deadline = Instant::now() + self.intake.limits.read_timeout;
            SignedPrefix::cosigned(log, &self.shown, old_size.max(1), deadline).await?
        } else {
            SignedPrefix::newest(log, log.view().await?).await?
        };
        let standing = if old_size == 0 { Bytes::new() } else { proofs::standing_file(log, &prefix, old_size).await? };
        let checkpoint = prefix.checkpoint();
        Ok(Response::new(v1::GetCheckpointResponse { checkpoint, standing }))
    }

    async fn time(&self, request: Request<v1::TimeRequest>) -> Answer<v1::TimeResponse> {
        Ok(Response::new(self.reads.time(request.into_inner()).await?))
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
            if key.name() != self.intake.log.keys.origin() {
                let message = format!("the new key's name is {}, not {}", key.name(), self.intake.log.keys.origin());
                return Err(Refusal::invalid(message).into());
            }
            let limit = self.intake.limits.admin_timeout;
            Survey::of(&self.links, limit).await.check_kind(KEY_KIND)?;
            self.administer(Wanted::Key(key.public_key()), asked, expected_head).await
        };
        let done = self.forward.route(request, false, here, async |leader, request| leader.rotate_key(request).await);
        recorded(log.as_ref(), &caller, action, done).await
    }

    async fn anchor(&self, request: Request<v1::AnchorRequest>) -> Answer<v1::AnchorResponse> {
        let (caller, log) = Caller::from(&request);
        let here = async |_| {
            let unknown = "the leading coordinator knows no time-stamping authority: name some as anchor.tsa";
            let missing = || Refusal::new(Reason::PreconditionFailed, unknown.to_owned());
            let header = self.anchors.as_ref().ok_or_else(missing)?.now().await?;
            Ok(Response::new(v1::AnchorResponse { header }))
        };
        let done = self.forward.route(request, false, here, async |leader, request| leader.anchor(request).await);
        recorded(log.as_ref(), &caller, Action::new("anchor", String::new()), done).await
    }

    async fn get_interval(&self, request: Request<v1::GetIntervalRequest>) -> Answer<v1::GetIntervalResponse> {
        let proof = interval(&self.intake.log, &self.shown, request.get_ref()).await?;
        Ok(Response::new(v1::GetIntervalResponse { proof }))
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
            let answer = self.intake.log.root.drop_pin(&request).await?;
            if let Some(id) = PinId::from_slice(&request.pin_id) {
                self.intake.quotas.unpin(id);
            }
            Ok(Response::new(answer))
        };
        recorded(log.as_ref(), &caller, Action::new("unpin", format!("pin {}", hex(&request.pin_id))), done).await
    }

    async fn list_pins(&self, _request: Request<v1::ListPinsRequest>) -> Answer<v1::ListPinsResponse> {
        let answer = self.intake.log.root.read(v1::read_root_request::Read::Pins(true)).await?;
        Ok(Response::new(v1::ListPinsResponse { pins: answer.pins }))
    }

    async fn transfer_leader(&self, request: Request<v1::TransferLeaderRequest>) -> Answer<v1::TransferLeaderResponse> {
        let (caller, log) = Caller::from(&request);
        let request = request.into_inner();
        let deadline = Instant::now() + self.intake.limits.admin_timeout;
        let action = Action::new("transfer leader", format!("of {} to {}", request.group, request.node));
        let done = lead::transfer(&self.links, &request, deadline);
        recorded(log.as_ref(), &caller, action, done).await?;
        Ok(Response::new(v1::TransferLeaderResponse {}))
    }

    async fn status(&self, _request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let view = timeout(HEAD_TIMEOUT, self.intake.log.view());
        let (view, survey) = tokio::join!(view, Survey::of(&self.links, STATUS_TIMEOUT));
        // If no majority of the root group answers, the status shows the reports of the nodes.
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
        let leadership = self.shown.leadership.borrow().clone();
        let last = self.intake.log.last_view();
        let cluster = view.as_ref().or(last.as_ref()).map(|view| view.tail.header.cluster);
        let told = view.map(|view| (convert::to_stamp(view.head()), view.boundary.0, view.term.0));
        let (head, pruned_boundary, term) =
            told.map_or((None, 0, 0), |(head, boundary, term)| (Some(head), boundary, term));
        Ok(Response::new(v1::StatusResponse {
            cluster_id: cluster.map(|cluster| Bytes::copy_from_slice(&cluster.0)).unwrap_or_default(),
            origin: self.intake.log.keys.origin().to_owned(),
            vkey: self.intake.log.keys.current(),
            head,
            pruned_boundary,
            term,
            leader: leadership.leader,
            groups,
            coordinators: self.shown.coordinators(),
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
            digest: convert::to_digest(&leaf.digest),
            ..v1::GroupStatus::default()
        };
        survey.group(GroupId::Shard(leaf.shard), known)
    });
    std::iter::once(survey.group(GroupId::Root, v1::GroupStatus::default())).chain(shards).collect()
}
