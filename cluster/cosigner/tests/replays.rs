//! An auditor over rollbacks, prunes, key changes, restarts, crashes and wrong roots: it signs only
//! what it has replayed.

mod common;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use common::{clock, ledger_key, means, mirror, request};
use coppice_client::model::{Api, standing};
use coppice_cosigner::{
    Error,
    audit::{Auditor, Verified},
    record::{Record, Slots},
    witness::{Answer, Means, Outcome, Own, Witness, recover},
};
use coppice_env::{Rng, SimClock, SimRng, SimStorage, Storage};
use coppice_types::Version;
use coppice_verify::{cosignature::Cosigner, evidence};

fn signer() -> Cosigner {
    Cosigner::from_seed("member.example/w/auditor", &[41; 32]).expect("a name")
}

fn folder(disk: &SimStorage) -> Arc<dyn Storage> {
    disk.subdir("audit").expect("a path")
}

/// Both state machines of a member, and the replay, as the daemon joins them.
struct Member {
    witness: Witness,
    machine: Mutex<Witness>,
    auditor: Auditor,
}

impl Member {
    fn init(disk: &SimStorage) -> Result<(), Error> {
        common::init(disk)?;
        folder(disk).create_dir_all("")?;
        Slots::create(&*folder(disk), &Record::new(ledger_key().name(), signer().verifier().public_key())).map(drop)
    }

    fn open(disk: &SimStorage, clock: &SimClock) -> Result<Self, Error> {
        let mut witness = Witness::open(means(disk, clock, 0))?;
        let own = Means { storage: folder(disk), signer: signer(), ..means(disk, clock, 0) };
        let mut machine = Witness::open(own)?;
        witness.asked(0)?;
        machine.asked(0)?;
        let auditor = Auditor::open(folder(disk), mirror(disk), &mut machine)?;
        Ok(Self { witness, machine: Mutex::new(machine), auditor })
    }

    /// Opens the states as a person does: by recovery if they are damaged.
    fn reopen(disk: &SimStorage, clock: &SimClock) -> Result<Self, Error> {
        match Self::open(disk, clock) {
            Err(Error::Damaged(_)) => {
                let (ledger, witness) = (ledger_key(), common::key().public_key());
                if recover(disk, &mirror(disk), ledger.name(), witness)?.tip.is_none() {
                    disk.remove_dir_all("log")?;
                }
                recover(&*folder(disk), &mirror(disk), ledger.name(), signer().verifier().public_key())?;
                let mut member = Self::open(disk, clock)?;
                member.witness.asked(1)?;
                member.machine().asked(1)?;
                Ok(member)
            }
            opened => opened,
        }
    }

    /// Audits what is mirrored.
    async fn audit(&mut self, api: &Api) -> Result<bool, Error> {
        let log = Verified::of(&self.witness).expect("it has mirrored");
        self.auditor.audit(&self.machine, &api.client(), &log).await
    }

    fn machine(&self) -> MutexGuard<'_, Witness> {
        self.machine.lock().expect("no holder panics")
    }

    /// Mirrors the log, audits it, and asks for a cosignature.
    async fn follow(&mut self, api: &Api, size: u64) -> Result<Answer, Error> {
        common::grow(&mut self.witness, &api.served().log, size)?;
        self.audit(api).await?;
        self.sign(api, size)
    }

    fn sign(&mut self, api: &Api, size: u64) -> Result<Answer, Error> {
        let old = self.machine().cosigned_size();
        let body = request(&api.served().log, old.min(size), size);
        Ok(match self.machine().add_checkpoint(&body)? {
            Outcome::Done(answer) => answer,
            Outcome::Behind(_) => Answer::NotNow("behind"),
        })
    }
}

/// Some random events of a ledger. Returns the number of the next key.
fn live(api: &Api, rng: &mut SimRng, keys: &mut u8) {
    for _ in 0..1 + rng.below(12) {
        let head = api.served().log.head().version.0;
        let boundary = api.served().boundary.0;
        match rng.below(16) {
            0 if head > boundary => api.served().log.roll_back(Version(boundary + rng.below(head - boundary))),
            1 if head > boundary + 1 => {
                let mut served = api.served();
                served.boundary = Version(boundary + 1 + rng.below(head - boundary - 1));
                let to = served.boundary;
                served.log.prune(to);
            }
            2 if *keys < 6 => {
                *keys += 1;
                api.served().log.rotate(&[*keys; 32]);
            }
            _ => api.commit(rng.below(30), rng.next_u64()),
        }
    }
}

/// Checks that the ledger has told the lists of each version that stands.
fn check_told(api: &Api, size: u64, when: &str) {
    let served = api.served();
    for stamp in standing(&served.log, size) {
        assert!(served.sent.contains(&stamp), "{when}: {stamp} was cosigned and never replayed");
    }
}

#[tokio::test]
async fn every_version_that_stands_is_replayed_before_a_line() {
    let (mut vanished, mut lines, mut states) = (0, 0, 0);
    for seed in 0..30 {
        let (mut rng, clock, api, mut keys) = (SimRng::new(seed), clock(), Api::new(), 1);
        let mut disk = SimStorage::new();
        Member::init(&disk).expect("a new disk");
        let mut member = Member::open(&disk, &clock).expect("a new state");
        for _ in 0..25 {
            live(&api, &mut rng, &mut keys);
            if rng.chance(300) {
                drop(member);
                disk = disk.process_loss();
                member = Member::open(&disk, &clock).expect("a sound state");
            }
            api.served().breaks = rng.chance(200).then(|| rng.below(6) as usize);
            let size = api.size();
            let when = format!("seed {seed}, size {size}");
            match member.follow(&api, size).await {
                Ok(Answer::Line(line)) => {
                    lines += 1;
                    assert!(line.contains("member.example/w/auditor"));
                    check_told(&api, size, &when);
                    assert_eq!(member.auditor.counts().version, api.served().log.head().version.0, "{when}");
                }
                Ok(answer) => panic!("{when}: {answer:?}"),
                // The stream broke. The next attempt goes on.
                Err(Error::Unavailable(why)) if api.served().breaks.is_some() => {
                    assert!(why.contains("breaks"), "{when}: {why}");
                    assert!(matches!(member.sign(&api, size), Ok(Answer::NotNow(_) | Answer::Untrusted)), "{when}");
                }
                Err(stop) => panic!("{when}: {stop:?}"),
            }
        }
        vanished += member.auditor.counts().vanished;
        states += api.served().states;
    }
    assert!(lines > 400 && vanished > 50 && states > 50, "{lines} lines, {vanished} vanished, {states} states read");
}

#[tokio::test]
async fn what_vanished_before_the_auditor_came_is_counted_once() {
    let (api, clock, disk) = (Api::new(), clock(), SimStorage::new());
    Member::init(&disk).expect("a new disk");
    let mut member = Member::open(&disk, &clock).expect("a new state");
    (0..9).for_each(|value| api.commit(value, value));
    api.served().log.roll_back(Version(4));
    (0..2).for_each(|value| api.commit(value, value));
    for expected in [5, 5] {
        let size = api.size();
        assert!(matches!(member.follow(&api, size).await, Ok(Answer::Line(_))));
        assert_eq!(member.auditor.counts().vanished, expected);
        // What was replayed before it was rolled back does not count.
        api.served().log.roll_back(Version(5));
        drop(member);
        member = Member::open(&disk, &clock).expect("a sound state");
    }
}

#[tokio::test]
async fn no_size_is_signed_at_which_versions_stood_that_vanished_unread() {
    let (api, clock, disk) = (Api::new(), clock(), SimStorage::new());
    Member::init(&disk).expect("a new disk");
    let mut member = Member::open(&disk, &clock).expect("a new state");
    (0..9).for_each(|value| api.commit(value, value));
    let before = api.size();
    api.served().log.roll_back(Version(4));
    let behind = api.size();
    api.commit(9, 9);
    let newest = api.size();
    common::grow(&mut member.witness, &api.served().log, newest).expect("an honest log");
    assert!(member.audit(&api).await.expect("all is told"));
    assert!(matches!(member.sign(&api, before), Ok(Answer::NotNow(why)) if why.contains("vanished")));
    assert!(matches!(member.sign(&api, behind), Ok(Answer::Line(_))));
    // After a restart, nothing says what the sizes below the audited one had.
    drop(member);
    let mut member = Member::open(&disk, &clock).expect("a sound state");
    assert!(matches!(member.sign(&api, behind), Ok(Answer::Line(_))), "it is signed already");
    assert!(matches!(member.sign(&api, newest), Ok(Answer::Line(_))));
}

#[tokio::test]
async fn the_lines_of_a_recovered_auditor_are_its_own_whoever_signed_the_log_since() {
    let (api, clock, disk) = (Api::new(), clock(), SimStorage::new());
    Member::init(&disk).expect("a new disk");
    let mut member = Member::open(&disk, &clock).expect("a new state");
    api.commit(1, 1);
    api.served().log.rotate(&[2; 32]);
    api.commit(2, 2);
    let size = api.size();
    assert!(matches!(member.follow(&api, size).await, Ok(Answer::Line(_))));
    let note = member.machine().cosigned().expect("it has signed");
    drop(member);
    // The log is lost, and with it the key change.
    disk.remove_dir_all("log").expect("it is there");
    let mut member = Member::reopen(&disk, &clock).expect("recovered");
    assert_eq!(member.machine().size(), 0);
    assert_eq!(member.machine().own(&note).expect("the disk is well"), Own::Known);
    assert!(!member.machine().is_halted());
    assert!(matches!(member.follow(&api, size).await, Ok(Answer::Line(_))));
}

#[tokio::test]
async fn a_wrong_root_halts_the_auditor_alone_and_for_good() {
    let (api, clock, disk) = (Api::new(), clock(), SimStorage::new());
    Member::init(&disk).expect("a new disk");
    let mut member = Member::open(&disk, &clock).expect("a new state");
    (0..4).for_each(|value| api.commit(value, value));
    let sound = api.size();
    assert!(matches!(member.follow(&api, sound).await, Ok(Answer::Line(_))));
    api.commit_wrongly();
    api.commit(9, 9);
    let size = api.size();
    assert!(matches!(member.follow(&api, size).await, Ok(Answer::NotNow(_))));
    for _ in 0..2 {
        assert!(member.machine().is_halted() && !member.witness.is_halted());
        assert!(matches!(member.sign(&api, sound), Ok(Answer::NotNow("halted: see /evidence/"))));
        drop(member);
        member = Member::open(&disk, &clock).expect("a sound state");
    }
    let names = member.machine().evidence().expect("well");
    let file = member.machine().evidence_file(&names[0]).expect("well").expect("it is listed");
    let text = String::from_utf8(file.clone()).expect("a text");
    assert!(
        names[0].ends_with(".finding")
            && text.contains("state root")
            && text.contains("--to 5")
            && text.contains("\"entry\": 5"),
        "{text}"
    );
    // A person can have it tried again. The version stays wrong.
    member.machine().resume(&file).expect("it is the file");
    assert!(matches!(member.follow(&api, size).await, Ok(Answer::NotNow(_))));
    assert!(member.machine().is_halted());
    // The witness cosigns what goes on, whatever it means.
    let body = request(&api.served().log, 0, size);
    assert!(matches!(member.witness.add_checkpoint(&body), Ok(Outcome::Done(Answer::Line(_)))));
}

/// Grows, audits and signs in steps, as far as the disk goes. Notes the lines.
async fn steps(disk: &SimStorage, clock: &SimClock, api: &Api, given: &mut Vec<u64>) -> Result<(), Error> {
    Member::init(disk)?;
    let mut member = Member::open(disk, clock)?;
    for size in [3, 5, 6, 9, 13] {
        if size == 9 {
            roll_back(api);
        }
        clock.advance(std::time::Duration::from_secs(61));
        match member.follow(api, size).await? {
            Answer::Line(_) => given.push(size),
            answer => panic!("{answer:?}"),
        }
    }
    Ok(())
}

fn history() -> Api {
    let api = Api::new();
    (0..6).for_each(|value| api.commit(value, value));
    api
}

/// The second half of the history, unless it was there. Until then, the versions that it rolls back
/// are still told.
fn roll_back(api: &Api) {
    if api.size() > 7 {
        return;
    }
    api.served().log.roll_back(Version(3));
    api.served().log.rotate(&[2; 32]);
    (0..4).for_each(|value| api.commit(value, value + 50));
}

#[tokio::test]
async fn no_crash_at_any_write_lets_an_unreplayed_version_be_signed() {
    let whole = SimStorage::new();
    steps(&whole, &clock(), &history(), &mut Vec::new()).await.expect("the disk is well");
    let mut again = BTreeMap::new();
    for ios in 0..whole.io_count() {
        let (disk, clock, api, mut given) = (SimStorage::new(), clock(), history(), Vec::new());
        disk.crash_after(ios);
        let stopped = steps(&disk, &clock, &api, &mut given).await;
        assert!(stopped.is_err(), "it crashes");
        for size in &given {
            check_told(&api, *size, &format!("{ios} writes"));
        }
        roll_back(&api);
        for seed in 0..3 {
            let after = disk.power_loss(seed);
            let Ok(mut member) = Member::reopen(&after, &clock) else {
                // The crash came before the folder was complete.
                assert!(given.is_empty(), "{ios} writes, seed {seed}");
                continue;
            };
            let told = api.served().sent.len();
            let last = given.last().copied().unwrap_or(0);
            assert!(member.machine().size() >= last, "{ios} writes: what was signed is still audited");
            for size in [9, api.size()] {
                if size < member.witness.size() {
                    continue;
                }
                let signed = member.follow(&api, size).await.expect("the disk is well again");
                assert!(matches!(signed, Answer::Line(_)), "{ios} writes, seed {seed}: {signed:?}");
                check_told(&api, size, &format!("{ios} writes, seed {seed}"));
            }
            *again.entry(api.served().sent.len() > told).or_insert(0) += 1;
        }
    }
    assert_eq!(again.len(), 2, "crashes come before and after the replay: {again:?}");
}

#[tokio::test]
async fn a_log_that_changes_under_the_auditor_is_not_signed() {
    let (api, clock, disk) = (Api::new(), clock(), SimStorage::new());
    Member::init(&disk).expect("a new disk");
    let mut member = Member::open(&disk, &clock).expect("a new state");
    (0..4).for_each(|value| api.commit(value, value));
    let size = api.size();
    assert!(matches!(member.follow(&api, size).await, Ok(Answer::Line(_))));
    // The witness lost its state, and has mirrored another log of the same ledger.
    drop(member);
    let other = Api::new();
    (0..6).for_each(|value| other.commit(value, value + 9));
    disk.remove("state").expect("it is there");
    disk.remove_dir_all("log").expect("it is there");
    common::init(&disk).expect("a new state");
    let mut witness = Witness::open(means(&disk, &clock, 0)).expect("a new state");
    let size = other.size();
    common::grow(&mut witness, &other.served().log, size).expect("an honest log");
    drop(witness);
    let refused = Member::open(&disk, &clock).map(drop).expect_err("the log is another one").to_string();
    assert!(refused.contains("signed root"), "{refused}");
    let mut member = Member::reopen(&disk, &clock).expect("recovered");
    assert_eq!(member.machine().cosigned_size(), 5, "what was signed is not forgotten");
    let body = request(&other.served().log, 5, size);
    member.audit(&other).await.expect("the other log is sound");
    let answer = member.machine().add_checkpoint(&body).expect("well");
    // Both notes are the ledger's, so the auditor has also proven the fork.
    assert!(matches!(answer, Outcome::Done(Answer::NotNow("halted: see /evidence/"))), "{answer:?}");
    let names = member.machine().evidence().expect("well");
    let file = member.machine().evidence_file(&names[0]).expect("well").expect("it is listed");
    evidence::verify(&file, &ledger_key(), None).expect("it proves the fork");
}
