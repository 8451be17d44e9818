//! The calls of `coppice.v1.Ledger`, with deadlines and repetitions.

use std::{sync::Arc, time::Duration};

use coppice_proto::v1::{self, ledger_client::LedgerClient};
use coppice_types::SessionId;
use coppice_verify::note::VerifierKey;
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    Error, Session,
    call::{Patience, Repeat, call},
    trust::{Question, check_read, check_receipt},
};

/// Largest answer that is taken, in bytes: a proof file may have 64 MiB, and a message has a little more.
const ANSWER_BYTES_MAX: usize = 96 << 20;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where a coordinator listens: `http://host:port`, or `host:port`.
    pub endpoint: String,
    /// How long one attempt waits for its answer.
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
            attempt_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(5),
            trust: None,
        }
    }
}

/// A stream of answers.
#[derive(Debug)]
pub struct Stream<T> {
    inner: Streaming<T>,
}

impl<T> Stream<T> {
    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// If the server ends the stream with a refusal, or the connection breaks.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        Ok(self.inner.message().await?)
    }
}

/// A connection to a ledger; clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    ledger: LedgerClient<Channel>,
    endpoint: String,
    patience: Patience,
    trust: Option<Arc<VerifierKey>>,
}

/// Calls a method of the generated client, by kind of repetition.
macro_rules! ask {
    ($client:expr, $repeat:expr, $method:ident, $request:expr) => {{
        let (client, request) = (&$client, $request);
        call(&client.endpoint, client.patience, $repeat, || {
            let (mut ledger, request) = (client.ledger.clone(), request.clone());
            async move { ledger.$method(request).await }
        })
        .await
    }};
}

impl Client {
    /// A client that connects with its first call.
    ///
    /// # Errors
    /// If the endpoint is not one.
    pub fn new(options: Options) -> Result<Self, Error> {
        let refuse =
            |message: &str| Error::Endpoint { endpoint: options.endpoint.clone(), message: message.to_owned() };
        let address = match options.endpoint.split_once("://") {
            None => format!("http://{}", options.endpoint),
            Some(("http", _)) => options.endpoint.clone(),
            Some(_) => return Err(refuse("only http:// is spoken; use http://HOST:PORT")),
        };
        let endpoint = Endpoint::from_shared(address.clone()).map_err(|error| refuse(&error.to_string()))?;
        if endpoint.uri().port_u16().is_none() {
            return Err(refuse("it has no port; use http://HOST:PORT"));
        }
        let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect_lazy();
        Ok(Self::over(channel, address, &options))
    }

    /// A client over a channel that exists, for instance one inside of a process.
    #[must_use]
    pub fn over(channel: Channel, endpoint: String, options: &Options) -> Self {
        let ledger = LedgerClient::new(channel)
            .max_decoding_message_size(ANSWER_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX);
        Self {
            ledger,
            endpoint,
            patience: Patience { attempt: options.attempt_timeout, total: options.patience },
            trust: options.trust.clone().map(Arc::new),
        }
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
        let response = ask!(self, repeat, commit, request)?;
        if let Some(key) = &self.trust {
            check_receipt(key, &response)?;
        }
        Ok(response)
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
        self.want_proof(&mut request.read);
        let asked = request.clone();
        let response = ask!(self, Repeat::Safe, get, request)?;
        if let Some(key) = &self.trust {
            let at = asked.read.as_ref().and_then(|read| read.at.as_ref());
            let record = response.record.as_slice();
            let question = Question::Keys(std::slice::from_ref(&asked.key));
            check_read(key, &question, at, record, response.read_at.as_ref(), &response.proof)?;
        }
        Ok(response)
    }

    /// Reads several keys of one version.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn batch_get(&self, mut request: v1::BatchGetRequest) -> Result<v1::BatchGetResponse, Error> {
        self.want_proof(&mut request.read);
        let asked = request.clone();
        let response = ask!(self, Repeat::Safe, batch_get, request)?;
        if let Some(key) = &self.trust {
            let at = asked.read.as_ref().and_then(|read| read.at.as_ref());
            let question = Question::Keys(&asked.keys);
            check_read(key, &question, at, &response.records, response.read_at.as_ref(), &response.proof)?;
        }
        Ok(response)
    }

    fn want_proof(&self, read: &mut Option<v1::ReadOptions>) {
        if self.trust.is_some() {
            read.get_or_insert_default().want_proof = true;
        }
    }

    /// The records of a range, in key order, as they come: nothing of it is checked before the end.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn range(&self, request: v1::RangeRequest) -> Result<Stream<v1::RangeResponse>, Error> {
        Ok(Stream { inner: ask!(self, Repeat::Safe, range, request)? })
    }

    /// All records of a range, in key order, and how it ends.
    ///
    /// # Errors
    /// As [`Client::get`]; also if the stream breaks off.
    pub async fn range_all(&self, mut request: v1::RangeRequest) -> Result<(Vec<v1::Record>, v1::RangeEnd), Error> {
        self.want_proof(&mut request.read);
        let mut stream = self.range(request.clone()).await?;
        let mut records = Vec::new();
        while let Some(message) = stream.next().await? {
            records.extend(message.records);
            let Some(end) = message.end else { continue };
            if let Some(key) = &self.trust {
                let at = request.read.as_ref().and_then(|read| read.at.as_ref());
                let question =
                    Question::Range { low: &request.low, high: request.high.as_deref(), limit: request.limit };
                check_read(key, &question, at, &records, end.read_at.as_ref(), &end.proof)?;
            }
            return Ok((records, end));
        }
        Err(Error::Malformed("the range breaks off"))
    }

    /// The changes of a key, newest first.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn history(&self, request: v1::HistoryRequest) -> Result<Stream<v1::HistoryResponse>, Error> {
        Ok(Stream { inner: ask!(self, Repeat::Safe, history, request)? })
    }

    /// The keys whose record differs between two versions, in key order.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn diff(&self, request: v1::DiffRequest) -> Result<Stream<v1::DiffResponse>, Error> {
        Ok(Stream { inner: ask!(self, Repeat::Safe, diff, request)? })
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
        Ok(Stream { inner: ask!(self, Repeat::Safe, watch_heads, request)? })
    }

    /// The newest signed checkpoint; with an `old_size` that is not 0, also the standing proof from there.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn checkpoint(&self, old_size: u64) -> Result<v1::GetCheckpointResponse, Error> {
        ask!(self, Repeat::Safe, get_checkpoint, v1::GetCheckpointRequest { old_size })
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

    /// The groups and replicas of the cluster.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn status(&self) -> Result<v1::StatusResponse, Error> {
        ask!(self, Repeat::Safe, status, v1::StatusRequest::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn endpoints_are_checked_before_the_first_call() {
        for good in ["http://127.0.0.1:4100", "127.0.0.1:4100", "localhost:1"] {
            assert!(Client::new(Options::new(good)).is_ok(), "{good}");
        }
        for bad in ["", "http://", "https://localhost:1", "localhost", "http://a b:1", "ftp://localhost:1"] {
            let error = Client::new(Options::new(bad)).err();
            assert!(matches!(error, Some(Error::Endpoint { .. })), "{bad}: {error:?}");
        }
    }
}
