//! The calls of `coppice.v1.Ledger`, with deadlines and repetitions.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use coppice_proto::{
    Channel,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{ErrorKind, PinId};
use coppice_verify::{
    check::{Claim, Question},
    header::Header,
    keys::Keys,
    note::VerifierKey,
    proof::ProofFile,
};
use tonic::{Request, Streaming};

use crate::{
    Error,
    bounds::RANGE_BYTES_MAX,
    call::{Patience, Repeat, call},
    endpoint::{self, Secure, ledger_over},
    options::Options,
    routes::Routes,
    rules::{self, Rule},
    stream::Stream,
    tls::{Tls, Unfit},
    trust::{Asked, Asking, Read, Receipted, Seen, Sent, Trust, check_read, claimed_size, decoded, take_values},
};

/// Memory that a record takes in addition to its key and value, in bytes.
const RECORD_BYTES: usize = size_of::<v1::Record>();
/// Most attempts to get two proofs that end in the same checkpoint.
const GROWTH_TRIES: u32 = 5;

/// A connection to a ledger; clones share it.
///
/// # Errors
/// Every call returns [`Error::Refused`] if the cluster refuses it, and [`Error::Unavailable`] if
/// no coordinator answers within [`Options::patience`]. Methods name only what else can fail.
/// [`Error::kind`] says what to do next, [`Error::outcome_unknown`] whether a write may have
/// happened.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) routes: Arc<Routes>,
    pub(crate) patience: Patience,
    pub(crate) trust: Option<Arc<Trust>>,
    tls: Option<Secure>,
}

/// Calls a method of the generated client, repeated as `$repeat` allows.
macro_rules! ask {
    ($client:expr, $repeat:expr, $method:ident, $request:expr) => {{
        let (client, request) = (&$client, $request);
        call(stringify!($method), &client.routes, client.patience, $repeat, |pick, limit| {
            let (mut ledger, mut request) = (pick.ledger, Request::new(request.clone()));
            // The cluster can drop a request that nobody waits for.
            request.set_timeout(limit);
            async move { ledger.$method(request).await }
        })
        .await
    }};
}

impl Client {
    /// A client that connects with its first call.
    ///
    /// # Errors
    /// [`Error::Endpoint`] if an endpoint is malformed, [`Error::Tls`] if certificates or keys are
    /// unusable.
    pub fn new(options: Options) -> Result<Self, Error> {
        let tls = options.tls.clone().map(Tls::live).transpose();
        let tls = tls.map_err(|Unfit(why)| Error::Tls(why))?.map(|live| (live, options.expected.clone()));
        let endpoints: Vec<&str> = options.endpoint.split(',').map(str::trim).collect();
        let routes = endpoints.into_iter().map(|endpoint| {
            let (address, channel) = endpoint::open(endpoint, tls.as_ref())?;
            Ok((address, ledger_over(channel)))
        });
        let routes = routes.collect::<Result<_, Error>>()?;
        Ok(Self { tls, ..Self::of(routes, RandomState::new().hash_one(0), &options) })
    }

    /// A client over existing channels, for instance within one process. `routes` are the channels
    /// with the names of their endpoints. `seed` varies the pauses between attempts. The client
    /// connects without TLS to the endpoints that it learns of later.
    ///
    /// # Panics
    /// If `routes` is empty.
    #[must_use]
    pub fn over(routes: Vec<(String, Channel)>, seed: u64, options: &Options) -> Self {
        let routes = routes.into_iter().map(|(endpoint, channel)| (endpoint, ledger_over(channel)));
        Self::of(routes.collect(), seed, options)
    }

    fn of(routes: Vec<(String, LedgerClient<Channel>)>, seed: u64, options: &Options) -> Self {
        Self {
            routes: Arc::new(Routes::new(routes, seed)),
            patience: Patience { attempt: options.attempt_timeout, total: options.patience },
            trust: options.trust.clone().map(|key| Arc::new(Trust::new(key))),
            tls: None,
        }
    }

    /// Asks the cluster for its coordinators. From then on the client calls those, too.
    pub async fn learn_endpoints(&self) -> Result<(), Error> {
        for coordinator in self.status().await?.coordinators {
            // Another client may be able to use an endpoint that this one can't.
            if let Ok((address, channel)) = endpoint::open(&coordinator.address, self.tls.as_ref()) {
                self.routes.learn(address, || ledger_over(channel));
            }
        }
        Ok(())
    }

    /// The addresses of the coordinators that the client knows.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.routes.addresses()
    }

    /// Commits one batch outside of a session. The batch is sent again only if it certainly had no
    /// effect; use a [`Session`](crate::Session) to repeat it safely. With `want_receipt`, or if a
    /// key is trusted, the answer has a receipt.
    ///
    /// # Errors
    /// If a key is trusted, also [`Error::Unproven`] or [`Error::Untrusted`] if the receipt does
    /// not show that this batch was committed.
    pub async fn commit(&self, batch: v1::Batch, want_receipt: bool) -> Result<v1::CommitResponse, Error> {
        let request = v1::CommitRequest { batch: Some(batch), want_receipt, ..v1::CommitRequest::default() };
        self.send_batch(request, Repeat::Unsafe).await
    }

    pub(crate) async fn commit_numbered(&self, request: v1::CommitRequest) -> Result<v1::CommitResponse, Error> {
        self.send_batch(request, Repeat::Safe).await
    }

    async fn send_batch(&self, mut request: v1::CommitRequest, repeat: Repeat) -> Result<v1::CommitResponse, Error> {
        request.want_receipt |= self.trust.is_some();
        let (sent, keys) = (request.clone(), self.keys());
        let response = ask!(self, repeat, commit, request)?;
        self.trust_receipt(keys.as_deref(), &sent.session_id, sent.number, sent.batch.as_ref(), &response).await?;
        Ok(response)
    }

    /// The ledger's keys that are known now; `None` if no key is trusted. An answer is checked with
    /// the keys that were known when it was asked for.
    pub(crate) fn keys(&self) -> Option<Arc<Keys>> {
        self.trust.as_ref().map(|trust| trust.keys())
    }

    /// Checks the receipt of a commit if a key is trusted: it must be for exactly the batch that
    /// was sent.
    pub(crate) async fn trust_receipt(
        &self,
        keys: Option<&Keys>,
        session: &Bytes,
        number: u64,
        batch: Option<&v1::Batch>,
        response: &v1::CommitResponse,
    ) -> Result<(), Error> {
        let (Some(trust), Some(keys)) = (&self.trust, keys) else { return Ok(()) };
        let sent = Sent::new(session, number, batch)?;
        self.check_receipt(trust, keys, &sent, response).await.map_err(Error::after_commit)
    }

    async fn check_receipt(
        &self,
        trust: &Trust,
        keys: &Keys,
        sent: &Sent<'_>,
        response: &v1::CommitResponse,
    ) -> Result<(), Error> {
        if response.receipt.is_empty() {
            return Err(Error::unproven_commit());
        }
        let genesis = match trust.map.get() {
            Some(_) => None,
            None => Some(self.header(v1::get_header_request::Which::Sequence(0)).await?),
        };
        let answer = Receipted::new(response)?;
        let newer = self.newer_than(keys, &answer.file).await?;
        let seen = trust.check_receipt(keys, newer.as_deref(), genesis.as_deref(), sent, &answer)?;
        self.follow(trust, seen).await
    }

    pub(crate) async fn session(&self, request: v1::OpenSessionRequest) -> Result<v1::OpenSessionResponse, Error> {
        ask!(self, Repeat::Safe, open_session, request)
    }

    /// Computes the state that a batch would give on top of a stage, or of head.
    pub async fn stage(&self, request: v1::StageRequest) -> Result<v1::StageResponse, Error> {
        ask!(self, Repeat::Unsafe, stage, request)
    }

    /// Commits a stage whose parent is head. `batch` is the one that was staged. With
    /// `want_receipt`, or if a key is trusted, the answer has a receipt. The state root that was
    /// staged is the coordinator's word: the header in the answer has the one that counts.
    ///
    /// # Errors
    /// If a key is trusted, also [`Error::Unproven`] or [`Error::Untrusted`] if the receipt does
    /// not show that this batch was committed.
    pub async fn finalize(
        &self,
        mut request: v1::FinalizeRequest,
        batch: &v1::Batch,
    ) -> Result<v1::CommitResponse, Error> {
        request.want_receipt |= self.trust.is_some();
        let keys = self.keys();
        let response = ask!(self, Repeat::Unsafe, finalize, request)?;
        self.trust_receipt(keys.as_deref(), &Bytes::new(), 0, Some(batch), &response).await?;
        Ok(response)
    }

    /// Drops a stage, and all stages on top of it.
    pub async fn discard(&self, request: v1::DiscardRequest) -> Result<v1::DiscardResponse, Error> {
        ask!(self, Repeat::Safe, discard, request)
    }

    /// Reads a key, at head unless the request names a version. A key without a value gives a
    /// record with `found` set to false.
    ///
    /// # Errors
    /// If a key is trusted, also [`Error::Unproven`] or [`Error::Untrusted`] if the proof does not
    /// show the answer.
    pub async fn get(&self, mut request: v1::GetRequest) -> Result<v1::GetResponse, Error> {
        self.settle_time(&mut request.read).await?;
        let (options, seen) = self.want_proof(&mut request.read);
        let trusted = self.keys();
        let key = request.key.clone();
        let mut response = ask!(self, Repeat::Safe, get, request)?;
        if let Some(keys) = trusted {
            let v1::GetResponse { record, read_at, proof } = &mut response;
            let file = &decoded(proof)?;
            take_values(record.as_mut_slice(), proof, file);
            let question = Asked::Keys(std::slice::from_ref(&key));
            let (options, records, read_at) = (&options, record.as_slice(), read_at.as_ref());
            self.trust_read(&keys, &Read { question, options, records, read_at, file, seen }).await?;
        }
        Ok(response)
    }

    /// Reads several keys of one version. The records are in the order of the keys.
    ///
    /// # Errors
    /// Like [`Client::get`].
    pub async fn batch_get(&self, mut request: v1::BatchGetRequest) -> Result<v1::BatchGetResponse, Error> {
        self.settle_time(&mut request.read).await?;
        let (options, seen) = self.want_proof(&mut request.read);
        let trusted = self.keys();
        let keys = request.keys.clone();
        let mut response = ask!(self, Repeat::Safe, batch_get, request)?;
        if let Some(trusted) = trusted {
            let v1::BatchGetResponse { records, read_at, proof } = &mut response;
            let file = &decoded(proof)?;
            take_values(records, proof, file);
            let (question, options, read_at) = (Asked::Keys(&keys), &options, read_at.as_ref());
            self.trust_read(&trusted, &Read { question, options, records, read_at, file, seen }).await?;
        }
        Ok(response)
    }

    /// The same client, which believes only what this key proves.
    pub(crate) fn trusting(&self, key: VerifierKey) -> Self {
        Self { trust: Some(Arc::new(Trust::new(key))), ..self.clone() }
    }

    /// Compares a proven checkpoint with the newest one known: the log may only have grown. From
    /// time to time, a proof of that growth is requested.
    pub(crate) async fn follow(&self, trust: &Trust, seen: Seen) -> Result<(), Error> {
        let Some(growth) = trust.note(seen)? else { return Ok(()) };
        for _ in 0..GROWTH_TRIES {
            let keys = trust.keys();
            // If both are asked for at the same moment, both end in one checkpoint, unless the log
            // grows in between.
            let (proven, newest) = (self.checkpoint(growth.proven.size), self.checkpoint(growth.newest.size));
            match tokio::try_join!(proven, newest) {
                Ok((proven, newest)) => {
                    if trust.check_growth(&keys, &growth, &proven.standing, &newest.standing)? {
                        return Ok(());
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Exhausted) => break,
                Err(error) => return Err(error),
            }
        }
        // A later call asks for the proof again. The answer at hand is proven anyway.
        trust.unproven()
    }

    /// The proof that an older checkpoint is a beginning of the log, if it is needed. An answer
    /// that may be stale, or that witnesses have cosigned, can have a checkpoint that was signed
    /// before a key change. Its key is no longer trusted for it.
    async fn newer_than(&self, keys: &Keys, file: &ProofFile<'_>) -> Result<Option<Bytes>, Error> {
        match claimed_size(file) {
            Some(size) if !keys.believes(size) => Ok(Some(self.checkpoint(size).await?.standing)),
            _ => Ok(None),
        }
    }

    /// The client's knowledge before it asks a question; `None` if no key is trusted.
    pub(crate) fn asking(&self) -> Option<Asking> {
        self.trust.as_ref().map(|trust| Asking { keys: trust.keys(), seen: trust.seen() })
    }

    /// Verifies an answer about ledgers of members or about a time, which must answer the question.
    /// An answer about head must be of the newest version under its checkpoint.
    pub(crate) async fn trust_claim<'a>(
        &self,
        asking: &Asking,
        file: &ProofFile<'a>,
        question: &Question<'_>,
        of_head: bool,
    ) -> Result<Claim<'a>, Error> {
        let trust = self.trust.as_ref().expect("an answer is verified if a key is trusted");
        let newer = self.newer_than(&asking.keys, file).await?;
        let (claim, seen) = trust.check(asking, newer.as_deref(), file, question, of_head)?;
        self.follow(trust, seen).await?;
        Ok(claim)
    }

    pub(crate) async fn call_time(&self, request: v1::TimeRequest) -> Result<v1::TimeResponse, Error> {
        ask!(self, Repeat::Safe, time, request)
    }

    pub(crate) async fn call_append(&self, request: v1::AppendRequest) -> Result<v1::AppendResponse, Error> {
        ask!(self, Repeat::Safe, append, request)
    }

    pub(crate) async fn call_describe_ledger(
        &self,
        request: v1::DescribeLedgerRequest,
    ) -> Result<v1::DescribeLedgerResponse, Error> {
        ask!(self, Repeat::Safe, describe_ledger, request)
    }

    pub(crate) async fn call_get_member(&self, request: v1::GetMemberRequest) -> Result<v1::GetMemberResponse, Error> {
        ask!(self, Repeat::Safe, get_member, request)
    }

    /// Journals of a ledger with their proof, as the server says them. They are not verified:
    /// [`Client::journals`] does that.
    pub async fn get_journals(&self, request: v1::GetJournalsRequest) -> Result<v1::GetJournalsResponse, Error> {
        ask!(self, Repeat::Safe, get_journals, request)
    }

    /// The journals with a clue with their proof, as the server says them. They are not verified:
    /// [`Client::lineage`] does that.
    pub async fn get_lineage(&self, request: v1::GetLineageRequest) -> Result<v1::GetLineageResponse, Error> {
        ask!(self, Repeat::Safe, get_lineage, request)
    }

    pub(crate) async fn call_get_ledger_hashes(
        &self,
        request: v1::GetLedgerHashesRequest,
    ) -> Result<v1::GetLedgerHashesResponse, Error> {
        ask!(self, Repeat::Safe, get_ledger_hashes, request)
    }

    pub(crate) async fn call_verify_journal(
        &self,
        request: v1::VerifyJournalRequest,
    ) -> Result<v1::VerifyJournalResponse, Error> {
        ask!(self, Repeat::Safe, verify_journal, request)
    }

    pub(crate) async fn call_get_ledger_records(
        &self,
        request: v1::GetLedgerRecordsRequest,
    ) -> Result<v1::GetLedgerRecordsResponse, Error> {
        ask!(self, Repeat::Safe, get_ledger_records, request)
    }

    pub(crate) async fn call_erasure_status(
        &self,
        request: v1::ErasureStatusRequest,
    ) -> Result<v1::ErasureStatusResponse, Error> {
        ask!(self, Repeat::Safe, erasure_status, request)
    }

    pub(crate) async fn call_query_batch(
        &self,
        request: v1::QueryBatchRequest,
    ) -> Result<Stream<v1::QueryBatchResponse>, Error> {
        Ok(self.stream(ask!(self, Repeat::Safe, query_batch, request)?, rules::queries()))
    }

    /// Streams the ledgers of members in the order of their names. They are not verified.
    pub async fn list_ledgers(
        &self,
        mut request: v1::ListLedgersRequest,
    ) -> Result<Stream<v1::ListLedgersResponse>, Error> {
        self.settle_time(&mut request.read).await?;
        let rule = rules::ledgers(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, list_ledgers, request)?, rule))
    }

    /// Streams the members and agents of a ledger in the order of their ids. They are not verified:
    /// [`Client::ledger_member`] does that for one.
    pub async fn list_members(
        &self,
        mut request: v1::ListMembersRequest,
    ) -> Result<Stream<v1::ListMembersResponse>, Error> {
        self.settle_time(&mut request.read).await?;
        let rule = rules::members(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, list_members, request)?, rule))
    }

    /// Checks the answer to a read, if a key is trusted.
    pub(crate) async fn trust_read(&self, keys: &Keys, read: &Read<'_>) -> Result<(), Error> {
        let Some(trust) = &self.trust else { return Ok(()) };
        let newer = self.newer_than(keys, read.file).await?;
        let seen = check_read(&trust.logs, keys, newer.as_deref(), read)?;
        self.follow(trust, seen).await
    }

    /// Asks for a proof if a key is trusted. Returns the options of the read, and the size of the
    /// log that was seen before.
    fn want_proof(&self, read: &mut Option<v1::ReadOptions>) -> (v1::ReadOptions, u64) {
        let read = read.get_or_insert_default();
        read.want_proof |= self.trust.is_some();
        read.values_in_proof |= self.trust.is_some();
        (*read, self.trust.as_ref().map_or(0, |trust| trust.seen()))
    }

    fn stream<T>(&self, inner: Streaming<T>, rule: Rule<T>) -> Stream<T> {
        Stream::new(inner, rule, self.patience.attempt)
    }

    /// Streams the records of a range, in the order that was asked for. They are not verified: use
    /// [`Client::range_all`] for that.
    pub async fn range(&self, mut request: v1::RangeRequest) -> Result<Stream<v1::RangeResponse>, Error> {
        self.settle_time(&mut request.read).await?;
        let rule = rules::range(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, range, request)?, rule))
    }

    /// Reads all records of a range with their values, in the order that was asked for, and its
    /// end. If the end says that more records follow, the request's limit cut the range short.
    ///
    /// # Errors
    /// Like [`Client::get`]. Also if the stream breaks off, or if the range has more than
    /// [`RANGE_BYTES_MAX`]: read it in parts then.
    pub async fn range_all(&self, mut request: v1::RangeRequest) -> Result<(Vec<v1::Record>, v1::RangeEnd), Error> {
        request.without_values = false;
        self.settle_time(&mut request.read).await?;
        let (options, seen) = self.want_proof(&mut request.read);
        let trusted = self.keys();
        let mut stream = self.range(request.clone()).await?;
        let (mut records, mut bytes) = (Vec::new(), 0_usize);
        while let Some(message) = stream.next().await? {
            let sizes = message.records.iter().map(|record| RECORD_BYTES + record.key.len() + record.value.len());
            bytes = sizes.fold(bytes, usize::saturating_add);
            if bytes > RANGE_BYTES_MAX {
                return Err(Error::range_too_large());
            }
            records.extend(message.records);
            let Some(end) = message.end else { continue };
            if let Some(keys) = trusted {
                let v1::RangeRequest { low, high, limit, reverse, .. } = &request;
                let (limit, reverse) = (*limit, *reverse);
                let question = Asked::Range { low, high: high.as_deref(), limit, reverse, more: end.more };
                let (options, read_at, file) = (&options, end.read_at.as_ref(), &decoded(&end.proof)?);
                let read = Read { question, options, records: &records, read_at, file, seen };
                self.trust_read(&keys, &read).await?;
            }
            return Ok((records, end));
        }
        Err(Error::Malformed("the range breaks off"))
    }

    /// Streams the changes of a key, newest first. They are not verified.
    pub async fn history(&self, mut request: v1::HistoryRequest) -> Result<Stream<v1::HistoryResponse>, Error> {
        self.settle_time(&mut request.read).await?;
        let rule = rules::history(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, history, request)?, rule))
    }

    /// Streams the keys whose records differ between two versions, in key order. They are not
    /// verified.
    pub async fn diff(&self, request: v1::DiffRequest) -> Result<Stream<v1::DiffResponse>, Error> {
        let rule = rules::diff(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, diff, request)?, rule))
    }

    /// The newest state, as one coordinator says it. It is not verified.
    pub async fn head(&self) -> Result<v1::HeadResponse, Error> {
        ask!(self, Repeat::Safe, head, v1::HeadRequest::default())
    }

    /// The header of a version that stands, or of an entry of the root log, in canonical bytes.
    /// [`header`](crate::header()) decodes it. It is not verified.
    pub async fn header(&self, which: v1::get_header_request::Which) -> Result<Vec<u8>, Error> {
        let request = v1::GetHeaderRequest { which: Some(which) };
        Ok(ask!(self, Repeat::Safe, get_header, request)?.header.to_vec())
    }

    /// The newest header of the root log, under a signed checkpoint of a log that only grew.
    ///
    /// # Errors
    /// [`Error::Unproven`] or [`Error::Untrusted`] if the proof does not show that, and if no key
    /// is trusted.
    pub async fn newest(&self) -> Result<Header, Error> {
        let (Some(trust), Some(asking)) = (&self.trust, self.asking()) else {
            return Err(Error::Untrusted("no key is trusted"));
        };
        // The growth from genesis on names all key changes.
        let proof = self.checkpoint(1).await?.standing;
        let (newest, seen) = trust.check_newest(&asking, &proof)?;
        self.follow(trust, seen).await?;
        Ok(newest)
    }

    /// Streams the headers of the root log, in order. If the request says `follow`, the stream
    /// waits for new entries without a limit.
    pub async fn watch(&self, request: v1::WatchHeadsRequest) -> Result<Stream<v1::WatchHeadsResponse>, Error> {
        let (rule, follows) = (rules::heads(&request), request.follow);
        let stream = self.stream(ask!(self, Repeat::Safe, watch_heads, request)?, rule);
        Ok(if follows { stream.without_limit() } else { stream })
    }

    /// Streams the journals of a range of versions, oldest first, for an auditor to replay.
    pub async fn journal(&self, request: v1::JournalRequest) -> Result<Stream<v1::JournalResponse>, Error> {
        let rule = rules::journal(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, journal, request)?, rule))
    }

    /// The newest signed checkpoint. If `old_size` (in entries) is not 0, the answer also has the
    /// proof that the log grew from there.
    pub async fn checkpoint(&self, old_size: u64) -> Result<v1::GetCheckpointResponse, Error> {
        ask!(self, Repeat::Safe, get_checkpoint, v1::GetCheckpointRequest { old_size, cosigned: false })
    }

    /// The newest checkpoint that witnesses have cosigned, as soon as it has `old_size` entries,
    /// with the proof that the log grew from there.
    pub async fn cosigned_checkpoint(&self, old_size: u64) -> Result<v1::GetCheckpointResponse, Error> {
        ask!(self, Repeat::Safe, get_checkpoint, v1::GetCheckpointRequest { old_size, cosigned: true })
    }

    /// Drops the versions before one permanently. The root log keeps who asked for it, and why.
    pub async fn prune(&self, request: v1::PruneRequest) -> Result<v1::AdminResponse, Error> {
        ask!(self, Repeat::Unsafe, prune, request)
    }

    /// Makes an older version head again, in a new epoch. The root log keeps who asked for it, and
    /// why.
    pub async fn rollback(&self, request: v1::RollbackRequest) -> Result<v1::AdminResponse, Error> {
        ask!(self, Repeat::Unsafe, rollback, request)
    }

    /// Transfers a group's leadership to the replica on a node, and waits until that replica leads.
    /// `group` is `root` or `shard-N`.
    pub async fn transfer_leader(&self, group: &str, node: &str) -> Result<(), Error> {
        let request = v1::TransferLeaderRequest { group: group.to_owned(), node: node.to_owned() };
        ask!(self, Repeat::Safe, transfer_leader, request).map(drop)
    }

    /// Changes the key that signs checkpoints. If the answer is lost, the root log shows whether
    /// the key was changed.
    pub async fn rotate_key(&self, request: v1::RotateKeyRequest) -> Result<v1::AdminResponse, Error> {
        ask!(self, Repeat::Unsafe, rotate_key, request)
    }

    /// Has the newest checkpoint stamped by the authorities that the leading coordinator knows.
    /// Returns the header that keeps their tokens. If the answer is lost, the root log shows
    /// whether there is a new anchor.
    pub async fn anchor(&self) -> Result<v1::AnchorResponse, Error> {
        ask!(self, Repeat::Unsafe, anchor, v1::AnchorRequest {})
    }

    /// The proof of the time stamps around an entry of the root log. Verify it with
    /// `coppice_verify::verify`, and judge its tokens with `coppice_timestamp`.
    pub async fn interval(&self, request: v1::GetIntervalRequest) -> Result<v1::GetIntervalResponse, Error> {
        ask!(self, Repeat::Safe, get_interval, request)
    }

    /// Keeps a version from being pruned for `ttl`, which is rounded down to milliseconds and is at
    /// most a day. A pin with the same id is renewed.
    pub async fn pin(&self, id: PinId, version: u64, ttl: Duration) -> Result<v1::VersionPin, Error> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let request = v1::PinRequest { pin_id: id.0.to_vec().into(), version: Some(version), ttl_ms };
        ask!(self, Repeat::Safe, pin, request)?.pin.ok_or(Error::Malformed("no pin"))
    }

    /// Removes a pin. Returns whether there was one.
    pub async fn unpin(&self, id: PinId) -> Result<bool, Error> {
        let request = v1::UnpinRequest { pin_id: id.0.to_vec().into() };
        Ok(ask!(self, Repeat::Safe, unpin, request)?.found)
    }

    /// The pins that have not expired.
    pub async fn pins(&self) -> Result<Vec<v1::VersionPin>, Error> {
        Ok(ask!(self, Repeat::Safe, list_pins, v1::ListPinsRequest::default())?.pins)
    }

    /// The groups and replicas of the cluster.
    pub async fn status(&self) -> Result<v1::StatusResponse, Error> {
        ask!(self, Repeat::Safe, status, v1::StatusRequest::default())
    }
}

#[cfg(test)]
mod tests;
