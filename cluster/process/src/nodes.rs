//! The ways to the nodes of a cluster, wherever they are.
//!
//! The configuration says where to look first. Where a node says in the metadata store that it is somewhere else, the next connection goes there; and
//! again whenever it moves. What the store said last stands: neither a store that is silent or was wiped, nor the end of a node's lease, takes a place back.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use coppice_metadata::{Kind, Snapshot};
use tonic::transport::Channel;

use crate::{
    Failure,
    ledger::Nodes,
    net::{Dialer, check_address},
};

/// Where nobody listens: for a node that is in no table.
const NOWHERE: &str = "unknown-node.invalid:1";

/// The ways to the nodes. Clones are the same.
#[derive(Clone, Debug)]
pub struct Ways {
    dialer: Dialer,
    /// `HOST:PORT` by name.
    places: Arc<RwLock<BTreeMap<String, String>>>,
}

impl Ways {
    /// To the nodes of the configuration.
    ///
    /// # Errors
    /// If the address of one is none.
    pub fn new(dialer: Dialer, nodes: &Nodes) -> Result<Self, Failure> {
        for node in nodes.values() {
            // Whatever is wrong with an address shows now.
            dialer.check(&node.address)?;
        }
        let places = nodes.iter().map(|(name, node)| (name.clone(), node.address.clone())).collect();
        Ok(Self { dialer, places: Arc::new(RwLock::new(places)) })
    }

    /// A channel to a node, which connects when first used and again whenever its connection breaks.
    #[must_use]
    pub fn channel(&self, node: &str) -> Channel {
        let (places, node) = (Arc::clone(&self.places), node.to_owned());
        let place = move || {
            let places = places.read().unwrap_or_else(PoisonError::into_inner);
            places.get(&node).map_or(NOWHERE, String::as_str).to_owned()
        };
        self.dialer.channel_by(place).expect("addresses were checked before they came into the table")
    }

    /// Takes what the metadata store says. Nodes that the configuration does not name are left out.
    pub fn learn(&self, registry: &Snapshot) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        for member in registry.members.iter().filter(|member| member.kind == Kind::Node) {
            let Some(place) = places.get_mut(&member.name).filter(|place| **place != member.address) else { continue };
            let (node, address) = (&member.name, &member.address);
            if let Err(error) =
                check_address(address).and_then(|()| self.dialer.check(address).map_err(|error| error.message))
            {
                tracing::debug!(node, error, "a node is registered at what is no address");
                continue;
            }
            tracing::info!(node, address, before = place, "a node is somewhere else now");
            place.clone_from(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_metadata::Member;

    use super::*;
    use crate::ledger::Node;

    #[tokio::test]
    async fn a_node_is_where_it_says_and_else_where_the_configuration_says() {
        let node = |ordinal, address: &str| Node { ordinal, address: address.to_owned() };
        let nodes = [("a", node(1, "a.example:1")), ("b", node(2, "b.example:1"))];
        let nodes = nodes.into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
        let ways = Ways::new(Dialer::new("test", None), &nodes).expect("addresses");
        let place = |name: &str| ways.places.read().expect("nobody panics").get(name).cloned().unwrap_or_default();
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
}
