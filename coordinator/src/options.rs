//! The options of a coordinator, and their defaults.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use coppice_env::{Clock, Rng};
use coppice_metadata::Metadata;
use coppice_proto::Channel;
use coppice_types::{ClusterId, Params};
use coppice_verify::{
    header::{self, Header},
    note::SignerKey,
    shard_map::ShardMap,
};

use crate::error::Error;

/// Makes a channel to a node by its name, with its own connection. The channel connects when it is
/// first used, and reconnects by itself. The function is called once for each node and kind of
/// call.
pub type Connect = Arc<dyn Fn(&str) -> Channel + Send + Sync>;

/// The founding of a new ledger. Ignored if there is a ledger already.
#[derive(Clone, Debug)]
pub struct Genesis {
    /// Limits and digest parameters.
    pub params: Params,
    /// The first shards.
    pub shard_map: ShardMap,
}

/// What a coordinator knows of the nodes that reads go to. By default, all nodes host voters, and
/// none is nearer than another.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// Names of the nodes that host readers.
    pub readers: BTreeSet<String>,
    /// Zones of the nodes, by name.
    pub zones: BTreeMap<String, String>,
    /// The coordinator's own zone, whose nodes are preferred for reads.
    pub zone: Option<String>,
}

impl Routing {
    /// Whether a node is as near as any: it is in the coordinator's zone, or that is not known.
    pub(crate) fn is_near(&self, node: &str) -> bool {
        self.zone.is_none() || self.zones.get(node) == self.zone.as_ref()
    }
}

/// The parts and settings of a coordinator.
pub struct Options {
    /// The candidate's name, unique among the coordinators of a cluster.
    pub name: String,
    /// Names of the shard-nodes.
    pub nodes: Vec<String>,
    /// Which of them serve reads only, and where they are.
    pub routing: Routing,
    pub connect: Connect,
    /// The store that picks the candidate for leadership. The root group decides who leads.
    pub metadata: Arc<dyn Metadata>,
    /// The key that signs checkpoints. Its name is the log's origin, `<prefix>/<cluster id>`, which
    /// names the cluster.
    pub signing_key: SignerKey,
    /// The key that replaces the ledger's key, or the one that was replaced. The key in force
    /// signs.
    pub next_signing_key: Option<SignerKey>,
    pub genesis: Genesis,
    pub limits: Limits,
    /// The source of wall and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// The generator of stage ids and jitter.
    pub rng: Box<dyn Rng>,
}

/// The rule that the leader prunes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Keep at least this many of the newest versions.
    Versions(u64),
    /// Keep every version that was head within this time, by the headers' timestamps.
    Age(Duration),
}

impl Retention {
    /// The rule in words, as the root log records it.
    pub(crate) fn rule(self) -> String {
        match self {
            Self::Versions(count) => format!("keep the newest {count} versions"),
            Self::Age(age) => format!("keep what was head in the last {} s", age.as_secs()),
        }
    }
}

/// Bounds and deadlines. The defaults suit a cluster in one place.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Limit on the number of batches that wait or are being decided.
    pub queue_max: usize,
    /// Limit on the bytes of batches that wait or are being decided.
    pub queue_bytes_max: u32,
    /// Limit on the number of batches of one `CommitStream` that are under way.
    pub stream_batches_max: usize,
    /// Limit on the number of batches of one version.
    pub batches_per_version_max: usize,
    /// How long a batch may wait before it is refused.
    pub commit_timeout: Duration,
    /// How long a shard may take for a prepare before the version is formed again without it.
    pub prepare_timeout: Duration,
    /// How long the root group may take for one call.
    pub root_timeout: Duration,
    /// How long one node may take before another is asked.
    pub attempt_timeout: Duration,
    /// How long a read may look for a replica that has its state.
    pub read_timeout: Duration,
    /// How long a rollback or prune may take.
    pub admin_timeout: Duration,
    /// How long an idle leader waits after a decision before it tells the shards.
    pub finalize_after: Duration,
    /// Limit on the number of stages at once.
    pub stages_max: usize,
    /// Limit on the number of stages of one caller.
    pub stages_per_caller_max: usize,
    /// Limit on the number of sessions that one caller uses through this coordinator within a
    /// minute.
    pub sessions_per_caller_max: usize,
    /// Limit on the number of pins of one caller through this coordinator.
    pub pins_per_caller_max: usize,
    /// Limit on the number of streams that follow the log.
    pub follows_max: usize,
    /// Limit on the number of streams of one caller that follow the log.
    pub follows_per_caller_max: usize,
    /// How long a stage lives.
    pub stage_age_max: Duration,
    /// How far the leader's clock may be from the median of the root replicas' clocks.
    pub clock_skew_max: Duration,
    /// The rule that the leader prunes by. `None` keeps all versions.
    pub retention: Option<Retention>,
    /// How often the leader looks for versions to prune by the rule.
    pub retention_interval: Duration,
    /// How long a leadership lease lasts if it is not kept alive.
    pub lease: Duration,
    /// How long a leader stays while the root group does not answer.
    pub root_silence_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            queue_bytes_max: 64 << 20,
            stream_batches_max: 64,
            batches_per_version_max: 1024,
            commit_timeout: Duration::from_secs(30),
            prepare_timeout: Duration::from_secs(10),
            root_timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(3),
            read_timeout: Duration::from_secs(10),
            admin_timeout: Duration::from_secs(20),
            finalize_after: Duration::from_millis(100),
            stages_max: 16,
            stages_per_caller_max: 8,
            sessions_per_caller_max: 1024,
            pins_per_caller_max: 64,
            follows_max: 1024,
            follows_per_caller_max: 64,
            stage_age_max: Duration::from_secs(60),
            clock_skew_max: Duration::from_secs(1),
            retention: None,
            retention_interval: Duration::from_secs(10),
            lease: Duration::from_secs(2),
            root_silence_max: Duration::from_millis(1500),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("nodes", &self.nodes)
            .field("routing", &self.routing)
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

/// Splits an origin into its prefix and its cluster id.
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
