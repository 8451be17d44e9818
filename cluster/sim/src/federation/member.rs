//! A member: a disk, and the state machines that run on it now and then.

use std::sync::{Arc, Mutex, MutexGuard};

use coppice_cosigner::{
    Error,
    audit::{Auditor, Verified},
    config::KeyChanges,
    mirror::Mirror,
    record::{Record, STATE, Slots},
    witness::{Answer, EVIDENCE_ENDING, LOG, Means, Outcome, Witness, recover},
};
use coppice_env::{Rng, SimClock, SimRng, SimStorage, Storage};
use coppice_verify::{
    cosignature::{self, Cosigner},
    merkle,
};

use super::{
    entries_of, is_later,
    ledger::{Kind, Ledgers},
};

/// Most entries of a bundle.
const BUNDLE: u64 = 256;
/// Most requests for one cosignature.
const ATTEMPTS_MAX: usize = 6;

/// One of a member's two cosigners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    Witness,
    Auditor,
}

/// A member.
pub struct Member {
    index: usize,
    peers: bool,
    clock: SimClock,
    pub disk: SimStorage,
    /// A copy of the disk, to which it can be set back.
    copy: Option<SimStorage>,
    running: Option<Running>,
}

struct Running {
    witness: Mutex<Witness>,
    machine: Mutex<Witness>,
    auditor: Auditor,
}

/// The folder of one of the cosigners on a disk.
pub fn folder(disk: &SimStorage, which: Which) -> Arc<dyn Storage> {
    match which {
        Which::Witness => disk.storage(),
        Which::Auditor => disk.subdir("audit").expect("a path"),
    }
}

fn mirror(disk: &SimStorage) -> Mirror {
    Mirror::new(disk.subdir(LOG).expect("a path"))
}

fn locked(machine: &Mutex<Witness>) -> MutexGuard<'_, Witness> {
    machine.lock().expect("no holder panics")
}

impl Member {
    /// A member with new keys and states, which is down.
    pub fn new(index: usize, peers: bool, clock: &SimClock) -> Self {
        let disk = SimStorage::new();
        let member = Self { index, peers, clock: clock.clone(), disk, copy: None, running: None };
        let origin = origin();
        disk_is_well(folder(&member.disk, Which::Auditor).create_dir_all("").map_err(Error::from));
        for which in [Which::Auditor, Which::Witness] {
            let key = member.signer(which).verifier().public_key();
            disk_is_well(Slots::create(&*folder(&member.disk, which), &Record::new(&origin, key)));
        }
        member
    }

    fn signer(&self, which: Which) -> Cosigner {
        let seed = [10 + 2 * u8::try_from(self.index).expect("members are few") + which as u8; 32];
        Cosigner::from_seed(&format!("member-{}.example/{}", self.index, which as u8), &seed).expect("a name")
    }

    fn means(&self, which: Which) -> Means {
        Means {
            storage: folder(&self.disk, which),
            mirror: mirror(&self.disk),
            clock: Arc::new(self.clock.clone()),
            signer: self.signer(which),
            ledger: ledger_key(),
            key_changes: KeyChanges::Follow,
            floor_peers: usize::from(self.peers),
        }
    }

    pub fn has_peers(&self) -> bool {
        self.peers
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Opens both states; damaged ones are recovered, as a person would.
    pub fn start(&mut self, rng: &mut SimRng) -> Result<(), Error> {
        for _ in 0..2 {
            match self.open() {
                Ok(running) => {
                    self.running = Some(running);
                    return Ok(());
                }
                Err(Error::Damaged(_)) => self.recover()?,
                Err(Error::Disk(_)) => self.crash(rng),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn open(&self) -> Result<Running, Error> {
        let witness = Mutex::new(Witness::open(self.means(Which::Witness))?);
        let mut machine = Witness::open(self.means(Which::Auditor))?;
        let auditor = Auditor::open(folder(&self.disk, Which::Auditor), mirror(&self.disk), &mut machine)?;
        Ok(Running { witness, machine: Mutex::new(machine), auditor })
    }

    fn recover(&self) -> Result<(), Error> {
        for which in [Which::Witness, Which::Auditor] {
            let key = self.signer(which).verifier().public_key();
            let record = recover(&*folder(&self.disk, which), &mirror(&self.disk), &origin(), key)?;
            if which == Which::Witness && record.tip.is_none() {
                self.disk.remove_dir_all(LOG)?;
            }
        }
        Ok(())
    }

    /// Ends the process in order.
    pub fn stop(&mut self) {
        self.running = None;
        self.disk = self.disk.process_loss();
    }

    /// Ends the process, and maybe the machine.
    pub fn crash(&mut self, rng: &mut SimRng) {
        self.running = None;
        self.disk = if rng.chance(600) { self.disk.power_loss(rng.next_u64()) } else { self.disk.process_loss() };
    }

    /// Keeps a copy of the disk.
    pub fn copy(&mut self) {
        self.copy = Some(self.disk.process_loss());
    }

    /// Restores the copy.
    pub fn set_back(&mut self) {
        if let Some(copy) = &self.copy {
            self.running = None;
            self.disk = copy.process_loss();
        }
    }

    /// Loses a state.
    pub fn lose(&mut self) {
        self.stop();
        // A disk that will crash keeps it.
        let _ = self.disk.remove(STATE);
    }

    /// Both cosigners.
    pub fn all(&self) -> [Which; 2] {
        [Which::Witness, Which::Auditor]
    }

    pub fn any(&self, rng: &mut SimRng) -> Which {
        if rng.chance(500) { Which::Witness } else { Which::Auditor }
    }

    fn machine(&self, which: Which) -> Option<MutexGuard<'_, Witness>> {
        let running = self.running.as_ref()?;
        Some(locked(if which == Which::Witness { &running.witness } else { &running.machine }))
    }

    /// So many peers have said what they saw.
    pub fn asked(&self, peers: usize) -> Result<(), Error> {
        for which in self.all() {
            if let Some(mut machine) = self.machine(which) {
                machine.asked(if self.peers { peers } else { 1 })?;
            }
        }
        Ok(())
    }

    /// Does something to both state machines.
    pub fn each(&self, mut act: impl FnMut(&mut Witness) -> Result<(), Error>) -> Result<(), Error> {
        for which in self.all() {
            if let Some(mut machine) = self.machine(which) {
                act(&mut machine)?;
            }
        }
        Ok(())
    }

    /// Goes on from a line of its own that peers saw. Returns false if that is not possible yet.
    pub async fn adopt(&mut self, which: Which, ledgers: &Ledgers, kind: Kind, note: &[u8]) -> Result<bool, Error> {
        self.grow(ledgers, kind, entries_of(note))?;
        if which == Which::Auditor {
            self.audit(ledgers, kind).await?;
        }
        let Some(mut machine) = self.machine(which) else { return Ok(false) };
        if !is_later(machine.own(note)?) {
            return Ok(true);
        }
        match machine.adopt(note) {
            Ok(()) => Ok(true),
            Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets the mirror grow by a log, if that is possible.
    fn grow(&self, ledgers: &Ledgers, kind: Kind, size: u64) -> Result<(), Error> {
        let Some(mut witness) = self.machine(Which::Witness) else { return Ok(()) };
        let from = witness.size();
        if size <= from {
            return Ok(());
        }
        let (mut extension, entries) = (witness.mirror().extension(from)?, ledgers.entries(kind, size));
        while extension.size() < size {
            let at = extension.size();
            let end = size.min(at - at % BUNDLE + BUNDLE);
            let new: Vec<&[u8]> = entries[at as usize..end as usize].iter().map(Vec::as_slice).collect();
            extension.push(&new)?;
        }
        match witness.advance(&ledgers.note(kind, size), &extension.grown(from)) {
            // The log does not lead to what is mirrored, or no trusted key signed it.
            Err(Error::Refused(_)) => Ok(()),
            done => done,
        }
    }

    /// Audits what is mirrored, from the API of a log.
    async fn audit(&mut self, ledgers: &Ledgers, kind: Kind) -> Result<(), Error> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let Some(log) = Verified::of(&locked(&running.witness)) else { return Ok(()) };
        match running.auditor.audit(&running.machine, &ledgers.api(kind).client(), &log).await {
            // This API has another log.
            Ok(_) | Err(Error::Unavailable(_) | Error::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks for a cosignature as a coordinator does.
    pub async fn cosign(&mut self, which: Which, ledgers: &Ledgers, kind: Kind, size: u64) -> Result<Answer, Error> {
        let (mut old, mut grown) = (0, false);
        for _ in 0..ATTEMPTS_MAX {
            let body = request(ledgers, kind, old, size);
            let outcome = match self.machine(which) {
                Some(mut machine) => machine.add_checkpoint(&body)?,
                None => return Ok(Answer::NotNow("down")),
            };
            match outcome {
                Outcome::Done(Answer::Conflict(told)) if told <= size && told != old => {
                    old = told;
                    continue;
                }
                Outcome::Done(Answer::Untrusted) | Outcome::Behind(_) if !grown => {}
                Outcome::Done(answer) => return Ok(answer),
                Outcome::Behind(_) => break,
            }
            self.grow(ledgers, kind, size)?;
            self.audit(ledgers, kind).await?;
            self.share()?;
            grown = true;
        }
        Ok(Answer::NotNow("behind"))
    }

    /// The auditor judges the witness's evidence, as in the daemon.
    fn share(&self) -> Result<(), Error> {
        let files = match self.machine(Which::Witness) {
            Some(witness) => files(&witness)?,
            None => return Ok(()),
        };
        let Some(mut machine) = self.machine(Which::Auditor) else { return Ok(()) };
        for (name, file) in files {
            if name.ends_with(EVIDENCE_ENDING) {
                machine.take_evidence(&file)?;
            }
        }
        Ok(())
    }

    /// The evidence files of the witness.
    pub fn evidence(&self) -> Vec<Vec<u8>> {
        // A disk that has crashed gives none.
        let files = self.machine(Which::Witness).and_then(|witness| files(&witness).ok()).unwrap_or_default();
        files.into_iter().filter(|(name, _)| name.ends_with(EVIDENCE_ENDING)).map(|(_, file)| file).collect()
    }

    /// Whether each cosigner has halted, and its evidence files.
    pub fn halts(&self) -> Vec<(Which, bool, Files)> {
        let of = |which| {
            let machine = self.machine(which)?;
            Some((which, machine.is_halted(), files(&machine).unwrap_or_default()))
        };
        self.all().into_iter().filter_map(of).collect()
    }
}

/// Files by their names.
type Files = Vec<(String, Vec<u8>)>;

fn files(machine: &Witness) -> Result<Files, Error> {
    let mut files = Vec::new();
    for name in machine.evidence()? {
        if let Some(file) = machine.evidence_file(&name)? {
            files.push((name, file));
        }
    }
    Ok(files)
}

fn request(ledgers: &Ledgers, kind: Kind, old: u64, size: u64) -> Vec<u8> {
    let served = ledgers.api(kind).served();
    let hashes: Vec<_> = served.log.headers[..size as usize].iter().map(|header| header.hash()).collect();
    drop(served);
    let proof = if old == 0 || old == size { Vec::new() } else { merkle::consistency_path(&hashes, old) };
    cosignature::request(old, &proof, &ledgers.note(kind, size))
}

fn ledger_key() -> coppice_verify::note::VerifierKey {
    coppice_client::model::Api::new().served().log.key.verifier().clone()
}

fn origin() -> String {
    ledger_key().name().to_owned()
}

fn disk_is_well<T>(done: Result<T, Error>) -> T {
    done.expect("a new disk is well")
}
