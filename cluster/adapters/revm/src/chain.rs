//! The newest state of a chain, and how it moves.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_client::{
    Client, RANGE_BYTES_MAX,
    state::{self, Cache, Metrics, Writes},
};
use coppice_proto::{
    convert::{from_stamp, to_stamp},
    v1::{self, operation::Change},
};
use coppice_types::{ErrorKind, Reason, Stamp};
use revm::{
    database_interface::{DatabaseCommit, TryDatabaseCommit},
    primitives::{AddressMap, B256},
    state::Account,
};
use tokio::time::timeout;

use crate::{
    Block, EMPTY_ROOT, Error, Options, View,
    driver::Driver,
    records::{self, Keys},
};

/// Most attempts to stage or to commit a block, and to read a head that others move.
const TRIES: usize = 8;

/// The newest state of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The root of the state: [`EMPTY_ROOT`] before the first block.
    pub root: B256,
    /// The present name of its version.
    pub stamp: Stamp,
    /// The name with which the version began.
    committed: Stamp,
}

/// The state that a block leads to, before it is committed.
#[derive(Clone, Debug)]
pub struct Staged {
    parent: B256,
    root: B256,
    /// What the block changes. `records` has the records of the root as well.
    changes: Writes,
    records: Writes,
    /// The ledger's name of the stage, with the batch that is staged; `None` once it may be lost.
    stage: Option<(Bytes, v1::Batch)>,
}

impl Staged {
    /// The root of the state: until it is committed, the word of a coordinator.
    #[must_use]
    pub fn root(&self) -> B256 {
        self.root
    }

    /// What the block changes: the records of its accounts, slots, codes and hashes of blocks.
    #[must_use]
    pub fn changes(&self) -> &Writes {
        &self.changes
    }
}

/// The state of a chain in a ledger.
///
/// The ledger belongs to the chain alone, and has one writer. A block is written on the newest
/// state, or not at all. A root covers the version and the epoch, so a block that is rolled back
/// and runs again gets another root.
///
/// # Errors
/// Every call returns [`Error::Ledger`] or [`Error::Read`] if the ledger refuses it or does not
/// answer, [`Error::Timeout`] after [`Options::timeout`], and [`Error::Moved`] if something else
/// was written behind the newest block. Methods name only what else can fail.
#[derive(Debug)]
pub struct Chain {
    driver: Arc<Driver>,
    client: Client,
    cache: Cache,
    keys: Keys,
    timeout: Duration,
    principal: String,
    head: Head,
    /// The head may have moved, or the outcome of a write is unknown.
    doubtful: bool,
}

impl Chain {
    /// Finds the chain in a ledger, or begins it.
    ///
    /// # Errors
    /// [`Error::Options`] if a setting makes no sense, and [`Error::Threads`] if the system gives
    /// no threads.
    pub fn open(options: Options) -> Result<Self, Error> {
        options.check()?;
        let driver = Arc::new(Driver::start()?);
        let client = driver.run(async { Client::new(options.client) })?;
        let cache = Cache::new(client.clone(), options.cache)?;
        let nowhere = Head { root: EMPTY_ROOT, stamp: Stamp::default(), committed: Stamp::default() };
        let mut chain = Self {
            driver,
            client,
            cache,
            keys: Keys::new(&options.prefix),
            timeout: options.timeout,
            principal: options.principal,
            head: nowhere,
            doubtful: true,
        };
        chain.head()?;
        Ok(chain)
    }

    /// Waits for a call, for a limited time.
    fn limit<T>(
        &mut self,
        what: &'static str,
        call: impl AsyncFnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (driver, limit) = (self.driver.clone(), self.timeout);
        driver.run(async { timeout(limit, call(self)).await.unwrap_or(Err(Error::Timeout(what))) })
    }

    /// The newest state. It is read again if it is in doubt: at the beginning, after an error of a
    /// write, and if another writer was found.
    pub fn head(&mut self) -> Result<Head, Error> {
        self.limit("reading the head", async |chain| chain.settle().await)
    }

    async fn settle(&mut self) -> Result<Head, Error> {
        if self.doubtful {
            self.head = self.read_head().await?;
            self.cache.begin(self.head.stamp);
            self.doubtful = false;
        }
        Ok(self.head)
    }

    /// Reads the newest header, which is under a signed checkpoint, and the record of the head in
    /// its version, which is proven.
    async fn read_head(&self) -> Result<Head, Error> {
        let mut last = None;
        for _ in 0..TRIES {
            let newest = self.client.newest().await?;
            let at = newest.stamp;
            let read = v1::ReadOptions { at: Some(to_stamp(at)), ..v1::ReadOptions::default() };
            match self.client.get(v1::GetRequest { key: self.keys.head(), read: Some(read) }).await {
                Ok(answer) => {
                    let Some((value, committed)) = found(answer.record)? else {
                        return Ok(Head { root: EMPTY_ROOT, stamp: at, committed: at });
                    };
                    if value.len() != 32 {
                        return Err(Error::Malformed("the head of a chain of this form"));
                    }
                    if committed.version != at.version {
                        return Err(Error::Moved(at));
                    }
                    return Ok(Head { root: B256::from(newest.state_root.0), stamp: at, committed });
                }
                Err(error) if error.reason() == Some(Reason::RolledBack) => last = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(last.map_or(Error::Timeout("reading the head"), Error::Ledger))
    }

    /// Begins a block on the newest state.
    pub fn block(&mut self) -> Result<Block, Error> {
        let Head { root, stamp, .. } = self.head()?;
        Ok(Block::new(self.view_of(root, self.cache.at(stamp)), root))
    }

    /// The state with a root. It can be read as long as it stands, and is not pruned.
    ///
    /// # Errors
    /// [`Error::UnknownRoot`] if the ledger has no such state.
    pub fn view(&mut self, root: B256) -> Result<View, Error> {
        let at = self.limit("looking a root up", async |chain| chain.find(root).await)?;
        // A proof at head has shown that the version stands.
        Ok(self.view_of(root, self.cache.at_proven(at)))
    }

    fn view_of(&self, root: B256, view: state::View) -> View {
        View::new(self.driver.clone(), self.keys.clone(), Some(view).filter(|_| root != EMPTY_ROOT))
    }

    /// Gives the version of a root, by a read at head.
    async fn find(&mut self, root: B256) -> Result<Stamp, Error> {
        for _ in 0..TRIES {
            let head = self.settle().await?;
            let answer = self.client.get(v1::GetRequest { key: self.keys.root(root), read: None }).await?;
            let at = answer.read_at.map(from_stamp);
            if at.is_none_or(|at| at.version != head.stamp.version || at.epoch > head.stamp.epoch) {
                self.doubtful = true;
                continue;
            }
            if root == head.root {
                return Ok(head.committed);
            }
            let (value, _) = found(answer.record)?.ok_or(Error::UnknownRoot(root))?;
            return records::decode_stamp(&value);
        }
        Err(Error::Moved(self.head.stamp))
    }

    /// Asks the ledger for the root to which a block leads. The block is not written yet. A ledger
    /// keeps a few stages for some time, and the chain stages a block again if that is needed.
    ///
    /// # Errors
    /// [`Error::NotHead`] if the block did not run on the newest state.
    pub fn stage(&mut self, block: &Block) -> Result<Staged, Error> {
        let parent = block.parent();
        let gone = block.emptied()?;
        self.limit("staging a block", async |chain| {
            let gone = chain.keys_in(gone, block.view().stamp()).await?;
            let changes = block.changes(gone)?;
            let mut staged = Staged { parent, root: parent, changes, records: Writes::new(), stage: None };
            chain.prepare(&mut staged, None).await?;
            Ok(staged)
        })
    }

    /// Reads the keys of ranges of a version, which are proven.
    async fn keys_in(&self, ranges: Vec<(Bytes, Bytes)>, at: Option<Stamp>) -> Result<Vec<Bytes>, Error> {
        let (mut keys, mut bytes) = (Vec::new(), 0_usize);
        for (low, high) in ranges {
            let read = v1::ReadOptions { at: at.map(to_stamp), ..v1::ReadOptions::default() };
            let request = v1::RangeRequest { low, high: Some(high), read: Some(read), ..v1::RangeRequest::default() };
            let (records, _) = self.client.range_all(request).await?;
            for record in records {
                bytes = bytes.saturating_add(record.key.len());
                keys.push(record.key);
            }
            if bytes > RANGE_BYTES_MAX {
                return Err(Error::Options("the block empties larger storages than one batch can"));
            }
        }
        Ok(keys)
    }

    /// Stages a state on the head, again and again if answers are lost. The root must be `before`,
    /// if that is known.
    async fn prepare(&mut self, staged: &mut Staged, before: Option<B256>) -> Result<(), Error> {
        let mut last = Error::Timeout("staging a block");
        for _ in 0..TRIES {
            let head = self.settle().await?;
            if head.root != staged.parent {
                return Err(Error::NotHead { parent: staged.parent, head: head.root });
            }
            if staged.changes.is_empty() {
                return Ok(());
            }
            staged.records = self.records(&staged.changes);
            let batch = batch(&staged.records, head.stamp);
            let request = v1::StageRequest { batch: Some(batch.clone()), ..v1::StageRequest::default() };
            match self.client.stage(request).await {
                Ok(answer) => {
                    let root = B256::try_from(&answer.state_root[..]).map_err(|_| Error::Malformed("a staged root"))?;
                    if let Some(before) = before.filter(|before| *before != root) {
                        self.free(answer.stage_id).await;
                        return Err(Error::OtherRoot { before, now: root });
                    }
                    (staged.root, staged.stage) = (root, Some((answer.stage_id, batch)));
                    return Ok(());
                }
                Err(error) if error.reason() == Some(Reason::PreconditionFailed) => {
                    (self.doubtful, last) = (true, error.into());
                }
                Err(error) if is_repeated(&error) => last = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(last)
    }

    /// The changes of a block on the head, and two records. One has the root of its parent. The
    /// other names the version of the parent by that root, which was not known before.
    fn records(&self, changes: &Writes) -> Writes {
        let mut records = changes.clone();
        let root = self.head.root;
        records.insert(self.keys.head(), Some(Bytes::copy_from_slice(root.as_slice())));
        if root != EMPTY_ROOT {
            records.insert(self.keys.root(root), Some(records::encode_stamp(self.head.committed)));
        }
        records
    }

    /// Writes a staged block. A block is never written twice: if an answer is lost, the head has
    /// either its root or that of its parent. After an error, the call can be made again.
    ///
    /// # Errors
    /// [`Error::NotHead`] if another block was written on the same parent, and [`Error::OtherRoot`]
    /// if the ledger has lost the stage, and the block leads to another root now.
    pub fn commit(&mut self, staged: &mut Staged) -> Result<Head, Error> {
        self.limit("committing a block", async |chain| chain.finalize(staged).await)
    }

    async fn finalize(&mut self, staged: &mut Staged) -> Result<Head, Error> {
        let mut last = Error::Timeout("committing a block");
        for _ in 0..TRIES {
            let head = self.settle().await?;
            if head.root == staged.root {
                return Ok(head);
            }
            if staged.stage.is_none() {
                self.prepare(staged, Some(staged.root)).await?;
            }
            let Some((stage_id, batch)) = staged.stage.take() else { continue };
            self.doubtful = true;
            match self.client.finalize(v1::FinalizeRequest { stage_id, want_receipt: true }, &batch).await {
                Ok(answer) => return self.follow(staged, &answer),
                Err(error) if is_repeated(&error) || error.reason() == Some(Reason::PreconditionFailed) => {
                    last = error.into();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(last)
    }

    /// Takes a version that was committed by its receipt.
    fn follow(&mut self, staged: &Staged, answer: &v1::CommitResponse) -> Result<Head, Error> {
        let header = coppice_client::header(&answer.header)?;
        let next = self.head.stamp.version.0.checked_add(1).map(|next| Stamp::new(self.head.stamp.epoch.0, next));
        if B256::from(header.state_root.0) != staged.root || Some(header.stamp) != next {
            return Err(Error::Malformed("another version was committed than the one that was staged"));
        }
        self.cache.apply(header.stamp, &staged.records)?;
        self.head = Head { root: staged.root, stamp: header.stamp, committed: header.stamp };
        self.doubtful = false;
        Ok(self.head)
    }

    /// Drops a staged block. The ledger does so by itself after some time.
    pub fn discard(&mut self, staged: Staged) {
        if let Some((stage_id, _)) = staged.stage {
            let done = self.limit("discarding a stage", async |chain| {
                chain.free(stage_id).await;
                Ok(())
            });
            drop(done);
        }
    }

    async fn free(&self, stage_id: Bytes) {
        // The ledger frees a stage after some time, so an error does not matter.
        let _ = self.client.discard(v1::DiscardRequest { stage_id }).await;
    }

    /// Makes an older state the newest one again. The blocks behind it are rolled back, which the
    /// root log tells for good.
    ///
    /// # Errors
    /// [`Error::UnknownRoot`] if the ledger has no such state.
    pub fn set_head(&mut self, root: B256) -> Result<Head, Error> {
        self.limit("a rollback", async |chain| chain.roll_back(root).await)
    }

    async fn roll_back(&mut self, root: B256) -> Result<Head, Error> {
        let at = self.find(root).await?;
        if root == self.head.root {
            return Ok(self.head);
        }
        let request = v1::RollbackRequest {
            to: Some(at.version.0),
            reason: format!("back to the state {root}"),
            principal: self.principal.clone(),
            expected_head: Some(to_stamp(self.head.stamp)),
        };
        self.doubtful = true;
        match self.client.rollback(request).await {
            Ok(answer) => {
                // The answer is a coordinator's word.
                let (newest, told) = (self.client.newest().await?, answer.head.map(from_stamp));
                let stamp = newest.stamp;
                let shown = (told, B256::from(newest.state_root.0)) == (Some(stamp), root);
                if !shown || stamp.version != at.version || stamp.epoch <= self.head.stamp.epoch {
                    return Err(Error::Moved(stamp));
                }
                self.cache.rolled_back(stamp);
                self.head = Head { root, stamp, committed: at };
                self.doubtful = false;
                Ok(self.head)
            }
            // The head shows whether the rollback happened.
            Err(error) => match self.settle().await {
                Ok(head) if error.outcome_unknown() && head.root == root => Ok(head),
                _ => Err(error.into()),
            },
        }
    }

    /// The counts of the cache.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.cache.metrics()
    }
}

impl TryDatabaseCommit for Chain {
    type Error = Error;

    /// Writes the changes of a block that ran on a view of the newest state: stages and commits
    /// them.
    fn try_commit(&mut self, changes: AddressMap<Account>) -> Result<(), Error> {
        let mut block = self.block()?;
        block.commit(changes);
        block.recall()?;
        let mut staged = self.stage(&block)?;
        self.commit(&mut staged).map(drop)
    }
}

/// The value of a record with the version of its last change; `None` if there is none.
fn found(record: Option<v1::Record>) -> Result<Option<(Bytes, Stamp)>, Error> {
    let Some(record) = record.filter(|record| record.found) else { return Ok(None) };
    let changed = record.last_changed.ok_or(Error::Malformed("a record without a version"))?;
    Ok(Some((record.value, from_stamp(changed))))
}

/// The batch that leaves these records behind a head, as a version of its own.
fn batch(records: &Writes, head: Stamp) -> v1::Batch {
    let operation = |(key, value): (&Bytes, &Option<Bytes>)| {
        let change = value.clone().map_or(Change::Delete(true), Change::Put);
        v1::Operation { key: key.clone(), change: Some(change) }
    };
    v1::Batch {
        operations: records.iter().map(operation).collect(),
        expected_head: Some(to_stamp(head)),
        exclusive: true,
        ..v1::Batch::default()
    }
}

/// Whether a call is made again after an error: the ledger has lost the stage, or its answer was
/// lost.
fn is_repeated(error: &coppice_client::Error) -> bool {
    error.reason() == Some(Reason::StageLost) || error.outcome_unknown() && error.kind() != ErrorKind::Corrupted
}
