//! The settings of a chain.

use std::time::Duration;

use coppice_client::state;

use crate::Error;

const PREFIX_MAX: usize = 128;

/// The settings of a chain.
#[derive(Clone, Debug)]
pub struct Options {
    /// The coordinators of the ledger, and its key, which must be set.
    pub client: coppice_client::Options,
    /// How much is checked, and the bound on the memory for cached state. Default: all is proven,
    /// 256 MiB.
    pub cache: state::Options,
    /// The beginning of all keys of the chain: 1 to 128 bytes, the first of them above 0. Default:
    /// `eth/`.
    pub prefix: String,
    /// Longest time for one call of a chain. Reads of views have that of the cache. Default: 30 s.
    pub timeout: Duration,
    /// The name that stands in the root log behind each rollback. Default: `revm`.
    pub principal: String,
}

impl Options {
    /// The default settings, for this ledger.
    #[must_use]
    pub fn new(client: coppice_client::Options) -> Self {
        Self {
            client,
            cache: state::Options::default(),
            prefix: "eth/".to_owned(),
            timeout: Duration::from_secs(30),
            principal: "revm".to_owned(),
        }
    }

    /// # Errors
    /// [`Error::Options`] if a setting makes no sense.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.client.trust.is_none() {
            return Err(Error::Options("a chain needs the ledger's key"));
        }
        if self.prefix.is_empty() || self.prefix.len() > PREFIX_MAX || self.prefix.starts_with('\0') {
            return Err(Error::Options("a prefix has 1 to 128 bytes, and does not begin with 0"));
        }
        if self.timeout.is_zero() {
            return Err(Error::Options("the time limit is zero"));
        }
        Ok(())
    }
}
