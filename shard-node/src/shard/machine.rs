//! A shard's state machine as a replica drives it: flushes, snapshots, background work, and the
//! merges that the other replicas have built.

use std::sync::Arc;

use bytes::Bytes;
use coppice_consensus::Position;
use coppice_engine::{Engine, Manifest, MergeName, MergePace, MergeProgress, Options, SnapshotReceiver};
use coppice_env::Storage;
use coppice_types::{ErrorKind, Params, RaftId, Reason, ShardId};
use coppice_verify::ledgers::mark_of;

use super::{Outcome, ShardMachine, cold::ColdMover, command, writer::DiskWriter};
use crate::{
    Error,
    limits::{BUILT_MERGES_MAX, STAGED_MAX},
    refusal::Refusal,
    replica::{
        agreement::Voters,
        machine::{Applied, Check, Pinned, Receiver, StateMachine},
        maintain::{Backlog, Disk, ErasureMark, Maintain},
        runner::Runner,
    },
};

/// Records that one piece of background work merges. It takes about a millisecond, and a command
/// may have to wait for it.
const WORK_RECORDS_MIN: usize = 256;
/// Like [`WORK_RECORDS_MIN`], when merges are behind.
const WORK_RECORDS_MAX: usize = 1024;
/// Bytes of the value log that one piece of an erasure reads. It takes about a millisecond, too.
const ERASE_BYTES: u64 = 512 << 10;

/// The configuration that a shard is opened with.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    pub shard: ShardId,
    pub params: Params,
    /// The engine's use of memory and disk.
    pub engine: Options,
    /// The size at which the shard is flushed. A part of it is written ahead.
    pub flush_bytes_max: u64,
    /// Where writes ahead of flushes run.
    pub runner: Runner,
}

impl StateMachine for ShardMachine {
    type Reply = Outcome;
    type Config = ShardConfig;
    type Receiver = ShardReceiver;

    fn open(storage: Arc<dyn Storage>, config: &ShardConfig) -> Result<Self, Error> {
        let engine = if Engine::exists(storage.as_ref())? {
            Engine::open(storage, config.engine.clone())?
        } else {
            Engine::create(storage, config.shard, config.params.clone(), config.engine.clone())?
        };
        if engine.shard() != config.shard {
            return Err(Error::Identity(format!("it holds shard {}, expected is {}", engine.shard(), config.shard)));
        }
        if *engine.params() != config.params {
            return Err(Error::Identity("its shard has other genesis parameters".to_owned()));
        }
        let writer = DiskWriter::new(config.runner.clone(), config.flush_bytes_max);
        Self::new(engine, writer, ColdMover::new(config.runner.clone()))
    }

    fn apply(&mut self, index: u64, command: &Bytes) -> Result<Applied<Outcome>, Error> {
        self.apply_entry(index, command)
    }

    fn durable(&self) -> Position {
        self.engine.durable_position()
    }

    fn log_floor(&self) -> Position {
        self.engine.fallback_position()
    }

    fn unflushed_bytes(&self) -> u64 {
        self.engine.unflushed_bytes()
    }

    fn begin_flush(&mut self, position: Position) -> Result<(), Error> {
        self.forget_foreseen();
        self.writer.begin_flush(&mut self.engine, position, &self.protocol.encode())
    }

    fn flush(&mut self, position: Position) -> Result<(), Error> {
        self.forget_foreseen();
        match self.writer.end(&mut self.engine) {
            // There may be room by now. If not, the flush below fails in the same way.
            Err(error) if error.kind() == ErrorKind::Exhausted => {}
            ended => ended?,
        }
        Ok(self.engine.flush(position, &self.protocol.encode())?)
    }

    fn pin_snapshot(&mut self, position: Position) -> Result<Pinned, Error> {
        if self.durable() != position {
            self.flush(position)?;
        }
        let manifest = self.engine.pin_snapshot()?;
        Ok(Pinned { id: manifest.id, position: manifest.position, manifest: manifest.encode() })
    }

    fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        Ok(self.engine.read_snapshot(id, file, offset, len)?)
    }

    fn check_of_snapshot(&self, id: u64) -> Result<Check, Error> {
        let check = self.engine.check_of_snapshot(id)?;
        Ok(Box::new(|| Ok(check()?)))
    }

    fn unpin_snapshot(&mut self, id: u64) {
        self.engine.unpin_snapshot(id);
    }

    fn receive(storage: Arc<dyn Storage>, config: &ShardConfig, manifest: &[u8]) -> Result<ShardReceiver, Error> {
        let manifest = Manifest::decode(manifest)?;
        Ok(ShardReceiver(SnapshotReceiver::new(storage, manifest, config.engine.hot_value_bytes_max)?))
    }

    fn manifest_position(manifest: &[u8]) -> Result<(u64, Position), Error> {
        let manifest = Manifest::decode(manifest)?;
        Ok((manifest.id, manifest.position))
    }

    fn disk_bytes(&self) -> u64 {
        let Ok(usage) = self.engine.disk_usage() else { return 0 };
        [usage.index_bytes, usage.data_bytes, usage.patch_bytes, usage.value_bytes, usage.meta_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Only a Prepare makes a shard larger.
    fn grows(command: &[u8]) -> bool {
        command::is_prepare(command)
    }

    /// The number of staged versions is bounded.
    fn admit(&self, command: &[u8]) -> Result<(), Refusal> {
        if command::is_prepare(command) && self.engine.staged().len() >= STAGED_MAX {
            let message = format!("the shard holds {STAGED_MAX} staged versions, the most that it may");
            return Err(Refusal::new(Reason::ResourceExhausted, message));
        }
        Ok(())
    }

    /// Keeps only merges that a majority of the voters has built. Installing another merge would
    /// make voters wait until they have built it.
    fn complete(&self, reply: &mut Outcome, own_id: RaftId, voters: &Voters) {
        let Ok(reply) = reply else { return };
        let built = |id: RaftId, merge: &MergeName| {
            id == own_id || self.built.get(&id).is_some_and(|merges| merges.contains(merge))
        };
        reply.shape.ready.retain(|merge| voters.majority(|id| built(id, merge)));
    }
}

impl Maintain for ShardMachine {
    fn foresee(&mut self, index: u64, command: &Bytes) {
        self.stage_early(index, command);
    }

    fn work_bytes_max(&self) -> u64 {
        self.engine.merge_end_bytes()
    }

    fn much_waits(&self) -> bool {
        self.engine.much_waits() || self.engine.erasure_wants_flush()
    }

    fn disk(&self, flush_due: bool) -> Disk {
        match self.writer.state(&self.engine, flush_due) {
            // A flush would drop a version that is about to be committed.
            Disk::Idle if flush_due && self.foreseen.is_some() => Disk::Busy,
            state => state,
        }
    }

    fn write_on(&mut self, flush_due: bool) -> Result<(), Error> {
        self.writer.go_on(&mut self.engine, flush_due)
    }

    fn backlog(&self) -> Backlog {
        let merges = match self.engine.merge_pace() {
            MergePace::Idle => Backlog::None,
            MergePace::Waiting => Backlog::Waiting,
            MergePace::Going => Backlog::Some,
            MergePace::Behind(_) => Backlog::Behind,
        };
        if self.engine.erasure_due() { merges.max(Backlog::Some) } else { merges }
    }

    fn work(&mut self) -> Result<(), Error> {
        let pace = self.engine.merge_pace();
        if self.engine.erasure_due() && !matches!(pace, MergePace::Behind(_)) {
            return self.erase();
        }
        let records = match pace {
            MergePace::Behind(owed) => usize::try_from(owed).unwrap_or(WORK_RECORDS_MAX),
            MergePace::Idle | MergePace::Waiting | MergePace::Going => WORK_RECORDS_MIN,
        };
        let _: MergeProgress = self.engine.merge_step(records.clamp(WORK_RECORDS_MIN, WORK_RECORDS_MAX))?;
        Ok(())
    }

    fn scrub(&mut self, bytes: u64) -> Result<bool, Error> {
        let rounds = self.engine.counters().scrubs;
        self.engine.scrub(bytes)?;
        Ok(self.engine.counters().scrubs > rounds)
    }

    fn erase(&mut self) -> Result<(), Error> {
        Ok(self.engine.erase_step(ERASE_BYTES)?)
    }

    fn erasure_mark(&self) -> ErasureMark {
        ErasureMark { last: self.engine.last_eraser(), strays: self.strays }
    }

    fn erasure_wants_unpin(&self) -> bool {
        self.engine.erasure_wants_unpin()
    }

    fn cold_due(&self) -> bool {
        self.mover.is_due(&self.engine)
    }

    fn move_cold(&mut self, bytes: u64) -> Result<(), Error> {
        self.mover.go_on(&mut self.engine, bytes)
    }

    fn built(&self) -> Vec<MergeName> {
        self.engine.built_merges().iter().take(BUILT_MERGES_MAX).cloned().collect()
    }

    fn note_built(&mut self, from: RaftId, built: Vec<MergeName>) {
        let sound = built.into_iter().filter(|merge| merge.inputs.len() <= command::INPUTS_MAX);
        self.built.insert(from, sound.collect());
    }
}

/// Receives the files of a shard.
#[derive(Debug)]
pub struct ShardReceiver(SnapshotReceiver);

impl Receiver for ShardReceiver {
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
        // No record has the empty key: a value that no mark could erase is refused.
        Ok(self.0.finish(|key| Some(mark_of(key).unwrap_or_default()))?)
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Digest;

    use super::*;
    use crate::{
        replica::tests::raft_id,
        shard::{
            Reply,
            tests::{Talk, config, open},
        },
    };

    #[test]
    fn a_directory_of_another_shard_or_ledger_is_refused() {
        let disk = SimStorage::new();
        drop(open(disk.storage()));
        let params = Params { capacity: 16, ..config().params };
        for other in [ShardConfig { shard: ShardId(1), ..config() }, ShardConfig { params, ..config() }] {
            let refused = ShardMachine::open(disk.storage(), &other).expect_err("it is another's");
            assert!(matches!(refused, Error::Identity(_)), "{refused}");
        }
        assert_eq!(open(disk.storage()).engine().shard(), ShardId(0));
    }

    #[test]
    fn only_a_prepare_makes_a_shard_larger() {
        let talk = Talk::new();
        let grows = |body| ShardMachine::grows(&command::Command { context: talk.context, body }.encode());
        assert!(grows(talk.attempt(1, 1, talk.context.decided, "a")));
        assert!(!grows(command::Body::Finalize) && !grows(command::Body::Adopt));
        assert!(!ShardMachine::grows(&[]) && !ShardMachine::grows(&[1]), "bytes that are no command");
    }

    #[test]
    fn a_merge_is_offered_once_a_majority_has_built_it() {
        let merge = |byte| MergeName { inputs: vec![Digest([byte; 32]); 2], output: Digest([byte; 32]) };
        let mut talk = Talk::new();
        talk.machine.note_built(raft_id(2), vec![merge(1), merge(2)]);
        talk.machine.note_built(raft_id(3), vec![merge(3)]);
        talk.machine.note_built(raft_id(3), vec![merge(2)]);
        let voters =
            |ids: &[u32]| Voters { incoming: ids.iter().copied().map(raft_id).collect(), outgoing: Vec::new() };
        let decided = talk.context.decided;
        let offered = |talk: &Talk, voters: &Voters| {
            let shape = coppice_engine::ForestShape { ready: [1, 2, 3].map(merge).to_vec(), ..Default::default() };
            let mut reply = Ok(Reply { staged: None, shape, decided });
            talk.machine.complete(&mut reply, raft_id(1), voters);
            reply.map(|reply| reply.shape.ready).unwrap_or_default()
        };
        assert_eq!(offered(&talk, &voters(&[1])).len(), 3);
        assert_eq!(offered(&talk, &voters(&[1, 2, 3])), [merge(1), merge(2)], "each report replaces the one before");
        assert_eq!(offered(&talk, &voters(&[1, 2, 3, 4, 5])), [merge(2)]);
        let huge = MergeName { inputs: vec![Digest([1; 32]); command::INPUTS_MAX + 1], output: Digest([9; 32]) };
        talk.machine.note_built(raft_id(2), vec![huge]);
        assert_eq!(offered(&talk, &voters(&[1, 2, 3])), [merge(2)], "no Prepare could name such a merge");
    }

    #[test]
    fn a_snapshot_carries_state_and_protocol_to_another_replica_and_no_flipped_bit() {
        let mut talk = Talk::new();
        let decided = talk.commit(1, "a");
        let position = Position { index: 4, term: 1 };
        let pinned = talk.machine.pin_snapshot(position).expect("there is room");
        assert_eq!(ShardMachine::manifest_position(&pinned.manifest).expect("whole"), (pinned.id, position));
        for flip in [false, true] {
            let disk = SimStorage::new();
            let mut receiver = ShardMachine::receive(disk.storage(), &config(), &pinned.manifest).expect("whole");
            while let Some((file, offset)) = receiver.next() {
                let mut bytes = talk.machine.read_snapshot(pinned.id, &file, offset, 1 << 20).expect("pinned");
                if let Some(last) = bytes.last_mut().filter(|_| flip) {
                    *last ^= 1;
                }
                if receiver.write(&file, offset, &bytes).is_err() {
                    break;
                }
            }
            let finished = receiver.finish();
            assert_eq!(finished.is_err(), flip);
            if !flip {
                let copy = open(disk.storage());
                assert_eq!((copy.engine().decided(), copy.durable()), (decided, position));
                assert_eq!(copy.protocol(), talk.machine.protocol());
            }
        }
        talk.machine.check_of_snapshot(pinned.id).expect("it is pinned")().expect("it is sound");
        talk.machine.unpin_snapshot(pinned.id);
        assert!(talk.machine.check_of_snapshot(pinned.id).is_err());
    }
}
