//! Judges the other end of an open connection again: when the files change, and when its
//! certificate ends.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use coppice_proto::{certificate::Said, live::Live};
use rustls::pki_types::{CertificateDer, UnixTime};

/// A connection whose files do not change is judged so often at least: the clock may have been set.
const JUDGE_EVERY: Duration = Duration::from_secs(3600);

/// Ends with the reason when the other end of a connection is believed no more.
pub struct Watch(Pin<Box<dyn Future<Output = String> + Send>>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// For a connection whose other end shows nothing.
    pub(super) fn never() -> Self {
        Self(Box::pin(std::future::pending()))
    }

    /// Judges by what comes into force after what was taken from `live`.
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

    /// The reason, if the other end is believed no more.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<String> {
        self.0.as_mut().poll(cx)
    }
}

/// How long until a certificate has ended, or until it is to be judged in any case.
fn left(ends: i64) -> Duration {
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
    // It is good for the last second, too.
    let left = u64::try_from(ends.saturating_sub(now).saturating_add(1)).unwrap_or(0);
    Duration::from_secs(left.max(1)).min(JUDGE_EVERY)
}
