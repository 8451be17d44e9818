//! A shard, and commands to it as a leading coordinator sends them.

use super::*;

pub(crate) fn config() -> ShardConfig {
    let params = Params { capacity: 8, ..Params::default() };
    let (engine, flush_bytes_max) = (Options::default(), 1 << 20);
    ShardConfig { shard: ShardId(0), params, engine, flush_bytes_max, runner: Runner::Threads }
}

pub(crate) fn open(storage: Arc<dyn Storage>) -> ShardMachine {
    ShardMachine::open(storage, &config()).expect("the shard opens")
}

/// A shard, and the coordinator that leads it.
pub(crate) struct Talk {
    pub machine: ShardMachine,
    pub context: Context,
    pub attempt: u64,
}

impl Talk {
    pub fn new() -> Self {
        let machine = open(SimStorage::new().storage());
        let decided = machine.engine().decided();
        let context = Context { term: Term(1), admin_sequence: 0, decided };
        let mut talk = Self { machine, context, attempt: 0 };
        talk.adopt().expect("the first leader is welcome");
        talk
    }

    pub fn send_as(&mut self, context: Context, body: Body) -> Outcome {
        let bytes = Bytes::from(Command { context, body }.encode());
        self.machine.apply_command(&bytes).expect("the command is applied").reply
    }

    pub fn send(&mut self, body: Body) -> Outcome {
        self.send_as(self.context, body)
    }

    pub fn adopt(&mut self) -> Outcome {
        self.send(Body::Adopt)
    }

    pub fn attempt(&self, attempt: u64, version: u64, base: ShardState, value: &str) -> Body {
        Body::Prepare(Prepare {
            stamp: Stamp { epoch: self.machine.engine().epoch(), version: Version(version) },
            attempt,
            base,
            merges: Vec::new(),
            operations: vec![Operation {
                key: b"key".to_vec().into(),
                change: Change::Put(value.as_bytes().to_vec().into()),
            }],
            journal: Vec::new(),
        })
    }

    /// Stages a version under a new attempt.
    pub fn prepare(&mut self, version: u64, base: ShardState, value: &str) -> ShardState {
        self.attempt += 1;
        let body = self.attempt(self.attempt, version, base, value);
        let reply = self.send(body).expect("the version is staged");
        ShardState { version: Version(version), digest: reply.staged.expect("a Prepare stages") }
    }

    pub fn finalize(&mut self, state: ShardState) -> Outcome {
        self.context.decided = state;
        self.send(Body::Finalize)
    }

    pub fn commit(&mut self, version: u64, value: &str) -> ShardState {
        let state = self.prepare(version, self.context.decided, value);
        self.finalize(state).expect("it is decided");
        state
    }

    /// Commits a version with these operations on the decided state.
    pub fn commit_all(&mut self, version: u64, operations: Vec<Operation>) -> ShardState {
        self.attempt += 1;
        let body = match self.attempt(self.attempt, version, self.context.decided, "") {
            Body::Prepare(prepare) => Body::Prepare(Prepare { operations, ..prepare }),
            other => other,
        };
        let digest = self.send(body).expect("the version is staged").staged.expect("a Prepare stages");
        let state = ShardState { version: Version(version), digest };
        self.finalize(state).expect("it is decided");
        state
    }

    pub fn staged(&self) -> Vec<ShardState> {
        self.machine.engine().staged().iter().map(|staged| staged.state).collect()
    }

    pub fn decided(&self) -> ShardState {
        self.machine.engine().decided()
    }

    pub fn rollback(&self, number: u64, to: u64, epoch: u64, boundary: ShardState, newest: ShardState) -> Body {
        let operation = AdminOperation::Rollback { to: Version(to), epoch: Epoch(epoch) };
        Body::Execute(Execute { admin_sequence: number, operation, boundary, newest })
    }
}
