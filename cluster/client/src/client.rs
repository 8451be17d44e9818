//! The calls of `coppice.v1.Ledger`, with deadlines and repetitions.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use coppice_proto::{
    Channel,
    live::Live,
    secure,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{ErrorKind, PinId, SessionId};
use coppice_verify::{keys::Keys, note::VerifierKey};
use tokio::time::timeout;
use tonic::{Request, Streaming, transport::Endpoint};

use crate::{
    Error, Session,
    bounds::{ANSWER_BYTES_MAX, bounded},
    call::{Patience, Repeat, call},
    routes::Routes,
    rules::{self, Rule},
    tls::{self, Expected, Role, Tls, Unfit},
    trust::{Asked, Read, Seen, Sent, Trust, check_read, claimed_size},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a connection with calls under way is probed, and how long it may take to answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one answer that are taken in before they are read.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// All that HTTP/2 allows: a stream that is not read must not hold up another call on its
/// connection.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Most bytes of keys and values that [`Client::range_all`] collects; more than a proof can hold.
pub const RANGE_BYTES_MAX: usize = 128 << 20;
/// What a record takes in memory beside its key and value.
const RECORD_BYTES: usize = size_of::<v1::Record>();
/// How often in a row it is asked for two proofs that end in one checkpoint.
const GROWTH_TRIES: u32 = 5;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where a coordinator listens: `http://host:port`, `https://host:port`, or `host:port`, which is the latter if `tls` is given.
    /// Several coordinators are separated by commas.
    pub endpoint: String,
    /// For `https`. With files, the client is to be made within a tokio runtime.
    pub tls: Option<Tls>,
    /// The process that must answer, by TLS: a coordinator, unless something else is said.
    /// [`Expected::Anybody`] is for a proxy that ends TLS itself, or a server whose certificate
    /// comes from a public authority: then every holder of a certificate of `tls`'s authorities
    /// that names the host is taken for the ledger's server.
    pub expected: Expected,
    /// How long one attempt waits for its answer, and a stream for its next message.
    pub attempt_timeout: Duration,
    /// How long a call is repeated while the cluster is unavailable.
    pub patience: Duration,
    /// The ledger's public key: with it, no commit and no read of keys or ranges is believed without a proof.
    pub trust: Option<VerifierKey>,
}

impl Options {
    /// The defaults, for an endpoint.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            tls: None,
            expected: Expected::Any(Role::Coordinator),
            attempt_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(5),
            trust: None,
        }
    }
}

/// How an endpoint is connected to, but for its TLS, and its address in full.
fn connect(endpoint: &str, has_tls: bool) -> Result<(Endpoint, String), String> {
    let address = match (endpoint.split_once("://"), has_tls) {
        (None, false) => format!("http://{endpoint}"),
        (None, true) => format!("https://{endpoint}"),
        (Some(("http", _)), false) | (Some(("https", _)), true) => endpoint.to_owned(),
        (Some(("http", _)), true) => {
            return Err("with a CA only https:// is spoken; use https://HOST:PORT".to_owned());
        }
        (Some(("https", _)), false) => return Err("https:// needs the server's CA".to_owned()),
        (Some(_), _) => return Err("only http:// and https:// are spoken; use http://HOST:PORT".to_owned()),
    };
    let mut parsed = Endpoint::from_shared(address.clone()).map_err(|error| error.to_string())?;
    if parsed.uri().port_u16().is_none() {
        return Err("it has no port; use http://HOST:PORT".to_owned());
    }
    if let Some(place) = address.strip_prefix("https://") {
        // The connector does TLS, so that the transport sees a plain connection.
        let origin = parsed.uri().clone();
        let plain = Endpoint::from_shared(format!("http://{place}")).map_err(|error| error.to_string())?;
        parsed = plain.origin(origin);
    }
    Ok((parsed, address))
}

/// A stream of answers.
pub struct Stream<T> {
    inner: Streaming<T>,
    rule: Rule<T>,
    /// How long the next message may take; `None` where it may be long until there is one.
    limit: Option<Duration>,
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<T> Stream<T> {
    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// If the server ends the stream with a refusal, sends what does not follow on what it sent before, or nothing in time, or the
    /// connection breaks.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        let next = self.inner.message();
        let message = match self.limit {
            None => next.await?,
            Some(limit) => timeout(limit, next).await.map_err(|_| Error::silent(limit))??,
        };
        let Some(message) = message else { return Ok(None) };
        (self.rule)(&message).map_err(Error::Malformed)?;
        Ok(Some(message))
    }
}

/// A connection to a ledger; clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) routes: Arc<Routes>,
    pub(crate) patience: Patience,
    pub(crate) trust: Option<Arc<Trust>>,
    tls: Option<Secure>,
}

/// How connections by TLS are made.
type Secure = (Live<secure::Client>, Expected);

/// Calls a method of the generated client, by kind of repetition.
macro_rules! ask {
    ($client:expr, $repeat:expr, $method:ident, $request:expr) => {{
        let (client, request) = (&$client, $request);
        call(stringify!($method), &client.routes, client.patience, $repeat, |pick, limit| {
            let (mut ledger, mut request) = (pick.ledger, Request::new(request.clone()));
            // The cluster need not do what nobody waits for.
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
    /// If an endpoint is not one, or authorities or certificates are none.
    pub fn new(options: Options) -> Result<Self, Error> {
        let tls = options.tls.clone().map(Tls::live).transpose();
        let tls = tls.map_err(|Unfit(why)| Error::Tls(why))?.map(|live| (live, options.expected.clone()));
        let endpoints: Vec<&str> = options.endpoint.split(',').map(str::trim).collect();
        let routes = endpoints.into_iter().map(|endpoint| {
            let (address, channel) = open(endpoint, tls.as_ref())?;
            Ok((address, ledger_over(channel)))
        });
        let routes = routes.collect::<Result<_, Error>>()?;
        Ok(Self { tls, ..Self::of(routes, RandomState::new().hash_one(0), &options) })
    }

    /// A client over channels that exist, for instance inside of a process, by the names of their endpoints. How long it leaves a coordinator
    /// alone that failed differs by `seed`. Other endpoints that it learns of are connected to without TLS.
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

    /// Asks the cluster for its coordinators, and goes to those, too, from now on.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn learn_endpoints(&self) -> Result<(), Error> {
        for coordinator in self.status().await?.coordinators {
            // What is no endpoint for this client may be one for another.
            if let Ok((address, channel)) = open(&coordinator.address, self.tls.as_ref()) {
                self.routes.learn(address, || ledger_over(channel));
            }
        }
        Ok(())
    }

    /// The coordinators that it knows.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.routes.addresses()
    }

    /// Writes one batch, as it comes. It is sent again only after a refusal that had no effect; use a [`Session`] for more.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
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

    /// The ledger's keys as they are known before something is asked, if a key is trusted.
    pub(crate) fn keys(&self) -> Option<Arc<Keys>> {
        self.trust.as_ref().map(|trust| trust.keys())
    }

    /// Believes a commit only by a receipt of the very batch that was sent, if a key is trusted.
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
        let newer = self.newer_than(keys, &response.receipt).await?;
        let seen = trust.check_receipt(keys, newer.as_deref(), genesis.as_deref(), sent, response)?;
        self.follow(trust, seen).await
    }

    pub(crate) async fn open(&self, request: v1::OpenSessionRequest) -> Result<v1::OpenSessionResponse, Error> {
        ask!(self, Repeat::Safe, open_session, request)
    }

    /// Opens a session, or finds it again.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn open_session(&self, id: SessionId) -> Result<Session, Error> {
        Session::open(self.clone(), id).await
    }

    /// Computes the state that a batch would give on a stage, or on head.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn stage(&self, request: v1::StageRequest) -> Result<v1::StageResponse, Error> {
        ask!(self, Repeat::Unsafe, stage, request)
    }

    /// Commits a stage whose parent is head.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn finalize(&self, request: v1::FinalizeRequest) -> Result<v1::CommitResponse, Error> {
        ask!(self, Repeat::Unsafe, finalize, request)
    }

    /// Drops a stage, and the stages on top of it.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn discard(&self, request: v1::DiscardRequest) -> Result<v1::DiscardResponse, Error> {
        ask!(self, Repeat::Safe, discard, request)
    }

    /// Reads a key.
    ///
    /// # Errors
    /// What the cluster refuses, what it did not answer in time, and an answer that is not proven to a client that trusts a key.
    pub async fn get(&self, mut request: v1::GetRequest) -> Result<v1::GetResponse, Error> {
        let (options, seen) = self.want_proof(&mut request.read);
        let trusted = self.keys();
        let key = request.key.clone();
        let response = ask!(self, Repeat::Safe, get, request)?;
        let question = Asked::Keys(std::slice::from_ref(&key));
        let v1::GetResponse { record, read_at, proof } = &response;
        let (options, records, read_at) = (&options, record.as_slice(), read_at.as_ref());
        self.trust_read(trusted.as_deref(), &Read { question, options, records, read_at, proof, seen }).await?;
        Ok(response)
    }

    /// Reads several keys of one version.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn batch_get(&self, mut request: v1::BatchGetRequest) -> Result<v1::BatchGetResponse, Error> {
        let (options, seen) = self.want_proof(&mut request.read);
        let trusted = self.keys();
        let keys = request.keys.clone();
        let response = ask!(self, Repeat::Safe, batch_get, request)?;
        let v1::BatchGetResponse { records, read_at, proof } = &response;
        let (question, options, read_at) = (Asked::Keys(&keys), &options, read_at.as_ref());
        self.trust_read(trusted.as_deref(), &Read { question, options, records, read_at, proof, seen }).await?;
        Ok(response)
    }

    /// Holds a checkpoint that was proven against the newest one before: the log may only have grown. From time to time, that
    /// it did is proven, too.
    pub(crate) async fn follow(&self, trust: &Trust, seen: Seen) -> Result<(), Error> {
        let Some(growth) = trust.note(seen)? else { return Ok(()) };
        for _ in 0..GROWTH_TRIES {
            let keys = trust.keys();
            // Asked for at one moment, both end in one checkpoint, unless the log grows between them.
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
        // Without it, it is asked for again: what was read is proven as it is.
        trust.unproven()
    }

    /// If a proof is under a checkpoint that a key signed which is not believed by itself any more (an answer that may be stale, or that witnesses
    /// have cosigned): what shows that it is a beginning of the log.
    async fn newer_than(&self, keys: &Keys, proof: &[u8]) -> Result<Option<Bytes>, Error> {
        match claimed_size(proof) {
            Some(size) if !keys.believes(size) => Ok(Some(self.checkpoint(size).await?.standing)),
            _ => Ok(None),
        }
    }

    async fn trust_read(&self, keys: Option<&Keys>, read: &Read<'_>) -> Result<(), Error> {
        let (Some(trust), Some(keys)) = (&self.trust, keys) else { return Ok(()) };
        let newer = self.newer_than(keys, read.proof).await?;
        let seen = check_read(keys, newer.as_deref(), read)?;
        self.follow(trust, seen).await
    }

    /// Asks for a proof if a key is trusted; gives what is asked, and how much of the log was seen before.
    fn want_proof(&self, read: &mut Option<v1::ReadOptions>) -> (v1::ReadOptions, u64) {
        let read = read.get_or_insert_default();
        read.want_proof |= self.trust.is_some();
        (*read, self.trust.as_ref().map_or(0, |trust| trust.seen()))
    }

    fn stream<T>(&self, inner: Streaming<T>, rule: Rule<T>) -> Stream<T> {
        Stream { inner, rule, limit: Some(self.patience.attempt) }
    }

    /// The records of a range, in key order, as they come: nothing of it is checked before the end.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn range(&self, request: v1::RangeRequest) -> Result<Stream<v1::RangeResponse>, Error> {
        let rule = rules::range(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, range, request)?, rule))
    }

    /// All records of a range, in key order, and how it ends.
    ///
    /// # Errors
    /// As [`Client::get`]; also if the stream breaks off, or there is more than [`RANGE_BYTES_MAX`]: ask for less at a time.
    pub async fn range_all(&self, mut request: v1::RangeRequest) -> Result<(Vec<v1::Record>, v1::RangeEnd), Error> {
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
            let v1::RangeRequest { low, high, limit, .. } = &request;
            let question = Asked::Range { low, high: high.as_deref(), limit: *limit, more: end.more };
            let (options, read_at, proof) = (&options, end.read_at.as_ref(), &end.proof);
            self.trust_read(trusted.as_deref(), &Read { question, options, records: &records, read_at, proof, seen })
                .await?;
            return Ok((records, end));
        }
        Err(Error::Malformed("the range breaks off"))
    }

    /// The changes of a key, newest first.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn history(&self, request: v1::HistoryRequest) -> Result<Stream<v1::HistoryResponse>, Error> {
        let rule = rules::history(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, history, request)?, rule))
    }

    /// The keys whose record differs between two versions, in key order.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn diff(&self, request: v1::DiffRequest) -> Result<Stream<v1::DiffResponse>, Error> {
        let rule = rules::diff(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, diff, request)?, rule))
    }

    /// The newest state.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn head(&self) -> Result<v1::HeadResponse, Error> {
        ask!(self, Repeat::Safe, head, v1::HeadRequest::default())
    }

    /// The header of a version that stands, or of a sequence number: canonical bytes.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn header(&self, which: v1::get_header_request::Which) -> Result<Vec<u8>, Error> {
        let request = v1::GetHeaderRequest { which: Some(which) };
        Ok(ask!(self, Repeat::Safe, get_header, request)?.header.to_vec())
    }

    /// The headers of the root log, in order.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn watch(&self, request: v1::WatchHeadsRequest) -> Result<Stream<v1::WatchHeadsResponse>, Error> {
        let (rule, follows) = (rules::heads(&request), request.follow);
        let stream = self.stream(ask!(self, Repeat::Safe, watch_heads, request)?, rule);
        Ok(Stream { limit: stream.limit.filter(|_| !follows), ..stream })
    }

    /// What an auditor replays of a range of versions, oldest first.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn journal(&self, request: v1::JournalRequest) -> Result<Stream<v1::JournalResponse>, Error> {
        let rule = rules::journal(&request);
        Ok(self.stream(ask!(self, Repeat::Safe, journal, request)?, rule))
    }

    /// The newest signed checkpoint; with an `old_size` that is not 0, also the standing proof from there.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn checkpoint(&self, old_size: u64) -> Result<v1::GetCheckpointResponse, Error> {
        ask!(self, Repeat::Safe, get_checkpoint, v1::GetCheckpointRequest { old_size, cosigned: false })
    }

    /// The newest checkpoint that witnesses have cosigned, once it has `old_size` entries; with the standing proof from there.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn cosigned_checkpoint(&self, old_size: u64) -> Result<v1::GetCheckpointResponse, Error> {
        ask!(self, Repeat::Safe, get_checkpoint, v1::GetCheckpointRequest { old_size, cosigned: true })
    }

    /// Drops the versions before one; the root log keeps who and why.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn prune(&self, request: v1::PruneRequest) -> Result<v1::AdminResponse, Error> {
        ask!(self, Repeat::Unsafe, prune, request)
    }

    /// Makes an older version head again, in a new epoch; the root log keeps who and why.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn rollback(&self, request: v1::RollbackRequest) -> Result<v1::AdminResponse, Error> {
        ask!(self, Repeat::Unsafe, rollback, request)
    }

    /// Hands a group's leadership to the replica of a node; returns when that one leads.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn transfer_leader(&self, group: &str, node: &str) -> Result<(), Error> {
        let request = v1::TransferLeaderRequest { group: group.to_owned(), node: node.to_owned() };
        ask!(self, Repeat::Safe, transfer_leader, request).map(drop)
    }

    /// Changes the key that signs checkpoints.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time: then the log tells whether it was done.
    pub async fn rotate_key(&self, request: v1::RotateKeyRequest) -> Result<v1::AdminResponse, Error> {
        ask!(self, Repeat::Unsafe, rotate_key, request)
    }

    /// Keeps a version from being pruned for a while, or renews the pin of this name.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn pin(&self, id: PinId, version: u64, ttl: Duration) -> Result<v1::VersionPin, Error> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let request = v1::PinRequest { pin_id: id.0.to_vec().into(), version: Some(version), ttl_ms };
        ask!(self, Repeat::Safe, pin, request)?.pin.ok_or(Error::Malformed("no pin"))
    }

    /// Takes a pin back; whether it was there.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn unpin(&self, id: PinId) -> Result<bool, Error> {
        let request = v1::UnpinRequest { pin_id: id.0.to_vec().into() };
        Ok(ask!(self, Repeat::Safe, unpin, request)?.found)
    }

    /// The living pins.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn pins(&self) -> Result<Vec<v1::VersionPin>, Error> {
        Ok(ask!(self, Repeat::Safe, list_pins, v1::ListPinsRequest::default())?.pins)
    }

    /// The groups and replicas of the cluster.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn status(&self) -> Result<v1::StatusResponse, Error> {
        ask!(self, Repeat::Safe, status, v1::StatusRequest::default())
    }
}

fn ledger_over(channel: Channel) -> LedgerClient<Channel> {
    LedgerClient::new(bounded(channel))
        .max_decoding_message_size(ANSWER_BYTES_MAX)
        .max_encoding_message_size(ANSWER_BYTES_MAX)
}

/// An endpoint's address, and a channel that connects with its first call.
fn open(endpoint: &str, tls: Option<&Secure>) -> Result<(String, Channel), Error> {
    let refuse = |message| Error::Endpoint { endpoint: endpoint.to_owned(), message };
    let (parsed, address) = connect(endpoint, tls.is_some()).map_err(refuse)?;
    let parsed = parsed
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let channel = match tls {
        None => parsed.connect_timeout(CONNECT_TIMEOUT).connect_lazy().into(),
        Some((live, expected)) => tls::channel(parsed, live.clone(), expected.clone()),
    };
    Ok((address, channel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn endpoints_are_checked_before_the_first_call() {
        for good in ["http://127.0.0.1:4100", "127.0.0.1:4100", "localhost:1", "http://a:1, b:2"] {
            assert!(Client::new(Options::new(good)).is_ok(), "{good}");
        }
        for bad in
            ["", "a:1,", "a:1,b", "http://", "https://localhost:1", "localhost", "http://a b:1", "ftp://localhost:1"]
        {
            let error = Client::new(Options::new(bad)).err();
            assert!(matches!(error, Some(Error::Endpoint { .. })), "{bad}: {error:?}");
        }
    }
}
