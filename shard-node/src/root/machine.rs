//! The root group's state machine as a replica drives it. Its only upkeep is its flushes, whose
//! writes run concurrently with it.

use std::sync::Arc;

use bytes::Bytes;
use coppice_env::Storage;
use coppice_root::{Command, Manifest, Outcome, Root, SnapshotReceiver};

use super::reads::RootMachine;
use crate::{
    Error,
    refusal::Refusal,
    replica::{
        machine::{Applied, Check, Pinned, Position, Receiver, StateMachine},
        maintain::{Disk, Maintain},
        runner::Runner,
    },
};

impl StateMachine for RootMachine {
    type Reply = Result<Outcome, Refusal>;
    type Config = Runner;
    type Receiver = RootReceiver;

    fn open(storage: Arc<dyn Storage>, runner: &Runner) -> Result<Self, Error> {
        Ok(Self { root: Root::open(storage)?, flush: None, runner: runner.clone() })
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Applied<Self::Reply>, Error> {
        let reply = match self.root.apply(index, command)? {
            Outcome::Refused(refusal) => Err(Refusal::new(refusal.reason(), refusal.to_string())),
            outcome => Ok(outcome),
        };
        Ok(Applied { digest: self.root.log_root(), reply })
    }

    fn durable(&self) -> Position {
        self.root.durable_position()
    }

    fn log_floor(&self) -> Position {
        self.root.durable_position()
    }

    fn unflushed_bytes(&self) -> u64 {
        self.root.unflushed_bytes()
    }

    fn begin_flush(&mut self, position: Position) -> Result<(), Error> {
        self.end_flush()?;
        let mut flush = self.root.begin_flush(position)?;
        self.flush = Some(self.runner.begin("root-writer", move || {
            flush.run();
            flush
        }));
        Ok(())
    }

    fn flush(&mut self, position: Position) -> Result<(), Error> {
        self.end_flush()?;
        Ok(self.root.flush(position)?)
    }

    fn pin_snapshot(&mut self, position: Position) -> Result<Pinned, Error> {
        self.end_flush()?;
        let manifest = self.root.pin_snapshot(position)?;
        Ok(Pinned { id: manifest.id, position: manifest.position, manifest: manifest.encode() })
    }

    fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        Ok(self.root.read_snapshot(id, file, offset, len)?)
    }

    fn check_of_snapshot(&self, id: u64) -> Result<Check, Error> {
        let check = self.root.check_of_snapshot(id)?;
        Ok(Box::new(|| Ok(check()?)))
    }

    fn unpin_snapshot(&mut self, id: u64) {
        self.root.unpin_snapshot(id);
    }

    fn receive(storage: Arc<dyn Storage>, _: &Self::Config, manifest: &[u8]) -> Result<RootReceiver, Error> {
        Ok(RootReceiver(SnapshotReceiver::new(storage, Manifest::decode(manifest)?)?))
    }

    fn manifest_position(manifest: &[u8]) -> Result<(u64, Position), Error> {
        let manifest = Manifest::decode(manifest)?;
        Ok((manifest.id, manifest.position))
    }

    fn disk_bytes(&self) -> u64 {
        self.root.disk_usage().unwrap_or_default()
    }

    /// Prunes, rollbacks and new leaders need the root group on a full disk, too.
    fn grows(command: &[u8]) -> bool {
        Command::grows(command)
    }
}

impl Maintain for RootMachine {
    fn disk(&self, _: bool) -> Disk {
        match &self.flush {
            None => Disk::Idle,
            Some(flush) if flush.is_done() => Disk::Due,
            Some(_) => Disk::Busy,
        }
    }

    fn write_on(&mut self, _: bool) -> Result<(), Error> {
        self.end_flush()
    }
}

impl RootMachine {
    /// Waits for the flush that was begun, if there is one.
    fn end_flush(&mut self) -> Result<(), Error> {
        match self.flush.take() {
            Some(flush) => Ok(self.root.end_flush(flush.end())?),
            None => Ok(()),
        }
    }
}

/// Receives the files of the root state machine.
#[derive(Debug)]
pub struct RootReceiver(SnapshotReceiver);

impl Receiver for RootReceiver {
    fn next(&self) -> Option<(String, u64)> {
        self.0.next().map(|(file, offset)| (file.to_owned(), offset))
    }

    fn held(&self, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        Ok(self.0.held(file, offset, len)?)
    }

    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.0.write(file, offset, bytes)?)
    }

    fn finish(self) -> Result<(), Error> {
        self.0.finish()?;
        Ok(())
    }
}
