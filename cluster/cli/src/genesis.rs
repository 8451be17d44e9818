//! Facts about a ledger that commands need before they begin.

use coppice_client::{Client, Error};
use coppice_proto::v1::get_header_request::Which;
use coppice_types::{ClusterId, Params};
use coppice_verify::header::Body;

use crate::failure::Failure;

/// The facts in the genesis header.
pub(crate) struct Genesis {
    /// The id of the cluster.
    pub cluster: ClusterId,
    /// The ledger's limits, which never change.
    pub params: Params,
}

/// Reads the genesis header.
pub(crate) async fn genesis(client: &Client) -> Result<Genesis, Failure> {
    let bytes = client.header(Which::Sequence(0)).await?;
    let header = coppice_client::header(&bytes)?;
    match header.body {
        Body::Genesis(genesis) => Ok(Genesis { cluster: header.cluster, params: genesis.params }),
        _ => Err(Error::Malformed("genesis header").into()),
    }
}
