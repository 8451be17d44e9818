//! Requests of members: checked, verified and passed to the sequencer; and what a caller may see of
//! ledgers.
//!
//! Hashes and signatures are checked before a request takes a place in the queue. Whether the key
//! is the one in force is judged again where the request is applied.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use coppice_env::bug::{Bug, planted};
use coppice_process::access::{MemberSaid, member_of};
use coppice_proto::{convert, status, v1};
use coppice_types::{Digest, LedgerId, MemberId, Reason};
use coppice_verify::ledgers::{Checked, Content, ITEMS_MAX};
use tonic::Status;

use super::{
    intake::{Founded, answer},
    service::{Answer, Api},
};
use crate::{
    plan::{Request, check_append},
    read::{
        ledgers::{JOURNALS_MAX, Sight},
        reads::checked_proof,
    },
    write::command::{Command, Committed},
};

/// Limit on the number of remembered keys.
const KEYS_MAX: usize = 65_536;

const _: () = assert!(ITEMS_MAX <= JOURNALS_MAX as usize, "a receipt shows all journals of a request");

/// The keys under which members have signed lately. They save a read of the member's record; a key
/// that has ended is found out where the request is applied.
#[derive(Debug, Default)]
pub struct MemberKeys(Mutex<BTreeMap<(LedgerId, MemberId), [u8; 32]>>);

impl MemberKeys {
    fn get(&self, of: (LedgerId, MemberId)) -> Option<[u8; 32]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&of).copied()
    }

    fn remember(&self, of: (LedgerId, MemberId), key: [u8; 32]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEYS_MAX && !known.contains_key(&of) {
            known.clear();
        }
        known.insert(of, key);
    }

    fn forget(&self, of: (LedgerId, MemberId)) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&of);
    }
}

/// The names of a request, by which it is found if it was applied before.
struct Repeated {
    ledger: LedgerId,
    signer: MemberId,
    lane: u8,
    hash: Digest,
    /// Number of its items.
    items: u32,
}

impl Repeated {
    fn of(request: &Checked) -> Self {
        let Checked { ledger, hash, signed, .. } = request;
        Self { ledger: *ledger, signer: signed.signer(), lane: signed.lane, hash: *hash, items: signed.items }
    }
}

/// Whether the refusal may come from later requests, after this one was applied: a later number of
/// its lane, another key, role or epoch, or the name that it has founded.
fn may_be_repeated(error: &Status) -> bool {
    use Reason::{BadSignature, Lane, NotPossible, OrderIncomplete, RoleMissing, StaleView};
    let refused = status::reason(error);
    matches!(refused, Some(Lane | BadSignature | RoleMissing | StaleView | NotPossible | OrderIncomplete))
}

/// A caller's view of ledgers, by its certificate.
pub fn sight(request: &tonic::Extensions) -> Sight {
    match member_of(request) {
        MemberSaid::Unchecked => Sight::All,
        MemberSaid::Named { name, is_auditor } => Sight::Member { name, is_auditor },
        // The table of methods lets an auditor in.
        MemberSaid::Nobody => Sight::Hashes,
    }
}

impl Api {
    pub(super) async fn append_here(
        &self,
        request: v1::AppendRequest,
        caller: &str,
        limit: Duration,
    ) -> Answer<v1::AppendResponse> {
        let came = tokio::time::Instant::now();
        let done = self.append_request(request, caller, limit).await;
        self.intake.metrics.answered(came, done.as_ref().map(|done| done.replayed));
        done.map(tonic::Response::new)
    }

    async fn append_request(
        &self,
        request: v1::AppendRequest,
        caller: &str,
        limit: Duration,
    ) -> Result<v1::AppendResponse, Status> {
        let want_receipt = request.want_receipt;
        let founded = self.intake.genesis().await?;
        let checked = check_append(request, founded.cluster, &founded.params)?;
        let repeated = Repeated::of(&checked);
        let mut appended = match self.apply(checked, founded, (want_receipt, limit)).await {
            // It may have been refused because it was applied before.
            Err(error) if may_be_repeated(&error) => self.replayed(&repeated, error).await?,
            done => done?,
        };
        if want_receipt && appended.receipt.is_empty() {
            let receipt = self.receipt(repeated.items, &appended, caller).await.map_err(|error| {
                let told = format!("the journals are committed, their receipt could not be made: {}", error.message());
                status::refuse(status::reason(&error).unwrap_or(Reason::Unavailable), told)
            })?;
            appended.receipt = receipt;
        }
        Ok(appended)
    }

    /// Verifies a request, and waits until it is applied or refused.
    async fn apply(
        &self,
        mut checked: Checked,
        Founded { params, map, .. }: &Founded,
        (want_receipt, limit): (bool, Duration),
    ) -> Result<v1::AppendResponse, Status> {
        self.verify(&mut checked).await?;
        self.verify_approvals(&mut checked).await?;
        self.add_facts(&mut checked).await?;
        self.check_seen(&checked).await?;
        let (ledger, signer) = (checked.ledger, checked.signed.signer());
        let request = Arc::new(Request::append(checked, map, params)?);
        let (entry, receive) = self.intake.entry(request, want_receipt, limit)?;
        self.intake.send(Command::Commit(entry))?;
        let done = answer(receive, self.intake.patience()).await;
        let Committed { response, first_jsn } = done.inspect_err(|_| self.keys.forget((ledger, signer)))?;
        Ok(v1::AppendResponse {
            stamp: response.stamp,
            ledger: Bytes::copy_from_slice(ledger.as_bytes()),
            first_jsn: first_jsn.ok_or_else(|| status::refuse(Reason::Internal, "an append has no number"))?,
            checkpoint: response.checkpoint,
            // One that is too large is refused where it is read.
            receipt: checked_proof(response.receipt, params).unwrap_or_default(),
            ..v1::AppendResponse::default()
        })
    }

    /// Checks that the root log is the one that the signer has seen.
    async fn check_seen(&self, checked: &Checked) -> Result<(), Status> {
        let signed = &checked.signed;
        let root = self.intake.log.root_at(signed.seen_size).await?;
        if root == Some(signed.seen_root) {
            return Ok(());
        }
        let message = format!(
            "this root log never had the root that the request names for {} entries: if a checkpoint shows that \
             root, keep it, it is evidence of a fork",
            signed.seen_size
        );
        Err(status::refuse(Reason::StaleView, message))
    }

    /// Verifies the signature of a request under the signer's newest key.
    async fn verify(&self, checked: &mut Checked) -> Result<(), Status> {
        let wrong = || status::refuse(Reason::BadSignature, "the signature is not of the key in force of the signer");
        if let Content::Founding(founding) = &checked.content {
            let id = checked.signed.member;
            let founder = founding.members.iter().find(|grant| coppice_verify::hash::member_id(&grant.name) == id);
            let key = founder.map(|founder| founder.key).ok_or_else(|| {
                status::refuse(Reason::NotAMember, "the founding names no member that is the request's author")
            })?;
            return if checked.verify(&key) { Ok(()) } else { Err(wrong()) };
        }
        let of = (checked.ledger, checked.signed.signer());
        // An order is judged by many records, so what can be refused without them is refused here.
        let orders = matches!(checked.content, Content::Order(_));
        if !orders && self.keys.get(of).is_some_and(|key| checked.verify(&key)) {
            return Ok(());
        }
        let standing = self.reads.standing_at_head(of.0, of.1).await?;
        let Some(signer) = standing.signer else {
            return Err(status::refuse(Reason::NotAMember, "the ledger has no such member or agent"));
        };
        let key = signer.key_at(standing.size).copied().filter(|key| checked.verify(key)).ok_or_else(wrong)?;
        if let Content::Order(ordered) = &checked.content
            && let Some(role) = signer.lacks_for(&ordered.order.action)
        {
            return Err(status::refuse(Reason::RoleMissing, format!("the signer is not {role}")));
        }
        let next = signer.lane(checked.signed.lane) + 1;
        if orders && checked.signed.number > next {
            return Err(status::refuse(Reason::Lane, format!("the next request of this lane is number {next}")));
        }
        self.keys.remember(of, key);
        Ok(())
    }

    /// Verifies the approvals of an order under the newest keys of their members. An order with one
    /// that does not hold takes no place in the queue.
    async fn verify_approvals(&self, checked: &mut Checked) -> Result<(), Status> {
        let approving = checked.approving();
        if !approving.is_empty() {
            let keys = self.reads.keys_at_head(checked.ledger, &approving).await?;
            let sound = checked.verify_approvals(|member| keys.get(&member).copied().into_iter().collect());
            if !sound {
                let message = "the order is not signed by the key in force of a member that it names";
                return Err(status::refuse(Reason::OrderIncomplete, message));
            }
        }
        Ok(())
    }

    /// Gives a sweep the leaves of its journals, and an order the times of the versions that it
    /// depends on.
    async fn add_facts(&self, checked: &mut Checked) -> Result<(), Status> {
        if let Some((from, to)) = checked.sweeps() {
            checked.take_swept(self.reads.leaves_at_head(checked.ledger, from..to).await?);
        }
        let mut timed = checked.timed_by();
        timed.dedup();
        for (version, time_ms) in self.reads.times_of_journals(checked.ledger, &timed).await? {
            checked.take_time(version, time_ms);
        }
        Ok(())
    }

    /// The answer to a refused request that is the newest one of its lane. The request was applied
    /// before. It is refused because of its own number, a new key, or a new epoch.
    async fn replayed(&self, request: &Repeated, error: Status) -> Result<v1::AppendResponse, Status> {
        if planted(Bug::RepeatedAppendRefused) {
            return Err(error);
        }
        let leaf = self.reads.newest_of_lane(request.ledger, request.signer, request.lane).await?;
        let Some(leaf) = leaf.filter(|leaf| leaf.request == request.hash) else { return Err(error) };
        let (_, checkpoint) = self.intake.log.signed(self.intake.log.view().await?).await?;
        Ok(v1::AppendResponse {
            stamp: Some(convert::to_stamp(leaf.stamp)),
            ledger: Bytes::copy_from_slice(leaf.ledger.as_bytes()),
            first_jsn: leaf.jsn,
            checkpoint,
            replayed: true,
            ..v1::AppendResponse::default()
        })
    }

    /// The proof file of all journals of a request that was applied.
    async fn receipt(&self, items: u32, done: &v1::AppendResponse, caller: &str) -> Result<Bytes, Status> {
        let which = v1::ledger_name::Which::Id(done.ledger.clone());
        let request = v1::GetJournalsRequest {
            ledger: Some(v1::LedgerName { which: Some(which) }),
            from_jsn: done.first_jsn,
            limit: items,
            want_payload: false,
            want_request: true,
            known_size: 0,
            anchor_size: 0,
            read: Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() }),
        };
        Ok(self.reads.by(caller).journals(&request, &Sight::All).await?.proof)
    }
}
