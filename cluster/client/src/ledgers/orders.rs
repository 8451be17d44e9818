//! Orders: who signed them, whether a journal without its content was occulted
//! by one, and on which disks the content is gone.

use std::{collections::BTreeMap, time::Duration};

use coppice_proto::v1;
use coppice_types::{ClusterId, LedgerId, MemberId};
use coppice_verify::{
    check::{Claim, Question, Subject},
    ledgers::{
        DATA, Envelope, Founding, Item, Leaf, Mark, Member, NONCE_BYTES, ORDER, Order, Ordered, mark_key, member_key,
    },
};
use tokio::time::{Instant, sleep};

use super::{Appended, Author, LedgerJournal, Wanted, ledger_name, proven_value};
use crate::{
    Client, Error,
    trust::{Asking, decoded},
};

/// Pause before the disks of replicas are asked again. Each one is twice the one before.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// An order as a ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenOrder {
    /// The leaf of its journal.
    pub leaf: Leaf,
    /// The order, and who approved it.
    pub ordered: Ordered,
    /// The members that have signed: the author, then those that approved. If a key is trusted,
    /// each one's signature was verified under its key in force at the order.
    /// [`Client::audit_ledger`] checks which roles they had then.
    pub signers: Vec<Member>,
}

/// Whether the content that an order occulted is gone from disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Erasure {
    /// The replicas, by shard and node.
    pub replicas: Vec<v1::ReplicaErasure>,
    /// Whether it is gone from the disks of all of them.
    pub done: bool,
}

impl Client {
    /// Reads an order, and who signed it.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the journal is no order; if a key is trusted, also
    /// [`Error::Unproven`] or [`Error::Untrusted`] if it is not proven, or not signed.
    pub async fn order(&self, ledger: LedgerId, jsn: u64) -> Result<GivenOrder, Error> {
        let wanted = Wanted { payload: true, request: true, proof: false };
        let told = self.journals_told(ledger, (jsn, 1), wanted, None).await?;
        let journal = told.journals.journals.into_iter().next().ok_or(Error::Malformed("no journal"))?;
        let LedgerJournal { leaf, envelope: Some(envelope), .. } = journal else {
            return Err(Error::Malformed("order without its content"));
        };
        if leaf.kind != ORDER {
            return Err(Error::Malformed("journal that should be an order"));
        }
        let ordered = Ordered::decode(&envelope.payload).map_err(|_| Error::Malformed("order"))?;
        let author = self.signer(ledger, leaf.member).await?;
        check_author(&leaf, &ordered, &author)?;
        let mut signers = vec![author];
        for approval in &ordered.approvals {
            let member = self.signer(ledger, approval.member).await?;
            if let Some((_, cluster)) = &told.proven {
                let message = ordered.order.message(*cluster, ledger);
                if !member.key_at(jsn).is_some_and(|key| approval.is_signed(key, &message)) {
                    return Err(Error::Untrusted("a member of the order has not signed it"));
                }
            }
            signers.push(member);
        }
        Ok(GivenOrder { leaf, ordered, signers })
    }

    async fn signer(&self, ledger: LedgerId, id: MemberId) -> Result<Member, Error> {
        let record = self.member_record(ledger, id, None).await?;
        record.ok_or(Error::Untrusted("a member of the order is none of the ledger"))
    }

    /// Checks that each journal that is said to be occulted has a mark that an order has put.
    pub(super) async fn check_occulted(
        &self,
        asking: &Asking,
        ledger: LedgerId,
        journals: &[LedgerJournal],
        proof: &[u8],
    ) -> Result<(), Error> {
        let said: BTreeMap<u64, (u64, &Leaf)> =
            journals.iter().filter_map(|it| Some((it.leaf.jsn, (it.occulted_by?, &it.leaf)))).collect();
        if said.is_empty() {
            return Ok(());
        }
        let keys: BTreeMap<Vec<u8>, u64> = said.keys().map(|jsn| (mark_key(ledger, *jsn), *jsn)).collect();
        let file = decoded(proof)?;
        let question = Question::about(Subject::Keys(keys.keys().map(Vec::as_slice).collect()));
        let claim: Claim<'_> = self.trust_claim(asking, &file, &question, true).await?;
        let mut by_order: BTreeMap<u64, Vec<&Leaf>> = BTreeMap::new();
        for (key, jsn) in &keys {
            let (order, leaf) = said[jsn];
            let mark = proven_value(&claim, key)?.and_then(|value| Mark::decode(value).ok());
            if mark != Some(Mark { order }) {
                return Err(Error::Untrusted("the content of a journal is withheld: no order has occulted it"));
            }
            by_order.entry(order).or_default().push(leaf);
        }
        // The rule never changes, so any version of it is the rule.
        let request = v1::DescribeLedgerRequest { ledger: Some(ledger_name(ledger)), read: None };
        let founding = Founding::decode(&self.describe_ledger(request).await?.founding);
        let rule = founding.map_err(|_| Error::Malformed("founding of a ledger"))?.policy.occult;
        // Nobody is owner and regulator, so both together are two.
        let needed = match rule {
            1 => 2,
            2 => 1,
            _ => usize::MAX,
        };
        for (jsn, leaves) in by_order {
            let given = self.order(ledger, jsn).await?;
            if given.signers.len() < needed {
                return Err(Error::Untrusted("the content of a journal is withheld: its order lacks signatures"));
            }
            let names = |leaf: &Leaf| {
                let targets = given.ordered.order.targets();
                let at = targets.binary_search_by_key(&leaf.jsn, |target| target.jsn);
                leaf.kind == DATA && at.is_ok_and(|at| targets[at].leaf == leaf.hash())
            };
            if !leaves.into_iter().all(names) {
                return Err(Error::Untrusted("the content of a journal is withheld: the order does not name it"));
            }
        }
        Ok(())
    }

    /// Reads a member's record by its id, or by the id of a name; `None` if there is no such
    /// member.
    pub(super) async fn member_record(
        &self,
        ledger: LedgerId,
        id: MemberId,
        name: Option<&str>,
    ) -> Result<Option<Member>, Error> {
        let read = v1::ReadOptions { want_proof: self.trust.is_some(), ..v1::ReadOptions::default() };
        let by_id = if name.is_some() { bytes::Bytes::new() } else { bytes::Bytes::copy_from_slice(id.as_bytes()) };
        let request = v1::GetMemberRequest {
            ledger: Some(ledger_name(ledger)),
            member: name.unwrap_or_default().to_owned(),
            read: Some(read),
            id: by_id,
        };
        let asking = self.asking();
        let answer = self.call_get_member(request).await?;
        if let Some(asking) = asking {
            let (key, file) = (member_key(ledger, id), decoded(&answer.proof)?);
            let question = Question::about(Subject::Keys(vec![&key]));
            let claim = self.trust_claim(&asking, &file, &question, true).await?;
            if proven_value(&claim, &key)?.unwrap_or_default() != &answer.record[..] {
                return Err(Error::Untrusted("the answer and its proof disagree"));
            }
        }
        if answer.record.is_empty() {
            return Ok(None);
        }
        Member::decode(&answer.record).map(Some).map_err(|_| Error::Malformed("record of a member"))
    }

    /// Asks on which replicas' disks the content that an order occulted is gone. It is the
    /// operator's word.
    ///
    /// # Errors
    /// Those of calls.
    pub async fn erasure(&self, ledger: LedgerId, jsn: u64) -> Result<Erasure, Error> {
        let request = v1::ErasureStatusRequest { ledger: Some(ledger_name(ledger)), jsn };
        let v1::ErasureStatusResponse { replicas, done, .. } = self.call_erasure_status(request).await?;
        Ok(Erasure { replicas, done })
    }

    /// Waits until the content is gone from all disks, or the time is over. Returns the last answer
    /// in both cases.
    ///
    /// # Errors
    /// Those of calls.
    pub async fn wait_for_erasure(&self, ledger: LedgerId, jsn: u64, limit: Duration) -> Result<Erasure, Error> {
        // A limit beyond the end of the clock is no limit.
        let end = Instant::now().checked_add(limit);
        let mut pause = PAUSE;
        loop {
            let erasure = self.erasure(ledger, jsn).await?;
            if erasure.done || end.is_some_and(|end| Instant::now() + pause > end) {
                return Ok(erasure);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The cluster whose members sign an order. It is verified if a key is trusted.
    ///
    /// # Errors
    /// Those of calls.
    pub async fn cluster_of_orders(&self) -> Result<ClusterId, Error> {
        Ok(self.seen().await?.0)
    }
}

/// Checks that the author of an order has signed it, in time, and is counted once among its
/// signers. The request is signed by the key in the leaf.
pub(super) fn check_author(leaf: &Leaf, ordered: &Ordered, author: &Member) -> Result<(), Error> {
    let rules = [
        ("the author of the order has not signed it", author.key_at(leaf.jsn) == Some(&leaf.key)),
        ("the order came too late", leaf.jsn <= ordered.order.until),
        ("the author of the order approves it again", !ordered.is_approved_by(leaf.member)),
    ];
    rules.into_iter().find(|(_, holds)| !holds).map_or(Ok(()), |(rule, _)| Err(Error::Untrusted(rule)))
}

impl Author {
    /// The message of an order, signed by this author to approve it.
    #[must_use]
    pub fn approve(&self, order: &Order) -> coppice_verify::ledgers::Approval {
        order.approval(self.place.cluster, self.place.ledger, self.place.member, &self.key)
    }

    /// Sends an order with the approvals of other members. What it does holds from the answer on.
    /// For an order that occults, [`Client::wait_for_erasure`] says when the content is gone from
    /// disks.
    ///
    /// # Errors
    /// Those of [`Author::append`].
    pub async fn order(
        &mut self,
        ordered: &Ordered,
        nonce: [u8; NONCE_BYTES],
        want_receipt: bool,
    ) -> Result<Appended, Error> {
        let envelope = Envelope { nonce, clues: Vec::new(), payload: ordered.encode() };
        self.send(vec![Item { kind: ORDER, envelope }], Vec::new(), want_receipt).await
    }
}
