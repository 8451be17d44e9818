//! One authority: asks it for a token, and judges the answer.

use std::{fmt, sync::Arc, time::Duration};

use coppice_process::{
    net::{Dialer, check_address},
    tls::Tls,
};
use coppice_proto::{
    Channel,
    secure::Expected,
    status,
    v1::{self, ledger_client::LedgerClient, operation::Change},
};
use coppice_timestamp::{Authority, Nonce, Request, verify};
use coppice_verify::{
    anchor::{RFC_3161, TIME_LEDGER, TOKEN_BYTES_MAX, Token, time_key},
    check::{self, verify_time_receipt},
    checkpoint::Checkpoint,
    note::VerifierKey,
};
use reqwest::StatusCode;
use tokio::time::timeout;

use crate::{error::Error, post::Post, random::Random};

/// How long an authority may take to answer.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer of a time ledger: a receipt with its header and checkpoint.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// An authority that is asked for time stamps (RFC 3161 over HTTP).
#[derive(Clone, Debug)]
pub struct Tsa {
    /// The address that requests are posted to.
    pub url: String,
    /// Its roots, by which tokens are judged, and certificates that its tokens may lack.
    pub authority: Authority,
}

/// Makes a channel to a time ledger, or says why it can't. It is called within a tokio runtime.
pub type OpenChannel = Arc<dyn Fn() -> Result<Channel, String> + Send + Sync>;

/// A ledger of another cluster, which takes checkpoints in and is stamped itself.
#[derive(Clone)]
pub struct TimeLedger {
    /// The name in metrics and messages: host and port.
    pub name: String,
    /// The key by which its receipts are judged.
    pub key: VerifierKey,
    pub open: OpenChannel,
}

impl TimeLedger {
    /// The time ledger with a coordinator at this address, which sees the user agent `own`. Without
    /// certificates, the connection is plain.
    ///
    /// # Errors
    /// If the address is not HOST:PORT.
    pub fn at(own: &str, address: &str, key: VerifierKey, tls: Option<Tls>) -> Result<Self, String> {
        check_address(address)?;
        let (own, dialed) = (own.to_owned(), address.to_owned());
        let open = move || {
            let tls = tls.as_ref().map(|tls| tls.client(Expected::Anybody)).transpose();
            let channel = tls.and_then(|tls| Dialer::new(&own, tls).channel(&dialed, Expected::Anybody));
            channel.map(Channel::from).map_err(|failure| failure.to_string())
        };
        Ok(Self { name: address.to_owned(), key, open: Arc::new(open) })
    }
}

impl fmt::Debug for TimeLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeLedger").field("name", &self.name).field("key", &self.key).finish_non_exhaustive()
    }
}

/// The reason why an authority has given no token.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("no answer: {0}")]
    Transport(String),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("its token: {0}")]
    Token(#[from] coppice_timestamp::Error),
    #[error("it refuses: {0}")]
    Refused(String),
    #[error("its receipt, at step {0}")]
    Receipt(#[from] check::Failure),
    #[error("its receipt is longer than {TOKEN_BYTES_MAX} bytes")]
    Long,
    #[error("it is the ledger itself")]
    Itself,
}

impl Tsa {
    /// The name in metrics and messages: host and port, since the rest of an address may be secret.
    #[must_use]
    pub fn name(&self) -> String {
        let Ok(url) = reqwest::Url::parse(&self.url) else { return "unreadable address".to_owned() };
        let host = url.host_str().unwrap_or_default().to_owned();
        url.port().map_or(host.clone(), |port| format!("{host}:{port}"))
    }

    /// Has the authority stamp a checkpoint. The token brings the certificates of its signer, and
    /// gets those that it lacks, so that it can be judged by the roots alone for as long as the log
    /// is kept.
    async fn stamp(&self, post: &Post, random: &Random, checkpoint: &Checkpoint) -> Result<Token, Failure> {
        let imprint = checkpoint.imprint();
        let request = Request::new(imprint.0, Nonce::new(&random.id())?).with_certificates();
        let (status, answer) = match timeout(TIMEOUT, post(self.url.clone(), request.to_der())).await {
            Ok(answered) => answered.map_err(Failure::Transport)?,
            Err(_) => return Err(late()),
        };
        if status != StatusCode::OK {
            return Err(Failure::Status(status));
        }
        let token = self.authority.complete(&coppice_timestamp::Token::parse(&answer)?)?;
        let stamped = verify(&token, &self.authority, &imprint.0, Some(request.nonce()))?;
        tracing::debug!(authority = self.name(), time = %stamped.time, "a checkpoint was stamped");
        Ok(Token { kind: RFC_3161, chain: 0, bytes: token.as_der().to_vec() })
    }
}

/// An authority of either kind, ready to be asked.
#[derive(Clone, Debug)]
pub enum Stamper {
    Tsa(Tsa),
    Ledger { ledger: TimeLedger, channel: Channel },
}

impl Stamper {
    /// A time ledger with its channel.
    ///
    /// # Errors
    /// If the channel can't be made.
    pub fn of_ledger(ledger: TimeLedger) -> Result<Self, Error> {
        let refuse = |why| Error::Options(format!("time ledger {}: {why}", ledger.name));
        let channel = (ledger.open)().map_err(refuse)?;
        Ok(Self::Ledger { ledger, channel })
    }

    pub fn name(&self) -> String {
        match self {
            Self::Tsa(tsa) => tsa.name(),
            Self::Ledger { ledger, .. } => ledger.name.clone(),
        }
    }

    /// Has the authority stamp a checkpoint.
    pub async fn stamp(&self, post: &Post, random: &Random, checkpoint: &Checkpoint) -> Result<Token, Failure> {
        match self {
            Self::Tsa(tsa) => tsa.stamp(post, random, checkpoint).await,
            Self::Ledger { ledger, channel } => take_in(&ledger.key, channel.clone(), checkpoint).await,
        }
    }
}

/// Has a time ledger take a checkpoint in. Its receipt says when, once the time ledger is stamped.
async fn take_in(key: &VerifierKey, channel: Channel, checkpoint: &Checkpoint) -> Result<Token, Failure> {
    if key.name() == checkpoint.origin {
        // Each anchor would make the next one due.
        return Err(Failure::Itself);
    }
    let put = Some(Change::Put(checkpoint.text().into_bytes().into()));
    let operations = vec![v1::Operation { key: time_key(checkpoint).into(), change: put }];
    let batch = Some(v1::Batch { operations, ..v1::Batch::default() });
    let request = v1::CommitRequest { batch, want_receipt: true, ..v1::CommitRequest::default() };
    let mut client = LedgerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let answer = timeout(TIMEOUT, client.commit(request)).await.map_err(|_| late())?;
    // Its words are for its own users, and may hold anything.
    let refused = |error| match status::reason(&error) {
        Some(reason) => Failure::Refused(reason.to_string()),
        None => Failure::Transport(error.code().description().to_owned()),
    };
    let receipt = answer.map_err(refused)?.into_inner().receipt;
    if receipt.len() > TOKEN_BYTES_MAX {
        return Err(Failure::Long);
    }
    verify_time_receipt(&receipt, key, checkpoint)?;
    Ok(Token { kind: TIME_LEDGER, chain: 0, bytes: receipt.to_vec() })
}

fn late() -> Failure {
    Failure::Transport(format!("within {} s", TIMEOUT.as_secs()))
}
