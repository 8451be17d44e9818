//! The hashes of a ledger's list for trusted anchors (`docs/verification.md` section 18).

use bytes::Bytes;
use coppice_proto::{convert, v1};
use coppice_types::{Digest, LedgerId};
use coppice_verify::ledgers::{BLOCK_JOURNALS, Edge, path_len};
use tokio::time::Instant;
use tonic::Status;

use super::{Sight, journals::Wanted};
use crate::{
    plan::Refusal,
    read::reads::{Located, Reads, check_size},
};

/// Most roots of blocks in an answer.
const BLOCKS_MAX: u64 = 65_536;
/// Room for an answer, counted as values.
const ROOM_VALUES: usize = 4;
/// Level of a block's root in the binary tree of a list.
const BLOCK_LEVEL: u32 = BLOCK_JOURNALS.trailing_zeros();

fn joined(hashes: impl IntoIterator<Item = Digest>) -> Bytes {
    hashes.into_iter().flat_map(|hash| hash.0).collect()
}

impl Reads {
    /// The paths of journals to the hashes of an anchor of this size, as an answer has them.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a journal is not below the anchor, or the anchor is above the list.
    pub(super) async fn anchor_paths(
        &self,
        located: &Located,
        (ledger, edge): (LedgerId, &Edge),
        jsns: &[u64],
        anchor_size: u64,
        deadline: Instant,
    ) -> Result<Vec<Bytes>, Status> {
        if anchor_size > edge.size() || jsns.iter().any(|jsn| *jsn >= anchor_size) {
            let size = edge.size();
            let message = format!("anchor_size is {anchor_size}, of a list of {size} journals: ask for those below it");
            return Err(Refusal::invalid(message).into());
        }
        let path = |jsn: &u64| {
            let jsn = *jsn;
            (0..path_len(jsn, anchor_size)).map(move |level| (level, (jsn >> level) ^ 1))
        };
        let subtrees: Vec<(u32, u64)> = jsns.iter().flat_map(path).collect();
        let mut roots = self.subtree_roots(located, (ledger, edge), &subtrees, deadline).await?.into_iter();
        Ok(jsns.iter().map(|jsn| joined(roots.by_ref().take(path_len(*jsn, anchor_size) as usize))).collect())
    }

    /// Reads the roots of blocks, and the hashes behind the last one.
    ///
    /// # Errors
    /// Those of [`Reads::journals`]; `INVALID_ARGUMENT` if the ledger has fewer blocks or journals.
    pub async fn ledger_hashes(
        &self,
        request: &v1::GetLedgerHashesRequest,
        sight: &Sight,
    ) -> Result<v1::GetLedgerHashesResponse, Status> {
        let read = request.read.unwrap_or_default();
        self.retry(&read, |located, deadline| self.ledger_hashes_at(located, request, sight, deadline)).await
    }

    async fn ledger_hashes_at(
        &self,
        located: Located,
        request: &v1::GetLedgerHashesRequest,
        sight: &Sight,
        deadline: Instant,
    ) -> Result<v1::GetLedgerHashesResponse, Status> {
        let found = self.find(&located, request.ledger.as_ref(), deadline).await?;
        let payloads = self.sight_of(&located, found.id, sight, deadline).await?;
        let (edge, params) = (&found.head.edge, &located.view.genesis.params);
        let (size, end) = (edge.size(), edge.size() / BLOCK_JOURNALS);
        if request.from_block > end || request.known_size > size {
            let message = format!("the ledger has {size} journals in {end} full blocks, fewer than were asked about");
            return Err(Refusal::invalid(message).into());
        }
        // Half of a message has room for them.
        let room = u64::from(params.message_bytes_max) / 2 / size_of::<Digest>() as u64;
        let last = end.min(request.from_block.saturating_add(BLOCKS_MAX.min(room)));
        let subtrees: Vec<(u32, u64)> = (request.from_block..last).map(|block| (BLOCK_LEVEL, block)).collect();
        // The lowest levels of the edge are what lies behind the last block.
        let behind = || edge.level(1).iter().chain(edge.level(0)).copied();
        let rest = if last == end { joined(behind()) } else { Bytes::new() };
        // Full tiles have as many bytes as the hashes in an answer.
        let _room = self.room_for(ROOM_VALUES, params, deadline).await?;
        let blocks = joined(self.subtree_roots(&located, (found.id, edge), &subtrees, deadline).await?);
        let proof = if request.read.is_some_and(|read| read.want_proof) && size > 0 {
            let wanted = Wanted { payload: false, request: false };
            let shown = self.shown(&located, found.id, &[size - 1], (wanted, payloads), deadline).await?;
            let known = (request.known_size > 0).then_some(request.known_size);
            self.journals_proof(&located, &found, &shown, (wanted, known), deadline).await?
        } else {
            Bytes::new()
        };
        check_size(blocks.len() + rest.len() + proof.len(), params)?;
        Ok(v1::GetLedgerHashesResponse {
            size,
            root: convert::to_digest(&edge.root()),
            blocks,
            rest,
            read_at: Some(convert::to_stamp(located.stamp)),
            proof,
        })
    }
}
