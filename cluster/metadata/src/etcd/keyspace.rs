//! The keys of one cluster in etcd: reads as of one revision, transactions, and watches.

use std::{fmt, time::Duration};

use etcd_client::{Error as EtcdError, GetOptions, GetResponse, Txn, TxnResponse, WatchOptions, WatchStream};

use super::{
    endpoints::{Endpoints, of_history, unavailable},
    keys::{Keys, Mirror, revision},
};
use crate::{Error, LeaseId, Revision};

pub(super) struct Keyspace {
    pub endpoints: Endpoints,
    pub keys: Keys,
    /// Longest time for which a campaign or a watch keeps trying while etcd does not answer.
    pub outage_max: Duration,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.endpoints.urls().collect();
        f.debug_struct("EtcdStore").field("endpoints", &urls).field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// All keys with a prefix, as of one revision.
pub(super) struct Read {
    pub revision: Revision,
    pub mirror: Mirror,
}

impl Keyspace {
    pub async fn get(&self, key: &str, options: GetOptions) -> Result<GetResponse, EtcdError> {
        let call = self.endpoints.call(|mut client| {
            let options = options.clone();
            async move { client.get(key, Some(options)).await }
        });
        call.await
    }

    /// Reads all keys with a prefix, now or as of a revision.
    pub async fn read(&self, prefix: &str, at: Option<Revision>) -> Result<Read, Error> {
        let mut options = GetOptions::new().with_prefix();
        if let Some(at) = at {
            options = options.with_revision(signed(at.0)?);
        }
        let answer = self.get(prefix, options).await.map_err(|error| of_history(error, at.unwrap_or_default()))?;
        let revision = answer.header().map_or(Revision(0), |header| revision(header.revision()));
        Ok(Read { revision, mirror: Mirror::of(&self.keys, answer.kvs()) })
    }

    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, EtcdError> {
        let call = self.endpoints.call(|mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        });
        call.await
    }

    /// A stream of the changes after `seen` to keys with a prefix.
    pub async fn stream(&self, prefix: &str, seen: Revision) -> Result<WatchStream, Error> {
        let from = signed(seen.0.saturating_add(1))?;
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let call = self.endpoints.call(|mut client| {
            let options = options.clone();
            async move { client.watch(prefix, Some(options)).await }
        });
        call.await.map_err(unavailable)
    }
}

/// Converts to etcd's numbers, which are signed.
pub(super) fn signed(number: u64) -> Result<i64, Error> {
    i64::try_from(number).map_err(|_| Error::Invalid("number"))
}

pub(super) fn lease_out(lease: LeaseId) -> Result<i64, Error> {
    i64::try_from(lease.0).map_err(|_| Error::LeaseLost(lease))
}
