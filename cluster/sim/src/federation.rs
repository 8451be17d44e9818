//! A federation in one thread, from one seed: members with their witnesses and auditors, and a
//! ledger that forks.
//!
//! The real state machines, storage and replay run on simulated disks. The ledger is a model, since
//! the fault is the ledger itself: at some moment it shows two logs under one key, or a thief of
//! one key signs a change of it. Members crash in the middle of a write, lose their state, and are
//! set back to a copy of it. Their peers say which lines they saw, or are away.
//!
//! **What is judged.** No key ever signs checkpoints that one log can't have, over all restarts. A
//! line is durable before it leaves. An auditor has replayed every version that stands at the size.
//! A key that has halted signs nothing. What halts a member proves something.

mod ledger;
mod member;

use std::collections::BTreeMap;

use coppice_client::model::standing;
use coppice_cosigner::{
    Error,
    record::Slots,
    witness::{Answer, EVIDENCE_ENDING, Own},
};
use coppice_env::{Rng, SimClock, SimRng};
use coppice_verify::{checkpoint::Checkpoint, cosignature::add_lines, evidence};

use self::{
    ledger::{Kind, Ledgers},
    member::{Member, Which},
};
use crate::{Verdict, event, trace::Trace};

/// Events of one run.
const EVENTS: u64 = 160;
/// Members of one run. The last one has no peers.
const MEMBERS: usize = 3;

/// A line that left a member.
#[derive(Clone, Debug)]
struct Given {
    kind: Kind,
    size: u64,
    line: String,
}

/// The key of a member: the witness's or the auditor's.
type Key = (usize, Which);

struct Federation {
    rng: SimRng,
    trace: Trace,
    ledgers: Ledgers,
    members: Vec<Member>,
    given: BTreeMap<Key, Vec<Given>>,
    /// The keys that were seen to have halted.
    halted: Vec<Key>,
    lines: u64,
    wrong: Option<String>,
}

/// Runs a seed, within a runtime with paused time.
pub async fn run(seed: u64, print: bool) -> Verdict {
    let mut rng = SimRng::new(seed ^ 0xfede);
    let clock = SimClock::new(1_800_000_000_000);
    let ledgers = Ledgers::new(&mut rng);
    let members = (0..MEMBERS).map(|index| Member::new(index, index + 1 < MEMBERS, &clock)).collect();
    let (given, halted) = (BTreeMap::new(), Vec::new());
    let trace = Trace::new(print);
    let mut federation = Federation { rng, trace, ledgers, members, given, halted, lines: 0, wrong: None };
    for _ in 0..EVENTS {
        clock.advance(std::time::Duration::from_secs(federation.rng.below(70)));
        if let Err(error) = federation.act().await {
            federation.wrong(format!("a member can't go on: {error}"));
        }
        federation.judge();
        if federation.wrong.is_some() {
            break;
        }
    }
    let Federation { trace, lines, wrong, .. } = federation;
    Verdict { seed, trace: trace.hash(), events: trace.events(), done: (lines, 0), wrong }
}

impl Federation {
    fn wrong(&mut self, what: String) {
        event!(self.trace, "WRONG: {what}");
        self.wrong.get_or_insert(what);
    }

    async fn act(&mut self) -> Result<(), Error> {
        let index = self.rng.below(MEMBERS as u64) as usize;
        if !self.members[index].is_up() {
            // A supervisor starts it again.
            return self.start(index).await;
        }
        match self.rng.below(100) {
            0..30 => self.ledgers.live(&mut self.rng),
            30..33 => {
                self.ledgers.fork(&mut self.rng);
                event!(self.trace, "the ledger forks at {:?}", self.ledgers.common());
            }
            33..36 => {
                event!(self.trace, "member {index} is restarted");
                self.members[index].stop();
            }
            36..40 => {
                let writes = self.rng.below(12);
                event!(self.trace, "member {index} will crash after {writes} writes");
                self.members[index].disk.crash_after(writes);
            }
            40..44 => self.members[index].copy(),
            44..48 if self.members[index].has_peers() => {
                event!(self.trace, "member {index} is set back");
                self.members[index].set_back();
                // A halt is lost with the state. What was signed is not: its peers know it.
                self.halted.retain(|(halted, _)| *halted != index);
            }
            48..50 if self.members[index].has_peers() => {
                event!(self.trace, "member {index} loses its state");
                self.members[index].lose();
                self.halted.retain(|key| *key != (index, Which::Witness));
            }
            50..54 => self.show(index)?,
            54..57 => self.pass_evidence(index)?,
            57..60 => self.slander(index)?,
            _ => self.offer(index).await?,
        }
        Ok(())
    }

    /// Starts a member. Its peers say what they saw, or are away.
    async fn start(&mut self, index: usize) -> Result<(), Error> {
        event!(self.trace, "member {index} starts");
        self.members[index].start(&mut self.rng)?;
        if self.rng.chance(350) {
            event!(self.trace, "the peers of member {index} are away");
            return self.members[index].asked(0);
        }
        for which in self.members[index].all() {
            let newest = self.given.get(&(index, which)).and_then(|given| given.iter().max_by_key(|it| it.size));
            let Some(Given { kind, size, line }) = newest.cloned() else { continue };
            let note = add_lines(&self.ledgers.note(kind, size), &[line])
                .map_err(|error| Error::Refused(error.to_string()))?;
            if !self.members[index].adopt(which, &self.ledgers, kind, &note).await? {
                return Ok(());
            }
        }
        self.members[index].asked(1)
    }

    /// Asks a member for a cosignature of any log that there is.
    async fn offer(&mut self, index: usize) -> Result<(), Error> {
        let kind = self.ledgers.any(&mut self.rng);
        let which = self.members[index].any(&mut self.rng);
        let newest = self.ledgers.size(kind);
        let size = if self.rng.chance(700) { newest } else { 1 + self.rng.below(newest) };
        let answer = match self.members[index].cosign(which, &self.ledgers, kind, size).await {
            Ok(answer) => answer,
            Err(error) => {
                let crashed = matches!(error, Error::Disk(_) | Error::Damaged(_));
                if crashed {
                    event!(self.trace, "member {index} crashes: {error}");
                    self.members[index].crash(&mut self.rng);
                    return Ok(());
                }
                return Err(error);
            }
        };
        event!(self.trace, "member {index} {which:?} is asked for {kind:?} {size}: {answer:?}");
        if let Answer::Line(line) = answer {
            self.lines += 1;
            let given = Given { kind, size, line };
            self.judge_line((index, which), &given);
            self.given.entry((index, which)).or_default().push(given);
        }
        Ok(())
    }

    /// Shows a member a checkpoint, as gossip does.
    fn show(&mut self, index: usize) -> Result<(), Error> {
        let kind = self.ledgers.any(&mut self.rng);
        let size = 1 + self.rng.below(self.ledgers.size(kind));
        let note = self.ledgers.note(kind, size);
        self.outcome(index, |member| member.each(|machine| machine.put_off(&note)))
    }

    /// Passes evidence from one member to another.
    fn pass_evidence(&mut self, index: usize) -> Result<(), Error> {
        let from = self.rng.below(MEMBERS as u64) as usize;
        let files = self.members[from].evidence();
        self.outcome(index, |member| {
            for file in files {
                member.each(|machine| machine.take_evidence(&file))?;
            }
            Ok(())
        })
    }

    /// Shows a member a file that proves nothing: two checkpoints of one log.
    fn slander(&mut self, index: usize) -> Result<(), Error> {
        let Some(file) = self.ledgers.consistent_pair(&mut self.rng) else { return Ok(()) };
        self.outcome(index, |member| {
            member.each(|machine| match machine.take_evidence(&file) {
                Err(Error::Refused(_)) => Ok(()),
                done => done,
            })
        })
    }

    /// Does something to a member, which may crash.
    fn outcome(&mut self, index: usize, act: impl FnOnce(&mut Member) -> Result<(), Error>) -> Result<(), Error> {
        match act(&mut self.members[index]) {
            Err(Error::Disk(_) | Error::Damaged(_)) => self.members[index].crash(&mut self.rng),
            Err(Error::Refused(_) | Error::Unavailable(_)) | Ok(()) => {}
        }
        Ok(())
    }

    /// Judges a line as it leaves.
    fn judge_line(&mut self, key: Key, given: &Given) {
        let (index, which) = key;
        let Given { kind, size, line } = given;
        if self.halted.contains(&key) {
            self.wrong(format!("halt: member {index} {which:?} signs {size} entries though it has halted"));
        }
        if *kind == Kind::Stolen && *size > self.ledgers.stolen_at() {
            self.wrong(format!("keys: member {index} {which:?} signs behind a key change that one key signed"));
        }
        let mut before = self.given.get(&key).into_iter().flatten();
        let other = before.find(|other| !self.ledgers.agree((other.kind, other.size), (*kind, *size)));
        if let Some(other) = other {
            let what = format!("{:?} {} and {kind:?} {size}", other.kind, other.size);
            self.wrong(format!("fork: member {index} {which:?} signs {what}"));
        }
        // The machine might lose its power at this moment.
        let copy = self.members[index].disk.power_loss(self.rng.next_u64());
        let durable = Slots::open(&*member::folder(&copy, which)).ok().and_then(|(_, record)| record.cosigned);
        if durable.is_none_or(|cosigned| cosigned.line != *line) {
            self.wrong(format!("order: a line of member {index} {which:?} leaves before it is durable"));
        }
        if which == Which::Auditor {
            let stamps = standing(&self.ledgers.api(*kind).served().log, *size);
            let unread = stamps.into_iter().find(|stamp| !self.ledgers.was_read(*stamp, *kind));
            if let Some(stamp) = unread {
                self.wrong(format!("audit: member {index} signs {size} entries and never read version {stamp}"));
            }
        }
    }

    /// Judges the members as they are.
    fn judge(&mut self) {
        let mut findings = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            for (which, halted, files) in member.halts() {
                if halted && !self.halted.contains(&(index, which)) {
                    self.halted.push((index, which));
                }
                let (key, policy) = (self.ledgers.key(), None);
                let bad = files.iter().find(|(name, file)| {
                    name.ends_with(EVIDENCE_ENDING) && evidence::verify(file, key, policy).is_err()
                });
                if let Some((name, _)) = bad {
                    findings.push(format!("evidence: member {index} {which:?} keeps {name}, which proves nothing"));
                }
                if let Some((name, _)) = files.iter().find(|(name, _)| !name.ends_with(EVIDENCE_ENDING)) {
                    findings.push(format!("evidence: member {index} {which:?} takes itself for a twin: {name}"));
                }
            }
        }
        findings.into_iter().for_each(|finding| self.wrong(finding));
    }
}

/// What a member makes of a line of its own, and the size that it is on.
fn entries_of(note: &[u8]) -> u64 {
    Checkpoint::claimed(note).map_or(0, |checkpoint| checkpoint.size)
}

/// Whether a line of a member's own must still be adopted.
fn is_later(own: Own) -> bool {
    own == Own::Later
}
