//! What a coordinator is made of.

use std::{fmt, sync::Arc};

use coppice_env::{Clock, Rng};
use coppice_metadata::Metadata;
use coppice_proto::Channel;
use coppice_types::{ClusterId, Params};
use coppice_verify::{
    header::{self, Header},
    note::SignerKey,
    shard_map::ShardMap,
};

use crate::{Error, Limits};

/// Gives a channel to a node by its name, with a connection of its own. It connects lazily and
/// again by itself. It is asked for once for each node and kind of call.
pub type Connect = Arc<dyn Fn(&str) -> Channel + Send + Sync>;

/// How a new ledger is founded; ignored where there is one.
#[derive(Clone, Debug)]
pub struct Genesis {
    /// Limits and digest parameters.
    pub params: Params,
    /// The first shards.
    pub shard_map: ShardMap,
}

/// What a coordinator is made of.
pub struct Options {
    /// The candidate's name, unique among the coordinators of a cluster.
    pub name: String,
    /// Names of the shard-nodes.
    pub nodes: Vec<String>,
    /// Connects to them.
    pub connect: Connect,
    /// Picks the candidate for leadership; the root group has the last word.
    pub metadata: Arc<dyn Metadata>,
    /// Signs checkpoints. Its name is the log's origin, `<prefix>/<cluster id>`: it says which cluster this is.
    pub signing_key: SignerKey,
    /// The key that the ledger's is to be changed to, or that it was changed from: whichever of the two is in force signs.
    pub next_signing_key: Option<SignerKey>,
    /// How a new ledger is founded.
    pub genesis: Genesis,
    /// Bounds and deadlines.
    pub limits: Limits,
    /// Wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Names of stages.
    pub rng: Box<dyn Rng>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("nodes", &self.nodes)
            .field("key", &self.signing_key)
            .field("next_key", &self.next_signing_key)
            .field("genesis", &self.genesis)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The header that founds the ledger if the root log is empty.
    pub(crate) fn genesis_header(&self) -> Result<Vec<u8>, Error> {
        let Genesis { params, shard_map } = &self.genesis;
        params.check().map_err(Error::Params)?;
        let (prefix, cluster) = cluster_of(self.signing_key.name())
            .ok_or_else(|| Error::Options("the key's name is not <prefix>/<cluster id in hex>".to_owned()))?;
        if prefix.len() > header::PREFIX_BYTES_MAX {
            return Err(Error::Options(format!("the origin prefix is over {} bytes", header::PREFIX_BYTES_MAX)));
        }
        if let Some(next) = &self.next_signing_key
            && (next.name() != self.signing_key.name() || next.verifier() == self.signing_key.verifier())
        {
            let names = (self.signing_key.name(), next.name());
            return Err(Error::Options(format!(
                "the next signing key must be another key of the same name: they are {} and {}",
                names.0, names.1
            )));
        }
        let genesis = header::Genesis {
            prefix: prefix.to_owned(),
            public_key: self.signing_key.verifier().public_key(),
            params: params.clone(),
            shard_map: shard_map.clone(),
        };
        let header = Header::genesis(cluster, self.clock.wall_ms(), genesis);
        Ok(header.encode())
    }
}

/// Prefix and cluster id of an origin.
pub(crate) fn cluster_of(origin: &str) -> Option<(&str, ClusterId)> {
    let (prefix, hex) = origin.rsplit_once('/')?;
    let mut id = [0; 16];
    if prefix.is_empty() || hex.len() != 32 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, digits) in id.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some((prefix, ClusterId(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_names_the_cluster() {
        let found = cluster_of("ledger.example/a/000102030405060708090a0b0c0d0eff").expect("it is an origin");
        assert_eq!(found.0, "ledger.example/a");
        assert_eq!(found.1.0[..3], [0, 1, 2]);
        assert_eq!(found.1.0[15], 0xff);
        for bad in [
            "no-id",
            "/000102030405060708090a0b0c0d0eff",
            "p/000102030405060708090a0b0c0d0ef",
            "p/000102030405060708090A0b0c0d0eff",
            "p/+00102030405060708090a0b0c0d0eff",
            "p/00010203040506070809\u{e9}0b0c0d0ef",
        ] {
            assert!(cluster_of(bad).is_none(), "{bad}");
        }
    }
}
