//! A cosigner loses its power at any moment, its state is damaged or set back: it never gives two
//! lines that one log can't have.

mod common;

use std::collections::BTreeMap;

use common::{COMMON, adopt, ask, clock, cosigned, init, log, means, mirror, signed_by_line};
use coppice_cosigner::{
    Error,
    record::STATE,
    witness::{Answer, Own, Witness, recover},
};
use coppice_env::{OpenMode, Rng, SimClock, SimRng, SimStorage, Storage};
use coppice_verify::{note::VerifierKey, replay::Ledger};

/// What the world has seen: the lines that were given, by log and size.
#[derive(Default)]
struct World {
    given: BTreeMap<(u64, u64), String>,
}

impl World {
    fn note(&mut self, kind: u64, log: &Ledger, size: u64, answer: Answer) {
        if let Answer::Line(line) = answer {
            assert!(signed_by_line(log, size, &line).is_some());
            self.given.insert((kind, size), line);
        }
    }

    /// No log has two of the entries in which the logs differ.
    fn check(&self, when: &str) {
        let of = |kind| self.given.keys().any(|(of, size)| *of == kind && *size > COMMON);
        assert!(!(of(1) && of(2)), "two logs are cosigned: {when}: {:?}", self.given.keys());
    }

    /// The largest checkpoint with a line, as a peer has it.
    fn newest(&self, logs: &[Ledger; 2]) -> Option<(usize, Vec<u8>)> {
        let (kind, size) = self.given.keys().max_by_key(|(_, size)| *size)?;
        let index = *kind as usize - 1;
        let line = self.given[&(*kind, *size)].clone();
        let note = common::note(&logs[index], *size);
        Some((index, coppice_verify::cosignature::add_lines(&note, &[line]).expect("a line")))
    }
}

fn public() -> (VerifierKey, [u8; 32]) {
    (common::ledger_key(), common::key().public_key())
}

/// Opens the state as a person does: by recovery if it is damaged, and then with what a peer saw.
fn reopen(disk: &SimStorage, clock: &SimClock, world: &World, logs: &[Ledger; 2]) -> Result<Witness, Error> {
    let (ledger, key) = public();
    let mut witness = match Witness::open(means(disk, clock, 0)) {
        Err(Error::Damaged(_)) => {
            recover(disk, &mirror(disk), ledger.name(), key)?;
            let mut witness = Witness::open(means(disk, clock, 0))?;
            assert!(!witness.asked(0)?, "a lost state needs the word of a peer");
            if let Some((index, note)) = world.newest(logs) {
                adopt(&mut witness, &logs[index], &note)?;
            }
            assert!(witness.asked(1)?);
            return Ok(witness);
        }
        opened => opened?,
    };
    witness.asked(0)?;
    Ok(witness)
}

/// Cosigns the first log in steps, as far as the disk goes.
fn live(disk: &SimStorage, clock: &SimClock, world: &mut World, log: &Ledger) -> Result<(), Error> {
    init(disk)?;
    let mut witness = Witness::open(means(disk, clock, 0))?;
    witness.asked(0)?;
    let mut old = 0;
    for size in [3, COMMON, COMMON + 2, COMMON + 2, COMMON + 9] {
        clock.advance(std::time::Duration::from_secs(61));
        let answer = ask(&mut witness, log, old, size)?;
        assert!(matches!(answer, Answer::Line(_)), "{answer:?}");
        world.note(1, log, size, answer);
        old = size;
    }
    Ok(())
}

/// Offers a log to a cosigner, in whatever state it is.
fn offer(witness: &mut Witness, world: &mut World, kind: u64, log: &Ledger, size: u64) -> Result<(), Error> {
    let mut old = 0;
    for _ in 0..2 {
        match ask(witness, log, old, size) {
            Ok(Answer::Conflict(told)) if told <= size => old = told,
            Ok(answer) => {
                world.note(kind, log, size, answer);
                return Ok(());
            }
            // The log does not lead to what is mirrored.
            Err(Error::Refused(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[test]
fn no_crash_at_any_write_lets_two_logs_be_cosigned() {
    let logs = [log(1, 40), log(2, 40)];
    let whole = SimStorage::new();
    live(&whole, &clock(), &mut World::default(), &logs[0]).expect("the disk is well");
    let mut recovered = 0;
    for ios in 0..whole.io_count() {
        let (disk, clock, mut world) = (SimStorage::new(), clock(), World::default());
        disk.crash_after(ios);
        live(&disk, &clock, &mut world, &logs[0]).expect_err("it crashes");
        for seed in 0..6 {
            let after = disk.power_loss(seed);
            if after.open(STATE, OpenMode::Existing).is_err() && world.given.is_empty() {
                // The crash came before there was a cosigner: a new one is made.
                continue;
            }
            recovered += u64::from(matches!(Witness::open(means(&after, &clock, 0)), Err(Error::Damaged(_))));
            let mut seen = World { given: world.given.clone() };
            let mut witness = reopen(&after, &clock, &seen, &logs).expect("the disk is well again");
            offer(&mut witness, &mut seen, 2, &logs[1], 30).expect("the disk is well");
            seen.check(&format!("{ios} writes, seed {seed}"));
            offer(&mut witness, &mut seen, 1, &logs[0], 35).expect("the disk is well");
            seen.check(&format!("{ios} writes, seed {seed}, both"));
        }
    }
    assert!(recovered > 0, "some crashes tear a slot");
}

#[test]
fn over_many_restarts_with_crashes_one_log_is_cosigned() {
    let logs = [log(1, 60), log(2, 60)];
    let (mut lines, mut second) = (0, 0);
    for seed in 0..150 {
        let (mut rng, clock, mut world) = (SimRng::new(seed), clock(), World::default());
        let mut disk = SimStorage::new();
        init(&disk).expect("the disk is well");
        for life in 0..6 {
            let mut witness = match reopen(&disk, &clock, &world, &logs) {
                Ok(witness) => witness,
                Err(error) => panic!("seed {seed}, life {life}: {error}"),
            };
            disk.crash_after(rng.below(60));
            for _ in 0..8 {
                clock.advance(std::time::Duration::from_secs(rng.below(100)));
                let index = rng.below(2) as usize;
                let size = 1 + rng.below(59);
                if offer(&mut witness, &mut world, index as u64 + 1, &logs[index], size).is_err() {
                    break;
                }
                world.check(&format!("seed {seed}, life {life}"));
            }
            drop(witness);
            disk = if rng.chance(500) { disk.power_loss(rng.next_u64()) } else { disk.process_loss() };
        }
        lines += world.given.len();
        second += usize::from(world.given.keys().any(|(kind, size)| *kind == 2 && *size > COMMON));
    }
    assert!(lines > 150 && second > 20, "both logs have their chance: {lines} lines, {second} of the second");
}

#[test]
fn a_state_that_was_set_back_signs_nothing_before_it_has_caught_up() {
    let (disk, clock, logs) = (SimStorage::new(), clock(), [log(1, 40), log(2, 40)]);
    init(&disk).expect("the disk is well");
    let mut witness = Witness::open(means(&disk, &clock, 1)).expect("a new state");
    assert!(matches!(ask(&mut witness, &logs[0], 0, 3), Ok(Answer::NotNow(_))), "no peer was asked");
    assert!(!witness.asked(0).expect("well") && witness.asked(1).expect("well"));
    assert!(matches!(ask(&mut witness, &logs[0], 0, 3), Ok(Answer::Line(_))));
    let backup = disk.process_loss();
    assert!(matches!(ask(&mut witness, &logs[0], 3, 20), Ok(Answer::Line(_))));
    let seen = witness.cosigned().expect("it signed");
    drop(witness);
    // A copy of the folder is restored. A peer has the later line.
    let mut witness = Witness::open(means(&backup, &clock, 1)).expect("a sound state, though old");
    assert!(matches!(ask(&mut witness, &logs[1], 3, 20), Ok(Answer::NotNow(_))));
    assert_eq!(adopt(&mut witness, &logs[0], &seen).expect("it is of the log"), Own::Later);
    assert!(witness.asked(1).expect("well"));
    assert_eq!(ask(&mut witness, &logs[0], 3, 25).expect("well"), Answer::Conflict(20));
    assert!(matches!(ask(&mut witness, &logs[0], 20, 25), Ok(Answer::Line(_))));
}

#[test]
fn a_later_line_on_another_log_is_evidence_against_the_cosigner_itself() {
    let (disk, clock, logs) = (SimStorage::new(), clock(), [log(1, 40), log(2, 40)]);
    init(&disk).expect("the disk is well");
    let mut witness = Witness::open(means(&disk, &clock, 0)).expect("a new state");
    witness.asked(0).expect("well");
    assert!(matches!(ask(&mut witness, &logs[0], 0, 20), Ok(Answer::Line(_))));
    drop(witness);
    let disk = disk.process_loss();
    let mut witness = Witness::open(means(&disk, &clock, 1)).expect("a sound state");
    let later = cosigned(&logs[1], 15, 1_800_000_000);
    assert_eq!(witness.own(&later).expect("well"), Own::Halted);
    assert!(witness.is_halted());
    let names = witness.evidence().expect("well");
    let file = witness.evidence_file(&names[0]).expect("well").expect("it is listed");
    let vkey = common::key();
    let policy = format!("witness me {vkey}\nquorum none\n");
    let policy = coppice_verify::policy::Policy::parse(policy.as_bytes()).expect("a policy");
    let verdict = coppice_verify::evidence::verify(&file, &common::ledger_key(), Some(&policy)).expect("it proves");
    assert_eq!(verdict.cosigners.len(), 1, "the cosigner's own lines are on both");
}

#[test]
fn a_bad_or_missing_state_is_refused_with_the_way_out() {
    let (disk, clock, logs) = (SimStorage::new(), clock(), [log(1, 40), log(2, 40)]);
    let mut world = World::default();
    live(&disk, &clock, &mut world, &logs[0]).expect("the disk is well");
    for damage in 0..3 {
        let copy = disk.process_loss();
        match damage {
            0 => copy.flip_bit(STATE, 100, 3),
            1 => copy.flip_bit(STATE, (8 << 10) + 100, 3),
            _ => copy.remove(STATE).expect("it is there"),
        }
        let refused = Witness::open(means(&copy, &clock, 0)).expect_err("it is damaged").to_string();
        assert!(refused.contains("coppice cosigner recover"), "{refused}");
        let mut witness = reopen(&copy, &clock, &world, &logs).expect("the disk is well");
        let size = COMMON + 9;
        assert_eq!(witness.cosigned_size(), size, "what a peer saw is adopted");
        assert_eq!(ask(&mut witness, &logs[0], 0, 30).expect("well"), Answer::Conflict(size));
    }
    // A mirror that is damaged is fetched again.
    let copy = disk.process_loss();
    copy.flip_bit("log/tile/0/000", 40, 1);
    let refused = Witness::open(means(&copy, &clock, 0)).expect_err("it is damaged").to_string();
    assert!(refused.contains("signed root"), "{refused}");
    let mut witness = reopen(&copy, &clock, &world, &logs).expect("the disk is well");
    assert!(matches!(ask(&mut witness, &logs[0], COMMON + 9, 30), Ok(Answer::Line(_))));
}

#[test]
fn a_folder_has_one_holder_and_one_key() {
    let (disk, clock) = (SimStorage::new(), clock());
    init(&disk).expect("the disk is well");
    let witness = Witness::open(means(&disk, &clock, 0)).expect("a new state");
    let refused = Witness::open(means(&disk, &clock, 0)).expect_err("it is in use").to_string();
    assert!(refused.contains("in use"), "{refused}");
    drop(witness);
    let other = coppice_verify::cosignature::Cosigner::from_seed("member.example/w", &[41; 32]).expect("a name");
    let refused = Witness::open(coppice_cosigner::witness::Means { signer: other, ..means(&disk, &clock, 0) });
    assert!(refused.expect_err("another key").to_string().contains("another key"));
}
