//! GET and POST over HTTP, with bounds.

use std::{path::Path, time::Duration};

use coppice_types::chain;
use reqwest::{Client, Response, StatusCode, redirect};

use crate::error::Error;

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of other servers. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Web {
    client: Client,
}

impl Web {
    /// A client that follows no redirects. `ca` is the PEM file of the authority of the servers'
    /// certificates [default: the public ones].
    ///
    /// # Errors
    /// If the file can't be read, or the client can't be made.
    pub fn new(ca: Option<&Path>) -> Result<Self, Error> {
        let mut builder = Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT);
        if let Some(path) = ca {
            let wrong = |error: String| Error::Refused(format!("{}: {error}", path.display()));
            let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
            let ca = reqwest::Certificate::from_pem(&pem).map_err(|error| wrong(told(error)))?;
            builder = builder.tls_built_in_root_certs(false).add_root_certificate(ca);
        }
        let client = builder.build().map_err(|error| Error::Unavailable(told(error)))?;
        Ok(Self { client })
    }

    /// What is at `base/path`, if it has at most `most` bytes; `None` for 404, and an empty answer
    /// for 204.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not give it, [`Error::Refused`] if it is too long.
    pub async fn get(&self, base: &str, path: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let unavailable = |error| Error::Unavailable(format!("{path}: {}", told(error)));
        let url = format!("{}/{path}", base.trim_end_matches('/'));
        let response = self.client.get(url).send().await.map_err(unavailable)?;
        match response.status() {
            StatusCode::OK | StatusCode::NO_CONTENT => {}
            StatusCode::NOT_FOUND => return Ok(None),
            status => return Err(Error::Unavailable(format!("{path}: the server says {status}"))),
        }
        read(response, path, most).await.map(Some)
    }

    /// Posts a body to `base/path`. Returns the status code and the body of the answer, if that has
    /// at most `most` bytes.
    ///
    /// # Errors
    /// Like [`Web::get`].
    pub async fn post(&self, base: &str, path: &str, body: Vec<u8>, most: usize) -> Result<(u16, Vec<u8>), Error> {
        let url = format!("{}/{path}", base.trim_end_matches('/'));
        let sent = self.client.post(url).body(body).send().await;
        let response = sent.map_err(|error| Error::Unavailable(format!("{path}: {}", told(error))))?;
        let status = response.status().as_u16();
        Ok((status, read(response, path, most).await?))
    }
}

async fn read(mut response: Response, path: &str, most: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    let unavailable = |error| Error::Unavailable(format!("{path}: {}", told(error)));
    while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
        if body.len() + chunk.len() > most {
            return Err(Error::Refused(format!("{path} is too long")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// An error with its causes, and without the address, which may have a password.
fn told(error: reqwest::Error) -> String {
    chain(&error.without_url())
}
