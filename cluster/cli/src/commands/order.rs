//! Orders that several members sign: `ledger occult` and `order`. Those to purge are prepared by
//! [`super::ledger`].
//!
//! An order travels as a file of JSON between the members that sign it. Only the bytes that they
//! sign and the signatures count. Names are there for people.

use std::{fmt::Write as _, path::Path, time::Duration};

use coppice_client::{
    Client, Error,
    ledgers::{Erasure, LedgerJournal, Wanted},
};
use coppice_proto::v1::ReplicaErasure;
use coppice_types::{ClusterId, LedgerId};
use coppice_verify::{
    hash::member_id,
    ledgers::{APPROVALS_MAX, Action, Approval, DATA, ITEMS_MAX, Order, Ordered, Target},
    note::SignerKey,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ledger::{
    appended, author,
    names::{clue_of, found, id_of},
    nonce,
};
use crate::{
    args::{self, OccultPrepare, OrderSubmit},
    dev::home::secret_key,
    failure::{Code, Failure},
    files::{self, Prepared},
    input,
    output::{Output, Table, tell_line},
    text::{count, path, safe},
};

/// Numbers of journals that are shown to people; of the others there is only their count.
const SHOWN_MAX: usize = 8;

/// The file of an order.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OrderFile {
    /// Format of the file: 1.
    coppice_order: u32,
    /// Name of the ledger when the order was prepared. Only the id counts.
    ledger: String,
    cluster_id: String,
    ledger_id: String,
    /// The canonical bytes of the order, in hex.
    order: String,
    approvals: Vec<ApprovalLine>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ApprovalLine {
    member: String,
    /// In hex.
    signature: String,
}

/// An order with the cluster and the ledger for which it is signed.
#[derive(Debug)]
pub struct Draft {
    pub name: String,
    pub cluster: ClusterId,
    pub ledger: LedgerId,
    pub order: Order,
    /// The members that have signed, with their names.
    pub approvals: Vec<(String, Approval)>,
}

impl Draft {
    fn read(file: &Path) -> Result<Self, Failure> {
        let bytes = input::read(file)?;
        let wrong = |what: String| {
            let failure = Failure::usage(format!("{}: no order: {what}", path(file)));
            failure.hint("`coppice ledger occult prepare` and `coppice ledger purge prepare` write one.")
        };
        let read: OrderFile = serde_json::from_slice(&bytes).map_err(|error| wrong(safe(&error.to_string())))?;
        if read.coppice_order != 1 {
            return Err(wrong(format!("it has format {}, and this command knows format 1", read.coppice_order)));
        }
        let id = |text: &str| hex::decode(text).ok().and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        let cluster = id(&read.cluster_id).ok_or_else(|| wrong("cluster_id has 32 hex digits".to_owned()))?;
        let ledger = id(&read.ledger_id).ok_or_else(|| wrong("ledger_id has 32 hex digits".to_owned()))?;
        let order = hex::decode(&read.order).map_err(|_| wrong("order is not in hex".to_owned()))?;
        let order = Order::decode(&order).map_err(|error| wrong(error.to_string()))?;
        if read.approvals.len() > APPROVALS_MAX + 1 {
            return Err(wrong(format!("{} members sign, {} at most can", read.approvals.len(), APPROVALS_MAX + 1)));
        }
        let approval = |line: ApprovalLine| {
            let signature = hex::decode(&line.signature).ok().and_then(|bytes| bytes.try_into().ok());
            let signature = signature.ok_or_else(|| wrong("a signature has 128 hex digits".to_owned()))?;
            Ok((line.member.clone(), Approval { member: member_id(&line.member), signature }))
        };
        let approvals = read.approvals.into_iter().map(approval).collect::<Result<_, Failure>>()?;
        Ok(Self { name: read.ledger, cluster: ClusterId(cluster), ledger: LedgerId(ledger), order, approvals })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let line = |(member, approval): &(String, Approval)| ApprovalLine {
            member: member.clone(),
            signature: hex::encode(approval.signature),
        };
        let file = OrderFile {
            coppice_order: 1,
            ledger: self.name.clone(),
            cluster_id: self.cluster.to_string(),
            ledger_id: self.ledger.to_string(),
            order: hex::encode(self.order.encode()),
            approvals: self.approvals.iter().map(line).collect(),
        };
        let mut text = serde_json::to_string_pretty(&file).expect("text and numbers");
        text.push('\n');
        text.into_bytes()
    }

    /// Adds a member's signature, in place of an older one.
    fn sign(&mut self, member: &str, key: &SignerKey) {
        let approval = self.order.approval(self.cluster, self.ledger, member_id(member), key);
        self.approvals.retain(|(_, known)| known.member != approval.member);
        self.approvals.push((member.to_owned(), approval));
    }

    pub fn object(&self) -> Value {
        let mut object = json!({
            "ledger": self.name,
            "ledger_id": self.ledger.to_string(),
            "cluster_id": self.cluster.to_string(),
            "until": self.order.until,
            "signed_by": self.approvals.iter().map(|(member, _)| member).collect::<Vec<_>>(),
        });
        match &self.order.action {
            Action::Purge(purge) => {
                object["purge"] = json!({
                    "before": purge.before,
                    "closes": purge.closes,
                    "size": purge.size,
                    "root": purge.root.to_string(),
                    "authors": purge.authors,
                    "absent": purge.absent.len(),
                });
            }
            _ => {
                let target = |target: &Target| json!({ "jsn": target.jsn, "leaf_hash": target.leaf.to_string() });
                object["journals"] = self.order.targets().iter().map(target).collect();
            }
        }
        object
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "order for ledger 0x{}, which its file calls {}\n  {}\n  can be submitted while the ledger has at most {}\n",
            self.ledger,
            safe(&self.name),
            effect(&self.order),
            count(self.order.until, "journal"),
        );
        let signers: Vec<String> = self.approvals.iter().map(|(member, _)| safe(member)).collect();
        let signers = if signers.is_empty() { "nobody yet".to_owned() } else { signers.join(", ") };
        let _ = write!(text, "  signed by {signers}");
        text
    }
}

/// The journals of an order, for people.
fn journals(order: &Order) -> String {
    let targets = order.targets();
    let numbers: Vec<String> = targets.iter().take(SHOWN_MAX).map(|target| target.jsn.to_string()).collect();
    match targets.len() - numbers.len() {
        0 if numbers.len() == 1 => format!("journal {}", numbers[0]),
        0 => format!("journals {}", numbers.join(", ")),
        more => format!("journals {} and {more} others", numbers.join(", ")),
    }
}

/// All journals of an order: whoever signs it sees what goes.
fn ranges(order: &Order) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for target in order.targets() {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == target.jsn => *last = target.jsn,
            _ => ranges.push((target.jsn, target.jsn)),
        }
    }
    let shown = |(first, last): &(u64, u64)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let shown: Vec<String> = ranges.iter().map(shown).collect();
    let noun = if order.targets().len() == 1 { "journal" } else { "journals" };
    format!("{noun} {}", shown.join(", "))
}

/// Says in full what an order does: whoever signs it sees what goes.
fn effect(order: &Order) -> String {
    match &order.action {
        Action::Purge(purge) => format!(
            "{}\n  signers have seen {}, root {}; {} have journals among them{}",
            brief(order),
            count(purge.size, "journal"),
            purge.root,
            count(purge.authors.into(), "member"),
            match purge.absent.len() {
                0 => String::new(),
                absent => format!(", {absent} of them without a key"),
            },
        ),
        Action::Occult(_) => format!("occults {}", ranges(order)),
        _ => brief(order),
    }
}

/// Says in a few words what an order does.
pub fn brief(order: &Order) -> String {
    match &order.action {
        Action::Occult(_) => format!("occults {}", journals(order)),
        Action::Purge(purge) if purge.closes => format!("closes the ledger, and purges {}", before(purge.before)),
        Action::Purge(purge) => format!("purges {}", before(purge.before)),
        Action::Retain { purge, journals } => {
            format!("keeps {} from the purge in journal {purge}", count(journals.len() as u64, "journal"))
        }
        Action::Recall { purge } => format!("recalls the purge in journal {purge}"),
        Action::Sweep { purge, from, to } => {
            format!("sweeps journals {from} to {} for the purge in journal {purge}", to - 1)
        }
    }
}

fn before(jsn: u64) -> String {
    format!("all journals below {jsn} but those that are kept")
}

/// Says what the payload of an order does.
pub fn describe(payload: &[u8]) -> String {
    Ordered::decode(payload).map_or_else(|_| "?".to_owned(), |ordered| brief(&ordered.order))
}

/// The failure of a command that wants the content of an occulted journal: who has ordered it.
pub async fn occulted(client: &Client, (ledger, jsn): (LedgerId, u64), order: u64) -> Failure {
    match client.order(ledger, order).await {
        Err(error) => error.into(),
        Ok(given) => {
            let signers: Vec<String> = given.signers.iter().map(|member| safe(&member.name)).collect();
            let message = format!(
                "journal {jsn} was occulted by the order in journal {order}, signed by {}",
                signers.join(" and ")
            );
            Failure::new(Code::NotFound, message).hint("Its leaf and order stay: `coppice ledger journals` shows them.")
        }
    }
}

/// Writes an order that names journals.
pub async fn prepare(client: &Client, args: &OccultPrepare, output: Output) -> Result<(), Failure> {
    let file = Prepared::new(&args.out)?;
    let (ledger, size) = found(client, &args.ledger).await?;
    let wanted = Wanted { payload: true, ..Wanted::default() };
    let mut targets = Vec::new();
    let mut left = 0;
    if let Some(clue) = &args.clue {
        let told = client.lineage(ledger, &clue_of(clue)?, None, wanted).await?;
        let open = told.journals.into_iter().rev().filter(|it| it.leaf.kind == DATA && it.occulted_by.is_none());
        let mut open: Vec<Target> = open.map(|it| target(&it)).collect();
        left = open.len().saturating_sub(ITEMS_MAX);
        open.truncate(ITEMS_MAX);
        targets.append(&mut open);
    }
    for jsn in &args.jsn {
        let told = client.journals(ledger, (*jsn, 1), wanted, None).await?;
        let journal = told.journals.first().ok_or(Error::Malformed("no journal"))?;
        if let Some(order) = journal.occulted_by {
            let message = format!("journal {jsn} is occulted already, by the order in journal {order}");
            return Err(Failure::new(Code::Refused, message));
        }
        if journal.leaf.kind != DATA {
            return Err(Failure::usage(format!("journal {jsn} holds no data: only journals with data are occulted")));
        }
        targets.push(target(journal));
    }
    targets.sort_by_key(|target: &Target| target.jsn);
    targets.dedup_by_key(|target| target.jsn);
    if targets.is_empty() {
        return Err(Failure::new(Code::NotFound, "no journal with this clue has content that could be occulted"));
    }
    if targets.len() > ITEMS_MAX {
        return Err(Failure::usage(format!("an order has at most {ITEMS_MAX} journals, found {}", targets.len())));
    }
    let draft = Draft {
        name: args.ledger.clone(),
        cluster: client.cluster_of_orders().await?,
        ledger,
        order: Order { until: size.saturating_add(args.within), action: Action::Occult(targets) },
        approvals: Vec::new(),
    };
    file.write(&draft.to_bytes())?;
    if left > 0 {
        tell_line(&format!(
            "note: {} with this clue are left: prepare another order once this one is done",
            count(left as u64, "journal")
        ));
    }
    if input::is_standard(&args.out) {
        return Ok(());
    }
    output.result(&draft.object(), || draft.text())
}

fn target(journal: &LedgerJournal) -> Target {
    Target { jsn: journal.leaf.jsn, leaf: journal.leaf.hash() }
}

/// Runs a command that asks no ledger.
pub fn offline(command: &args::Order, output: Output) -> Result<(), Failure> {
    match command {
        args::Order::Show { file } => {
            let draft = Draft::read(file)?;
            output.result(&draft.object(), || draft.text())
        }
        args::Order::Sign { file, key, member } => {
            let mut draft = Draft::read(file)?;
            let key = secret_key(key)?;
            let member = member.as_deref().unwrap_or(key.name());
            draft.sign(member, &key);
            if input::is_standard(file) {
                return crate::output::raw(&draft.to_bytes());
            }
            files::replace(file, &draft.to_bytes(), files::PUBLIC)?;
            output.result(&draft.object(), || draft.text())
        }
        args::Order::Submit(_) => unreachable!("it asks a ledger"),
    }
}

/// Sends an order, and waits for the disks if that was asked for.
pub async fn submit(client: &Client, args: &OrderSubmit, output: Output) -> Result<(), Failure> {
    let output = output.beside(args.receipt.as_deref());
    let receipt = args.receipt.as_deref().map(Prepared::new).transpose()?;
    let draft = Draft::read(&args.file)?;
    if args.wait.is_some() && draft.order.targets().is_empty() {
        return Err(Failure::usage("--wait is for orders that occult").hint("Nothing was written."));
    }
    if client.cluster_of_orders().await.map_err(Failure::before_write)? != draft.cluster {
        let message = format!("the order is for another cluster, {}", draft.cluster);
        return Err(Failure::new(Code::Refused, message).hint("Nothing was written."));
    }
    let ledger = id_of(client, &format!("0x{}", draft.ledger))
        .await
        .map_err(|failure| failure.during("the ledger of the order").hint("Nothing was written."))?;
    let mut author = author(client, ledger, &args.signer).await?;
    let own = author.approve(&draft.order).member;
    // The author's request is its signature.
    let mut approvals: Vec<Approval> = draft.approvals.iter().map(|(_, approval)| *approval).collect();
    approvals.retain(|approval| approval.member != own);
    approvals.sort_by_key(|approval| approval.member);
    approvals.dedup_by_key(|approval| approval.member);
    let number = author.number();
    let ordered = Ordered { order: draft.order.clone(), approvals };
    let done = author.order(&ordered, nonce(), receipt.is_some()).await.map_err(Failure::of_write)?;
    if let Some(file) = receipt {
        file.write(&done.receipt).map_err(|failure| {
            let failure = Failure { code: Code::Unavailable, ..failure };
            failure.during(&format!("journal {} is the order, and its receipt is not written", done.first_jsn))
        })?;
    }
    let mut object = appended(&done, 1, number);
    let said = format!("journal {} {}, version {}", done.first_jsn, brief(&draft.order), done.stamp);
    if let Action::Purge(purge) = &draft.order.action {
        object["purge"] = json!({ "before": purge.before, "closes": purge.closes });
        return output.result(&object, || {
            format!("{said}\n  once the time of notice is over, `coppice ledger purge sweep` deletes them")
        });
    }
    object["occulted"] = json!(draft.order.targets().iter().map(|target| target.jsn).collect::<Vec<_>>());
    let Some(wait) = args.wait else {
        return output.result(&object, || {
            format!(
                "{said}\n  nobody can read them any more; `coppice ledger occult status` shows when they are gone \
                 from disks"
            )
        });
    };
    let erasure =
        client.wait_for_erasure(ledger, done.first_jsn, Duration::from_secs(wait)).await.map_err(|error| {
            let message = format!("journal {} is the order, and the disks can't be asked", done.first_jsn);
            Failure::from(error).during(&message).hint("`coppice ledger occult status` asks again.")
        })?;
    object["erased"] = json!(erasure.done);
    object["replicas"] = erasure.replicas.iter().map(replica_json).collect();
    output.result(&object, || format!("{said}\n  {}", gone(&erasure)))?;
    verdict(&erasure)
}

fn replica_json(replica: &ReplicaErasure) -> Value {
    json!({
        "group": replica.group,
        "node": replica.node,
        "raft_id": replica.raft_id,
        "state": replica.state,
    })
}

fn gone(erasure: &Erasure) -> String {
    let done = erasure.replicas.iter().filter(|replica| replica.state == "done").count();
    format!("their content is gone from the disks of {done} of {}", count(erasure.replicas.len() as u64, "replica"))
}

/// The exit code of a command that waited for disks.
fn verdict(erasure: &Erasure) -> Result<(), Failure> {
    if erasure.done {
        return Ok(());
    }
    let open = erasure.replicas.iter().filter(|replica| replica.state != "done");
    let open: Vec<String> = open
        .map(|replica| format!("{} of {} is {}", safe(&replica.node), safe(&replica.group), safe(&replica.state)))
        .collect();
    let failure =
        Failure::new(Code::Unavailable, format!("the content is not gone from all disks: {}", open.join("; ")));
    Err(failure.hint("Replicas go on by themselves; one that is away does it when it is back."))
}

/// Shows on which disks the content of an order's journals is gone.
pub async fn status(
    client: &Client,
    (ledger, jsn): (LedgerId, u64),
    wait: Option<u64>,
    output: Output,
) -> Result<(), Failure> {
    let erasure = client.wait_for_erasure(ledger, jsn, Duration::from_secs(wait.unwrap_or(0))).await?;
    let mut table = Table::new(output, &["GROUP", "NODE", "RAFT ID", "STATE"]);
    for replica in &erasure.replicas {
        table.row(&replica_json(replica), || {
            let node = if replica.node.is_empty() { "-".to_owned() } else { safe(&replica.node) };
            Ok([safe(&replica.group), node, replica.raft_id.to_string(), safe(&replica.state)])
        })?;
    }
    table.end()?;
    verdict(&erasure)
}
