//! Tiles and entry bundles from the root group, behind a bounded cache of full ones.
//!
//! Tiles never change, so any replica that has them may answer, without a ReadIndex. If a replica
//! does not have a tile yet, it is asked for again, linearizably.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use bytes::{BufMut, Bytes, BytesMut};
use coppice_proto::v1::{self, read_root_request::Read};
use coppice_verify::tile::{Content, TileName, WIDTH};
use tonic::Status;

use crate::{
    groups::{root_log::RootLog, wire},
    lock::held,
};

/// Limit on the bytes of cached tiles and bundles.
const CACHE_BYTES_MAX: usize = 32 << 20;
/// Larger bundles are not cached.
const CACHED_BYTES_MAX: usize = 4 << 20;

/// The tiles of the root log.
#[derive(Debug)]
pub struct Tiles {
    log: Arc<RootLog>,
    cache: Mutex<Cache>,
}

impl Tiles {
    /// The tiles of this log.
    pub fn new(log: Arc<RootLog>) -> Self {
        Self { log, cache: Mutex::default() }
    }

    /// A tile or bundle. `None` if the log does not have that many entries.
    ///
    /// # Errors
    /// `UNAVAILABLE` if a quorum of the root group is needed and there is none.
    pub async fn get(&self, name: TileName) -> Result<Option<Bytes>, Status> {
        if let Some(known) = self.cache().get(&name) {
            return Ok(Some(known));
        }
        if !name.is_in(self.log.size()) && !name.is_in(self.log.view().await?.log_size) {
            return Ok(None);
        }
        let bytes = match name.content {
            Content::Hashes { level } => self.hashes(level, name).await?,
            Content::Entries => self.entries(name).await?,
        };
        if name.width == WIDTH {
            self.cache().insert(name, bytes.clone());
        }
        Ok(Some(bytes))
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        held(&self.cache)
    }

    async fn hashes(&self, level: u8, name: TileName) -> Result<Bytes, Status> {
        let read = v1::TileRead { level: u32::from(level), number: name.number, width: u32::from(name.width) };
        let tile = self.log.root.read_settled(Read::Tile(read), |answer| !answer.tile.is_empty()).await?.tile;
        if tile.len() == usize::from(name.width) * 32 { Ok(tile) } else { Err(wire::broken("tile")) }
    }

    async fn entries(&self, name: TileName) -> Result<Bytes, Status> {
        let first = name.number * u64::from(WIDTH);
        let mut bundle = BytesMut::new();
        let mut left = u32::from(name.width);
        while left > 0 {
            let from_sequence = first + u64::from(name.width) - u64::from(left);
            let read = Read::Headers(v1::HeadersRead { from_sequence, limit: left });
            let answer = self.log.root.read_settled(read, |answer| !answer.headers.is_empty()).await?;
            let some = u32::try_from(answer.headers.len()).ok().filter(|count| (1..=left).contains(count));
            left -= some.ok_or_else(|| wire::broken("headers"))?;
            for header in answer.headers {
                bundle.put_u16(u16::try_from(header.len()).map_err(|_| wire::broken("header"))?);
                bundle.put(header);
            }
        }
        Ok(bundle.freeze())
    }
}

/// Full tiles. The oldest entry is evicted first.
#[derive(Debug, Default)]
struct Cache {
    tiles: BTreeMap<TileName, Bytes>,
    order: VecDeque<TileName>,
    bytes: usize,
}

impl Cache {
    fn get(&self, name: &TileName) -> Option<Bytes> {
        self.tiles.get(name).cloned()
    }

    fn insert(&mut self, name: TileName, bytes: Bytes) {
        if bytes.len() > CACHED_BYTES_MAX || self.tiles.contains_key(&name) {
            return;
        }
        self.bytes += bytes.len();
        self.tiles.insert(name, bytes);
        self.order.push_back(name);
        while self.bytes > CACHE_BYTES_MAX {
            let oldest = self.order.pop_front().expect("every tile stands in the order");
            let gone = self.tiles.remove(&oldest).expect("what stands in the order is there");
            self.bytes -= gone.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_to_its_bytes() {
        let name = |number| TileName { content: Content::Entries, number, width: WIDTH };
        let mut cache = Cache::default();
        let tile = Bytes::from(vec![7; CACHED_BYTES_MAX]);
        for number in 0..20 {
            cache.insert(name(number), tile.clone());
            cache.insert(name(number), tile.clone());
            assert!(cache.bytes <= CACHE_BYTES_MAX && cache.order.len() == cache.tiles.len());
        }
        assert!(cache.get(&name(19)).is_some() && cache.get(&name(0)).is_none());
        cache.insert(name(20), Bytes::from(vec![7; CACHED_BYTES_MAX + 1]));
        assert!(cache.get(&name(20)).is_none());
    }
}
