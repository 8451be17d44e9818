//! Purges: what is gone at every version, what stays, and what is still proven.

use coppice_types::Reason;
use coppice_verify::ledgers::{
    Action, Head, Order, Policy, Purge, PurgeOrder, PurgeState, Target, envelope_key, head_key, leaf_key, mark_key,
    purge_key,
};

use super::{
    Channel, Claim, LedgerClient, LedgerId, PROVEN, Place, Status, Subject, append, check, clue_hash, common, data,
    found, founding, key, leaf, named, occult::request, reason, sha256, v1, world,
};

async fn records(
    client: &mut LedgerClient<Channel>,
    ledger: LedgerId,
    keys: &[Vec<u8>],
    read: v1::ReadOptions,
) -> Result<v1::GetLedgerRecordsResponse, Status> {
    let keys = keys.iter().map(|key| key.clone().into()).collect();
    let request = v1::GetLedgerRecordsRequest { ledger: named(ledger), keys, read: Some(read) };
    client.get_ledger_records(request).await.map(tonic::Response::into_inner)
}

async fn journals(
    client: &mut LedgerClient<Channel>,
    ledger: LedgerId,
    (from, limit): (u64, u32),
    read: v1::ReadOptions,
) -> Result<v1::GetJournalsResponse, Status> {
    let request = v1::GetJournalsRequest {
        ledger: named(ledger),
        from_jsn: from,
        limit,
        want_payload: true,
        want_request: true,
        read: Some(read),
        ..Default::default()
    };
    client.get_journals(request).await.map(tonic::Response::into_inner)
}

/// The order to purge what lies below a number, by what the ledger is now.
async fn purge_before(
    client: &mut LedgerClient<Channel>,
    (ledger, before): (LedgerId, u64),
    authors: u32,
    closes: bool,
) -> Order {
    let told = records(client, ledger, &[head_key(ledger)], PROVEN).await.expect("a head");
    let Head { edge, .. } = Head::decode(told.records[0].value.as_ref().expect("a head")).expect("it decodes");
    let (size, root) = (edge.size(), edge.root());
    let before = if closes { size } else { before };
    let order = PurgeOrder { before, closes, size, root, authors, absent: Vec::new() };
    Order { until: 99, action: Action::Purge(order) }
}

fn alone(action: Action) -> Order {
    Order { until: 99, action }
}

/// Appends journals 1 to 6 of the mill, two under one signature.
async fn six_journals(client: &mut LedgerClient<Channel>, place: &Place) -> Vec<v1::AppendResponse> {
    let mut done = Vec::new();
    for number in 1..=3 {
        let items = vec![data(&["lot-7"], "flour"), data(&["lot-7", "bill"], "bran")];
        let request = place.signed("mill", (0, number)).sign(&key("mill"), items);
        let answer = append(client, &request).await.expect("it holds");
        assert!(!answer.receipt.is_empty(), "{}", sha256(&request.signed));
        done.push(answer);
    }
    done
}

#[tokio::test]
async fn a_purge_takes_what_nobody_keeps_at_every_version_and_leaves_proofs_as_they_were() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    for spread in [false, true] {
        let policy = Policy { occult: 1, retain_max: 2, ..Policy::default() };
        let ledger =
            found(client, &super::Founding { policy, ..founding(if spread { "wide" } else { "grain" }, spread) }).await;
        let place = Place::of(client, ledger).await;
        let receipts = six_journals(client, &place).await;
        let before = journals(client, ledger, (0, 9), PROVEN).await.expect("they are read");
        let target = Target { jsn: 1, leaf: leaf(client, ledger, 1).await.hash() };
        let occult = Order { until: 99, action: Action::Occult(vec![target]) };
        append(client, &request(&place, ("bank", (0, 2)), occult, &["court"])).await.expect("both have signed");

        let purge = purge_before(client, (ledger, 5), 2, false).await;
        let by_bank = request(&place, ("bank", (0, 3)), purge.clone(), &[]);
        assert_eq!(reason(&append(client, &by_bank).await.expect_err("the mill signs")), Reason::OrderIncomplete);
        let other = purge_before(client, (ledger, 4), 2, false).await;
        let other = request(&place, ("bank", (0, 3)), other, &["mill"]);
        assert_eq!(reason(&append(client, &other).await.expect_err("in a request")), Reason::NotPossible);
        let signed = request(&place, ("bank", (0, 3)), purge, &["mill"]);
        let order = append(client, &signed).await.expect("both have signed").first_jsn;
        assert_eq!(order, 8);
        let retain = alone(Action::Retain { purge: order, journals: vec![3, 4] });
        append(client, &request(&place, ("court", (0, 1)), retain, &[])).await.expect("a member keeps them");
        for (number, (from, to)) in [(4, (0, 2)), (5, (2, 5))] {
            let sweep = alone(Action::Sweep { purge: order, from, to });
            let by_mill = request(&place, ("mill", (0, 4)), sweep.clone(), &[]);
            assert_eq!(reason(&append(client, &by_mill).await.expect_err("no owner")), Reason::RoleMissing);
            let sweep = request(&place, ("bank", (0, number)), sweep, &[]);
            append(client, &sweep).await.expect("the owner sweeps");
            assert!(append(client, &sweep).await.expect("it was applied").replayed);
        }
        let late = alone(Action::Recall { purge: order });
        let late = append(client, &request(&place, ("mill", (0, 4)), late, &[])).await;
        assert_eq!(reason(&late.expect_err("it is swept")), Reason::NotPossible);

        // Journals 1 and 2 are gone, also from the version before the purge.
        let older = v1::ReadOptions { at: before.read_at, ..PROVEN };
        for read in [PROVEN, older, v1::ReadOptions { stale_ok: true, ..PROVEN }] {
            for jsn in [1, 2] {
                let gone = journals(client, ledger, (jsn, 1), read).await.expect_err("it is purged");
                assert_eq!(reason(&gone), Reason::PurgedJournal);
            }
            let first = journals(client, ledger, (0, 9), read).await.expect("the founding is kept");
            assert_eq!(first.journals.len(), 1, "the answer ends before what is gone");
            let kept = journals(client, ledger, (3, 4), read).await.expect("they are kept");
            let same = kept.journals.iter().zip(&before.journals[3..]).all(|(new, old)| new.envelope == old.envelope);
            assert!(same && kept.journals.len() == 4);
            check(&world, &kept.proof, Subject::Journals { ledger, numbers: vec![3, 4, 5, 6], known: None }, |_| {});
        }
        // Head proves which leaves are gone. The version before gives none of them.
        let leaves = [leaf_key(ledger, 1), leaf_key(ledger, 3)];
        let told = records(client, ledger, &leaves, PROVEN).await.expect("they are read");
        assert_eq!(told.records.iter().map(|record| record.value.is_some()).collect::<Vec<_>>(), [false, true]);
        check(&world, &told.proof, Subject::Keys(leaves.iter().map(Vec::as_slice).collect()), |_| {});
        let gone = records(client, ledger, &leaves, older).await.expect_err("one is purged");
        assert_eq!(reason(&gone), Reason::PurgedJournal);
        let closed =
            records(client, ledger, &[envelope_key(ledger, 5)], PROVEN).await.expect_err("content is for readers");
        assert_eq!(reason(&closed), Reason::InvalidArgument);
        let keys = [mark_key(ledger, 1), purge_key(ledger)];
        let told = records(client, ledger, &keys, PROVEN).await.expect("they are read");
        check(&world, &told.proof, Subject::Keys(keys.iter().map(Vec::as_slice).collect()), |_| {});
        let value = |key: &[u8]| told.records.iter().find(|record| record.key == key).map(|record| &record.value);
        assert!(value(&keys[0]).is_some_and(Option::is_some), "marks stay");
        let purge = value(&keys[1]).and_then(Option::as_ref).expect("a purge");
        let purge = Purge::decode(purge).expect("it decodes");
        assert_eq!((purge.state, purge.before, purge.order), (PurgeState::Swept, 5, order));

        // What was proven stays proven, and what is proven now extends it.
        check(&world, &before.proof, Subject::Journals { ledger, numbers: (0..7).collect(), known: None }, |_| {});
        for receipt in &receipts {
            let numbers = vec![receipt.first_jsn, receipt.first_jsn + 1];
            check(&world, &receipt.receipt, Subject::Journals { ledger, numbers, known: None }, |_| {});
        }
        for (clue, newest, shown) in [("lot-7", 0, &[6, 5, 4, 3][..]), ("bill", 0, &[6, 4]), ("lot-7", 3, &[6, 5, 4])] {
            let lineage = v1::GetLineageRequest {
                ledger: named(ledger),
                clue: clue.into(),
                newest,
                want_payload: true,
                want_request: true,
                read: Some(PROVEN),
            };
            let told = client.get_lineage(lineage).await.expect("it is read").into_inner();
            assert!(told.journals.iter().map(|journal| journal.jsn).eq(shown.iter().copied()), "{clue}");
            let newest = (newest > 0).then_some(u64::from(newest));
            let subject = Subject::Lineage { ledger, clue: clue_hash(ledger, clue.as_bytes()), newest };
            check(&world, &told.proof, subject, |claim| {
                let Claim::Lineage(claim) = claim else { panic!("it shows a lineage") };
                assert_eq!(claim.gone, if clue == "lot-7" { 4 } else { 2 });
            });
        }
    }
    client.rollback(common::roll_back(1)).await.expect_err("no purge is rolled back");
}

/// A ledger is deleted by a purge that closes it. Its name is free in the end.
#[tokio::test]
async fn a_closed_ledger_frees_its_name_with_the_last_sweep() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    let ledger = found(client, &founding("grain", false)).await;
    let place = Place::of(client, ledger).await;
    six_journals(client, &place).await;
    let close = purge_before(client, (ledger, 0), 2, true).await;
    let order = append(client, &request(&place, ("bank", (0, 2)), close, &["mill"])).await.expect("both have signed");
    let late = place.signed("mill", (0, 4)).sign(&key("mill"), vec![data(&[], "late")]);
    assert_eq!(reason(&append(client, &late).await.expect_err("it is closed")), Reason::NotPossible);
    let describe = |name: &str| v1::DescribeLedgerRequest {
        ledger: Some(v1::LedgerName { which: Some(v1::ledger_name::Which::Name(name.to_owned())) }),
        read: None,
    };
    assert!(client.describe_ledger(describe("grain")).await.expect("it has its name").into_inner().closed);
    let sweep = alone(Action::Sweep { purge: order.first_jsn, from: 0, to: order.first_jsn });
    append(client, &request(&place, ("bank", (0, 3)), sweep, &[])).await.expect("the owner sweeps");
    let gone = client.describe_ledger(describe("grain")).await.expect_err("its name is free");
    assert_eq!(reason(&gone), Reason::NotFound);
    let again = Place::of(client, LedgerId::default()).await;
    assert_ne!(again.seen.size, place.seen.size);
    let second = found(client, &founding("grain", false)).await;
    assert_ne!(second, ledger);
    let told = client.describe_ledger(v1::DescribeLedgerRequest { ledger: named(ledger), read: None }).await;
    assert!(told.expect("by its id it is there").into_inner().closed);
}
