use coppice_engine::ShardState;
use coppice_proto::v1::shard_scan_request::Scan;
use coppice_types::{Change, Operation, Version};

use super::*;
use crate::{
    DuplexNet,
    hosted::tests::{SHARD, hosted},
    limits::SCAN_CHUNK_BYTES,
    shard::tests::Talk,
};

const RECORDS: usize = PAGE_RECORDS_MAX + 10;
/// The length of a value that nearly fills a page.
const LONG: usize = SCAN_CHUNK_BYTES - 2000;

fn key(at: usize) -> Vec<u8> {
    format!("key-{at:05}").into_bytes()
}

/// A shard whose first version has more records than a page, and whose second changes one of them
/// and deletes another.
fn shard() -> (Talk, [ShardState; 3]) {
    let mut talk = Talk::new();
    let put = |at| Operation { key: key(at).into(), change: Change::Put(b"value".to_vec().into()) };
    let empty = talk.context.decided;
    let first = talk.commit_all(1, (0..RECORDS).map(put).collect());
    let change = Operation { key: key(3).into(), change: Change::Put(vec![7; LONG].into()) };
    let delete = Operation { key: key(5).into(), change: Change::Delete };
    let second = talk.commit_all(2, vec![change, delete]);
    (talk, [empty, first, second])
}

fn page(talk: &Talk, state: &ShardState, scan: Scan) -> Result<v1::ShardScanResponse, Reason> {
    scan::page(talk.machine.engine(), state, &scan).map_err(|refusal| refusal.reason)
}

fn more(page: &v1::ShardScanResponse) -> Option<bool> {
    page.end.as_ref().map(|end| end.more)
}

#[test]
fn a_range_comes_in_pages_of_bounded_number_and_bytes_and_proves_itself_at_its_end() {
    let (talk, [_, first, second]) = shard();
    let range = |from: usize, limit, want_proof| {
        let from = (from > 0).then(|| key(from).into());
        Scan::Range(v1::RangeScan { from, limit, want_proof, ..Default::default() })
    };
    let whole = page(&talk, &first, range(0, 0, true)).expect("it is here");
    assert_eq!((whole.records.len(), more(&whole)), (PAGE_RECORDS_MAX, None));
    let rest = page(&talk, &first, range(PAGE_RECORDS_MAX, 0, true)).expect("it is here");
    assert_eq!((rest.records.len(), more(&rest)), (10, Some(false)));
    assert!(!rest.end.expect("it is the last page").trees.is_empty());
    let some = page(&talk, &first, range(0, 7, false)).expect("it is here");
    assert_eq!((some.records.len(), more(&some)), (7, Some(true)), "the caller's limit is reached");
    assert!(some.end.expect("it is the last page").trees.is_empty(), "no proof was asked for");
    let back = |from: Option<usize>, limit, want_proof| {
        let from = from.map(|at| key(at).into());
        Scan::Range(v1::RangeScan { from, limit, want_proof, reverse: true, ..Default::default() })
    };
    let last = page(&talk, &first, back(None, 0, false)).expect("it is here");
    let end: Vec<_> = rest.records.iter().rev().map(|record| &record.key).collect();
    assert!(last.records.iter().map(|record| &record.key).take(10).eq(end) && more(&last).is_none());
    let few = page(&talk, &first, back(Some(3), 0, false)).expect("it is here");
    assert!(few.records.iter().map(|record| record.key.to_vec()).eq([2, 1, 0].map(key)));
    assert_eq!(more(&few), Some(false));
    assert_eq!(page(&talk, &first, back(None, 0, true)).expect_err("no proof"), Reason::InvalidArgument);
    let large = page(&talk, &second, range(0, 0, false)).expect("it is here");
    assert!((4..200).contains(&large.records.len()), "the fourth value fills the page: {}", large.records.len());
    assert_eq!(more(&large), None);
}

#[test]
fn a_history_is_newest_first_and_shows_deletions() {
    let (talk, [_, _, second]) = shard();
    let history = |at, below, limit| Scan::History(v1::HistoryScan { key: key(at).into(), below, limit });
    let changes = page(&talk, &second, history(5, None, 0)).expect("it is here");
    let told: Vec<_> = changes.records.iter().map(|it| (it.found, it.last_changed.map(|at| at.version))).collect();
    assert_eq!((told, more(&changes)), (vec![(false, Some(2)), (true, Some(1))], Some(false)));
    let older = page(&talk, &second, history(5, Some(2), 0)).expect("it is here");
    assert_eq!(older.records.len(), 1);
    let newest = page(&talk, &second, history(5, None, 1)).expect("it is here");
    assert_eq!((newest.records.len(), more(&newest)), (1, Some(true)));
    let never = page(&talk, &second, history(RECORDS + 1, None, 0)).expect("it is here");
    assert_eq!((never.records.len(), more(&never)), (0, Some(false)));
}

#[test]
fn a_difference_has_each_changed_key_before_and_after() {
    let (talk, [empty, first, second]) = shard();
    let diff = |from| Scan::Diff(v1::DiffScan { from, ..Default::default() });
    let changed = page(&talk, &second, diff(Some(convert::to_state(first)))).expect("both are here");
    let told = |records: &[v1::ShardRecord]| records.iter().map(|it| (it.found, it.value.len())).collect::<Vec<_>>();
    assert_eq!(told(&changed.before), [(true, 5), (true, 5)]);
    assert_eq!(told(&changed.records), [(true, LONG), (false, 0)]);
    assert!(changed.records[1].key == key(5), "a key that is gone is named");
    let all = page(&talk, &first, diff(Some(convert::to_state(empty)))).expect("both are here");
    assert_eq!(
        (all.records.len(), all.next.map(|next| next.to_vec())),
        (PAGE_RECORDS_MAX, Some(key(PAGE_RECORDS_MAX)))
    );
    assert_eq!(page(&talk, &second, diff(None)), Err(Reason::InvalidArgument));
    let unknown = v1::ShardState { version: 1, digest: vec![1; 32].into() };
    assert_eq!(page(&talk, &second, diff(Some(unknown))), Err(Reason::StateMissing));
}

#[test]
fn journals_that_were_never_kept_end_a_scan_at_once() {
    let (talk, [_, _, second]) = shard();
    let journals = Scan::Journal(v1::JournalScan { from_version: 1, to_version: u64::MAX });
    let answer = page(&talk, &second, journals).expect("it is here");
    assert_eq!((answer.journals.len(), more(&answer)), (0, Some(false)));
}

#[test]
fn a_read_answers_every_part_in_order_within_its_bounds() {
    let (talk, [_, first, second]) = shard();
    let view = |state: &ShardState| talk.machine.engine().view(state).expect("it is here");
    let part = |keys: &[usize]| v1::ReadPart { keys: keys.iter().map(|at| key(*at).into()).collect() };
    let request = |parts: Vec<v1::ReadPart>, want_proof| v1::ShardReadRequest {
        parts,
        want_proof,
        want_values: true,
        ..Default::default()
    };
    let read = |request: &v1::ShardReadRequest, bytes_max| {
        read_parts(&view(&second), request, &[], bytes_max).map_err(|refusal| refusal.reason)
    };
    let answer = read(&request(vec![part(&[4, 5]), part(&[99_999])], true), 1 << 20).expect("it is small");
    let found: Vec<Vec<bool>> =
        answer.answers.iter().map(|part| part.records.iter().map(|record| record.found).collect()).collect();
    assert_eq!(found, [vec![true, false], vec![false]]);
    assert!(answer.answers.iter().all(|part| !part.trees.is_empty()), "absence is proven, too");
    let before =
        read_parts(&view(&first), &request(vec![part(&[]), part(&[5])], false), &[], 999).expect("it is small");
    assert_eq!((before.answers[0].records.len(), before.answers[1].records[0].found), (0, true));
    for unproven in [part(&[]), part(&[5, 4]), part(&[4, 4])] {
        assert_eq!(read(&request(vec![unproven], true), 1 << 20), Err(Reason::InvalidArgument), "keys ascend");
    }
    // The bounds: parts in a call, and bytes in an answer, values and proofs among them.
    assert!(read(&request(vec![part(&[1]); READ_PARTS_MAX], false), 1 << 20).is_ok());
    assert_eq!(read(&request(vec![part(&[1]); READ_PARTS_MAX + 1], false), 1 << 20), Err(Reason::LimitExceeded));
    let large = request(vec![part(&[3])], false);
    let bytes = LONG + key(3).len() + 80;
    assert_eq!((read(&large, bytes).is_ok(), read(&large, bytes - 1)), (true, Err(Reason::LimitExceeded)));
    let proven = request(vec![part(&[3])], true);
    assert_eq!(read(&proven, bytes), Err(Reason::LimitExceeded), "a proof has bytes, too");
}

#[tokio::test]
async fn requests_that_name_no_state_no_scan_or_no_shard_reach_no_replica() {
    let (talk, [_, first, _]) = shard();
    let context = v1::ShardContext { term: 1, admin_sequence: 0, decided: Some(convert::to_state(first)) };
    let hosted = hosted(&DuplexNet::new());
    let replica = hosted.put_shard(Some(talk.machine));
    let service = ShardService { hosted };
    let reason = |status: Status| coppice_proto::status::reason(&status).expect("it has a reason");
    let good = v1::ShardScanRequest {
        group: SHARD.number(),
        context: Some(context.clone()),
        state: Some(convert::to_state(first)),
        scan: None,
    };
    let scan = async |request| service.scan(Request::new(request)).await.map(drop).map_err(reason);
    assert_eq!(scan(good.clone()).await, Err(Reason::InvalidArgument), "no scan");
    let journal = Some(Scan::Journal(v1::JournalScan::default()));
    let good = v1::ShardScanRequest { scan: journal, ..good };
    assert_eq!(scan(good.clone()).await, Ok(()));
    assert_eq!(scan(v1::ShardScanRequest { context: None, ..good.clone() }).await, Err(Reason::InvalidArgument));
    assert_eq!(scan(v1::ShardScanRequest { state: None, ..good.clone() }).await, Err(Reason::InvalidArgument));
    assert_eq!(scan(v1::ShardScanRequest { group: 0, ..good.clone() }).await, Err(Reason::InvalidArgument));
    assert_eq!(scan(v1::ShardScanRequest { group: 9, ..good }).await, Err(Reason::Unavailable));
    // A command over a limit of the ledger is refused before it is proposed.
    let operation = v1::Operation { key: vec![1; 5000].into(), change: Some(v1::operation::Change::Delete(true)) };
    let prepare = v1::PrepareRequest {
        group: SHARD.number(),
        context: Some(context),
        stamp: Some(v1::Stamp { epoch: 0, version: 3 }),
        attempt: 1,
        base: Some(convert::to_state(first)),
        operations: vec![operation],
        ..Default::default()
    };
    let refused = service.prepare(Request::new(prepare)).await.map(drop).map_err(reason);
    assert_eq!((refused, replica.shared.mailbox.waiting()), (Err(Reason::LimitExceeded), (0, 0)));
    assert_eq!(first.version, Version(1));
}
