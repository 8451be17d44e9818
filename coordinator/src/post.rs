//! Posts over HTTP, to witnesses and to authorities that stamp time.

use std::{sync::Arc, time::Duration};

use coppice_types::chain;
use futures::future::BoxFuture;
use reqwest::{Client, StatusCode, header::CONTENT_TYPE, redirect};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Posts a body to an address. Returns the answer's status and body, or an error text.
pub type Post = Arc<dyn Fn(String, Vec<u8>) -> BoxFuture<'static, Result<(StatusCode, Vec<u8>), String>> + Send + Sync>;

/// Posts bodies of this media type, if one is given, and reads answers up to this length. No
/// redirect is followed. The caller limits the time.
///
/// # Errors
/// If the HTTP client can't be created.
pub fn over_http(media_type: Option<&'static str>, answer_bytes_max: usize) -> Result<Post, reqwest::Error> {
    let client = Client::builder().redirect(redirect::Policy::none()).connect_timeout(CONNECT_TIMEOUT).build()?;
    Ok(Arc::new(move |url, body| {
        let mut request = client.post(url).body(body);
        if let Some(media_type) = media_type {
            request = request.header(CONTENT_TYPE, media_type);
        }
        Box::pin(async move {
            let mut response = request.send().await.map_err(told)?;
            let mut answer = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(told)? {
                if answer.len() + chunk.len() > answer_bytes_max {
                    return Err("its answer is too long".to_owned());
                }
                answer.extend_from_slice(&chunk);
            }
            Ok((response.status(), answer))
        })
    }))
}

/// An error with its causes, and without the address, parts of which may be secret.
fn told(error: reqwest::Error) -> String {
    chain(&error.without_url())
}
