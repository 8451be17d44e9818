//! Channels to the other nodes by TCP, and this node's place in the metadata store.

use std::{sync::Arc, time::Duration};

use coppice_metadata::{Kind, Member, Metadata, Presence};
use coppice_process::{Failure, access::Role, net::Dialer, nodes::Ways};
use coppice_proto::Channel;
use tokio::task::AbortHandle;

use super::Config;
use crate::Connector;

/// How long the store keeps a silent node registered.
const LEASE: Duration = Duration::from_secs(5);

impl Connector for Ways {
    fn channel(&self, node: &str) -> Channel {
        Ways::channel(self, node).into()
    }
}

/// The addresses of the configured nodes, and the channels to them.
///
/// # Errors
/// If a certificate cannot be read, or this node's certificate is for another process.
pub(super) fn ways(config: &Config) -> Result<Ways, Failure> {
    let own = config.access.expects(Role::Node, &config.node);
    let tls = config.tls.as_ref().map(|tls| tls.client(own)).transpose()?;
    Ways::new(Dialer::new(&config.node, tls), &config.nodes)
}

/// Keeps a node registered until it is dropped. Meanwhile the node learns the addresses of the
/// others.
#[derive(Debug)]
pub(super) struct Registered {
    _presence: Presence,
    following: AbortHandle,
}

impl Registered {
    /// Registers the node at its configured address.
    pub(super) fn keep(config: &Config, store: Arc<dyn Metadata>, ways: Ways) -> Self {
        let address = config.nodes.get(&config.node).map(|node| node.address.clone()).unwrap_or_default();
        let member = Member { kind: Kind::Node, name: config.node.clone(), address };
        let presence = Presence::keep(Arc::clone(&store), LEASE, member);
        let following = tokio::spawn(coppice_metadata::follow(store, move |registry| ways.learn(&registry)));
        Self { _presence: presence, following: following.abort_handle() }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.following.abort();
    }
}
