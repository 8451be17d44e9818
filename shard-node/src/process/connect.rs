//! Channels to the other nodes by TCP.

use std::{collections::BTreeMap, fmt, sync::Arc};

use coppice_process::{Failure, net::Dialer};
use coppice_proto::Channel;

use super::Config;
use crate::Connector;

/// Where nobody listens: for a node that is in no table.
const NOWHERE: &str = "unknown-node.invalid:1";

struct Tcp {
    dialer: Dialer,
    addresses: BTreeMap<String, String>,
}

impl fmt::Debug for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tcp").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Connector for Tcp {
    fn channel(&self, node: &str) -> Channel {
        let address = self.addresses.get(node).map_or(NOWHERE, String::as_str);
        self.dialer.channel(address).expect("addresses were checked with the configuration").into()
    }
}

/// The way to the nodes of the configuration.
///
/// # Errors
/// If a certificate cannot be read.
pub(super) fn connector(config: &Config) -> Result<Arc<dyn Connector>, Failure> {
    let tls = config.tls.as_ref().map(coppice_process::tls::Tls::client).transpose()?;
    let dialer = Dialer::new(&config.node, tls);
    for node in config.nodes.values() {
        // Whatever is wrong with an address shows now.
        dialer.check(&node.address)?;
    }
    let addresses = config.nodes.iter().map(|(name, node)| (name.clone(), node.address.clone())).collect();
    Ok(Arc::new(Tcp { dialer, addresses }))
}
