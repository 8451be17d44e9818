//! The metadata store that the settings name: etcd, or an embedded store for a cluster with one
//! coordinator.

use std::{path::PathBuf, sync::Arc};

use coppice_env::{Clock, DiskStorage, Storage};
use coppice_metadata::{EmbeddedStore, EtcdOptions, EtcdStore, EtcdTls, Metadata};
use coppice_types::{ClusterId, chain};
use serde::{Deserialize, Serialize};

use crate::{
    Code, Failure,
    config::read_secret,
    tls::{self, Live},
};

/// The settings of the metadata store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// The directory of an embedded store.
    pub dir: Option<PathBuf>,
    /// The members of etcd: `http://HOST:PORT`, or `https://` with `ca`.
    pub endpoints: Vec<String>,
    /// The prefix of the cluster's keys in etcd, as `<prefix>/<cluster id>/` [default: /coppice].
    pub prefix: Option<String>,
    /// The authority of etcd's certificates.
    pub ca: Option<PathBuf>,
    /// This process's certificate for etcd.
    pub cert: Option<PathBuf>,
    /// The private key of that certificate.
    pub key: Option<PathBuf>,
    /// The name in etcd's certificate, if it is not the endpoint's host.
    pub domain: Option<String>,
    /// This process's user name in etcd, if etcd asks for one.
    pub user: Option<String>,
    /// The file with the password of that user.
    pub password_file: Option<PathBuf>,
}

impl Store {
    /// Checks the settings against each other.
    ///
    /// # Errors
    /// If settings contradict each other.
    pub fn check(&self) -> Result<(), Failure> {
        let Self { dir, endpoints, ca, cert, key, user, password_file, .. } = self;
        if dir.is_some() != endpoints.is_empty() {
            return Err(Failure::usage("metadata: set either dir (an embedded store) or endpoints (etcd)"));
        }
        if cert.is_some() != key.is_some()
            || (cert.is_some() && ca.is_none())
            || user.is_some() != password_file.is_some()
        {
            return Err(Failure::usage("metadata: cert and key go together, with ca; so do user and password_file"));
        }
        Ok(())
    }

    /// Opens the store. etcd need not be there yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the embedded store is in use, or a file can't be read.
    pub fn open(&self, cluster: &ClusterId, clock: Arc<dyn Clock>) -> Result<Arc<dyn Metadata>, Failure> {
        if let Some(dir) = &self.dir {
            // Each cluster has a directory of its own, so that another cluster's store is never
            // opened.
            let storage: Arc<dyn Storage> = Arc::new(DiskStorage::new(dir.join(cluster.to_string())));
            let store = EmbeddedStore::open(storage, clock).map_err(|error| {
                let failure = Failure::new(Code::Refused, format!("metadata: {}: {}", dir.display(), chain(&error)));
                failure.hint(
                    "The embedded store is for one coordinator: for several, set metadata.endpoints to those of an etcd.",
                )
            })?;
            return Ok(Arc::new(store));
        }
        let store = EtcdStore::connect(self.etcd(cluster)?);
        Ok(Arc::new(store.map_err(|error| Failure::usage(format!("metadata: {}", chain(&error))))?))
    }

    fn etcd(&self, cluster: &ClusterId) -> Result<EtcdOptions, Failure> {
        let mut options = EtcdOptions::new(self.endpoints.clone(), *cluster);
        if let Some(prefix) = &self.prefix {
            options.prefix.clone_from(prefix);
        }
        if let Some(ca) = &self.ca {
            let settings = self.clone();
            let paths = [ca].into_iter().chain(&self.cert).chain(&self.key).cloned().collect();
            let live = Live::keep(paths, move |contents| settings.etcd_tls(contents))?;
            options.tls = Some(Arc::new(move || live.now()));
        }
        if let (Some(user), Some(file)) = (&self.user, &self.password_file) {
            options.user = Some((user.clone(), read_secret(file)?.trim_end_matches('\n').to_owned()));
        }
        Ok(options)
    }

    /// `contents` are those of `ca`, and of `cert` and `key` if these are set.
    fn etcd_tls(&self, contents: &[Vec<u8>]) -> Result<EtcdTls, Failure> {
        let [ca, identity @ ..] = contents else { unreachable!("at least one file is kept") };
        if let Some(path) = &self.ca {
            tls::certificates(path, ca)?;
        }
        let identity = match (&self.cert, &self.key, identity) {
            (Some(cert_path), Some(key_path), [cert, key]) => {
                tls::check_pair((cert_path, cert), (key_path, key))?;
                Some((cert.clone(), key.clone()))
            }
            _ => None,
        };
        Ok(EtcdTls { ca: ca.clone(), identity, domain: self.domain.clone() })
    }
}
