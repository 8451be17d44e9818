//! Orders: what they hide, what stays as it was, and what is proven of it.

use coppice_verify::{
    check::Answer,
    checkpoint::Checkpoint,
    ledgers::{Action, Leaf, Mark, ORDER, Order, Ordered, Request, Target, mark_key},
};

use super::{
    Channel, Claim, LedgerClient, LedgerId, PROVEN, Place, Subject, append, check, common, data, found, founding, item,
    key, leaf, member_id, named, reason, v1, world,
};
use coppice_types::Reason;

/// The request of an order, approved by others.
pub fn request(place: &Place, (author, lane): (&str, (u8, u64)), order: Order, others: &[&str]) -> Request {
    let approval = |name: &&str| order.approval(place.cluster, place.ledger, member_id(name), &key(name));
    let mut approvals: Vec<_> = others.iter().map(approval).collect();
    approvals.sort_by_key(|approval| approval.member);
    let payload = Ordered { order, approvals }.encode();
    place.signed(author, lane).sign(&key(author), vec![item(ORDER, &[], &payload)])
}

async fn journals(
    client: &mut LedgerClient<Channel>,
    ledger: LedgerId,
    (from, limit): (u64, u32),
    read: v1::ReadOptions,
) -> v1::GetJournalsResponse {
    let request = v1::GetJournalsRequest {
        ledger: named(ledger),
        from_jsn: from,
        limit,
        want_payload: true,
        want_request: true,
        known_size: 0,
        anchor_size: 0,
        read: Some(read),
    };
    client.get_journals(request).await.expect("they are read").into_inner()
}

#[tokio::test]
async fn an_order_hides_content_at_every_version_and_nothing_else() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    for spread in [false, true] {
        let ledger = found(client, &founding(if spread { "wide" } else { "grain" }, spread)).await;
        let place = Place::of(client, ledger).await;
        for number in 1..=3 {
            let request = place.signed("mill", (0, number)).sign(&key("mill"), vec![data(&["lot-7"], "flour")]);
            append(client, &request).await.expect("it holds");
        }
        let before = journals(client, ledger, (0, 9), PROVEN).await;
        assert!(before.journals.iter().all(|journal| !journal.envelope.is_empty() && journal.occulted_by.is_none()));
        assert!(before.marks_proof.is_empty());
        let shown = leaf(client, ledger, 2).await;
        let order = Order { until: 4, action: Action::Occult(vec![Target { jsn: 2, leaf: shown.hash() }]) };
        let done = append(client, &request(&place, ("bank", (0, 2)), order.clone(), &["court"])).await;
        let done = done.expect("owner and regulator have signed");
        assert_eq!(done.first_jsn, 4);

        // The content is gone from head and from the version before, and nothing else.
        let older = v1::ReadOptions { at: before.read_at, ..PROVEN };
        for read in [PROVEN, v1::ReadOptions { stale_ok: true, ..PROVEN }, older] {
            let after = journals(client, ledger, (0, 4), read).await;
            for (old, new) in before.journals.iter().zip(&after.journals) {
                assert_eq!((old.jsn, &old.leaf), (new.jsn, &new.leaf));
                let hidden = old.jsn == 2;
                assert_eq!(new.occulted_by, hidden.then_some(4));
                assert_eq!(new.envelope.is_empty(), hidden);
                assert!(hidden || old.envelope == new.envelope);
            }
            let numbers = vec![0, 1, 2, 3];
            check(&world, &after.proof, Subject::Journals { ledger, numbers, known: None }, |_| {});
            let marked = mark_key(ledger, 2);
            check(&world, &after.marks_proof, Subject::Keys(vec![&marked]), |claim| {
                let Claim::Query(claim) = claim else { panic!("it shows keys") };
                let Answer::Keys(records) = &claim.answer else { panic!("it shows keys") };
                let value = records[0].1.as_ref().and_then(|record| record.value.as_deref()).expect("a mark");
                assert_eq!(Mark::decode(value), Ok(Mark { order: 4 }));
            });
        }
        // The coordinator's own verdict says the same.
        let verdict = async |client: &mut LedgerClient<Channel>, jsn: u64, payload: Option<&'static str>| {
            let request = v1::VerifyJournalRequest {
                ledger: named(ledger),
                jsn,
                payload: payload.map(|payload| payload.as_bytes().into()),
                read: None,
            };
            let told = client.verify_journal(request).await.expect("a verdict").into_inner();
            let told_of = Leaf::decode(&told.leaf).expect("a leaf");
            assert_eq!((told_of.ledger, told_of.jsn, told.valid), (ledger, jsn, told.failed.is_empty()));
            Checkpoint::claimed(&told.checkpoint).expect("a checkpoint");
            told.failed
        };
        for (jsn, payload, failed) in [
            (1, None, ""),
            (1, Some("flour"), ""),
            (1, Some("flours"), "payload"),
            (1, Some(""), "payload"),
            (2, None, ""),
            (2, Some("flour"), "occulted"),
            (4, None, ""),
        ] {
            assert_eq!(verdict(client, jsn, payload).await, failed, "journal {jsn}, {payload:?}");
        }
        let beyond = v1::VerifyJournalRequest { ledger: named(ledger), jsn: 99, payload: None, read: None };
        assert_eq!(reason(&client.verify_journal(beyond).await.expect_err("there is none")), Reason::NotFound);
        // What was proven before stays proven, and so does the lineage.
        check(&world, &before.proof, Subject::Journals { ledger, numbers: vec![0, 1, 2, 3], known: None }, |claim| {
            let Claim::Journals(claim) = claim else { panic!("it shows journals") };
            assert!(claim.journals[2].envelope.is_some(), "who has the bytes can show them");
        });
        let lineage = v1::GetLineageRequest {
            ledger: named(ledger),
            clue: "lot-7".into(),
            newest: 0,
            want_payload: true,
            want_request: false,
            read: Some(PROVEN),
        };
        let told = client.get_lineage(lineage).await.expect("it is read").into_inner();
        let occulted: Vec<_> = told.journals.iter().map(|journal| (journal.jsn, journal.occulted_by)).collect();
        assert_eq!(occulted, [(3, None), (2, Some(4)), (1, None)]);
        assert!(!told.marks_proof.is_empty());

        // The order says by itself who signed what. It is never occulted, and not repeated.
        let given = journals(client, ledger, (4, 1), PROVEN).await;
        assert_eq!(Leaf::decode(&given.journals[0].leaf).expect("a leaf").kind, ORDER);
        let again = Order { until: 9, ..order };
        let again = append(client, &request(&place, ("bank", (0, 3)), again, &["court"])).await;
        assert_eq!(reason(&again.expect_err("it is occulted")), Reason::NotPossible);
        let ordered = leaf(client, ledger, 4).await;
        let itself = Order { until: 9, action: Action::Occult(vec![Target { jsn: 4, leaf: ordered.hash() }]) };
        let itself = append(client, &request(&place, ("bank", (0, 3)), itself, &["court"])).await;
        assert_eq!(reason(&itself.expect_err("it is no data")), Reason::NotPossible);
        // Replicas erase it by themselves.
        let order = v1::ErasureStatusRequest { ledger: named(ledger), jsn: 4 };
        let status = loop {
            let status = client.erasure_status(order.clone()).await.expect("disks are asked").into_inner();
            if status.done {
                break status;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((status.ordered, status.replicas.len()), (done.stamp, 1));
        let status = v1::ErasureStatusRequest { ledger: named(ledger), jsn: 3 };
        let wrong = client.erasure_status(status).await.expect_err("it is data");
        assert_eq!(reason(&wrong), Reason::InvalidArgument);
    }
    client.rollback(common::roll_back(1)).await.expect_err("no order is rolled back");
}

/// Orders in one version are judged one after the other, and those in versions that are not decided
/// yet count as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_orders_for_one_journal_one_is_done() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    let ledger = found(client, &founding("grain", false)).await;
    let place = Place::of(client, ledger).await;
    append(client, &place.signed("mill", (0, 1)).sign(&key("mill"), vec![data(&[], "flour")])).await.expect("it holds");
    let order = Order {
        until: 99,
        action: Action::Occult(vec![Target { jsn: 1, leaf: leaf(client, ledger, 1).await.hash() }]),
    };
    let mut hands = tokio::task::JoinSet::new();
    for lane in 1..16 {
        let (mut client, place, order) = (client.clone(), place.clone(), order.clone());
        hands.spawn(async move {
            let (author, other) = if lane % 2 == 0 { ("bank", "court") } else { ("court", "bank") };
            append(&mut client, &request(&place, (author, (lane, 1)), order, &[other])).await
        });
    }
    let mut done = 0;
    while let Some(answer) = hands.join_next().await {
        match answer.expect("no hand panics") {
            Ok(_) => done += 1,
            Err(error) => assert_eq!(reason(&error), Reason::NotPossible),
        }
    }
    assert_eq!(done, 1);
}
