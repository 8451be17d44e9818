//! Ledgers of members: requests that a member signs, and answers about what a ledger holds.
//!
//! An [`Author`] signs for one member in one of its lanes. A lane applies its requests in the order
//! of their numbers, each once. So a request whose answer was lost is sent again unchanged.
//!
//! If the client trusts a key, each answer must be proven: an append by a receipt that shows all
//! its journals as they were signed, a read by a proof of exactly what was asked for.

use coppice_proto::v1;
use coppice_types::{ClusterId, Digest, Epoch, LedgerId, MemberId, Reason, Stamp};
use coppice_verify::{
    check::{self, Answer, Claim, Journal, QueryClaim, Question, Subject},
    checkpoint::Checkpoint,
    hash::{clue_hash, ledger_id, member_id, sha256},
    ledgers::{
        Condition, DATA, Envelope, FOUNDING, Founding, Item, Leaf, MEMBERS, Member, MemberChange, NONCE_BYTES, Request,
        Signed,
    },
    note::SignerKey,
};

use crate::{
    Client, Error,
    trust::{Asking, Seen, decoded},
};

mod orders;
mod purges;
mod trusted;

pub use orders::{Erasure, GivenOrder};
pub use purges::{Affected, PurgeDraft};

/// The place of the journals of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// The version that has the journals.
    pub stamp: Stamp,
    /// Number of the first journal. The others follow without gaps.
    pub first_jsn: u64,
    /// A checkpoint that covers the version. It is verified if a key is trusted.
    pub checkpoint: Checkpoint,
    /// The receipt, a proof file; empty unless it was asked for.
    pub receipt: bytes::Bytes,
    /// Whether the request had been applied before.
    pub replayed: bool,
}

/// The options of a read of journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The payloads.
    pub payload: bool,
    /// The bytes that the authors signed. A proof then verifies their signatures.
    pub request: bool,
    /// A proof file, also if no key is trusted.
    pub proof: bool,
}

/// A journal of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerJournal {
    /// Its leaf.
    pub leaf: Leaf,
    /// Its content; `None` if it was not asked for, or is occulted.
    pub envelope: Option<Envelope>,
    /// Number of the journal whose order occulted this one; `None` if none did, or if no content
    /// was asked for. If a key is trusted, mark and order are proven.
    pub occulted_by: Option<u64>,
}

/// Journals of a ledger, as a version has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journals {
    /// The journals.
    pub journals: Vec<LedgerJournal>,
    /// Number of journals with the clue; or of the ledger, in a version that may be older than head
    /// ([`Client::describe_ledger`] says how many it has at head).
    pub count: u64,
    /// In a lineage: number of the oldest journals with the clue that a purge has swept. Those of
    /// them that it has kept are among the journals.
    pub gone: u64,
    /// The proof file; empty unless it was asked for.
    pub proof: bytes::Bytes,
}

/// Journals as a server told them.
struct Told {
    journals: Journals,
    /// If a key is trusted: the question, and the cluster that they are proven to be of.
    proven: Option<(Asking, ClusterId)>,
    /// The proof of the marks of those that are occulted.
    marks_proof: bytes::Bytes,
}

/// Names a ledger in a request by its id.
#[must_use]
pub fn ledger_name(ledger: LedgerId) -> v1::LedgerName {
    let which = v1::ledger_name::Which::Id(bytes::Bytes::copy_from_slice(ledger.as_bytes()));
    v1::LedgerName { which: Some(which) }
}

/// A coordinator's own verdict on a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalVerdict {
    /// The step that failed; `None` if the journal is valid.
    pub failed: Option<String>,
    /// The journal's leaf.
    pub leaf: Leaf,
    /// The checkpoint for which the verdict holds.
    pub checkpoint: Checkpoint,
}

/// Reads a journal of an answer.
fn journal(journal: &v1::LedgerJournal, payload: bool) -> Result<LedgerJournal, Error> {
    let occulted_by = journal.occulted_by.filter(|_| payload);
    let leaf = Leaf::decode(&journal.leaf).map_err(|_| Error::Malformed("leaf of a journal"))?;
    let given = payload && occulted_by.is_none();
    let envelope = given.then(|| Envelope::decode(&journal.envelope)).transpose();
    let envelope = envelope.map_err(|_| Error::Malformed("envelope of a journal"))?;
    let fits = leaf.jsn == journal.jsn && envelope.as_ref().is_none_or(|it| it.commitment() == leaf.commitment);
    if fits { Ok(LedgerJournal { leaf, envelope, occulted_by }) } else { Err(Error::Malformed("journal")) }
}

/// Whether an answer shows the journals that its proof shows.
fn same(told: &[LedgerJournal], proven: &[Journal], wanted: Wanted) -> bool {
    told.len() == proven.len()
        && told.iter().zip(proven).all(|(told, proven)| {
            let signed = !wanted.request || proven.signed.is_some();
            told.leaf == proven.leaf && told.envelope == proven.envelope && signed
        })
}

impl Client {
    /// Sends a signed request. It may be sent again until it is answered: a lane applies a number
    /// once. The answer has a receipt if one was asked for, or if a key is trusted.
    ///
    /// # Errors
    /// If a key is trusted, also [`Error::Unproven`] or [`Error::Untrusted`] if the receipt does
    /// not show the journals of this request.
    pub async fn append(&self, request: &Request, want_receipt: bool) -> Result<Appended, Error> {
        let item = |item: &Item| v1::LedgerItem { kind: item.kind.into(), envelope: item.envelope.encode().into() };
        let message = v1::AppendRequest {
            signed: request.signed.clone().into(),
            signature: request.signature.to_vec().into(),
            items: request.items.iter().map(item).collect(),
            want_receipt: want_receipt || self.trust.is_some(),
        };
        let asking = self.asking();
        let answer = self.call_append(message).await?;
        let stamp = answer.stamp.ok_or(Error::Malformed("no version"))?;
        let mut appended = Appended {
            ledger: LedgerId::from_slice(&answer.ledger).ok_or(Error::Malformed("id of a ledger"))?,
            stamp: Stamp::new(stamp.epoch, stamp.version),
            first_jsn: answer.first_jsn,
            checkpoint: Checkpoint::claimed(&answer.checkpoint).map_err(|_| Error::Malformed("checkpoint"))?,
            receipt: answer.receipt,
            replayed: answer.replayed,
        };
        if let Some(asking) = asking {
            let checked = self.check_append(&asking, request, &appended).await;
            appended.checkpoint = checked.map_err(Error::after_commit)?;
        }
        Ok(appended)
    }

    /// Checks a receipt, which must show all journals of the request as they were signed. Returns
    /// its checkpoint.
    async fn check_append(&self, asking: &Asking, request: &Request, told: &Appended) -> Result<Checkpoint, Error> {
        let file = decoded(&told.receipt)?;
        let question = Question::about(Subject::Request(sha256(&request.signed)));
        let claim = self.trust_claim(asking, &file, &question, false).await?;
        let Claim::Journals(claim) = claim else { return Err(Error::Untrusted("the receipt is of another kind")) };
        let sent = request.items.iter().map(|item| item.envelope.commitment());
        let signed = Signed::decode(&request.signed).map_err(|_| Error::Malformed("request that was sent"))?;
        let whole = claim.ledger == told.ledger
            && (signed.founds() || signed.ledger == told.ledger)
            && claim.journals.iter().all(|journal| journal.signed.as_ref() == Some(&signed))
            && claim.journals.iter().all(|journal| journal.leaf.signature == request.signature)
            && claim.journals[0].leaf.jsn == told.first_jsn
            && claim.journals[0].leaf.stamp == told.stamp
            && claim.journals.iter().map(|journal| journal.leaf.commitment).eq(sent);
        if !whole {
            return Err(Error::Untrusted("the receipt is for other journals than the answer"));
        }
        Checkpoint::claimed(&file.proof.log().checkpoint).map_err(|_| Error::Malformed("checkpoint"))
    }

    /// Describes a ledger.
    ///
    /// # Errors
    /// If a key is trusted, also [`Error::Unproven`] or [`Error::Untrusted`] if the proof does not
    /// hold.
    pub async fn describe_ledger(
        &self,
        mut request: v1::DescribeLedgerRequest,
    ) -> Result<v1::DescribeLedgerResponse, Error> {
        self.settle_time(&mut request.read).await?;
        let read = request.read.get_or_insert_default();
        read.want_proof |= self.trust.is_some();
        let at = read.at;
        let (asking, named) = (self.asking(), request.ledger.clone());
        let answer = self.call_describe_ledger(request).await?;
        if let Some(asking) = asking {
            self.check_description(&asking, (named, at), &answer).await?;
        }
        Ok(answer)
    }

    async fn check_description(
        &self,
        asking: &Asking,
        (named, at): (Option<v1::LedgerName>, Option<v1::Stamp>),
        told: &v1::DescribeLedgerResponse,
    ) -> Result<(), Error> {
        use coppice_verify::ledgers::{Head, founding_key, head_key, name_key};
        let id = LedgerId::from_slice(&told.id).ok_or(Error::Malformed("id of a ledger"))?;
        let name = match named.and_then(|named| named.which) {
            Some(v1::ledger_name::Which::Name(name)) => Some(name_key(&name)),
            Some(v1::ledger_name::Which::Id(asked)) if asked != told.id => {
                return Err(Error::Untrusted("it describes another ledger"));
            }
            _ => None,
        };
        let (head, founding) = (head_key(id), founding_key(id));
        let file = decoded(&told.proof)?;
        let asked = [Some(&head), Some(&founding), name.as_ref()].into_iter().flatten().map(Vec::as_slice).collect();
        let claim = self.trust_claim(asking, &file, &Question::about(Subject::Keys(asked)), at.is_none()).await?;
        let stamp = claim_stamp(&claim).ok_or(Error::Untrusted("the proof is of another kind"))?;
        let same_stamp = |other: &v1::Stamp| stamp == Stamp::new(other.epoch, other.version);
        if !told.read_at.as_ref().is_some_and(same_stamp) || at.is_some_and(|at| at.version != stamp.version.0) {
            return Err(Error::Untrusted("the proof is for another version"));
        }
        let value = |key: &[u8]| proven_value(&claim, key)?.ok_or(Error::Untrusted("the proof has no such record"));
        let proven = Head::decode(value(&head)?).map_err(|_| Error::Malformed("head of a ledger"))?;
        let same = (proven.edge.size(), proven.purged, proven.is_closed) == (told.size, told.purged, told.closed)
            && proven.edge.root().as_bytes()[..] == told.root[..]
            && value(&founding)? == &told.founding[..]
            && name
                .as_ref()
                .is_none_or(|name| matches!(proven_value(&claim, name), Ok(Some(id)) if id == &told.id[..]));
        if same { Ok(()) } else { Err(Error::Untrusted("the answer and its proof disagree")) }
    }

    /// Reads a member's record; `None` if the ledger has no such member.
    ///
    /// # Errors
    /// Like [`Client::describe_ledger`].
    pub async fn ledger_member(&self, ledger: LedgerId, name: &str) -> Result<Option<Member>, Error> {
        self.member_record(ledger, member_id(name), Some(name)).await
    }

    /// Reads `limit` journals from `from` on, or fewer at the end of the ledger. With `known`, the
    /// proof must show that the ledger has only grown since that size and root.
    ///
    /// # Errors
    /// Like [`Client::describe_ledger`].
    pub async fn journals(
        &self,
        ledger: LedgerId,
        (from, limit): (u64, u32),
        wanted: Wanted,
        known: Option<(u64, Digest)>,
    ) -> Result<Journals, Error> {
        let told = self.journals_told(ledger, (from, limit), wanted, known).await?;
        if let Some((asking, _)) = told.proven {
            self.check_occulted(&asking, ledger, &told.journals.journals, &told.marks_proof).await?;
        }
        Ok(told.journals)
    }

    /// Reads journals. The caller checks that an order has occulted each journal without content.
    async fn journals_told(
        &self,
        ledger: LedgerId,
        (from, limit): (u64, u32),
        wanted: Wanted,
        known: Option<(u64, Digest)>,
    ) -> Result<Told, Error> {
        let want_proof = wanted.proof || self.trust.is_some();
        // Every list is a continuation of the empty one.
        let known = known.filter(|(size, _)| *size > 0);
        let request = v1::GetJournalsRequest {
            ledger: Some(ledger_name(ledger)),
            from_jsn: from,
            limit,
            want_payload: wanted.payload,
            want_request: wanted.request,
            known_size: known.map_or(0, |(size, _)| size),
            anchor_size: 0,
            read: Some(v1::ReadOptions { want_proof, ..v1::ReadOptions::default() }),
        };
        let asking = self.asking();
        let answer = self.journals_answered(ledger, request).await?;
        let journals = answer.journals.iter().map(|it| journal(it, wanted.payload)).collect::<Result<Vec<_>, _>>()?;
        let whole = answer.size.saturating_sub(from).min(u64::from(limit));
        // The answer ends before the first journal that a purge has swept.
        let count = whole.min(answer.journals.len() as u64).max(1);
        if count < whole && asking.is_some() {
            self.check_purged(ledger, from + count).await?;
        }
        if !journals.iter().map(|it| it.leaf.jsn).eq((from..).take(usize::try_from(count).unwrap_or(usize::MAX))) {
            return Err(Error::Malformed("other journals than were asked for"));
        }
        let mut proven = None;
        if let Some(asking) = asking {
            let file = decoded(&answer.proof)?;
            let subject = Subject::Journals { ledger, numbers: (from..from + count).collect(), known };
            let claim = self.trust_claim(&asking, &file, &Question::about(subject), false).await?;
            let Claim::Journals(claim) = claim else { return Err(Error::Untrusted("the proof is of another kind")) };
            let agrees = claim.size == answer.size && claim.root.as_bytes()[..] == answer.root[..];
            if !agrees || !same(&journals, &claim.journals, wanted) {
                return Err(Error::Untrusted("the answer and its proof disagree"));
            }
            proven = Some((asking, file.cluster));
        }
        let journals = Journals { journals, count: answer.size, gone: 0, proof: answer.proof };
        Ok(Told { journals, proven, marks_proof: answer.marks_proof })
    }

    /// Asks the coordinator for its own verdict on a journal and, if one is given, its payload. The
    /// answer is the coordinator's word: [`Client::journals`] verifies a proof instead.
    ///
    /// # Errors
    /// Those of a read. A journal that does not hold is no error.
    pub async fn journal_verdict(
        &self,
        ledger: LedgerId,
        jsn: u64,
        payload: Option<&[u8]>,
    ) -> Result<JournalVerdict, Error> {
        let request = v1::VerifyJournalRequest {
            ledger: Some(ledger_name(ledger)),
            jsn,
            payload: payload.map(bytes::Bytes::copy_from_slice),
            read: None,
        };
        let answer = self.call_verify_journal(request).await?;
        let leaf = Leaf::decode(&answer.leaf).map_err(|_| Error::Malformed("leaf of a journal"))?;
        let checkpoint = Checkpoint::claimed(&answer.checkpoint).map_err(|_| Error::Malformed("checkpoint"))?;
        if (leaf.ledger, leaf.jsn) != (ledger, jsn) || answer.valid != answer.failed.is_empty() {
            return Err(Error::Malformed("verdict on a journal"));
        }
        Ok(JournalVerdict { failed: Some(answer.failed).filter(|failed| !failed.is_empty()), leaf, checkpoint })
    }

    /// Reads the journals with a clue, newest first: all of them, or only a number of the newest.
    ///
    /// # Errors
    /// Like [`Client::describe_ledger`].
    pub async fn lineage(
        &self,
        ledger: LedgerId,
        clue: &[u8],
        newest: Option<u32>,
        wanted: Wanted,
    ) -> Result<Journals, Error> {
        let want_proof = wanted.proof || self.trust.is_some();
        // In a request, 0 asks for all.
        let newest = newest.filter(|newest| *newest > 0);
        let request = v1::GetLineageRequest {
            ledger: Some(ledger_name(ledger)),
            clue: bytes::Bytes::copy_from_slice(clue),
            newest: newest.unwrap_or(0),
            want_payload: wanted.payload,
            want_request: wanted.request,
            read: Some(v1::ReadOptions { want_proof, ..v1::ReadOptions::default() }),
        };
        let asking = self.asking();
        let answer = self.get_lineage(request).await?;
        let journals = answer.journals.iter().map(|it| journal(it, wanted.payload)).collect::<Result<Vec<_>, _>>()?;
        let most = newest.map_or(answer.count, |newest| answer.count.min(newest.into()));
        // Of the oldest ones a purge may have kept any.
        let least = answer.count - (answer.count - most).max(answer.gone.min(answer.count));
        let descend = journals.is_sorted_by(|a, b| a.leaf.jsn > b.leaf.jsn);
        if !(least..=most).contains(&(journals.len() as u64)) || !descend {
            return Err(Error::Malformed("other journals than were asked for"));
        }
        if let Some(asking) = asking {
            let file = decoded(&answer.proof)?;
            let subject = Subject::Lineage { ledger, clue: clue_hash(ledger, clue), newest: newest.map(u64::from) };
            let claim = self.trust_claim(&asking, &file, &Question::about(subject), true).await?;
            let Claim::Lineage(claim) = claim else { return Err(Error::Untrusted("the proof is of another kind")) };
            if (claim.count, claim.gone) != (answer.count, answer.gone) || !same(&journals, &claim.journals, wanted) {
                return Err(Error::Untrusted("the answer and its proof disagree"));
            }
            self.check_occulted(&asking, ledger, &journals, &answer.marks_proof).await?;
        }
        Ok(Journals { journals, count: answer.count, gone: answer.gone, proof: answer.proof })
    }

    /// The cluster's id. It is not verified.
    ///
    /// # Errors
    /// Those of calls.
    pub async fn cluster(&self) -> Result<ClusterId, Error> {
        ClusterId::from_slice(&self.head().await?.cluster_id).ok_or(Error::Malformed("cluster id"))
    }

    /// The root log and epoch that a request signed now names: the newest checkpoint, verified if a
    /// key is trusted.
    async fn seen(&self) -> Result<(ClusterId, Epoch, Checkpoint), Error> {
        let Some(trust) = &self.trust else {
            let head = self.head().await?;
            let cluster = ClusterId::from_slice(&head.cluster_id).ok_or(Error::Malformed("cluster id"))?;
            let epoch = head.stamp.ok_or(Error::Malformed("no head"))?.epoch;
            let checkpoint = Checkpoint::claimed(&head.checkpoint).map_err(|_| Error::Malformed("checkpoint"))?;
            return Ok((cluster, Epoch(epoch), checkpoint));
        };
        // A proof of growth shows the newest header, and all changes of the key.
        let (keys, old_size) = (trust.keys(), trust.seen().max(1));
        let standing = self.checkpoint(old_size).await?.standing;
        let file = decoded(&standing)?;
        let cluster = file.cluster;
        let verified = check::verify_known(&file, &keys, None, &Question::about(Subject::Growth(old_size)))?;
        let (checkpoint, epoch) = (verified.checkpoint.clone(), verified.newest.stamp.epoch);
        if checkpoint.size < old_size {
            return Err(Error::Untrusted("it is older than what this client had seen before it asked"));
        }
        self.follow(trust, Seen { checkpoint: checkpoint.clone(), keys: verified.keys }).await?;
        Ok((cluster, epoch, checkpoint))
    }

    /// Founds a ledger. `founder` is the name of the member whose key this is.
    ///
    /// # Errors
    /// Those of [`Client::append`].
    pub async fn found_ledger(
        &self,
        key: &SignerKey,
        founder: &str,
        founding: &Founding,
        nonce: [u8; NONCE_BYTES],
    ) -> Result<Appended, Error> {
        let (cluster, epoch, seen) = self.seen().await?;
        let envelope = Envelope { nonce, clues: Vec::new(), payload: founding.encode() };
        let (ledger, member) = (LedgerId::default(), member_id(founder));
        let place = Place { cluster, ledger, member, agent: None, lane: 0 };
        let request = place.sign(1, (epoch, &seen), vec![Item { kind: FOUNDING, envelope }], Vec::new(), key);
        let appended = self.append(&request, false).await?;
        let id = ledger_id(cluster, &request.signed, founding.spread);
        if appended.ledger == id { Ok(appended) } else { Err(Error::Malformed("id of a ledger")) }
    }

    /// A hand that signs for a member in one of its lanes. It begins behind the newest request of
    /// the lane. `None` if the ledger has no such member or agent.
    ///
    /// # Errors
    /// Those of [`Client::ledger_member`].
    pub async fn author(
        &self,
        ledger: LedgerId,
        member: &str,
        lane: u8,
        key: SignerKey,
    ) -> Result<Option<Author>, Error> {
        let Some(record) = self.ledger_member(ledger, member).await? else { return Ok(None) };
        let (cluster, epoch, seen) = self.seen().await?;
        let (member, agent) = match &record.agency {
            None => (member_id(member), None),
            Some(agency) => (agency.principal, Some(member_id(member))),
        };
        let number = record.lane(lane) + 1;
        let place = Place { cluster, ledger, member, agent, lane };
        Ok(Some(Author { client: self.clone(), key, place, epoch, seen, number, pending: None }))
    }
}

/// The value of a key in a proven claim; `None` if it has none.
///
/// # Errors
/// If the proof does not show the value: a record without its value does not prove an absence.
fn proven_value<'c>(claim: &'c Claim<'_>, key: &[u8]) -> Result<Option<&'c [u8]>, Error> {
    let bare = Error::Untrusted("the proof leaves a record or its value out");
    let Claim::Query(QueryClaim { answer: Answer::Keys(shown), .. }) = claim else { return Err(bare) };
    match shown.binary_search_by(|(shown, _)| (**shown).cmp(key)) {
        Ok(at) => match &shown[at].1 {
            None => Ok(None),
            Some(record) => record.value.as_deref().map(Some).ok_or(bare),
        },
        Err(_) => Err(bare),
    }
}

/// The stamp of the version that a query is proven in.
fn claim_stamp(claim: &Claim<'_>) -> Option<Stamp> {
    match claim {
        Claim::Query(claim) => Some(claim.header.stamp),
        _ => None,
    }
}

/// The place of an author: the fields that are equal in all its requests.
#[derive(Clone, Copy, Debug)]
struct Place {
    cluster: ClusterId,
    ledger: LedgerId,
    member: MemberId,
    agent: Option<MemberId>,
    lane: u8,
}

impl Place {
    /// A request of this number, by an author that has seen this epoch and checkpoint.
    fn sign(
        self,
        number: u64,
        (epoch, seen): (Epoch, &Checkpoint),
        items: Vec<Item>,
        conditions: Vec<Condition>,
        key: &SignerKey,
    ) -> Request {
        let Self { cluster, ledger, member, agent, lane } = self;
        let signed = Signed {
            cluster,
            ledger,
            member,
            agent,
            lane,
            number,
            epoch,
            seen_size: seen.size,
            seen_root: seen.root,
            conditions,
            items: 0,
            items_root: Digest::default(),
        };
        signed.sign(key, items)
    }
}

/// Signs requests for one member in one of its lanes.
#[derive(Debug)]
pub struct Author {
    client: Client,
    key: SignerKey,
    place: Place,
    epoch: Epoch,
    /// The newest checkpoint that the author has seen.
    seen: Checkpoint,
    /// Number of the next request.
    number: u64,
    /// The request of this number, if its outcome is unknown.
    pending: Option<Request>,
}

impl Author {
    /// Number of the next request in the lane.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Looks at the newest checkpoint and epoch again. Later requests name those.
    ///
    /// # Errors
    /// Those of calls.
    pub async fn look(&mut self) -> Result<(), Error> {
        let (_, epoch, seen) = self.client.seen().await?;
        (self.epoch, self.seen) = (epoch, seen);
        Ok(())
    }

    /// The next request of the lane, signed and not sent. It can be kept and sent by
    /// [`Client::append`] as often as needed.
    #[must_use]
    pub fn request(&self, items: Vec<Item>, conditions: Vec<Condition>) -> Request {
        self.place.sign(self.number, (self.epoch, &self.seen), items, conditions, &self.key)
    }

    /// Appends journals with data, in one request. If the outcome of the one before is unknown,
    /// that one is sent again first.
    ///
    /// # Errors
    /// Those of [`Client::append`]. After a refusal the number of the lane is not used up. If the
    /// request before is refused by `LANE`, another author has used the lane, and this author can't
    /// be used any more: the ledger's journals show whether the request was applied.
    pub async fn append(
        &mut self,
        envelopes: Vec<Envelope>,
        conditions: Vec<Condition>,
        want_receipt: bool,
    ) -> Result<Appended, Error> {
        let items = envelopes.into_iter().map(|envelope| Item { kind: DATA, envelope }).collect();
        self.send(items, conditions, want_receipt).await
    }

    /// Changes members. The changes hold from the next journal on.
    ///
    /// # Errors
    /// Those of [`Author::append`].
    pub async fn change_members(
        &mut self,
        changes: &[MemberChange],
        nonce: [u8; NONCE_BYTES],
        want_receipt: bool,
    ) -> Result<Appended, Error> {
        let payload = MemberChange::encode_all(changes);
        let envelope = Envelope { nonce, clues: Vec::new(), payload };
        self.send(vec![Item { kind: MEMBERS, envelope }], Vec::new(), want_receipt).await
    }

    async fn send(
        &mut self,
        items: Vec<Item>,
        conditions: Vec<Condition>,
        want_receipt: bool,
    ) -> Result<Appended, Error> {
        if let Some(pending) = self.pending.take() {
            // A refusal says that the request was not applied. It may have been applied only if
            // another author has used the lane since.
            let kept = pending.clone();
            match self.pass(pending, false).await {
                Err(error) if error.outcome_unknown() => return Err(error),
                Err(error) if error.reason() == Some(Reason::Lane) => {
                    self.pending = Some(kept);
                    return Err(error);
                }
                Ok(_) | Err(_) => {}
            }
        }
        let request = self.request(items, conditions);
        self.pass(request, want_receipt).await
    }

    /// Sends the request of the next number, and keeps it if its outcome is unknown.
    async fn pass(&mut self, request: Request, want_receipt: bool) -> Result<Appended, Error> {
        match self.client.append(&request, want_receipt).await {
            Ok(appended) => {
                self.number += 1;
                self.seen = appended.checkpoint.clone();
                Ok(appended)
            }
            Err(error) => {
                self.pending = error.outcome_unknown().then_some(request);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
