//! What commands need to know of a ledger before they begin.

use coppice_client::{Client, Error};
use coppice_proto::v1::get_header_request::Which;
use coppice_types::{ClusterId, Params};
use coppice_verify::header::Body;

use crate::failure::Failure;

/// Of the first header of the root log.
pub(crate) struct Genesis {
    /// The ledger's name for itself.
    pub cluster: ClusterId,
    /// Its limits, for ever.
    pub params: Params,
}

/// Asks for it.
///
/// # Errors
/// If the first header is none, or there is no answer.
pub(crate) async fn genesis(client: &Client) -> Result<Genesis, Failure> {
    let bytes = client.header(Which::Sequence(0)).await?;
    let header = coppice_client::header(&bytes)?;
    match header.body {
        Body::Genesis(genesis) => Ok(Genesis { cluster: header.cluster, params: genesis.params }),
        _ => Err(Error::Malformed("genesis header").into()),
    }
}
