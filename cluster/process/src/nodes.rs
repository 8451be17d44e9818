//! Channels to the nodes of a cluster, whose addresses may change.
//!
//! The configuration states a node's address, and so may the metadata store, where the node
//! registers itself. The last registered address stays in use, even when the store is silent or
//! wiped, or the node's lease ends.
//!
//! Both addresses are hints: the answering process has to prove that it is the node. So an attacker
//! who can write into the store can't speak for a node. The attacker can't make a node at its
//! configured address unreachable either: after a failure at one address, the next connection goes
//! to the other.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use coppice_metadata::{Kind, Snapshot};
use coppice_proto::certificate::Role;
use tonic::transport::Channel;

use crate::{
    Failure,
    ledger::Nodes,
    net::{Dialer, Place, check_address},
    tls::Expected,
};

/// An address that never answers, for a node that is not in the table.
const NOWHERE: &str = "unknown-node.invalid:1";

/// The channels to the nodes. Clones share the addresses.
#[derive(Clone, Debug)]
pub struct Ways {
    dialer: Dialer,
    /// The addresses, by the node's name.
    places: Arc<RwLock<BTreeMap<String, Places>>>,
}

/// The possible addresses of one node, as `HOST:PORT`.
#[derive(Clone, Debug)]
struct Places {
    configured: String,
    /// The address in the metadata store, written by the node or by somebody in its name.
    registered: Option<String>,
    /// The next connection goes to the configured address, because the registered one failed.
    at_configured: bool,
}

impl Places {
    fn address(&self) -> &str {
        match &self.registered {
            Some(registered) if !self.at_configured => registered,
            _ => &self.configured,
        }
    }

    /// Notes that the node is not at this address, so that the other one is tried next.
    fn failed(&mut self, address: &str) {
        // Compares with the configured address only. The registered one may change as often as
        // connections are tried.
        self.at_configured = address != self.configured;
    }
}

/// The address of one node, for its channel.
struct Way {
    node: String,
    places: Arc<RwLock<BTreeMap<String, Places>>>,
}

impl Place for Way {
    fn address(&self) -> String {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.get(&self.node).map_or(NOWHERE, Places::address).to_owned()
    }

    fn failed(&self, address: &str) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get_mut(&self.node) {
            place.failed(address);
        }
    }
}

impl Ways {
    /// The nodes of the configuration.
    ///
    /// # Errors
    /// If the address of one is not valid.
    pub fn new(dialer: Dialer, nodes: &Nodes) -> Result<Self, Failure> {
        for node in nodes.values() {
            // A wrong address is reported now, not at the first connection.
            dialer.check(&node.address)?;
        }
        let place = |address: &String| Places { configured: address.clone(), registered: None, at_configured: false };
        let places = nodes.iter().map(|(name, node)| (name.clone(), place(&node.address))).collect();
        Ok(Self { dialer, places: Arc::new(RwLock::new(places)) })
    }

    /// A channel to a node. It connects at its first use, and again whenever its connection breaks.
    #[must_use]
    pub fn channel(&self, node: &str) -> Channel {
        let way = Way { places: Arc::clone(&self.places), node: node.to_owned() };
        let channel = self.dialer.channel_by(Arc::new(way), Expected::Process(Role::Node, node.to_owned()));
        channel.expect("addresses were checked before they came into the table")
    }

    /// Takes over the addresses in the metadata store. Nodes that are not in the configuration are
    /// ignored.
    pub fn learn(&self, registry: &Snapshot) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        for member in registry.members.iter().filter(|member| member.kind == Kind::Node) {
            let (node, address) = (&member.name, &member.address);
            let Some(place) = places.get_mut(node) else { continue };
            if place.registered.as_ref().unwrap_or(&place.configured) == address {
                continue;
            }
            if let Err(error) =
                check_address(address).and_then(|()| self.dialer.check(address).map_err(|error| error.message))
            {
                tracing::debug!(node, error, "a node is registered with an invalid address");
                continue;
            }
            tracing::info!(node, address, before = place.address(), "a node is registered somewhere else now");
            place.registered = Some(address.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_metadata::Member;

    use super::*;
    use crate::ledger::Node;

    #[tokio::test]
    async fn a_node_is_at_its_registered_address_or_else_at_the_configured_one() {
        let node = |ordinal, address: &str| Node { ordinal, address: address.to_owned(), ..Node::default() };
        let nodes = [("a", node(1, "a.example:1")), ("b", node(2, "b.example:1"))];
        let nodes = nodes.into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
        let ways = Ways::new(Dialer::new("test", None), &nodes).expect("addresses");
        let place = |name: &str| {
            let places = ways.places.read().expect("nobody panics");
            places.get(name).map(|place| place.address().to_owned()).unwrap_or_default()
        };
        let says = |members: &[(Kind, &str, &str)]| {
            let member = |&(kind, name, address): &(Kind, &str, &str)| Member {
                kind,
                name: name.to_owned(),
                address: address.to_owned(),
            };
            ways.learn(&Snapshot { members: members.iter().map(member).collect(), ..Snapshot::default() });
        };
        says(&[]);
        assert_eq!(place("a"), "a.example:1");
        says(&[(Kind::Node, "a", "elsewhere:2"), (Kind::Coordinator, "b", "no-node:2"), (Kind::Node, "c", "new:2")]);
        assert_eq!([place("a"), place("b"), place("c")], ["elsewhere:2", "b.example:1", ""]);
        says(&[(Kind::Node, "b", "third:3")]);
        assert_eq!([place("a"), place("b")], ["elsewhere:2", "third:3"], "what is no longer said stands");
        says(&[(Kind::Node, "a", "no address"), (Kind::Node, "b", "host:0"), (Kind::Node, "a", "a b:1")]);
        assert_eq!([place("a"), place("b")], ["elsewhere:2", "third:3"]);
        assert!(Ways::new(Dialer::new("test", None), &[("a".to_owned(), node(1, "a b:1"))].into()).is_err());
    }

    #[tokio::test]
    async fn after_a_failure_at_one_place_the_other_one_is_tried() {
        let nodes =
            [("a".to_owned(), Node { ordinal: 1, address: "a.example:1".to_owned(), ..Node::default() })].into();
        let ways = Ways::new(Dialer::new("test", None), &nodes).expect("an address");
        let way = Way { node: "a".to_owned(), places: Arc::clone(&ways.places) };
        way.failed("a.example:1");
        assert_eq!(way.address(), "a.example:1", "there is no other one");
        let member = |address: &str| Member { kind: Kind::Node, name: "a".to_owned(), address: address.to_owned() };
        let says = |address: &str| {
            ways.learn(&Snapshot { members: vec![member(address)], ..Snapshot::default() });
        };
        says("hostile:2");
        let first = way.address();
        let seen: Vec<String> = (0..3)
            .map(|_| {
                let address = way.address();
                way.failed(&address);
                // A second channel that fails at the same address does not switch back.
                way.failed(&address);
                address
            })
            .collect();
        assert_eq!(seen[0], first);
        assert_eq!(seen[0], seen[2]);
        assert_ne!(seen[0], seen[1]);
        // However often the store is written, every second attempt goes to the configured address.
        let mut configured = 0;
        for turn in 0..10 {
            let address = way.address();
            configured += usize::from(address == "a.example:1");
            says(&format!("hostile:{}", turn + 3));
            way.failed(&address);
        }
        assert_eq!(configured, 5);
    }
}
