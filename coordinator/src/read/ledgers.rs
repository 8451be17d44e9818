//! Reads of ledgers of members (`docs/verification.md` section 18): which ledgers and members there
//! are, and the records that new requests depend on.
//!
//! A ledger's records lie under reserved keys, which no other call reads. A caller's view is judged
//! by the records at head, even if an older version is read.
//!
//! ```text
//!  journals    journals and lineages, with their proofs
//!  hashes      inclusion and consistency paths from tiles and edge
//!  trusted     hashes of the list for trusted anchors
//!  verdicts    the coordinator's own verdict on a journal
//! ```

pub(super) mod hashes;
mod journals;
mod trusted;
mod verdicts;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use bytes::Bytes;
use coppice_proto::{convert, v1};
use coppice_types::{Digest, LedgerId, MemberId, Reason, ShardId, Stamp, Version, codec};
use coppice_verify::{
    hash::member_id,
    ledgers::{
        Envelope, Head, Leaf, Member, NAME_BYTES_MAX, ORDER, Ordered, Roles, Target, envelope_key, founding_key,
        head_key, is_record_of, leaf_key, member_end, member_key, name_end, name_key,
    },
};
use tokio::time::Instant;
use tonic::Status;

use super::reads::{Located, Reads, Sink, send};
use crate::{groups::wire, plan::Refusal};

pub use journals::JOURNALS_MAX;

/// Most records of an answer.
const RECORDS_MAX: usize = 4096;

/// A caller's view of ledgers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Everything, since nobody checks roles.
    All,
    /// Everything but payloads.
    Hashes,
    /// The view of the member with this name; that of an auditor in ledgers without this member.
    Member { name: String, is_auditor: bool },
}

/// The payloads that a caller may see in one ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payloads {
    All,
    /// Those that this member appended.
    Own(MemberId),
    None,
}

/// A ledger as a version has it.
#[derive(Clone, Debug)]
struct Found {
    id: LedgerId,
    head: Head,
    /// The version that appended to it last.
    appended: Stamp,
}

/// An order that was applied.
#[derive(Clone, Debug)]
pub struct OrderPlace {
    /// The version that has it.
    pub stamp: Stamp,
    /// The shards that have its journals.
    pub shards: BTreeSet<ShardId>,
}

/// The records of a ledger that admit a request, at head.
#[derive(Debug)]
pub struct Standing {
    /// Number of journals.
    pub size: u64,
    /// The signer's record; `None` if the ledger has no such member or agent.
    pub signer: Option<Member>,
}

impl Reads {
    /// The records of these reserved keys at one state, by key. A key without a record is left out.
    async fn records(
        &self,
        located: &Located,
        keys: impl IntoIterator<Item = Vec<u8>>,
        deadline: Instant,
    ) -> Result<BTreeMap<Bytes, v1::ShardRecord>, Status> {
        let mut by_shard: BTreeMap<usize, Vec<Bytes>> = BTreeMap::new();
        for key in keys {
            by_shard.entry(located.leaves.index_of(&key)).or_default().push(key.into());
        }
        let calls =
            by_shard.into_iter().map(|(index, keys)| self.get_shard(located, index, keys, (false, 0), deadline));
        let answers = futures::future::try_join_all(calls).await?;
        let records = answers.into_iter().flat_map(|(_, records)| records).filter(|record| record.found);
        Ok(records.map(|record| (record.key.clone(), record)).collect())
    }

    /// The record of one reserved key; `None` if there is none.
    async fn record(
        &self,
        located: &Located,
        key: Vec<u8>,
        deadline: Instant,
    ) -> Result<Option<v1::ShardRecord>, Status> {
        Ok(self.records(located, [key], deadline).await?.into_values().next())
    }

    async fn member_at(
        &self,
        located: &Located,
        ledger: LedgerId,
        member: MemberId,
        deadline: Instant,
    ) -> Result<Option<Member>, Status> {
        let record = self.record(located, member_key(ledger, member), deadline).await?;
        record.map(|record| decoded(Member::decode(&record.value))).transpose()
    }

    /// Finds a ledger by its name or id.
    async fn find(
        &self,
        located: &Located,
        ledger: Option<&v1::LedgerName>,
        deadline: Instant,
    ) -> Result<Found, Status> {
        use v1::ledger_name::Which;
        let unknown = || Refusal::new(Reason::NotFound, "there is no such ledger");
        let id = match ledger.and_then(|ledger| ledger.which.as_ref()) {
            Some(Which::Id(id)) => {
                LedgerId::from_slice(id).ok_or_else(|| Refusal::invalid("a ledger's id has 16 bytes"))?
            }
            Some(Which::Name(name)) => {
                let record = self.record(located, key_of_name(name)?, deadline).await?.ok_or_else(unknown)?;
                LedgerId::from_slice(&record.value).ok_or_else(|| wire::broken("name of a ledger"))?
            }
            None => return Err(Refusal::invalid("the ledger is missing: give its name or id").into()),
        };
        let record = self.record(located, head_key(id), deadline).await?.ok_or_else(unknown)?;
        let appended = wire::read(convert::stamp(record.last_changed, "last_changed"))?;
        Ok(Found { id, head: decoded(Head::decode(&record.value))?, appended })
    }

    /// The payloads that a caller may see in a ledger, by its records at head.
    ///
    /// # Errors
    /// `NOT_A_MEMBER` if the caller may see nothing of the ledger.
    async fn sight_of(
        &self,
        located: &Located,
        ledger: LedgerId,
        sight: &Sight,
        deadline: Instant,
    ) -> Result<Payloads, Status> {
        let (name, is_auditor) = match sight {
            Sight::All => return Ok(Payloads::All),
            Sight::Hashes => return Ok(Payloads::None),
            Sight::Member { name, is_auditor } => (name, *is_auditor),
        };
        // A read of an older version, or of a view that may be old, shows no more than head allows.
        let head = self.head_of(located).await?;
        let Standing { size, signer } = self.standing(&head, ledger, member_id(name), deadline).await?;
        // The right to read ends with the key. An agent appends, and reads nothing.
        let member = match signer.filter(|member| member.key_at(size).is_some() && member.agency.is_none()) {
            Some(member) => member,
            None if is_auditor => return Ok(Payloads::None),
            None => {
                let message = format!("the ledger has no member {name} with a key in force");
                return Err(Refusal::new(Reason::NotAMember, message).into());
            }
        };
        let reads = [Roles::OWNER, Roles::REGULATOR, Roles::READER].into_iter().any(|role| member.roles.has(role));
        Ok(if reads { Payloads::All } else { Payloads::Own(member_id(name)) })
    }

    async fn standing(
        &self,
        located: &Located,
        ledger: LedgerId,
        member: MemberId,
        deadline: Instant,
    ) -> Result<Standing, Status> {
        let keys = [head_key(ledger), member_key(ledger, member)];
        let records = self.records(located, keys.clone(), deadline).await?;
        let head = records.get(&keys[0][..]).map(|record| decoded(Head::decode(&record.value))).transpose()?;
        let head = head.ok_or_else(|| Refusal::new(Reason::NotFound, "there is no such ledger"))?;
        let signer = records.get(&keys[1][..]).map(|record| decoded(Member::decode(&record.value))).transpose()?;
        Ok(Standing { size: head.edge.size(), signer })
    }

    /// The records at head by which a request of this signer is admitted.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such ledger.
    pub async fn standing_at_head(&self, ledger: LedgerId, signer: MemberId) -> Result<Standing, Status> {
        self.retry(&v1::ReadOptions::default(), |located, deadline| async move {
            self.standing(&located, ledger, signer, deadline).await
        })
        .await
    }

    /// The keys in force of these members at head.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such ledger.
    pub async fn keys_at_head(
        &self,
        ledger: LedgerId,
        members: &[MemberId],
    ) -> Result<BTreeMap<MemberId, [u8; 32]>, Status> {
        self.retry(&v1::ReadOptions::default(), |located, deadline| async move {
            let keys = members.iter().map(|member| member_key(ledger, *member));
            let records = self.records(&located, keys.chain([head_key(ledger)]), deadline).await?;
            let head = records.get(&head_key(ledger)[..]).map(|record| decoded(Head::decode(&record.value)));
            let head = head.ok_or_else(|| Refusal::new(Reason::NotFound, "there is no such ledger"))??;
            let mut keys = BTreeMap::new();
            for id in members {
                let Some(record) = records.get(&member_key(ledger, *id)[..]) else { continue };
                let member = decoded(Member::decode(&record.value))?;
                keys.extend(member.key_at(head.edge.size()).map(|key| (*id, *key)));
            }
            Ok(keys)
        })
        .await
    }

    /// The first leaf of the newest request in a lane, at head; `None` before the first.
    ///
    /// # Errors
    /// Those of reads.
    pub async fn newest_of_lane(&self, ledger: LedgerId, signer: MemberId, lane: u8) -> Result<Option<Leaf>, Status> {
        self.retry(&v1::ReadOptions::default(), |located, deadline| async move {
            let Some(member) = self.member_at(&located, ledger, signer, deadline).await? else { return Ok(None) };
            let Some(end) = member.lanes.iter().find(|end| end.lane == lane) else { return Ok(None) };
            let record = self.record(&located, leaf_key(ledger, end.first_jsn), deadline).await?;
            record.map(|record| decoded(Leaf::decode(&record.value))).transpose()
        })
        .await
    }

    /// Reads records of a ledger by their keys.
    ///
    /// # Errors
    /// Those of [`Reads::describe`]; `INVALID_ARGUMENT` for keys that are none of the ledger's, or
    /// of envelopes; `PURGED_JOURNAL` for a leaf that the version has, and that a purge has swept
    /// since then.
    pub async fn ledger_records(
        &self,
        request: &v1::GetLedgerRecordsRequest,
        sight: &Sight,
    ) -> Result<v1::GetLedgerRecordsResponse, Status> {
        if !(1..=RECORDS_MAX).contains(&request.keys.len()) {
            let message = format!("keys are 1 to {RECORDS_MAX}, found {}", request.keys.len());
            return Err(Refusal::invalid(message).into());
        }
        let read = &request.read.unwrap_or_default();
        self.retry(read, |located, deadline| async move {
            let Found { id, head, .. } = self.find(&located, request.ledger.as_ref(), deadline).await?;
            self.sight_of(&located, id, sight, deadline).await?;
            if let Some(key) = request.keys.iter().find(|key| !is_record_of(id, key)) {
                let key = key.escape_ascii();
                return Err(Refusal::invalid(format!("not the key of a record that can be read: \"{key}\"")).into());
            }
            let answer = self.get_at(located.clone(), &request.keys, read, deadline).await?;
            // What head has no more is given at no version. That it is gone is given at every one.
            let found = answer.records.iter().filter(|record| record.found);
            let leaves: Vec<u64> = found.filter_map(|record| jsn_of_leaf(id, &record.key)).collect();
            self.check_swept((&located, head.purged), id, &leaves, deadline).await?;
            let record = |record: v1::Record| {
                (record.key.clone(), v1::LedgerRecord { key: record.key, value: record.found.then_some(record.value) })
            };
            let records: BTreeMap<Bytes, v1::LedgerRecord> = answer.records.into_iter().map(record).collect();
            Ok(v1::GetLedgerRecordsResponse {
                records: records.into_values().collect(),
                read_at: answer.read_at,
                proof: answer.proof,
            })
        })
        .await
    }

    /// The number below which journals may be swept, and those of `jsns` that are, as head has it:
    /// an older version gives nothing that head does not give. `purged` is what `located` says.
    async fn swept(
        &self,
        (located, purged): (&Located, u64),
        ledger: LedgerId,
        jsns: impl Iterator<Item = u64>,
        deadline: Instant,
    ) -> Result<(u64, BTreeSet<u64>), Status> {
        let head = self.head_of(located).await?;
        let purged = if head.stamp == located.stamp {
            purged
        } else {
            let record = self.record(&head, head_key(ledger), deadline).await?;
            record.map_or(Ok(0), |record| decoded(Head::decode(&record.value)).map(|head| head.purged))?
        };
        let old: BTreeSet<u64> = jsns.filter(|jsn| *jsn < purged).collect();
        if old.is_empty() {
            return Ok((purged, old));
        }
        let kept = self.records(&head, old.iter().map(|jsn| leaf_key(ledger, *jsn)), deadline).await?;
        let is_swept = |jsn: &u64| !kept.contains_key(&leaf_key(ledger, *jsn)[..]);
        Ok((purged, old.into_iter().filter(is_swept).collect()))
    }

    /// Refuses journals that a purge has swept.
    async fn check_swept(
        &self,
        at: (&Located, u64),
        ledger: LedgerId,
        jsns: &[u64],
        deadline: Instant,
    ) -> Result<(), Status> {
        let (purged, swept) = self.swept(at, ledger, jsns.iter().copied(), deadline).await?;
        swept.first().map_or(Ok(()), |jsn| Err(swept_refusal(*jsn, purged).into()))
    }

    /// The leaves of these journals at head, without those that are not there.
    ///
    /// # Errors
    /// Those of reads.
    pub async fn leaves_at_head(&self, ledger: LedgerId, jsns: Range<u64>) -> Result<Vec<Leaf>, Status> {
        let jsns = &jsns;
        self.retry(&v1::ReadOptions::default(), |located, deadline| async move {
            let leaves = self.leaves(&located, ledger, jsns.clone(), deadline).await?;
            Ok(leaves.into_values().map(|(_, leaf)| leaf).collect())
        })
        .await
    }

    /// The versions of these journals, with the timestamps of their headers in milliseconds. A
    /// journal that is not there at head is left out.
    ///
    /// # Errors
    /// Those of reads.
    pub async fn times_of_journals(&self, ledger: LedgerId, jsns: &[u64]) -> Result<Vec<(Version, u64)>, Status> {
        if jsns.is_empty() {
            return Ok(Vec::new());
        }
        self.retry(&v1::ReadOptions::default(), |located, deadline| async move {
            let leaves = self.leaves(&located, ledger, jsns.iter().copied(), deadline).await?;
            let stamps: BTreeSet<Stamp> = leaves.into_values().map(|(_, leaf)| leaf.stamp).collect();
            let mut times = Vec::new();
            for stamp in stamps {
                let (_, header) = self.commit_header(&located.view, stamp).await?;
                times.push((stamp.version, wire::header_in(&header)?.timestamp_ms));
            }
            Ok(times)
        })
        .await
    }

    /// Finds an order, and the shards of the journals that it occulted.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such ledger or journal; `INVALID_ARGUMENT` if the journal is no
    /// order; `NOT_A_MEMBER` if the caller may not see the ledger.
    pub async fn ordered(&self, request: &v1::ErasureStatusRequest, sight: &Sight) -> Result<OrderPlace, Status> {
        self.retry(&v1::ReadOptions::default(), |located, deadline| async move {
            let Found { id, .. } = self.find(&located, request.ledger.as_ref(), deadline).await?;
            self.sight_of(&located, id, sight, deadline).await?;
            let keys = [leaf_key(id, request.jsn), envelope_key(id, request.jsn)];
            let records = self.records(&located, keys.clone(), deadline).await?;
            let unknown = || Refusal::new(Reason::NotFound, format!("there is no journal {}", request.jsn));
            let leaf = decoded(Leaf::decode(&records.get(&keys[0][..]).ok_or_else(unknown)?.value))?;
            if leaf.kind != ORDER {
                return Err(Refusal::invalid(format!("journal {} is no order", request.jsn)).into());
            }
            let envelope = records.get(&keys[1][..]).ok_or_else(|| wire::broken("ledger: an envelope is missing"))?;
            let Ordered { order, .. } = decoded(Ordered::decode(&decoded(Envelope::decode(&envelope.value))?.payload))?;
            let shard = |target: &Target| located.leaves.route(&envelope_key(id, target.jsn));
            if order.targets().is_empty() {
                return Err(Refusal::invalid(format!("the order in journal {} occults nothing", request.jsn)).into());
            }
            Ok(OrderPlace { stamp: leaf.stamp, shards: order.targets().iter().map(shard).collect() })
        })
        .await
    }

    /// Describes a ledger: its size, root, and what founded it.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such ledger; `NOT_A_MEMBER` if the caller may not see it.
    pub async fn describe(
        &self,
        request: &v1::DescribeLedgerRequest,
        sight: &Sight,
    ) -> Result<v1::DescribeLedgerResponse, Status> {
        let read = &request.read.unwrap_or_default();
        self.retry(read, |located, deadline| async move {
            let Found { id, head, .. } = self.find(&located, request.ledger.as_ref(), deadline).await?;
            self.sight_of(&located, id, sight, deadline).await?;
            let mut keys = vec![Bytes::from(head_key(id)), founding_key(id).into()];
            if let Some(v1::ledger_name::Which::Name(name)) = request.ledger.as_ref().and_then(|it| it.which.as_ref()) {
                keys.push(name_key(name).into());
            }
            let stamp = located.stamp;
            let answer = self.get_at(located, &keys, read, deadline).await?;
            let founding = answer.records.into_iter().nth(1).ok_or_else(|| wire::broken("read"))?.value;
            Ok(v1::DescribeLedgerResponse {
                id: Bytes::copy_from_slice(id.as_bytes()),
                size: head.edge.size(),
                root: convert::to_digest(&head.edge.root()),
                purged: head.purged,
                closed: head.is_closed,
                founding,
                read_at: Some(convert::to_stamp(stamp)),
                proof: answer.proof,
            })
        })
        .await
    }

    /// Reads a member's record.
    ///
    /// # Errors
    /// Those of [`Reads::describe`].
    pub async fn member(&self, request: &v1::GetMemberRequest, sight: &Sight) -> Result<v1::GetMemberResponse, Status> {
        let read = &request.read.unwrap_or_default();
        self.retry(read, |located, deadline| async move {
            let id = match MemberId::from_slice(&request.id) {
                Some(id) if request.member.is_empty() => id,
                None if request.id.is_empty() => {
                    check_name(&request.member, "member")?;
                    member_id(&request.member)
                }
                _ => return Err(Refusal::invalid("give a member's name, or its id of 16 bytes").into()),
            };
            let Found { id: ledger, .. } = self.find(&located, request.ledger.as_ref(), deadline).await?;
            self.sight_of(&located, ledger, sight, deadline).await?;
            let keys = [Bytes::from(member_key(ledger, id))];
            let answer = self.get_at(located, &keys, read, deadline).await?;
            let record = answer.records.into_iter().next().ok_or_else(|| wire::broken("read"))?;
            Ok(v1::GetMemberResponse {
                id: Bytes::copy_from_slice(id.as_bytes()),
                record: record.value,
                read_at: answer.read_at,
                proof: answer.proof,
            })
        })
        .await
    }

    /// Streams the names of ledgers. A member sees the ledgers that have it.
    ///
    /// # Errors
    /// The refusal of the first step that fails, even in the middle of the stream.
    pub async fn ledgers(
        &self,
        request: &v1::ListLedgersRequest,
        sight: &Sight,
        sink: &Sink<v1::ListLedgersResponse>,
    ) -> Result<(), Status> {
        let low = match request.after.as_str() {
            "" => name_key(""),
            // The smallest name behind this one.
            after => [&key_of_name(after)?[..], &[0]].concat(),
        };
        let read = request.read.unwrap_or_default();
        let located = self.locate_list(&read).await?;
        let mut left = if request.limit == 0 { u32::MAX } else { request.limit };
        for index in located.leaves.overlapping(&low, Some(&name_end())) {
            let mut pages = self.scan_range(&located, index, (&low, Some(&name_end())), (u32::MAX, false), false);
            while let Some(page) = pages.next().await? {
                for record in self.seen(&located, page.records, sight).await? {
                    if left == 0 {
                        return Ok(());
                    }
                    left -= 1;
                    let name = std::str::from_utf8(&record.key[2..]).map_err(|_| wire::broken("name of a ledger"))?;
                    send(sink, v1::ListLedgersResponse { name: name.to_owned(), id: record.value }).await?;
                }
            }
        }
        Ok(())
    }

    /// The state that a list shows.
    async fn locate_list(&self, read: &v1::ReadOptions) -> Result<Located, Status> {
        if read.want_proof {
            return Err(Refusal::invalid("a list has no proof: ask for the proof of one ledger or member").into());
        }
        self.locate(read, read.stale_ok).await
    }

    /// The ledgers of these names that a caller may see.
    async fn seen(
        &self,
        located: &Located,
        names: Vec<v1::ShardRecord>,
        sight: &Sight,
    ) -> Result<Vec<v1::ShardRecord>, Status> {
        let Sight::Member { name, is_auditor: false } = sight else { return Ok(names) };
        let member = member_id(name);
        let key = |record: &v1::ShardRecord| Some(member_key(LedgerId::from_slice(&record.value)?, member));
        let deadline = Instant::now() + self.read_timeout;
        let members = self.records(located, names.iter().filter_map(key), deadline).await?;
        Ok(names.into_iter().filter(|name| key(name).is_some_and(|key| members.contains_key(&key[..]))).collect())
    }

    /// Streams the members and agents of a ledger.
    ///
    /// # Errors
    /// Those of [`Reads::describe`].
    pub async fn members(
        &self,
        request: &v1::ListMembersRequest,
        sight: &Sight,
        sink: &Sink<v1::ListMembersResponse>,
    ) -> Result<(), Status> {
        let read = request.read.unwrap_or_default();
        let located = self.locate_list(&read).await?;
        let deadline = Instant::now() + self.read_timeout;
        let Found { id: ledger, .. } = self.find(&located, request.ledger.as_ref(), deadline).await?;
        self.sight_of(&located, ledger, sight, deadline).await?;
        let (low, high) = (member_key(ledger, MemberId::default()), member_end(ledger));
        let mut left = if request.limit == 0 { u32::MAX } else { request.limit };
        for index in located.leaves.overlapping(&low, Some(&high)) {
            let mut pages = self.scan_range(&located, index, (&low, Some(&high)), (u32::MAX, false), false);
            while let Some(page) = pages.next().await? {
                for record in page.records {
                    if left == 0 {
                        return Ok(());
                    }
                    left -= 1;
                    let id = record.key.slice(record.key.len().saturating_sub(size_of::<MemberId>())..);
                    send(sink, v1::ListMembersResponse { id, record: record.value }).await?;
                }
            }
        }
        Ok(())
    }
}

fn swept_refusal(jsn: u64, purged: u64) -> Refusal {
    let message = format!("journal {jsn} was purged; all journals from {purged} on are there");
    Refusal::new(Reason::PurgedJournal, message)
}

/// The number of the journal whose leaf has this key.
fn jsn_of_leaf(ledger: LedgerId, key: &[u8]) -> Option<u64> {
    let jsn = u64::from_be_bytes(*key.last_chunk()?);
    (leaf_key(ledger, jsn) == key).then_some(jsn)
}

/// The key of a ledger's name.
fn key_of_name(name: &str) -> Result<Vec<u8>, Refusal> {
    check_name(name, "ledger")?;
    Ok(name_key(name))
}

fn check_name(name: &str, of: &str) -> Result<(), Refusal> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Refusal::invalid(format!("the name of a {of} has 1 to {NAME_BYTES_MAX} bytes, found {}", name.len())))
}

/// A record's value. One that does not decode comes from a broken node.
fn decoded<T>(value: Result<T, codec::Error>) -> Result<T, Status> {
    value.map_err(|_| wire::broken("record of a ledger"))
}

/// The hash that a tile holds at a place.
fn digest_at(hashes: &[u8], at: usize) -> Option<Digest> {
    Digest::from_slice(hashes.get(at * size_of::<Digest>()..)?.get(..size_of::<Digest>())?)
}
