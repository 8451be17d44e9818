//! The party that a call counts for.

use std::net::{IpAddr, Ipv6Addr};

/// The party that a call counts for, in all limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The subject of a certificate.
    Subject(String),
    /// An address without a certificate. For IPv6, it is the network.
    Address(IpAddr),
    /// This process: the call came over a pipe within it.
    Inside,
    /// A node or coordinator, which calls for others.
    Cluster(String),
}

impl Party {
    /// Whether the party may use all there is, instead of a share.
    #[must_use]
    pub fn has_all(&self) -> bool {
        matches!(self, Self::Inside | Self::Cluster(_))
    }
}

/// The network of an address. An owner of one IPv6 address usually owns the addresses around it,
/// too.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX)).into(),
        },
    }
}
