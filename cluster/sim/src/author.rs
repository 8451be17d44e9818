//! Members of a ledger. Each appends in its own lanes through any coordinator, sends what was not
//! answered again, and reads what is there, with proofs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_env::{Rng, SimRng, watch};
use coppice_proto::{
    Channel, convert, status,
    v1::{self, ledger_client::LedgerClient},
};
use coppice_types::{Digest, Epoch, ErrorKind, LedgerId, MemberId, Reason};
use coppice_verify::{
    check::{Claim, Question, Subject, verify_known},
    checkpoint::Checkpoint,
    hash::{clue_hash, member_id, sha256},
    keys::Keys,
    ledgers::{
        Action, AuthorOf, Condition, DATA, Envelope, FOUNDING, Founding, Grant, Head, Item, Leaf, ORDER, Order,
        Ordered, Policy, Purge, PurgeOrder, Request, Roles, Signed, Target, author_key, head_key, leaf_key, purge_key,
    },
    note::SignerKey,
    proof::ProofFile,
};
use tokio::time::{sleep, timeout};
use tonic::Status;

use crate::{
    client::Phase,
    history::Scribe,
    life::Life,
    net::Net,
    shape::{self, CLUSTER, Shape},
};

/// Longest time that an author waits for an answer.
const PATIENCE: Duration = Duration::from_millis(4000);
/// The name of the ledger.
const NAME: &str = "grain";
/// Number of authors.
pub const AUTHORS: u64 = 3;
/// The author that orders, and the one whose approval it needs.
const OWNER: u64 = 1;
const REGULATOR: u64 = 3;
/// Lanes of an author.
const LANES: u8 = 2;
const CLUES: [&str; 4] = ["lot-1", "lot-2", "lot-3", "truck"];

fn name_of(id: u64) -> String {
    format!("member-{id}")
}

fn key_of(id: u64) -> SignerKey {
    SignerKey::from_seed(&name_of(id), &sha256(&id.to_le_bytes()).0).expect("it is a name")
}

/// The keys of a member: one, or none if there is no such member.
fn keys_of(member: MemberId) -> Vec<[u8; 32]> {
    let id = (1..=AUTHORS).find(|id| member_id(&name_of(*id)) == member);
    id.map(|id| key_of(id).verifier().public_key()).into_iter().collect()
}

/// A member of the ledger.
#[derive(Debug)]
pub struct Author {
    id: u64,
    rng: SimRng,
    scribe: Scribe,
    channels: Vec<Channel>,
    at: usize,
    spread: bool,
    ledger: LedgerId,
    epoch: Epoch,
    seen: Option<Checkpoint>,
    /// Number of the newest request of each lane.
    numbers: [u64; LANES as usize],
    /// Journals of the ledger that the author knows of.
    size: u64,
}

impl Author {
    /// An author that can reach these coordinators.
    #[must_use]
    pub fn new(id: u64, shape: &Arc<Shape>, scribe: Scribe, net: &Net, coordinators: &[String]) -> Self {
        let life = Life::new(&format!("author-{id}"), 1, None);
        Self {
            id,
            rng: SimRng::new(shape.seed.wrapping_mul(2003) ^ (id << 40)),
            scribe,
            channels: coordinators.iter().map(|name| net.channel(&life, name)).collect(),
            at: 0,
            spread: shape.seed.is_multiple_of(3),
            ledger: LedgerId::default(),
            epoch: Epoch(0),
            seen: None,
            numbers: [0; LANES as usize],
            size: 0,
        }
    }

    /// Works until the faults stop. Then it shows that each of its lanes goes on.
    pub async fn run(mut self, mut phase: watch::Receiver<Phase>) {
        while self.look().await.is_none() {}
        if self.id == 1 {
            self.found().await;
        }
        while !self.find().await {}
        while *phase.borrow_and_update() == Phase::Chaos {
            match self.rng.below(10) {
                0 if self.id == OWNER && self.rng.chance(500) => self.purge().await,
                0 if self.id == OWNER => self.occult().await,
                0..7 => self.append().await,
                7..9 => self.read_lineage().await,
                _ => drop(self.look().await),
            }
            sleep(Duration::from_millis(self.rng.below(60))).await;
        }
        for lane in 0..LANES {
            let before = self.numbers[usize::from(lane)];
            while self.numbers[usize::from(lane)] == before && *phase.borrow() == Phase::Calm {
                self.append_in(lane).await;
            }
        }
        self.read_lineage().await;
    }

    async fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut LedgerClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        let mut client = LedgerClient::new(self.channels[self.at].clone());
        let answer = match timeout(PATIENCE, call(&mut client)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("no answer")),
        };
        if answer.as_ref().is_err_and(is_open) {
            self.at = (self.at + 1) % self.channels.len();
            sleep(Duration::from_millis(5 + self.rng.below(40))).await;
        }
        answer
    }

    /// Looks at the newest log and epoch. `None` if nobody answers.
    async fn look(&mut self) -> Option<()> {
        let head = self.call(async |client| client.head(v1::HeadRequest::default()).await).await.ok()?;
        self.epoch = Epoch(head.stamp?.epoch);
        self.seen = Some(Checkpoint::claimed(&head.checkpoint).ok()?);
        Some(())
    }

    fn signed(&self, (lane, number): (u8, u64), conditions: Vec<Condition>) -> Signed {
        let seen = self.seen.as_ref().expect("an author looks first");
        Signed {
            cluster: CLUSTER,
            ledger: self.ledger,
            member: member_id(&name_of(self.id)),
            agent: None,
            lane,
            number,
            epoch: self.epoch,
            seen_size: seen.size,
            seen_root: seen.root,
            conditions,
            items: 0,
            items_root: Digest::default(),
        }
    }

    fn envelope(&mut self, clues: Vec<Vec<u8>>, payload: Vec<u8>) -> Envelope {
        let mut nonce = [0; 32];
        self.rng.fill(&mut nonce);
        Envelope { nonce, clues, payload }
    }

    async fn found(&mut self) {
        let grant = |id| Grant {
            name: name_of(id),
            roles: Roles::WRITER.and([Roles(0), Roles::OWNER, Roles(0), Roles::REGULATOR][id as usize]),
            key: key_of(id).verifier().public_key(),
            certificate: Vec::new(),
        };
        let founding = Founding {
            name: NAME.to_owned(),
            spread: self.spread,
            policy: Policy { occult: 1, ..Policy::default() },
            members: (1..=AUTHORS).map(grant).collect(),
            authorities: Vec::new(),
            time_authorities: Vec::new(),
        };
        let envelope = self.envelope(Vec::new(), founding.encode());
        loop {
            let items = vec![Item { kind: FOUNDING, envelope: envelope.clone() }];
            let request = self.signed((0, 1), Vec::new()).sign(&key_of(self.id), items);
            match self.send(&request).await {
                // An earlier founding of another epoch was not applied: it was refused for good.
                Some(Reason::StaleView) => while self.look().await.is_none() {},
                Some(reason) => return self.scribe.wrong(format!("appends: the founding is refused: {reason}")),
                None => break,
            }
        }
        self.numbers[0] = 1;
    }

    async fn find(&mut self) -> bool {
        let which = Some(v1::ledger_name::Which::Name(NAME.to_owned()));
        let request = v1::DescribeLedgerRequest { ledger: Some(v1::LedgerName { which }), read: None };
        let answer = self.call(async |client| client.describe_ledger(request).await).await;
        if let Ok(told) = &answer {
            self.ledger = LedgerId::from_slice(&told.id).unwrap_or_default();
            self.size = told.size;
        }
        sleep(Duration::from_millis(20)).await;
        answer.is_ok()
    }

    async fn append(&mut self) {
        let lane = u8::try_from(self.rng.below(u64::from(LANES))).expect("it is small");
        self.append_in(lane).await;
    }

    async fn append_in(&mut self, lane: u8) {
        let number = self.numbers[usize::from(lane)] + 1;
        let count = 1 + self.rng.below(3);
        let mut items = Vec::new();
        for _ in 0..count {
            let first = usize::try_from(self.rng.below(4)).expect("it is small");
            let clues = CLUES.iter().cycle().skip(first).take(usize::try_from(self.rng.below(3)).expect("it is small"));
            let clues = clues.map(|clue| clue.as_bytes().to_vec()).collect();
            let payload = vec![b'p'; usize::try_from(self.rng.below(300)).expect("it is small")];
            items.push(Item { kind: DATA, envelope: self.envelope(clues, payload) });
        }
        // The author's view may be old. Then the request is refused, and changes nothing.
        let conditions = if self.rng.chance(100) { vec![Condition::Size(self.size)] } else { Vec::new() };
        let request = self.signed((lane, number), conditions).sign(&key_of(self.id), items);
        match self.send(&request).await {
            None => {
                self.numbers[usize::from(lane)] = number;
                self.scribe.lock().done.0 += 1;
            }
            Some(Reason::StaleView) => drop(self.look().await),
            Some(Reason::LedgerChanged) => drop(self.find().await),
            Some(reason) => self.scribe.wrong(format!("appends: a request that holds is refused: {reason}")),
        }
    }

    /// Orders to occult one journal. The content is on no disk in the end.
    async fn occult(&mut self) {
        let jsn = self.rng.below(self.size.max(1));
        let which = v1::ledger_name::Which::Id(Bytes::copy_from_slice(self.ledger.as_bytes()));
        let request = v1::GetJournalsRequest {
            ledger: Some(v1::LedgerName { which: Some(which) }),
            from_jsn: jsn,
            limit: 1,
            want_payload: true,
            ..v1::GetJournalsRequest::default()
        };
        let Ok(told) = self.call(async |client| client.get_journals(request).await).await else { return };
        let leaf = told.journals.first().and_then(|journal| Leaf::decode(&journal.leaf).ok());
        let (Some(leaf), Some(journal)) = (leaf, told.journals.first()) else {
            return self.scribe.wrong(format!("appends: journal {jsn} is not given"));
        };
        self.size = told.size;
        if leaf.kind != DATA || journal.occulted_by.is_some() {
            return;
        }
        let Ok(envelope) = Envelope::decode(&journal.envelope) else {
            return self.scribe.wrong(format!("erasures: journal {jsn} has no content, and no order has occulted it"));
        };
        let order = Order { until: u64::MAX, action: Action::Occult(vec![Target { jsn, leaf: leaf.hash() }]) };
        let regulator = member_id(&name_of(REGULATOR));
        let approval = order.approval(CLUSTER, self.ledger, regulator, &key_of(REGULATOR));
        let payload = Ordered { order, approvals: vec![approval] }.encode();
        let envelope_of_order = self.envelope(Vec::new(), payload);
        let items = vec![Item { kind: ORDER, envelope: envelope_of_order }];
        let number = self.numbers[0] + 1;
        let request = self.signed((0, number), Vec::new()).sign(&key_of(self.id), items);
        match self.send(&request).await {
            None => {
                self.numbers[0] = number;
                self.scribe.lock().occulted.push(envelope.nonce);
            }
            Some(Reason::StaleView) => drop(self.look().await),
            // The journal is in a version that was not staged when the order was judged.
            Some(Reason::NotPossible) => {}
            Some(reason) => self.scribe.wrong(format!("appends: an order that holds is refused: {reason}")),
        }
    }

    /// Takes one step of a purge: orders one, or sweeps some of its journals. Another member may
    /// have to keep them first.
    async fn purge(&mut self) {
        let keys = [purge_key(self.ledger), head_key(self.ledger)];
        let Some([purge, Some(head)]) = self.records(keys).await else { return };
        let purge = purge.and_then(|record| Purge::decode(&record).ok());
        let Ok(head) = Head::decode(&head) else {
            return self.scribe.wrong("appends: the head of the ledger can't be read".to_owned());
        };
        // The second author has journals below the line, and does not sign.
        let mut lacking = false;
        let next = match purge.filter(Purge::is_open) {
            Some(purge) => {
                let to = purge.before.min(head.purged + 1 + self.rng.below(6));
                (Action::Sweep { purge: purge.order, from: head.purged, to }, Vec::new())
            }
            None => {
                let before = head.purged + 1 + self.rng.below((head.edge.size() - head.purged).max(1));
                let Some(order) = self.purge_before(before.min(head.edge.size()), &head).await else { return };
                lacking = order.authors == AUTHORS as u32 && self.rng.chance(300);
                if lacking {
                    (Action::Purge(PurgeOrder { authors: order.authors - 1, ..order }), vec![REGULATOR])
                } else {
                    (Action::Purge(order), vec![2, REGULATOR])
                }
            }
        };
        let (action, approving) = next;
        let order = Order { until: u64::MAX, action };
        let approval = |id: u64| order.approval(CLUSTER, self.ledger, member_id(&name_of(id)), &key_of(id));
        let mut approvals: Vec<_> = approving.into_iter().map(approval).collect();
        approvals.sort_by_key(|approval| approval.member);
        let payload = Ordered { order, approvals }.encode();
        let items = vec![Item { kind: ORDER, envelope: self.envelope(Vec::new(), payload) }];
        let number = self.numbers[0] + 1;
        let request = self.signed((0, number), Vec::new()).sign(&key_of(self.id), items);
        match self.send(&request).await {
            None if lacking => self.scribe.wrong("appends: a purge is taken that an author did not sign".to_owned()),
            None => self.numbers[0] = number,
            Some(Reason::StaleView) => drop(self.look().await),
            // A journal of the sweep was occulted in the same version, or the view was old.
            Some(Reason::NotPossible | Reason::OrderIncomplete) => {}
            Some(reason) => self.scribe.wrong(format!("appends: a step of a purge is refused: {reason}")),
        }
    }

    /// The order to purge what lies below the request of a journal; `None` if the answer is lost.
    async fn purge_before(&mut self, before: u64, head: &Head) -> Option<PurgeOrder> {
        let mut keys: Vec<Vec<u8>> = (1..=AUTHORS).map(|number| author_key(self.ledger, number)).collect();
        keys.push(leaf_key(self.ledger, before));
        let keys: [Vec<u8>; AUTHORS as usize + 1] = keys.try_into().expect("one for each");
        let records = self.records(keys).await?;
        let (leaf, authors) = records.split_last()?;
        // The first journal of a request.
        let before = match leaf.as_ref().and_then(|leaf| Leaf::decode(leaf).ok()) {
            Some(leaf) => before - u64::from(leaf.index),
            None => before,
        };
        let is_affected = |record: &&Bytes| AuthorOf::decode(record).is_ok_and(|author| author.first_jsn < before);
        let authors = u32::try_from(authors.iter().flatten().filter(is_affected).count()).expect("few");
        let (size, root) = (head.edge.size(), head.edge.root());
        (before > head.purged).then(|| PurgeOrder { before, closes: false, size, root, authors, absent: Vec::new() })
    }

    /// Reads records of the ledger; `None` if the answer is lost.
    async fn records<const N: usize>(&mut self, keys: [Vec<u8>; N]) -> Option<[Option<Bytes>; N]> {
        let which = v1::ledger_name::Which::Id(Bytes::copy_from_slice(self.ledger.as_bytes()));
        let request = v1::GetLedgerRecordsRequest {
            ledger: Some(v1::LedgerName { which: Some(which) }),
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
            read: None,
        };
        let told = self.call(async |client| client.get_ledger_records(request).await).await.ok()?;
        let mut found: BTreeMap<Bytes, Option<Bytes>> =
            told.records.into_iter().map(|record| (record.key, record.value)).collect();
        Some(keys.map(|key| found.remove(&key[..]).flatten()))
    }

    /// Sends a request until its outcome is known. Returns the reason if it was refused.
    async fn send(&mut self, request: &Request) -> Option<Reason> {
        self.scribe.lock().request(request, &key_of(self.id).verifier().public_key(), keys_of);
        let item = |item: &Item| v1::LedgerItem { kind: item.kind.into(), envelope: item.envelope.encode().into() };
        let message = v1::AppendRequest {
            signed: request.signed.clone().into(),
            signature: request.signature.to_vec().into(),
            items: request.items.iter().map(item).collect(),
            want_receipt: self.rng.chance(300),
        };
        loop {
            let sent = message.clone();
            match self.call(async |client| client.append(sent).await).await {
                Ok(told) => {
                    let stamp = convert::from_stamp(told.stamp.unwrap_or_default());
                    if !told.receipt.is_empty() {
                        self.verify(&told.receipt, Subject::Request(sha256(&request.signed)), |_| true);
                    }
                    self.scribe.lock().appended.push((sha256(&request.signed), stamp, told.first_jsn));
                    return None;
                }
                Err(error) if is_open(&error) => {}
                Err(error) => return status::reason(&error).or(Some(Reason::Internal)),
            }
        }
    }

    async fn read_lineage(&mut self) {
        let clue = CLUES[usize::try_from(self.rng.below(4)).expect("it is small")];
        let newest = u32::try_from(self.rng.below(5)).expect("it is small");
        let which = v1::ledger_name::Which::Id(Bytes::copy_from_slice(self.ledger.as_bytes()));
        let request = v1::GetLineageRequest {
            ledger: Some(v1::LedgerName { which: Some(which) }),
            clue: Bytes::from_static(clue.as_bytes()),
            newest,
            want_payload: true,
            want_request: self.rng.chance(500),
            read: Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() }),
        };
        let Ok(told) = self.call(async |client| client.get_lineage(request).await).await else { return };
        let newest = (newest > 0).then_some(u64::from(newest));
        let subject = Subject::Lineage { ledger: self.ledger, clue: clue_hash(self.ledger, clue.as_bytes()), newest };
        self.verify(&told.proof, subject, |claim| matches!(claim, Claim::Lineage(claim) if claim.count == told.count));
        self.scribe.lock().done.1 += 1;
    }

    /// Verifies a proof file. A failure is a finding.
    fn verify(&self, file: &[u8], subject: Subject<'_>, fits: impl FnOnce(&Claim<'_>) -> bool) {
        let keys = Keys::new(shape::signing_key().verifier().clone());
        let question = Question::about(subject);
        let decoded = ProofFile::decode(file);
        match decoded.as_ref().map(|file| verify_known(file, &keys, None, &question)) {
            Ok(Ok(verified)) if fits(&verified.claim) => {
                self.scribe.lock().checkpoint(verified.checkpoint.size, verified.checkpoint.root);
            }
            failed => self.scribe.wrong(format!("proofs: an answer about a ledger does not verify: {failed:?}")),
        }
    }
}

/// Whether the outcome of a call is unknown, or it may succeed later.
fn is_open(error: &Status) -> bool {
    matches!(
        status::kind(error),
        ErrorKind::Unavailable | ErrorKind::Exhausted | ErrorKind::Fenced | ErrorKind::Internal | ErrorKind::Corrupted
    )
}
