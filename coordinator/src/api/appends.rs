//! Requests of members: checked, verified and passed to the sequencer; and what a caller may see of
//! ledgers.
//!
//! Hashes and signatures are checked before a request takes a place in the queue. Whether the key is
//! the one in force is judged again where the request is applied.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use coppice_process::access::{MemberSaid, member_of};
use coppice_proto::{convert, status, v1};
use coppice_types::{LedgerId, MemberId, Reason};
use coppice_verify::ledgers::{Checked, Content, ITEMS_MAX};
use tonic::Status;

use super::{
    intake::{Founded, answer},
    service::{Answer, Api},
};
use crate::{
    plan::{Request, check_append},
    read::ledgers::{JOURNALS_MAX, Sight},
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

/// What a caller may see of ledgers, by its certificate.
pub fn sight(request: &tonic::Extensions) -> Sight {
    match member_of(request) {
        MemberSaid::Unchecked => Sight::All,
        MemberSaid::Named(name) => Sight::Member(name),
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
        let Founded { cluster, params, map } = self.intake.genesis().await?;
        let mut checked = check_append(request, *cluster, params)?;
        self.check_seen(&checked).await?;
        self.verify(&mut checked).await?;
        let request = Arc::new(Request::append(checked, map, params)?);
        let (entry, receive) = self.intake.entry(request.clone(), false, limit)?;
        self.intake.send(Command::Commit(entry))?;
        let checked = request.append.as_ref().expect("it was made of a member's request");
        let mut appended = match answer(receive, self.intake.patience()).await {
            Ok(Committed { response, first_jsn }) => v1::AppendResponse {
                stamp: response.stamp,
                ledger: Bytes::copy_from_slice(checked.ledger.as_bytes()),
                first_jsn: first_jsn.ok_or_else(|| status::refuse(Reason::Internal, "an append has no number"))?,
                checkpoint: response.checkpoint,
                ..v1::AppendResponse::default()
            },
            Err(error) => {
                self.keys.forget((checked.ledger, checked.signed.signer()));
                self.replayed(checked, error).await?
            }
        };
        if want_receipt {
            let receipt = self.receipt(checked, &appended, caller).await.map_err(|error| {
                let told = format!("the journals are committed, their receipt could not be made: {}", error.message());
                status::refuse(Reason::Unavailable, format!("{told}: send the request again"))
            })?;
            appended.receipt = receipt;
        }
        Ok(appended)
    }

    /// Checks that the root log is the one that the signer has seen.
    async fn check_seen(&self, checked: &Checked) -> Result<(), Status> {
        let signed = &checked.signed;
        let root = self.intake.log.root_at(signed.seen_size).await?;
        if root == Some(signed.seen_root) {
            return Ok(());
        }
        let message = format!(
            "this root log never had the root that the signer has seen at {} entries: keep both checkpoints, they \
             show a fork",
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
        if self.keys.get(of).is_some_and(|key| checked.verify(&key)) {
            return Ok(());
        }
        let standing = self.reads.standing_at_head(of.0, of.1).await?;
        let Some(signer) = standing.signer else {
            return Err(status::refuse(Reason::NotAMember, "the ledger has no such member or agent"));
        };
        let key = signer.key_at(standing.size).copied().filter(|key| checked.verify(key)).ok_or_else(wrong)?;
        self.keys.remember(of, key);
        Ok(())
    }

    /// The answer to a request that was refused because it is the newest one of its lane: it was
    /// applied before.
    async fn replayed(&self, checked: &Checked, error: Status) -> Result<v1::AppendResponse, Status> {
        let repeats = match status::reason(&error) {
            Some(Reason::Lane) => true,
            // The founding of before has taken the name.
            Some(Reason::NotPossible) => checked.signed.founds(),
            _ => false,
        };
        if !repeats {
            return Err(error);
        }
        let signed = &checked.signed;
        let leaf = self.reads.newest_of_lane(checked.ledger, signed.signer(), signed.lane).await?;
        let Some(leaf) = leaf.filter(|leaf| leaf.request == checked.hash) else { return Err(error) };
        let (_, checkpoint) = self.intake.log.signed(self.intake.log.view().await?).await?;
        Ok(v1::AppendResponse {
            stamp: Some(convert::to_stamp(leaf.stamp)),
            ledger: Bytes::copy_from_slice(checked.ledger.as_bytes()),
            first_jsn: leaf.jsn,
            checkpoint,
            replayed: true,
            ..v1::AppendResponse::default()
        })
    }

    /// The proof file of all journals of a request that was applied.
    async fn receipt(&self, checked: &Checked, done: &v1::AppendResponse, caller: &str) -> Result<Bytes, Status> {
        let which = v1::ledger_name::Which::Id(done.ledger.clone());
        let request = v1::GetJournalsRequest {
            ledger: Some(v1::LedgerName { which: Some(which) }),
            from_jsn: done.first_jsn,
            limit: checked.signed.items,
            want_payload: false,
            want_request: true,
            known_size: 0,
            read: Some(v1::ReadOptions { at: done.stamp, want_proof: true, ..v1::ReadOptions::default() }),
        };
        Ok(self.reads.by(caller).journals(&request, &Sight::All).await?.proof)
    }
}
