//! Trusted anchors: the hashes of a list, and journals below them.

use coppice_proto::convert;
use coppice_types::{Digest, Reason};
use coppice_verify::{
    hash::sha256,
    ledgers::{Leaf, TrustedAnchor, path_len},
};

use super::{
    Channel, Claim, LedgerClient, PROVEN, Place, Subject, append, check, data, found, founding, key, named, reason, v1,
    world,
};

fn digests(bytes: &[u8]) -> Vec<Digest> {
    bytes.chunks(32).map(|hash| Digest::from_slice(hash).expect("whole hashes")).collect()
}

/// Journals below an anchor, with their paths.
async fn below(
    client: &mut LedgerClient<Channel>,
    anchor: &TrustedAnchor,
    (from_jsn, limit): (u64, u32),
) -> Vec<(Leaf, Vec<Digest>)> {
    let request = v1::GetJournalsRequest {
        ledger: named(anchor.ledger),
        from_jsn,
        limit,
        anchor_size: anchor.size(),
        ..v1::GetJournalsRequest::default()
    };
    let told = client.get_journals(request).await.expect("they are read").into_inner();
    assert!(told.proof.is_empty());
    told.journals.iter().map(|it| (Leaf::decode(&it.leaf).expect("a leaf"), digests(&it.path))).collect()
}

#[tokio::test]
async fn a_journal_below_an_anchor_is_proven_by_at_most_8_hashes_whatever_came_since() {
    let world = world().await;
    let mut running = world.leader().await;
    let client = &mut running.client;
    for spread in [false, true] {
        let ledger = found(client, &founding(if spread { "wide" } else { "grain" }, spread)).await;
        let place = Place::of(client, ledger).await;
        let empty = TrustedAnchor::new(place.cluster, ledger);
        let mut anchors = vec![empty];
        for (number, items) in [(1, 14), (2, 6), (3, 260), (4, 300)] {
            let last = anchors.last().expect("one").clone();
            let items: Vec<_> = (0..items).map(|_| data(&[], "flour")).collect();
            let count = items.len() as u64;
            let request = place.signed("mill", (0, number)).sign(&key("mill"), items);
            let done = append(client, &request).await.expect("it holds");
            // Whichever tiles the request fills, its receipt is of the version that applied it.
            check(&world, &done.receipt, Subject::Request(sha256(&request.signed)), |claim| {
                let Claim::Journals(claim) = claim else { panic!("it shows journals") };
                assert_eq!(claim.header.stamp, convert::from_stamp(done.stamp.expect("a stamp")));
                let shown = claim.journals.iter().map(|journal| journal.leaf.jsn);
                assert!(shown.eq(done.first_jsn..done.first_jsn + count) && claim.size == done.first_jsn + count);
            });
            let request = v1::GetLedgerHashesRequest {
                ledger: named(ledger),
                from_block: last.blocks(),
                known_size: last.size(),
                read: Some(PROVEN),
            };
            let told = client.get_ledger_hashes(request).await.expect("hashes").into_inner();
            let known = (last.size() > 0).then(|| (last.size(), last.root()));
            let mut proven = Digest::default();
            let subject = Subject::Journals { ledger, numbers: vec![told.size - 1], known };
            check(&world, &told.proof, subject, |claim| {
                let Claim::Journals(claim) = claim else { panic!("it shows journals") };
                assert_eq!(claim.size, told.size);
                proven = claim.root;
            });
            assert_eq!(told.root[..], proven.0);
            let grown = last.grown(told.size, &digests(&told.blocks), &digests(&told.rest), &proven);
            anchors.push(grown.expect("the hashes give the root"));
        }
        let sizes: Vec<u64> = anchors.iter().map(TrustedAnchor::size).collect();
        assert_eq!(sizes, [0, 15, 21, 281, 581]);
        for anchor in &anchors[1..] {
            let limit = u32::try_from(anchor.size()).expect("it is small");
            for (jsn, (leaf, path)) in (0..).zip(below(client, anchor, (0, limit)).await) {
                assert!(path.len() <= 8 && path.len() == path_len(jsn, anchor.size()) as usize);
                assert!(leaf.jsn == jsn && anchor.holds(&leaf, &path), "{jsn} below {}", anchor.size());
            }
        }
        // Nothing is given above the anchor, nor for an anchor above the list.
        for (from_jsn, limit, anchor_size, read) in
            [(14, 2, 15, None), (0, 1, 582, None), (15, 1, 15, None), (0, 1, 15, Some(PROVEN))]
        {
            let ledger = named(ledger);
            let request = v1::GetJournalsRequest { ledger, from_jsn, limit, anchor_size, read, ..Default::default() };
            let refused = client.get_journals(request).await.expect_err("it is refused");
            assert_eq!(reason(&refused), Reason::InvalidArgument, "{from_jsn} below {anchor_size}: {refused}");
        }
        for (from_block, known_size) in [(3, 0), (0, 582)] {
            let request =
                v1::GetLedgerHashesRequest { ledger: named(ledger), from_block, known_size, read: Some(PROVEN) };
            let refused = client.get_ledger_hashes(request).await.expect_err("it is refused");
            assert_eq!(reason(&refused), Reason::InvalidArgument);
        }
    }
}
