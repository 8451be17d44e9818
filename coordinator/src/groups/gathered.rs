//! Reads of one state of a shard that share a call.
//!
//! Many reads of head arrive at the same time, and a call costs more than a read. While calls about
//! a state are under way, further reads of it wait. The next call asks for all of them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use coppice_proto::{status, v1};
use coppice_types::{ErrorKind, GroupId, Reason};
use futures::future::join_all;
use opentelemetry::{Context, context::FutureExt};
use prost::Message;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tonic::Status;

use super::{
    links::{Lane, Links},
    wire,
};
use crate::lock::held;

/// Limit on the number of calls at a time about one state, so that a slow read does not delay all
/// others.
const CALLS_MAX: usize = 2;
/// Limit on the number of reads that share a call.
const READS_MAX: usize = 64;
/// A read of more keys has a call of its own.
const KEYS_MAX: usize = 32;

/// The reads that share calls, by the encoded request without its parts.
#[derive(Debug)]
pub struct Gathered {
    links: Arc<Links>,
    queues: Mutex<BTreeMap<Vec<u8>, Queue>>,
}

/// The reads of one state.
#[derive(Debug, Default)]
struct Queue {
    /// Tasks that make calls for the reads that wait.
    calls: usize,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    part: v1::ReadPart,
    deadline: Instant,
    answer: oneshot::Sender<Result<v1::ReadAnswer, Status>>,
}

impl Gathered {
    /// Reads over these links.
    pub fn new(links: Arc<Links>) -> Self {
        Self { links, queues: Mutex::default() }
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Queue>> {
        held(&self.queues)
    }

    /// Reads a part at the state of `request`, which has no parts of its own.
    ///
    /// # Errors
    /// The last replica's error, if none has the state.
    pub async fn read(
        self: &Arc<Self>,
        request: v1::ShardReadRequest,
        part: v1::ReadPart,
        deadline: Instant,
    ) -> Result<v1::ReadAnswer, Status> {
        if part.keys.len() > KEYS_MAX {
            return self.ask_one(&request, part, deadline).await;
        }
        let group = GroupId::from_number(request.group);
        let (answer, receive) = oneshot::channel();
        self.queue(request, Waiting { part, deadline, answer });
        let late = || status::refuse(Reason::Unavailable, format!("{group} does not answer in time"));
        timeout_at(deadline, receive).await.map_err(|_| late())?.map_err(|_| late())?
    }

    fn queue(self: &Arc<Self>, request: v1::ShardReadRequest, read: Waiting) {
        let state = request.encode_to_vec();
        let mut queues = self.queues();
        let queue = queues.entry(state.clone()).or_default();
        queue.waiting.push_back(read);
        if queue.calls < CALLS_MAX {
            queue.calls += 1;
            // Calls run in their own task, so they continue if the reader that caused them leaves.
            tokio::spawn(self.clone().work_off(state, request).with_context(Context::current()));
        }
    }

    /// Asks for waiting reads, call after call, until none are left.
    async fn work_off(self: Arc<Self>, state: Vec<u8>, request: v1::ShardReadRequest) {
        while let Some(reads) = self.next(&state) {
            self.ask(&request, reads).await;
        }
    }

    /// Takes the reads of the next call. `None` if none waits: then the calling task ends.
    fn next(&self, state: &[u8]) -> Option<Vec<Waiting>> {
        let mut queues = self.queues();
        let queue = queues.get_mut(state)?;
        let count = queue.waiting.len().min(READS_MAX);
        let reads: Vec<Waiting> = queue.waiting.drain(..count).filter(|read| !read.answer.is_closed()).collect();
        if count > 0 {
            return Some(reads);
        }
        queue.calls -= 1;
        if queue.calls == 0 {
            queues.remove(state);
        }
        None
    }

    /// Asks for these reads in one call, and answers them. If the state can be read and the call
    /// fails, one of them may be the reason: its record is damaged, or the answer would be too
    /// large. Then each is asked for by itself.
    async fn ask(&self, request: &v1::ShardReadRequest, reads: Vec<Waiting>) {
        let Some(deadline) = reads.iter().map(|read| read.deadline).max() else { return };
        let parts = reads.iter().map(|read| read.part.clone()).collect();
        match self.call(request, parts, deadline).await {
            Ok(answers) => {
                // A reader may be gone.
                reads.into_iter().zip(answers).for_each(|(read, answer)| drop(read.answer.send(Ok(answer))));
            }
            Err(error) if reads.len() > 1 && !is_of_state(&error) => {
                let each = reads.into_iter().map(|Waiting { part, deadline, answer }| async move {
                    let _ = answer.send(self.ask_one(request, part, deadline).await);
                });
                join_all(each).await;
            }
            Err(error) => reads.into_iter().for_each(|read| drop(read.answer.send(Err(error.clone())))),
        }
    }

    async fn ask_one(
        &self,
        request: &v1::ShardReadRequest,
        part: v1::ReadPart,
        deadline: Instant,
    ) -> Result<v1::ReadAnswer, Status> {
        self.call(request, vec![part], deadline).await?.pop().ok_or_else(|| wire::broken("read"))
    }

    /// The answers to these parts, in their order, from any replica.
    async fn call(
        &self,
        request: &v1::ShardReadRequest,
        parts: Vec<v1::ReadPart>,
        deadline: Instant,
    ) -> Result<Vec<v1::ReadAnswer>, Status> {
        let count = parts.len();
        let request = v1::ShardReadRequest { parts, ..request.clone() };
        let answer = self.links.read_shard(Lane::Reads, &request, deadline).await?;
        if answer.answers.len() == count { Ok(answer.answers) } else { Err(wire::broken("read")) }
    }
}

/// Whether a read of another key at the same state would fail in the same way.
fn is_of_state(error: &Status) -> bool {
    matches!(status::kind(error), ErrorKind::Unavailable | ErrorKind::Fenced)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use coppice_proto::{
        Channel,
        v1::shard_server::{Shard, ShardServer},
    };
    use tokio::sync::{Semaphore, mpsc};
    use tonic::{Request, Response};

    use super::*;
    use crate::Routing;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The key of a damaged record.
    const DAMAGED: &str = "key 5";

    /// A shard whose every read waits for a permit. It answers each key with itself, and refuses
    /// more parts than it is allowed.
    #[derive(Debug)]
    struct Echo {
        permits: Arc<Semaphore>,
        parts_max: usize,
        /// Whether a read of [`DAMAGED`] fails.
        damaged: bool,
        /// Gets the number of parts of each read.
        asked: mpsc::UnboundedSender<usize>,
    }

    #[tonic::async_trait]
    impl Shard for Echo {
        async fn prepare(&self, _: Request<v1::PrepareRequest>) -> Result<Response<v1::PrepareResponse>, Status> {
            Err(Status::unimplemented("only reads are tested"))
        }

        async fn command(
            &self,
            _: Request<v1::ShardCommandRequest>,
        ) -> Result<Response<v1::ShardCommandResponse>, Status> {
            Err(Status::unimplemented("only reads are tested"))
        }

        async fn scan(&self, _: Request<v1::ShardScanRequest>) -> Result<Response<v1::ShardScanResponse>, Status> {
            Err(Status::unimplemented("only reads are tested"))
        }

        async fn read(
            &self,
            request: Request<v1::ShardReadRequest>,
        ) -> Result<Response<v1::ShardReadResponse>, Status> {
            let parts = request.into_inner().parts;
            self.asked.send(parts.len()).expect("the test listens");
            self.permits.acquire().await.expect("it stays open").forget();
            if parts.len() > self.parts_max {
                return Err(status::refuse(Reason::LimitExceeded, "too much"));
            }
            if self.damaged && parts.iter().any(|part| part.keys.iter().any(|key| key == DAMAGED)) {
                return Err(status::refuse(Reason::Corrupted, "damaged"));
            }
            let record = |key: Bytes| v1::ShardRecord { key, found: true, ..v1::ShardRecord::default() };
            let answer = |part: v1::ReadPart| v1::ReadAnswer {
                records: part.keys.into_iter().map(record).collect(),
                trees: Bytes::new(),
            };
            Ok(Response::new(v1::ShardReadResponse { answers: parts.into_iter().map(answer).collect() }))
        }
    }

    struct Scene {
        gathered: Arc<Gathered>,
        permits: Arc<Semaphore>,
        asked: mpsc::UnboundedReceiver<usize>,
    }

    fn scene(parts_max: usize, damaged: bool) -> Scene {
        let (tell, asked) = mpsc::unbounded_channel();
        let permits = Arc::new(Semaphore::new(0));
        let open = permits.clone();
        let connect = move |_: &str| {
            let echo = Echo { permits: open.clone(), parts_max, damaged, asked: tell.clone() };
            Channel::new(ShardServer::new(echo))
        };
        let links = Links::new(&["node-1".to_owned()], &Routing::default(), &(Arc::new(connect) as _), 1 << 20, LIMIT);
        Scene { gathered: Arc::new(Gathered::new(Arc::new(links))), permits, asked }
    }

    /// A read of one key at the state with this term.
    async fn read(gathered: Arc<Gathered>, term: u64, key: String) -> Result<Vec<Bytes>, Status> {
        let context = Some(v1::ShardContext { term, ..v1::ShardContext::default() });
        let request = v1::ShardReadRequest { group: 1, context, ..v1::ShardReadRequest::default() };
        let part = v1::ReadPart { keys: vec![key.into()] };
        let answer = gathered.read(request, part, Instant::now() + LIMIT).await?;
        Ok(answer.records.into_iter().map(|record| record.key).collect())
    }

    async fn next(asked: &mut mpsc::UnboundedReceiver<usize>) -> usize {
        tokio::time::timeout(LIMIT, asked.recv()).await.expect("a call comes").expect("the shard lives")
    }

    #[tokio::test]
    async fn reads_that_wait_share_the_next_call_and_each_gets_its_own_answer() {
        let singly = vec![8, 1, 1, 1, 1, 1, 1, 1, 1];
        for (parts_max, damaged, later) in
            [(READS_MAX, false, vec![8]), (3, false, singly.clone()), (READS_MAX, true, singly)]
        {
            let Scene { gathered, permits, mut asked } = scene(parts_max, damaged);
            let mut began = Vec::new();
            for n in 0..CALLS_MAX {
                began.push(tokio::spawn(read(gathered.clone(), 1, format!("first {n}"))));
                assert_eq!(next(&mut asked).await, 1, "a read does not wait for another one");
            }
            let waiting: Vec<_> = (0..8).map(|n| read(gathered.clone(), 1, format!("key {n}"))).collect();
            let waiting = tokio::spawn(join_all(waiting));
            let gone = tokio::spawn(read(gathered.clone(), 1, "a reader that leaves".to_owned()));
            while gathered.queues().values().map(|queue| queue.waiting.len()).sum::<usize>() < 9 {
                tokio::task::yield_now().await;
            }
            gone.abort();
            assert!(gone.await.is_err_and(|error| error.is_cancelled()));
            let another = tokio::spawn(read(gathered.clone(), 2, "of another state".to_owned()));
            assert_eq!(next(&mut asked).await, 1, "a state does not wait for another one");
            permits.add_permits(100);
            for (n, answer) in waiting.await.expect("no panic").into_iter().enumerate() {
                let key = format!("key {n}");
                if damaged && key == DAMAGED {
                    assert_eq!(answer.as_ref().err().and_then(status::reason), Some(Reason::Corrupted));
                    continue;
                }
                assert_eq!(answer.expect("an answer"), [key]);
            }
            for count in later {
                assert_eq!(next(&mut asked).await, count);
            }
            for (n, first) in began.into_iter().enumerate() {
                assert_eq!(first.await.expect("no panic").expect("an answer"), [format!("first {n}")]);
            }
            assert_eq!(another.await.expect("no panic").expect("an answer"), ["of another state"]);
            while !gathered.queues().is_empty() {
                tokio::task::yield_now().await;
            }
        }
    }
}
