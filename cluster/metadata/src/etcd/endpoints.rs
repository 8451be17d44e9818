//! Calls to a cluster of etcd members. Each has a time limit, and moves on to the next member if
//! one does not answer.
//!
//! Each member has a client, which is made at its first use, so that no process waits for etcd to
//! start. A new client is made when the certificates change; calls and watches in progress continue
//! on the old one. All calls that go through here can safely be repeated.

use std::{
    future::Future,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, Error as EtcdError};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};

use super::options::{EtcdTls, EtcdTlsSource};
use crate::{Error, LeaseId, Revision};

/// Pause after every member was asked without success.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Endpoints {
    members: Vec<Member>,
    /// The member that answered last.
    current: AtomicUsize,
    connect: ConnectOptions,
    tls: Option<EtcdTlsSource>,
    call_max: Duration,
    attempt_max: Duration,
}

struct Member {
    url: String,
    /// The client, and the certificates that it was made with.
    client: Mutex<Option<(Option<Arc<EtcdTls>>, Client)>>,
}

impl Endpoints {
    pub fn new(
        urls: Vec<String>,
        connect: ConnectOptions,
        tls: Option<EtcdTlsSource>,
        call_max: Duration,
        attempt_max: Duration,
    ) -> Self {
        assert!(!urls.is_empty(), "options without an endpoint are refused");
        // With a single member, there is no other one to try.
        let attempt_max = if urls.len() == 1 { call_max } else { attempt_max };
        let members = urls.into_iter().map(|url| Member { url, client: Mutex::default() }).collect();
        Self { members, current: AtomicUsize::new(0), connect, tls, call_max, attempt_max }
    }

    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.url.as_str())
    }

    /// Makes a call. If a member does not answer, the next one is tried, until the time of the call
    /// is over.
    ///
    /// # Errors
    /// The answer's error, or the error of the last attempt to get an answer.
    pub async fn call<T, F, Fut>(&self, call: F) -> Result<T, EtcdError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, EtcdError>>,
    {
        let deadline = Instant::now() + self.call_max;
        let mut asked = 0;
        loop {
            let at = self.current.load(Ordering::Relaxed) % self.members.len();
            let until = deadline.min(Instant::now() + self.attempt_max);
            let attempt = async { call(self.client(at).await?).await };
            let error = match timeout_at(until, attempt).await {
                Ok(Err(error)) if is_unreachable(&error) => error,
                Ok(answer) => return answer,
                Err(_) => {
                    let message = format!("etcd at {} did not answer in time", self.members[at].url);
                    EtcdError::IoError(io::Error::new(io::ErrorKind::TimedOut, message))
                }
            };
            // Another call may have moved on already.
            let next = (at + 1) % self.members.len();
            let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
            asked += 1;
            if asked % self.members.len() == 0 {
                if Instant::now() + PAUSE >= deadline {
                    return Err(error);
                }
                sleep(PAUSE).await;
            }
        }
    }

    async fn client(&self, at: usize) -> Result<Client, EtcdError> {
        let Member { url, client } = &self.members[at];
        let tls = self.tls.as_ref().map(|source| source());
        let mut client = client.lock().await;
        if let Some((made_with, client)) = &*client
            && made_with.as_ref().map(Arc::as_ptr) == tls.as_ref().map(Arc::as_ptr)
        {
            return Ok(client.clone());
        }
        let connect = match &tls {
            Some(tls) => self.connect.clone().with_tls(tls.options()),
            None => self.connect.clone(),
        };
        let made = Client::connect([url], Some(connect)).await?;
        *client = Some((tls, made.clone()));
        Ok(made)
    }
}

/// Whether another member, or the same member later, may answer.
fn is_unreachable(error: &EtcdError) -> bool {
    use tonic_code::*;
    match error {
        EtcdError::GRpcStatus(status) => {
            matches!(status.code() as i32, UNKNOWN | UNAVAILABLE | DEADLINE_EXCEEDED | INTERNAL)
                && !is_about_a_lease(error)
        }
        EtcdError::TransportError(_) | EtcdError::IoError(_) | EtcdError::WatchError(_) => true,
        _ => false,
    }
}

/// The numbers of gRPC's codes, because etcd-client does not export their type.
mod tonic_code {
    pub const UNKNOWN: i32 = 2;
    pub const DEADLINE_EXCEEDED: i32 = 4;
    pub const INTERNAL: i32 = 13;
    pub const UNAVAILABLE: i32 = 14;
}

/// Whether etcd does not know the lease of the call.
pub(super) fn is_about_a_lease(error: &EtcdError) -> bool {
    says(error, "requested lease not found")
}

/// Whether the revision of the call is forgotten, or lies in the future: then the store was wiped
/// or set back.
pub(super) fn is_about_history(error: &EtcdError) -> bool {
    says(error, "required revision has been compacted") || says(error, "required revision is a future revision")
}

fn says(error: &EtcdError, text: &str) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains(text))
}

/// The error of a call that depends on a lease.
pub(super) fn of_lease(error: EtcdError, lease: LeaseId) -> Error {
    if is_about_a_lease(&error) { Error::LeaseLost(lease) } else { unavailable(error) }
}

/// The error of a call for the history after a revision.
pub(super) fn of_history(error: EtcdError, asked: Revision) -> Error {
    if is_about_history(&error) { forgotten(asked, Revision(0)) } else { unavailable(error) }
}

/// `oldest` is 0 if etcd did not tell it.
pub(super) fn forgotten(asked: Revision, oldest: Revision) -> Error {
    Error::Compacted { asked, oldest: oldest.max(Revision(asked.0.saturating_add(1))) }
}

pub(super) fn unavailable(error: EtcdError) -> Error {
    Error::Unavailable(io::Error::other(error))
}
