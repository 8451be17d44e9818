//! The metadata store on etcd.
//!
//! Everything is a key that is bound to a lease (`keys`), every change is one transaction, and the line of candidates is by the revisions at
//! which their keys were made: the same recipe as etcd's own election, but with calls that end. Nothing here is kept over a
//! restart of the process, and nothing in etcd need be: if etcd is wiped, or set back to an older state, everyone's leases end, and whoever is
//! alive registers and campaigns again. Its revisions, and with them fencing tokens, then go back; that is why terms come from the root
//! group and not from here.
//!
//! etcd counts leases in whole seconds and has a least time of its own (three halves of its election time-out, so 2 s by default): a lease
//! may last longer than asked for, never shorter.

mod endpoints;
mod keys;
mod watch;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use coppice_types::ClusterId;
use etcd_client::{
    Certificate, Compare, CompareOp, ConnectOptions, DeleteOptions, Error as EtcdError, GetOptions, GetResponse,
    Identity, PutOptions, TlsOptions, Txn, TxnOp, TxnResponse, WatchStream,
};
use tokio::time::{Instant, sleep, timeout};

use self::{
    endpoints::{Endpoints, of_history, of_lease, unavailable},
    keys::{Keys, Mirror, revision},
    watch::EtcdWatch,
};
use crate::{
    CANDIDATES_MAX, Error, LEASE_TTL_MAX, LEASE_TTL_MIN, Leader, LeaseId, MEMBERS_MAX, Member, Metadata, Revision,
    Snapshot, TEXT_BYTES_MAX, Watch,
};

/// Most members of etcd that may be named.
pub const ENDPOINTS_MAX: usize = 16;
/// How often who waits in line looks, whether its watch says something or not.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Pause after a watch broke.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a change is tried again because the line changed meanwhile.
const RACES_MAX: u32 = 100;
/// etcd refuses pings that come more often than this.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// How etcd is reached.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port` of its members.
    pub endpoints: Vec<String>,
    /// Below which all keys are, as `<prefix>/<cluster id>/`.
    pub prefix: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// For `https` endpoints.
    pub tls: Option<EtcdTlsSource>,
    /// Name and password, where etcd asks for them.
    pub user: Option<(String, String)>,
    /// How long one call may take.
    pub call_max: Duration,
    /// How long one member may take before another is asked, if there are several.
    pub attempt_max: Duration,
    /// How long a campaign or a watch goes on trying while etcd does not answer.
    pub outage_max: Duration,
}

/// Gives what is in force now: connections are made anew when that is another than before.
pub type EtcdTlsSource = Arc<dyn Fn() -> Arc<EtcdTls> + Send + Sync>;

/// How etcd proves itself, and we to it. All is PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// Certificates of the authorities that etcd's certificate may come from.
    pub ca: Vec<u8>,
    /// Our certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificate, if it is not the endpoint's host.
    pub domain: Option<String>,
}

impl EtcdOptions {
    /// Plain connections, prefix `/coppice`, and times that suit etcd in one place.
    #[must_use]
    pub fn new(endpoints: Vec<String>, cluster: ClusterId) -> Self {
        Self {
            endpoints,
            prefix: "/coppice".to_owned(),
            cluster,
            tls: None,
            user: None,
            call_max: Duration::from_secs(2),
            attempt_max: Duration::from_millis(500),
            outage_max: Duration::from_secs(10),
        }
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=ENDPOINTS_MAX).contains(&self.endpoints.len()) {
            return Err(Error::Invalid("number of etcd endpoints"));
        }
        if self.prefix.len() > TEXT_BYTES_MAX {
            return Err(Error::Invalid("prefix"));
        }
        let scheme = if self.tls.is_some() { "https://" } else { "http://" };
        if !self.endpoints.iter().all(|url| url.starts_with(scheme) && url.len() > scheme.len()) {
            return Err(Error::Invalid("etcd endpoint (with TLS they are https://..., without http://...)"));
        }
        Ok(())
    }

    fn connect(&self) -> ConnectOptions {
        let mut connect = ConnectOptions::new()
            .with_require_leader(true)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_connect_timeout(self.attempt_max);
        if let Some((name, password)) = &self.user {
            connect = connect.with_user(name, password).with_auto_token_refresh(true);
        }
        connect
    }
}

impl EtcdTls {
    /// These, and no others later.
    #[must_use]
    pub fn fixed(self) -> EtcdTlsSource {
        let fixed = Arc::new(self);
        Arc::new(move || Arc::clone(&fixed))
    }

    fn options(&self) -> TlsOptions {
        let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(&self.ca));
        if let Some((certificate, key)) = &self.identity {
            options = options.identity(Identity::from_pem(certificate, key));
        }
        match &self.domain {
            Some(domain) => options.domain_name(domain),
            None => options,
        }
    }
}

/// Without the password and the key.
impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("cluster", &self.cluster)
            .field("tls", &self.tls.is_some())
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// The store. Clones share their connections.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    inner: Arc<Inner>,
}

struct Inner {
    endpoints: Endpoints,
    keys: Keys,
    outage_max: Duration,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.endpoints.urls().collect();
        f.debug_struct("EtcdStore").field("endpoints", &urls).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// All keys with some prefix, as of one revision.
struct Read {
    revision: Revision,
    mirror: Mirror,
}

impl EtcdStore {
    /// A store that connects when it is used; etcd need not run yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that can't work.
    pub fn connect(options: EtcdOptions) -> Result<Self, Error> {
        options.check()?;
        let connect = options.connect();
        let keys = Keys::new(&options.prefix, &options.cluster);
        let endpoints = Endpoints::new(options.endpoints, connect, options.tls, options.call_max, options.attempt_max);
        Ok(Self { inner: Arc::new(Inner { endpoints, keys, outage_max: options.outage_max }) })
    }
}

impl Inner {
    async fn get(&self, key: &str, options: GetOptions) -> Result<GetResponse, EtcdError> {
        let call = self.endpoints.call(|mut client| {
            let options = options.clone();
            async move { client.get(key, Some(options)).await }
        });
        call.await
    }

    /// Reads all keys with a prefix, now or as of a revision.
    async fn read(&self, prefix: &str, at: Option<Revision>) -> Result<Read, Error> {
        let mut options = GetOptions::new().with_prefix();
        if let Some(at) = at {
            options = options.with_revision(signed(at.0)?);
        }
        let answer = self.get(prefix, options).await.map_err(|error| of_history(error, at.unwrap_or_default()))?;
        let revision = answer.header().map_or(Revision(0), |header| revision(header.revision()));
        Ok(Read { revision, mirror: Mirror::of(&self.keys, answer.kvs()) })
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, EtcdError> {
        let call = self.endpoints.call(|mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        });
        call.await
    }

    /// Puts a candidate into the line, and gives its token.
    async fn stand(&self, lease: LeaseId, name: &str) -> Result<Revision, Error> {
        let (line, mine) = (self.keys.candidates(), self.keys.candidate(lease, name));
        for _ in 0..RACES_MAX {
            let read = self.read(&line, None).await?;
            let waiting = read.mirror.line();
            if let Some((token, _)) = waiting.iter().find(|(_, other)| other.lease == lease && other.name == name) {
                return Ok(*token);
            }
            let (replaced, others): (Vec<_>, Vec<_>) =
                waiting.values().partition(|other| other.lease == lease || other.name == name);
            if others.len() >= CANDIDATES_MAX {
                return Err(Error::Exhausted("candidates"));
            }
            let put = TxnOp::put(mine.as_str(), "", Some(PutOptions::new().with_lease(lease_out(lease)?)));
            let deletes = replaced.iter().map(|old| TxnOp::delete(self.keys.candidate(old.lease, &old.name), None));
            // Only if nobody has come into the line since it was read.
            let since = signed(read.revision.0.saturating_add(1))?;
            let unchanged = Compare::mod_revision(line.as_str(), CompareOp::Less, since).with_prefix();
            let txn = Txn::new().when([unchanged]).and_then(deletes.chain([put]).collect::<Vec<_>>());
            let answer = self.txn(txn).await.map_err(|error| of_lease(error, lease))?;
            if answer.succeeded() {
                return Ok(answer.header().map_or(Revision(0), |header| revision(header.revision())));
            }
        }
        Err(Error::Exhausted("attempts to stand in line"))
    }

    /// Waits until the candidate is the first in line. While etcd does not answer it goes on waiting, for a time.
    async fn first_in_line(&self, lease: LeaseId, token: Revision) -> Result<(), Error> {
        let line = self.keys.candidates();
        let mut stream: Option<WatchStream> = None;
        let mut silent_since = None;
        loop {
            let read = match self.read(&line, None).await {
                Ok(read) => read,
                Err(error) => {
                    let since = *silent_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.outage_max {
                        return Err(error);
                    }
                    sleep(LOOK_AGAIN).await;
                    continue;
                }
            };
            silent_since = None;
            let waiting = read.mirror.line();
            if waiting.get(&token).is_none_or(|mine| mine.lease != lease) {
                return Err(Error::LeaseLost(lease));
            }
            if waiting.keys().next() == Some(&token) {
                return Ok(());
            }
            if stream.is_none() {
                stream = self.stream(&line, read.revision).await.ok();
            }
            // Whatever it says, or if it breaks: the line is read again.
            if let Some(events) = &mut stream {
                match timeout(LOOK_AGAIN, events.message()).await {
                    Ok(Ok(Some(message))) if !message.canceled() => {}
                    Ok(_) => {
                        stream = None;
                        sleep(PAUSE).await;
                    }
                    Err(_) => {}
                }
            } else {
                sleep(LOOK_AGAIN).await;
            }
        }
    }
}

#[async_trait]
impl Metadata for EtcdStore {
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error> {
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
            return Err(Error::Invalid("time of a lease"));
        }
        let seconds = signed(ttl.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX))?;
        let call = self.inner.endpoints.call(|mut client| async move { client.lease_grant(seconds, None).await });
        let answer = call.await.map_err(unavailable)?;
        u64::try_from(answer.id()).map(LeaseId).map_err(|_| Error::Corrupted("name of a lease"))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let id = lease_out(lease)?;
        let call = self.inner.endpoints.call(|mut client| async move { client.lease_keep_alive(id).await });
        match call.await {
            Ok(_) => Ok(()),
            // The client says so where etcd answers that no time is left.
            Err(EtcdError::LeaseKeepAliveError(_)) => Err(Error::LeaseLost(lease)),
            Err(error) => Err(of_lease(error, lease)),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let id = lease_out(lease)?;
        let call = self.inner.endpoints.call(|mut client| async move { client.lease_revoke(id).await });
        match call.await.map_err(|error| of_lease(error, lease)) {
            Ok(_) | Err(Error::LeaseLost(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn register(&self, lease: LeaseId, member: Member) -> Result<Revision, Error> {
        check_text("name", &member.name)?;
        check_text("address", &member.address)?;
        let key = self.inner.keys.member(member.kind, &member.name);
        let count = GetOptions::new().with_prefix().with_count_only();
        let members = self.inner.get(&self.inner.keys.members(), count).await.map_err(unavailable)?.count();
        let put = TxnOp::put(key.as_str(), member.address, Some(PutOptions::new().with_lease(lease_out(lease)?)));
        // When there is no room, only who is there already may register anew. Some at the same moment may be let in above the limit.
        let full = usize::try_from(members).unwrap_or(usize::MAX) >= MEMBERS_MAX;
        let known = full.then(|| Compare::create_revision(key.as_str(), CompareOp::Greater, 0));
        let txn = Txn::new().when(known.into_iter().collect::<Vec<_>>()).and_then([put]);
        let answer = self.inner.txn(txn).await.map_err(|error| of_lease(error, lease))?;
        if !answer.succeeded() {
            return Err(Error::Exhausted("members"));
        }
        Ok(answer.header().map_or(Revision(0), |header| revision(header.revision())))
    }

    async fn campaign(&self, lease: LeaseId, name: &str) -> Result<Leader, Error> {
        check_text("name", name)?;
        let token = self.inner.stand(lease, name).await?;
        self.inner.first_in_line(lease, token).await?;
        Ok(Leader { name: name.to_owned(), token })
    }

    async fn resign(&self, lease: LeaseId) -> Result<(), Error> {
        let key = self.inner.keys.candidates_of(lease);
        let call = self.inner.endpoints.call(|mut client| {
            let key = key.as_str();
            async move { client.delete(key, Some(DeleteOptions::new().with_prefix())).await }
        });
        call.await.map(drop).map_err(unavailable)
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        let read = self.inner.read(self.inner.keys.all(), None).await?;
        Ok(read.mirror.snapshot(read.revision))
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, Error> {
        // etcd's revision 0 is "now"; before its first change there is nothing.
        let mirror = match after {
            Revision(0) => Mirror::default(),
            after => self.inner.read(self.inner.keys.all(), Some(after)).await?.mirror,
        };
        Ok(Box::new(EtcdWatch::new(self.inner.clone(), mirror, after)))
    }
}

fn lease_out(lease: LeaseId) -> Result<i64, Error> {
    i64::try_from(lease.0).map_err(|_| Error::LeaseLost(lease))
}

/// Numbers of etcd's are signed.
fn signed(number: u64) -> Result<i64, Error> {
    i64::try_from(number).map_err(|_| Error::Invalid("number"))
}

fn check_text(field: &'static str, text: &str) -> Result<(), Error> {
    if (1..=TEXT_BYTES_MAX).contains(&text.len()) { Ok(()) } else { Err(Error::Invalid(field)) }
}
