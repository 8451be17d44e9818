//! The data that an auditor replays: headers and journal entries from the root group, and operation
//! lists from the shards, joined in the order of versions.
//!
//! Only a page of each is held in memory: shards are read as fast as the client takes the messages.
//! If a rollback or prune removes a state while the stream runs, the stream ends with a refusal.
//! The client can continue from there with another stream.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map},
    sync::Arc,
};

use bytes::Bytes;
use coppice_proto::v1::{self, read_root_request::Read};
use coppice_types::{Reason, ShardId, Version};
use coppice_verify::{
    header::{Body, Header},
    journal::Entry,
};
use tonic::Status;

use super::{
    pages::{self, Pages, SCANS_AHEAD},
    reads::{Located, Reads, Sink, send},
};
use crate::{
    groups::wire::{self, View},
    plan::Refusal,
};

/// How many headers are read at a time.
const HEADERS: u32 = 64;
/// How many versions' journals are asked for at once.
const JOURNALS_AHEAD: usize = 16;

/// The kept journals of one shard, in order.
struct Lists {
    pages: Pages,
    page: VecDeque<v1::ShardJournal>,
}

impl Lists {
    fn new(pages: Pages) -> Self {
        Self { pages, page: VecDeque::new() }
    }

    /// The lists of a version. Lists of earlier versions are skipped.
    async fn of(&mut self, version: Version) -> Result<Vec<Bytes>, Status> {
        loop {
            while let Some(kept) = self.page.pop_front() {
                if kept.version == version.0 {
                    return Ok(kept.lists);
                }
                if kept.version > version.0 {
                    return Err(missing(version));
                }
            }
            match self.pages.next().await? {
                Some(message) => self.page.extend(message.journals),
                None => return Err(missing(version)),
            }
        }
    }
}

fn missing(version: Version) -> Status {
    Refusal::new(Reason::Corrupted, format!("a shard has no journal of version {version}")).into()
}

/// The shards that these journal entries write to.
fn touched(entries: &[Bytes]) -> Result<BTreeSet<ShardId>, Status> {
    let mut touched = BTreeSet::new();
    for entry in entries {
        let entry = Entry::decode(entry).map_err(|_| wire::broken("journal entry"))?;
        touched.extend(entry.writes().into_iter().flatten().map(|(shard, _)| *shard));
    }
    Ok(touched)
}

impl Reads {
    /// Streams the journals of the versions that stand.
    ///
    /// # Errors
    /// The refusal of the first step that fails, even in the middle of the stream.
    pub async fn journal(&self, request: v1::JournalRequest, sink: &Sink<v1::JournalResponse>) -> Result<(), Status> {
        let view = self.log.view().await?;
        if !view.genesis.params.journals_kept {
            return Err(Refusal::invalid("this ledger keeps no journals: that is chosen when it is founded").into());
        }
        let head = view.head().version;
        let from = Version(request.from_version.max(1));
        let to = if request.to_version == 0 { head } else { Version(request.to_version) };
        if to > head {
            return Err(Refusal::new(Reason::NotYet, format!("version {to} is above head, {head}")).into());
        }
        let located = self.locate_in(view.clone(), None, false).await?;
        let mut lists = BTreeMap::new();
        let mut sequence = 0;
        while sequence < view.log_size {
            let read = Read::Headers(v1::HeadersRead { from_sequence: sequence, limit: HEADERS });
            let page = self.log.root.read_settled(read, |answer| !answer.headers.is_empty()).await?.headers;
            if page.is_empty() {
                return Err(wire::broken("headers"));
            }
            let mut commits = Vec::new();
            for bytes in page {
                let header = wire::header_in(&bytes)?;
                sequence = header.sequence.0 + 1;
                let stands = header.body == Body::Commit && view.tail.epochs.stands(header.stamp);
                if stands && (from..=to).contains(&header.stamp.version) {
                    commits.push((header, bytes));
                }
            }
            for commits in commits.chunks(JOURNALS_AHEAD) {
                let entries = commits.iter().map(|(header, _)| self.log.read_entries(header.sequence.0));
                let entries = futures::future::try_join_all(entries).await?;
                for ((header, bytes), entries) in commits.iter().zip(entries) {
                    self.send_version(&located, &mut lists, to, (header, bytes), entries, sink).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends a watcher the journal of a commit that stands, in parts. Returns whether its operation
    /// lists are gone.
    pub(super) async fn send_watched(
        &self,
        view: &Arc<View>,
        (header, bytes): (&Header, &Bytes),
        sink: &Sink<v1::WatchHeadsResponse>,
    ) -> Result<bool, Status> {
        let part = |shard: ShardId, entries: Vec<Bytes>, lists| v1::WatchHeadsResponse {
            header: bytes.clone(),
            continued: true,
            journal: Some(v1::WatchedJournal { entries, shard: shard.0, lists }),
            ..v1::WatchHeadsResponse::default()
        };
        let (sequence, version) = (header.sequence.0, header.stamp.version);
        let entries = self.log.entries(sequence, bytes).await?;
        send(sink, part(ShardId(0), entries.to_vec(), Vec::new())).await?;
        if let Some(lists) = self.log.newest_lists.of(sequence, &header.hash()) {
            for (shard, lists) in &*lists {
                send(sink, part(*shard, Vec::new(), lists.clone())).await?;
            }
            return Ok(false);
        }
        if !view.genesis.params.journals_kept {
            return Ok(true);
        }
        let located = self.locate_in(view.clone(), None, false).await?;
        let shards: Vec<ShardId> = touched(&entries)?.into_iter().collect();
        for shards in shards.chunks(SCANS_AHEAD) {
            let scans: Result<_, _> =
                shards.iter().map(|shard| self.lists(&located, *shard, version, version)).collect();
            for (shard, pages) in shards.iter().zip(pages::begun(scans?).await?) {
                let lists = Lists::new(pages).of(version).await?;
                send(sink, part(*shard, Vec::new(), lists)).await?;
            }
        }
        Ok(false)
    }

    async fn send_version(
        &self,
        located: &Located,
        lists: &mut BTreeMap<ShardId, Lists>,
        to: Version,
        (header, bytes): (&Header, &Bytes),
        entries: Vec<Bytes>,
        sink: &Sink<v1::JournalResponse>,
    ) -> Result<(), Status> {
        let touched = touched(&entries)?;
        let message = v1::JournalResponse { header: bytes.clone(), entries, ..v1::JournalResponse::default() };
        send(sink, message).await?;
        for shard in touched {
            let of_shard = match lists.entry(shard) {
                btree_map::Entry::Occupied(known) => known.into_mut(),
                btree_map::Entry::Vacant(new) => {
                    new.insert(Lists::new(self.lists(located, shard, header.stamp.version, to)?))
                }
            };
            let found = of_shard.of(header.stamp.version).await?;
            let message = v1::JournalResponse { shard: shard.0, lists: found, ..v1::JournalResponse::default() };
            send(sink, message).await?;
        }
        Ok(())
    }

    fn lists(&self, located: &Located, shard: ShardId, from: Version, to: Version) -> Result<Pages, Status> {
        let leaf = located.leaves.all().iter().find(|leaf| leaf.shard == shard);
        let leaf = leaf.ok_or_else(|| wire::broken("journal: an unknown shard"))?;
        let scan = v1::JournalScan { from_version: from.0, to_version: to.0 };
        Ok(self.scan(located, leaf, v1::shard_scan_request::Scan::Journal(scan)))
    }
}
