//! The metadata store on etcd.
//!
//! Every entry is a key that is bound to a lease (`keys`), and every change is one transaction. The
//! line of candidates is ordered by the revisions at which their keys were created. This is the
//! recipe of etcd's own election, but every call has a time limit.
//!
//! A restarted process needs no earlier state, and etcd may lose everything. If etcd is wiped or
//! set back to an older state, all leases end, and every living process registers and campaigns
//! again. etcd's revisions go back then, and with them the fencing tokens. That is why terms come
//! from the root group and not from here.
//!
//! etcd counts leases in whole seconds and has a minimum: three halves of its election timeout, so
//! 2 s by default. A lease may last longer than asked for, but never shorter.

mod endpoints;
mod keys;
mod keyspace;
mod line;
mod options;
mod watch;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, DeleteOptions, Error as EtcdError, GetOptions, PutOptions, Txn, TxnOp};

use self::{
    endpoints::{Endpoints, of_lease, unavailable},
    keys::{Keys, Mirror, revision},
    keyspace::{Keyspace, lease_out, signed},
    watch::EtcdWatch,
};
use crate::{
    Error, LEASE_TTL_MAX, LEASE_TTL_MIN, Leader, LeaseId, MEMBERS_MAX, Member, Metadata, Revision, Snapshot,
    TEXT_BYTES_MAX, Watch,
};

pub use self::options::{ENDPOINTS_MAX, EtcdOptions, EtcdTls, EtcdTlsSource};

/// The store. Clones share their connections.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    keyspace: Arc<Keyspace>,
}

impl EtcdStore {
    /// A store that connects at its first use; etcd need not run yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that can't work.
    pub fn connect(options: EtcdOptions) -> Result<Self, Error> {
        options.check()?;
        let connect = options.connect();
        let keys = Keys::new(&options.prefix, &options.cluster);
        let endpoints = Endpoints::new(options.endpoints, connect, options.tls, options.call_max, options.attempt_max);
        Ok(Self { keyspace: Arc::new(Keyspace { endpoints, keys, outage_max: options.outage_max }) })
    }
}

#[async_trait]
impl Metadata for EtcdStore {
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error> {
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
            return Err(Error::Invalid("time of a lease"));
        }
        let seconds = signed(ttl.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX))?;
        let call = self.keyspace.endpoints.call(|mut client| async move { client.lease_grant(seconds, None).await });
        let answer = call.await.map_err(unavailable)?;
        u64::try_from(answer.id()).map(LeaseId).map_err(|_| Error::Corrupted("name of a lease"))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        let id = lease_out(lease)?;
        let call = self.keyspace.endpoints.call(|mut client| async move { client.lease_keep_alive(id).await });
        match call.await {
            Ok(_) => Ok(()),
            // The client returns this error if etcd answers that no time is left.
            Err(EtcdError::LeaseKeepAliveError(_)) => Err(Error::LeaseLost(lease)),
            Err(error) => Err(of_lease(error, lease)),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let id = lease_out(lease)?;
        let call = self.keyspace.endpoints.call(|mut client| async move { client.lease_revoke(id).await });
        match call.await.map_err(|error| of_lease(error, lease)) {
            Ok(_) | Err(Error::LeaseLost(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn register(&self, lease: LeaseId, member: Member) -> Result<Revision, Error> {
        check_text("name", &member.name)?;
        check_text("address", &member.address)?;
        let key = self.keyspace.keys.member(member.kind, &member.name);
        let count = GetOptions::new().with_prefix().with_count_only();
        let members = self.keyspace.get(&self.keyspace.keys.members(), count).await.map_err(unavailable)?.count();
        let put = TxnOp::put(key.as_str(), member.address, Some(PutOptions::new().with_lease(lease_out(lease)?)));
        // At the limit, only a member that is there already may register again. Members that
        // register at the same moment may exceed the limit.
        let full = usize::try_from(members).unwrap_or(usize::MAX) >= MEMBERS_MAX;
        let known = full.then(|| Compare::create_revision(key.as_str(), CompareOp::Greater, 0));
        let txn = Txn::new().when(known.into_iter().collect::<Vec<_>>()).and_then([put]);
        let answer = self.keyspace.txn(txn).await.map_err(|error| of_lease(error, lease))?;
        if !answer.succeeded() {
            return Err(Error::Exhausted("members"));
        }
        Ok(answer.header().map_or(Revision(0), |header| revision(header.revision())))
    }

    async fn campaign(&self, lease: LeaseId, name: &str) -> Result<Leader, Error> {
        check_text("name", name)?;
        let token = self.keyspace.stand(lease, name).await?;
        self.keyspace.first_in_line(lease, token).await?;
        Ok(Leader { name: name.to_owned(), token })
    }

    async fn resign(&self, lease: LeaseId) -> Result<(), Error> {
        let key = self.keyspace.keys.candidates_of(lease);
        let call = self.keyspace.endpoints.call(|mut client| {
            let key = key.as_str();
            async move { client.delete(key, Some(DeleteOptions::new().with_prefix())).await }
        });
        call.await.map(drop).map_err(unavailable)
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        let read = self.keyspace.read(self.keyspace.keys.all(), None).await?;
        Ok(read.mirror.snapshot(read.revision))
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, Error> {
        // For etcd, revision 0 means "now"; here it means the empty store before its first change.
        let mirror = match after {
            Revision(0) => Mirror::default(),
            after => self.keyspace.read(self.keyspace.keys.all(), Some(after)).await?.mirror,
        };
        Ok(Box::new(EtcdWatch::new(self.keyspace.clone(), mirror, after)))
    }
}

fn check_text(field: &'static str, text: &str) -> Result<(), Error> {
    if (1..=TEXT_BYTES_MAX).contains(&text.len()) { Ok(()) } else { Err(Error::Invalid(field)) }
}
