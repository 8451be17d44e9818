//! One authority: asks it for a token, and judges the answer.

use std::time::Duration;

use coppice_timestamp::{Authority, Nonce, Request, Stamped, Token, verify};
use coppice_types::Digest;
use reqwest::StatusCode;
use tokio::time::timeout;

use crate::{post::Post, random::Random};

/// How long an authority may take to answer.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// An authority that is asked for time stamps (RFC 3161 over HTTP).
#[derive(Clone, Debug)]
pub struct Tsa {
    /// The address that requests are posted to.
    pub url: String,
    /// Its roots, by which tokens are judged, and certificates that its tokens may lack.
    pub authority: Authority,
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
}

impl Tsa {
    /// The name in metrics and messages: host and port, since the rest of an address may be secret.
    #[must_use]
    pub fn name(&self) -> String {
        let Ok(url) = reqwest::Url::parse(&self.url) else { return "unreadable address".to_owned() };
        let host = url.host_str().unwrap_or_default().to_owned();
        url.port().map_or(host.clone(), |port| format!("{host}:{port}"))
    }

    /// Has the authority stamp an imprint. The token brings the certificates of its signer, and
    /// gets those that it lacks, so that it can be judged by the roots alone for as long as the log
    /// is kept.
    pub(super) async fn stamp(
        &self,
        post: &Post,
        random: &Random,
        imprint: &Digest,
    ) -> Result<(Token, Stamped), Failure> {
        let request = Request::new(imprint.0, Nonce::new(&random.id())?).with_certificates();
        let (status, answer) = match timeout(TIMEOUT, post(self.url.clone(), request.to_der())).await {
            Ok(answered) => answered.map_err(Failure::Transport)?,
            Err(_) => return Err(Failure::Transport(format!("within {} s", TIMEOUT.as_secs()))),
        };
        if status != StatusCode::OK {
            return Err(Failure::Status(status));
        }
        let token = self.authority.complete(&Token::parse(&answer)?)?;
        let stamped = verify(&token, &self.authority, &imprint.0, Some(request.nonce()))?;
        Ok((token, stamped))
    }
}
