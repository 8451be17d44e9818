//! Three members, and a ledger that shows them two logs: under restarts, losses of power and
//! damaged states, no member cosigns both logs, and whoever compares finds the fork.

mod common;

use common::{COMMON, adopt, ask, clock, grow, init, key, log, means, mirror, note};
use coppice_cosigner::{
    Error,
    convict::Judged,
    record::STATE,
    witness::{Answer, Own, Witness, recover},
};
use coppice_env::{Rng, SimClock, SimRng, SimStorage};
use coppice_verify::{checkpoint::Checkpoint, cosignature::add_lines, evidence, replay::Ledger};

const MEMBERS: usize = 3;
const SIZE: u64 = 40;

/// A member, its disk, and the lines that it gave: log, size and note.
struct Member {
    disk: SimStorage,
    witness: Option<Witness>,
    given: Vec<(usize, u64, Vec<u8>)>,
}

impl Member {
    fn witness(&mut self) -> &mut Witness {
        self.witness.as_mut().expect("it runs")
    }

    /// Whether it has cosigned entries of this log that the other one does not have.
    fn is_bound_to(&self, log: usize) -> bool {
        self.given.iter().any(|(of, size, _)| *of == log && *size > COMMON)
    }

    /// Starts again after a loss of power or a kill, now and then with a damaged state. Others have
    /// seen all lines that were given.
    fn restart(&mut self, clock: &SimClock, logs: &[Ledger; 2], rng: &mut SimRng) -> Result<(), Error> {
        self.witness = None;
        self.disk = if rng.chance(500) { self.disk.power_loss(rng.next_u64()) } else { self.disk.process_loss() };
        if rng.chance(200) {
            self.disk.flip_bit(STATE, (8 << 10) * rng.below(2) + 20 + rng.below(60), 3);
        }
        let mut witness = match Witness::open(means(&self.disk, clock, 1)) {
            Err(Error::Damaged(_)) => {
                recover(&self.disk, &mirror(&self.disk), common::ledger_key().name(), key().public_key())?;
                Witness::open(means(&self.disk, clock, 1))?
            }
            opened => opened?,
        };
        assert!(matches!(ask(&mut witness, &logs[0], 0, 3)?, Answer::NotNow(_)), "nobody was asked");
        if let Some((of, _, note)) = self.given.iter().max_by_key(|(_, size, _)| *size) {
            assert!(adopt(&mut witness, &logs[*of], note)? != Own::Halted || witness.is_halted());
        }
        witness.asked(1)?;
        self.witness = Some(witness);
        Ok(())
    }

    /// Asks for a cosignature of a log at a size.
    fn cosign(&mut self, logs: &[Ledger; 2], of: usize, size: u64) {
        let mut old = 0;
        for _ in 0..2 {
            match ask(self.witness(), &logs[of], old, size) {
                Ok(Answer::Conflict(told)) if told <= size => old = told,
                Ok(Answer::Line(line)) => {
                    let note = add_lines(&note(&logs[of], size), &[line]).expect("a line");
                    self.given.push((of, size, note));
                    return;
                }
                // A log that does not lead from what is mirrored, or a halt.
                Ok(_) | Err(Error::Refused(_)) => return,
                Err(error) => panic!("the disk is well: {error}"),
            }
        }
    }
}

#[test]
fn a_ledger_that_shows_two_logs_gets_each_member_for_one_and_is_convicted() {
    let logs = [log(1, SIZE + 10), log(2, SIZE + 10)];
    let (mut forks, mut convicted) = (0, 0);
    for seed in 0..60 {
        let (mut rng, clock) = (SimRng::new(seed), clock());
        let mut members: Vec<Member> = (0..MEMBERS)
            .map(|_| {
                let disk = SimStorage::new();
                init(&disk).expect("the disk is well");
                let mut member = Member { disk, witness: None, given: Vec::new() };
                member.restart(&clock, &logs, &mut SimRng::new(1)).expect("a new state");
                member
            })
            .collect();
        for _ in 0..40 {
            let at = rng.below(MEMBERS as u64) as usize;
            match rng.below(10) {
                0..6 => members[at].cosign(&logs, rng.below(2) as usize, 1 + rng.below(SIZE)),
                6..8 => members[at].restart(&clock, &logs, &mut rng).expect("the disk is well"),
                _ => {
                    // Gossip: what one member cosigned last is shown to another one.
                    let from = rng.below(MEMBERS as u64) as usize;
                    if let Some(note) = members[from].witness().cosigned() {
                        members[at].witness().put_off(&note).expect("the disk is well");
                    }
                }
            }
            clock.advance(std::time::Duration::from_secs(rng.below(90)));
            for member in &members {
                assert!(!(member.is_bound_to(0) && member.is_bound_to(1)), "seed {seed}: a member cosigned both logs");
            }
        }
        let bound = |log: usize| members.iter().position(|member| member.is_bound_to(log));
        let (Some(one), Some(other)) = (bound(0), bound(1)) else { continue };
        forks += 1;
        convicted += usize::from(is_convicted(&mut members, &logs, one, other));
    }
    assert!(forks > 10, "both logs found members in {forks} runs");
    assert_eq!(convicted, forks, "a member that is shown what another one cosigned convicts the ledger");
}

/// Whether a member of one log convicts the ledger, once it has seen what a member of the other log
/// cosigned and its own log has grown past that.
fn is_convicted(members: &mut [Member], logs: &[Ledger; 2], one: usize, other: usize) -> bool {
    let shown = members[other].given.iter().filter(|(of, size, _)| *of == 1 && *size > COMMON);
    let shown = shown.map(|(_, _, note)| note.clone()).next_back().expect("it cosigned the other log");
    let witness = members[one].witness();
    let size = Checkpoint::claimed(&shown).expect("a checkpoint").size;
    if witness.size() < size {
        grow(witness, &logs[0], size).expect("it is bound to this log");
    }
    match witness.show(&shown).expect("the disk is well") {
        Judged::Evidence(file) => {
            let verdict = evidence::verify(&file, &common::ledger_key(), None).expect("it proves the fork");
            verdict.is_one_key() && witness.is_halted()
        }
        judged => panic!("the member has not found the fork: {judged:?}"),
    }
}
