//! A state machine that does what the test says, and notes what it was asked for.
//!
//! The state is the hash of all entries. A flush writes that hash and its position into one small
//! file, which a snapshot copies.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use coppice_engine::MergeName;
use coppice_env::{OpenMode, Storage};
use coppice_types::{
    Digest, RaftId, Reason,
    codec::{Error as CodecError, Reader, Writer},
};
use coppice_verify::hash::sha256;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    Error,
    refusal::Refusal,
    replica::{
        agreement::Voters,
        home,
        machine::{Applied, Check, Pinned, Position, Receiver, StateMachine},
        maintain::{Backlog, Disk, Maintain},
    },
};

const FILE: &str = "toy";

/// The test's handle to all toys that were opened with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script(Arc<Mutex<Acts>>);

/// The answers that a toy gives about itself, and the calls that it got.
#[derive(Debug)]
pub(crate) struct Acts {
    pub unflushed_bytes: u64,
    pub much_waits: bool,
    pub disk: Disk,
    pub backlog: Backlog,
    pub cold_due: bool,
    /// Whether each step of the check ends a round.
    pub scrub_ends: bool,
    /// Whether every command is refused before it is proposed.
    pub refuses: bool,
    /// Whether the digest of the next entry differs from that of other replicas.
    pub spoils: bool,
    pub built: Vec<MergeName>,
    /// The merges that others have built, by raft id.
    pub noted: BTreeMap<RaftId, usize>,
    fails: Vec<(&'static str, Error)>,
    calls: Vec<String>,
}

impl Default for Acts {
    fn default() -> Self {
        Self {
            unflushed_bytes: 0,
            much_waits: false,
            disk: Disk::Idle,
            backlog: Backlog::None,
            cold_due: false,
            scrub_ends: false,
            refuses: false,
            spoils: false,
            built: Vec::new(),
            noted: BTreeMap::new(),
            fails: Vec::new(),
            calls: Vec::new(),
        }
    }
}

impl Script {
    pub fn acts(&self) -> MutexGuard<'_, Acts> {
        self.0.lock()
    }

    /// Makes the next call of this name fail.
    pub fn fail(&self, call: &'static str, error: Error) {
        self.acts().fails.push((call, error));
    }

    /// The calls since this was last asked.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.acts().calls)
    }

    fn act(&self, call: &'static str, detail: impl ToString) -> Result<(), Error> {
        let mut acts = self.acts();
        let told = format!("{call} {}", detail.to_string());
        acts.calls.push(told.trim_end().to_owned());
        match acts.fails.iter().position(|(planned, _)| *planned == call) {
            Some(at) => Err(acts.fails.remove(at).1),
            None => Ok(()),
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Toy {
    storage: Arc<dyn Storage>,
    script: Script,
    sum: Digest,
    durable: Position,
    fallback: Position,
    pins: BTreeMap<u64, Vec<u8>>,
}

impl StateMachine for Toy {
    type Reply = String;
    type Config = Script;
    type Receiver = ToyReceiver;

    fn open(storage: Arc<dyn Storage>, script: &Script) -> Result<Self, Error> {
        script.act("open", "")?;
        let zero = Position { index: 0, term: 0 };
        let mut toy = Self {
            storage,
            script: script.clone(),
            sum: Digest::default(),
            durable: zero,
            fallback: zero,
            pins: BTreeMap::new(),
        };
        if let Some(bytes) = home::read(toy.storage.as_ref(), FILE)? {
            let mut input = Reader::new(&bytes);
            let mut position = || Ok::<_, CodecError>(Position { index: input.u64()?, term: input.u64()? });
            let damaged = |error: CodecError| Error::Damaged { file: FILE, what: error.to_string() };
            (toy.durable, toy.fallback) = (position().map_err(damaged)?, position().map_err(damaged)?);
            toy.sum = input.digest().map_err(damaged)?;
        }
        Ok(toy)
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Applied<String>, Error> {
        self.script.act("apply", index)?;
        self.sum = sha256(&[self.sum.as_bytes(), &command[..]].concat());
        let spoils = std::mem::take(&mut self.script.acts().spoils);
        let digest = if spoils { Digest([0xee; 32]) } else { self.sum };
        Ok(Applied { digest, reply: String::from_utf8_lossy(command).into_owned() })
    }

    fn durable(&self) -> Position {
        self.durable
    }

    fn log_floor(&self) -> Position {
        self.fallback
    }

    fn unflushed_bytes(&self) -> u64 {
        self.script.acts().unflushed_bytes
    }

    fn begin_flush(&mut self, position: Position) -> Result<(), Error> {
        self.script.act("begin_flush", position.index)?;
        self.persist(position)
    }

    fn flush(&mut self, position: Position) -> Result<(), Error> {
        self.script.act("flush", position.index)?;
        self.persist(position)
    }

    fn pin_snapshot(&mut self, position: Position) -> Result<Pinned, Error> {
        self.script.act("pin", position.index)?;
        self.persist(position)?;
        let id = self.pins.keys().next_back().map_or(1, |last| last + 1);
        let content = all_of(self.storage.as_ref())?;
        let manifest = manifest(id, position, &content);
        self.pins.insert(id, content);
        Ok(Pinned { id, position, manifest })
    }

    fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        self.script.act("read_snapshot", offset)?;
        let content = self.pins.get(&id).filter(|_| file == FILE).ok_or_else(no_pin)?;
        let from = usize::try_from(offset).expect("offsets are small").min(content.len());
        Ok(content[from..content.len().min(from + len)].to_vec())
    }

    fn check_of_snapshot(&self, id: u64) -> Result<Check, Error> {
        self.pins.get(&id).ok_or_else(no_pin)?;
        let script = self.script.clone();
        Ok(Box::new(move || script.act("check", id)))
    }

    fn unpin_snapshot(&mut self, id: u64) {
        self.script.act("unpin", id).expect("an unpin never fails");
        self.pins.remove(&id);
    }

    fn receive(storage: Arc<dyn Storage>, script: &Script, manifest: &[u8]) -> Result<ToyReceiver, Error> {
        script.act("receive", "")?;
        let (_, _, len, hash) = parse(manifest)?;
        Ok(ToyReceiver { storage, script: script.clone(), at: 0, len, hash })
    }

    fn manifest_position(manifest: &[u8]) -> Result<(u64, Position), Error> {
        parse(manifest).map(|(id, position, ..)| (id, position))
    }

    fn disk_bytes(&self) -> u64 {
        all_of(self.storage.as_ref()).map_or(0, |bytes| bytes.len() as u64)
    }

    fn grows(command: &[u8]) -> bool {
        command.first() != Some(&b'-')
    }

    fn admit(&self, _: &[u8]) -> Result<(), Refusal> {
        match self.script.acts().refuses {
            true => Err(Refusal::new(Reason::ResourceExhausted, "the toy is full")),
            false => Ok(()),
        }
    }

    fn complete(&self, reply: &mut String, own_id: RaftId, voters: &Voters) {
        *reply = format!("{reply} by {} of {}", own_id.ordinal(), voters.incoming.len());
    }
}

impl Toy {
    /// The bytes of its file.
    pub fn content(&self) -> Vec<u8> {
        all_of(self.storage.as_ref()).expect("it can be read")
    }

    fn persist(&mut self, position: Position) -> Result<(), Error> {
        if position != self.durable {
            (self.fallback, self.durable) = (self.durable, position);
        }
        let mut out = Writer::new();
        for Position { index, term } in [self.durable, self.fallback] {
            out.u64(index);
            out.u64(term);
        }
        out.digest(&self.sum);
        home::write(self.storage.as_ref(), FILE, &out.into_bytes())
    }
}

impl Maintain for Toy {
    fn foresee(&mut self, index: u64, _: &Bytes) {
        self.script.act("foresee", index).expect("looking ahead never fails");
    }

    fn much_waits(&self) -> bool {
        self.script.acts().much_waits
    }

    fn disk(&self, _: bool) -> Disk {
        self.script.acts().disk
    }

    fn write_on(&mut self, flush_due: bool) -> Result<(), Error> {
        self.script.act("write_on", flush_due)
    }

    fn backlog(&self) -> Backlog {
        self.script.acts().backlog
    }

    fn work(&mut self) -> Result<(), Error> {
        self.script.act("work", "")
    }

    fn scrub(&mut self, bytes: u64) -> Result<bool, Error> {
        self.script.act("scrub", bytes)?;
        Ok(self.script.acts().scrub_ends)
    }

    fn cold_due(&self) -> bool {
        self.script.acts().cold_due
    }

    fn move_cold(&mut self, bytes: u64) -> Result<(), Error> {
        self.script.act("move_cold", bytes)
    }

    fn built(&self) -> Vec<MergeName> {
        self.script.acts().built.clone()
    }

    fn note_built(&mut self, from: RaftId, built: Vec<MergeName>) {
        self.script.acts().noted.insert(from, built.len());
    }
}

/// Receives the toy's file, and checks its hash at the end.
#[derive(Debug)]
pub(crate) struct ToyReceiver {
    storage: Arc<dyn Storage>,
    script: Script,
    at: u64,
    len: u64,
    hash: Digest,
}

impl Receiver for ToyReceiver {
    fn next(&self) -> Option<(String, u64)> {
        (self.at < self.len).then(|| (FILE.to_owned(), self.at))
    }

    fn held(&self, _: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        let content = all_of(self.storage.as_ref())?;
        let from = usize::try_from(offset).expect("offsets are small").min(content.len());
        Ok(content[from..content.len().min(from + len)].to_vec())
    }

    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.script.act("write", bytes.len())?;
        assert_eq!((file, offset), (FILE, self.at), "parts arrive in order");
        let damaged = |error: std::io::Error| Error::Damaged { file: FILE, what: error.to_string() };
        let open = self.storage.open(FILE, OpenMode::OpenOrCreate).map_err(damaged)?;
        open.write_all_at(bytes, offset).map_err(damaged)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<(), Error> {
        self.script.act("finish", "")?;
        match sha256(&all_of(self.storage.as_ref())?) == self.hash {
            true => Ok(()),
            false => Err(Error::Damaged { file: FILE, what: "the copy has another hash".to_owned() }),
        }
    }
}

/// The manifest of a snapshot whose only file has this content.
pub(crate) fn manifest(id: u64, position: Position, content: &[u8]) -> Vec<u8> {
    let mut out = Writer::new();
    [id, position.index, position.term, content.len() as u64].into_iter().for_each(|number| out.u64(number));
    out.digest(&sha256(content));
    out.into_bytes()
}

fn parse(manifest: &[u8]) -> Result<(u64, Position, u64, Digest), Error> {
    let mut input = Reader::new(manifest);
    let mut parse = || {
        let (id, position) = (input.u64()?, Position { index: input.u64()?, term: input.u64()? });
        Ok((id, position, input.u64()?, input.digest()?))
    };
    parse().map_err(|error: CodecError| Error::Damaged { file: "manifest", what: error.to_string() })
}

fn all_of(storage: &dyn Storage) -> Result<Vec<u8>, Error> {
    let read = || {
        let file = match storage.open(FILE, OpenMode::Existing) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut bytes = vec![0; usize::try_from(file.len()?).expect("the file is small")];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    };
    read().map_err(|source| Error::Storage { what: "read the toy", source })
}

fn no_pin() -> Error {
    Error::Refused(Refusal::new(Reason::NotFound, "there is no such pin"))
}
