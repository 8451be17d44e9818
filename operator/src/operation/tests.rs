//! Operations on a ledger that loses answers, with an operator that is killed between any two
//! steps.

use coppice_types::Digest;
use serde_json::json;

use super::*;

/// The parts of a root log that operations see.
#[derive(Default)]
struct Ledger {
    epoch: i64,
    version: i64,
    boundary: i64,
    /// The principal of each entry that records an operation.
    log: Vec<Option<String>>,
}

impl Ledger {
    fn commit(&mut self) {
        self.version += 1;
        self.log.push(None);
    }

    fn seen(&self) -> Seen {
        Seen {
            epoch: self.epoch,
            version: self.version,
            boundary: self.boundary,
            log_size: i64::try_from(self.log.len()).expect("few"),
        }
    }

    fn search(&self, from: i64, principal: &str) -> Option<i64> {
        let from = usize::try_from(from).expect("the log has a length");
        let found = (from..self.log.len()).find(|at| self.log[*at].as_deref() == Some(principal))?;
        i64::try_from(found).ok()
    }

    /// Answers as the coordinator does: a rollback succeeds only from the expected head, a prune
    /// only above the boundary.
    fn ask(&mut self, spec: &LedgerOperationSpec, principal: &str) -> Answer {
        let failed = |kind, message: &str| Answer::Failed { kind, message: message.to_owned() };
        if let Some(rollback) = &spec.rollback {
            if (rollback.expected_head.epoch, rollback.expected_head.version) != (self.epoch, self.version) {
                return failed(ErrorKind::Conflict, "head moved");
            }
            (self.epoch, self.version) = (self.epoch + 1, rollback.to);
        }
        if let Some(prune) = &spec.prune {
            if prune.before > self.version || prune.before == self.boundary {
                return failed(ErrorKind::Invalid, "no such boundary");
            }
            self.boundary = prune.before;
        }
        if spec.transfer.is_some() {
            return Answer::Done { sequence: None };
        }
        self.log.push(Some(principal.to_owned()));
        Answer::Done { sequence: i64::try_from(self.log.len() - 1).ok() }
    }
}

fn rollback(to: i64, epoch: i64, version: i64) -> LedgerOperationSpec {
    let head = json!({ "epoch": epoch, "version": version });
    let rollback =
        json!({ "to": to, "expectedHead": head, "reason": "r", "confirm": format!("roll back ledger to {to}") });
    serde_json::from_value(json!({ "cluster": "ledger", "rollback": rollback })).expect("it can be read")
}

fn prune(before: i64) -> LedgerOperationSpec {
    serde_json::from_value(json!({ "cluster": "ledger", "prune": { "before": before, "reason": "r" } }))
        .expect("it can be read")
}

/// Runs the operator. It is killed before step `dies_at`, or when an answer is lost, and then
/// restarted from the recorded status.
fn run(ledger: &mut Ledger, spec: &LedgerOperationSpec, dies_at: usize, lost_answers: usize) -> LedgerOperationStatus {
    let name = principal("bank", "uid");
    let (mut status, mut steps, mut lost) = (LedgerOperationStatus::default(), 0, 0);
    for _ in 0..10 {
        let mut step = begin(&status);
        loop {
            steps += 1;
            if steps == dies_at {
                break;
            }
            step = match step {
                Step::Look => next(spec, &status, Event::Looked(ledger.seen())),
                Step::Search => {
                    let from = status.log_size_before.expect("a running operation has recorded it");
                    next(spec, &status, Event::Searched(ledger.search(from, &name)))
                }
                Step::Ask => {
                    let answer = ledger.ask(spec, &name);
                    if steps + 1 == dies_at {
                        break;
                    }
                    let from = status.log_size_before.expect("a running operation has recorded it");
                    if lost < lost_answers {
                        lost += 1;
                        let unavailable = Answer::Failed { kind: ErrorKind::Unavailable, message: "lost".to_owned() };
                        next(spec, &status, Event::Answered(unavailable, None))
                    } else {
                        next(spec, &status, Event::Answered(answer, ledger.search(from, &name)))
                    }
                }
                Step::Record(new) => {
                    status = new;
                    begin(&status)
                }
                Step::Later(_) => break,
                Step::Over => return status,
            };
        }
    }
    panic!("it does not end: {status:?}");
}

fn ledger(commits: usize) -> Ledger {
    let mut ledger = Ledger { log: vec![None], ..Ledger::default() };
    (0..commits).for_each(|_| ledger.commit());
    ledger
}

#[test]
fn an_operation_is_done_once_wherever_the_operator_dies() {
    for spec in [rollback(4, 0, 9), prune(4)] {
        for dies_at in 1..12 {
            for lost in 0..3 {
                let mut ledger = ledger(9);
                let status = run(&mut ledger, &spec, dies_at, lost);
                assert_eq!(status.phase, Phase::Succeeded, "{dies_at} {lost}: {}", status.message);
                assert_eq!(status.sequence, Some(10));
                assert_eq!(ledger.log.iter().flatten().count(), 1, "{dies_at} {lost}");
            }
        }
    }
}

#[test]
fn a_transfer_is_asked_for_until_it_is_done_and_leaves_no_record() {
    let transfer = json!({ "group": "root", "node": "ledger-node-1" });
    let spec = serde_json::from_value(json!({ "cluster": "ledger", "transfer": transfer })).expect("it can be read");
    for dies_at in 1..12 {
        for lost in 0..3 {
            let mut ledger = ledger(9);
            let status = run(&mut ledger, &spec, dies_at, lost);
            assert_eq!(
                (status.phase, status.sequence),
                (Phase::Succeeded, None),
                "{dies_at} {lost}: {}",
                status.message
            );
            assert_eq!(ledger.log.len(), 10);
        }
    }
}

#[test]
fn a_manifest_that_is_applied_again_does_not_roll_back_again() {
    let mut ledger = ledger(9);
    assert_eq!(run(&mut ledger, &rollback(4, 0, 9), 0, 0).phase, Phase::Succeeded);
    (0..5).for_each(|_| ledger.commit());
    assert_eq!((ledger.epoch, ledger.version), (1, 9), "the same version, in another epoch");
    let again = run(&mut ledger, &rollback(4, 0, 9), 0, 0);
    assert_eq!(again.phase, Phase::Failed);
    assert_eq!(again.message, "nothing was done: head is (1, 9), and (0, 9) was expected");
    assert_eq!(ledger.version, 9);
}

#[test]
fn a_refusal_ends_an_operation_and_an_unavailable_ledger_does_not() {
    let mut ledger = ledger(9);
    let refused = run(&mut ledger, &prune(50), 0, 0);
    assert_eq!((refused.phase, refused.message.as_str()), (Phase::Failed, "no such boundary"));
    let away = Answer::Failed { kind: ErrorKind::Unavailable, message: "away".to_owned() };
    let running = LedgerOperationStatus { phase: Phase::Running, ..LedgerOperationStatus::default() };
    assert_eq!(next(&prune(5), &running, Event::Answered(away, None)), Step::Later("away".to_owned()));
}

#[test]
fn a_prune_that_somebody_else_did_counts_as_done() {
    let mut ledger = ledger(9);
    ledger.boundary = 6;
    let status = run(&mut ledger, &prune(5), 0, 0);
    assert_eq!((status.phase, status.sequence), (Phase::Succeeded, None));
    assert_eq!(ledger.boundary, 6);
}

#[test]
fn a_header_is_ours_by_the_principal_alone_whatever_names_others_claim() {
    let (namespace, uid) = ("n".repeat(63), "123e4567-e89b-12d3-a456-426614174000");
    let name = principal(&namespace, uid);
    let header = |principal: String| {
        let body = Body::Prune(coppice_verify::header::Prune {
            boundary: coppice_types::Version(1),
            principal,
            reason: "r".to_owned(),
        });
        Header {
            cluster: coppice_types::ClusterId([0; 16]),
            sequence: coppice_types::Sequence(1),
            stamp: coppice_types::Stamp::new(0, 1),
            timestamp_ms: 1,
            state_root: Digest([0; 32]),
            state_leaves: 1,
            shard_map: Digest([0; 32]),
            journal_root: Digest([0; 32]),
            journal_leaves: 0,
            epochs_root: Digest([0; 32]),
            epoch_pairs: 1,
            admin_sequence: 1,
            key_changes: None,
            previous: Digest([0; 32]),
            body,
        }
    };
    let hostile = format!("\")\\\n{}", "x".repeat(500));
    for creator in [None, Some("alice"), Some(hostile.as_str()), Some("")] {
        let claim = claim(&name, creator);
        let recorded = coppice_verify::principal::says("CN=operator", &claim).expect("it is short enough");
        assert!(is_ours(&header(recorded), &name), "{creator:?}");
    }
    let others = [
        name.clone(),
        claim(&principal(&namespace, "another"), None),
        coppice_verify::principal::says("CN=mallory", &format!("x{}", claim(&name, None))).expect("it is short enough"),
        coppice_verify::principal::says("CN=mallory", &name).expect("it is short enough"),
    ];
    for other in others {
        assert!(!is_ours(&header(other.clone()), &name), "{other}");
    }
}
