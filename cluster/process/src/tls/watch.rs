//! Judges the peer of an open connection again, when the files change and when its certificate
//! expires.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use coppice_proto::{certificate::Said, live::Live};
use rustls::pki_types::{CertificateDer, UnixTime};

/// Longest time between two judgements of a connection. Even if no file changes, the clock may have
/// been set.
const JUDGE_EVERY: Duration = Duration::from_secs(3600);

/// Ends when the peer of a connection is no longer trusted, with the reason.
pub struct Watch(Pin<Box<dyn Future<Output = String> + Send>>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// The watch over a peer without a certificate.
    pub(super) fn never() -> Self {
        Self(Box::pin(std::future::pending()))
    }

    /// Judges the peer by each value of `live` that comes into force from now on.
    pub(super) fn new<T: Send + Sync + 'static>(
        mut live: Live<T>,
        shown: Vec<CertificateDer<'static>>,
        judge: impl Fn(&T) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let ends = shown.iter().filter_map(Said::of).map(|said| said.ends).min().unwrap_or(0);
        Self(Box::pin(async move {
            loop {
                tokio::select! {
                    () = live.changed() => {}
                    () = tokio::time::sleep(left(ends)) => {}
                }
                if let Err(why) = judge(&live.take()) {
                    return why;
                }
            }
        }))
    }

    /// The reason, once the peer is no longer trusted.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        self.0.as_mut().poll(cx)
    }
}

/// The time until the certificate expires, or until it must be judged in any case.
fn left(ends: i64) -> Duration {
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
    // The certificate is still valid in its last second.
    let left = u64::try_from(ends.saturating_sub(now).saturating_add(1)).unwrap_or(0);
    Duration::from_secs(left.max(1)).min(JUDGE_EVERY)
}
