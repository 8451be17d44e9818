//! The other end of a connection (the peer): its identity, the party that its calls count for, and
//! its place among the connections of a listener.

pub(crate) mod lines;
mod party;

use std::{net::SocketAddr, sync::Arc};

use tonic::codegen::http;

use self::party::network;
pub use self::{lines::Used, party::Party};
use crate::identity::{Identity, Role, Roles};

/// The other end of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The peer's address.
    pub address: Option<SocketAddr>,
    /// The content of its certificate; `None` if it showed none.
    pub identity: Option<Arc<Identity>>,
    /// Counts the calls on its connection, if the connection came from a listener.
    pub line: Option<Used>,
}

impl Peer {
    /// The party that the peer's calls count for.
    pub(crate) fn party(&self) -> Party {
        let Some(identity) = &self.identity else {
            return self.address.map_or(Party::Inside, |address| Party::Address(network(address.ip())));
        };
        let name = identity.name();
        match identity.roles.meets(Roles::of(&[Role::Node, Role::Coordinator])) {
            true => Party::Cluster(name),
            false => Party::Subject(name),
        }
    }
}

/// The party that a request counts for.
pub(crate) fn party_of(request: &http::Extensions) -> Party {
    request.get::<Peer>().map_or(Party::Inside, Peer::party)
}
