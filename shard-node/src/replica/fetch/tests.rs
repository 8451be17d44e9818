use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use coppice_env::{OpenMode, SimStorage};
use coppice_proto::v1::{
    PeerDone, PeerMessage,
    peer_server::{Peer, PeerServer},
};
use coppice_types::Reason;
use tonic::{Response, Status};

use super::*;
use crate::replica::{
    machine::Position,
    tests::{Rig, Toy, full, manifest, shared},
};

type Chunks = Vec<Result<SnapshotChunk, Status>>;

/// A sender that answers each request as the test has planned.
#[derive(Clone, Default)]
struct Sending {
    answers: Arc<Mutex<VecDeque<Chunks>>>,
    asked: Arc<Mutex<Vec<FetchSnapshotRequest>>>,
}

#[tonic::async_trait]
impl Peer for Sending {
    type FetchSnapshotStream = futures::stream::Iter<std::vec::IntoIter<Result<SnapshotChunk, Status>>>;

    async fn exchange(&self, _: Request<Streaming<PeerMessage>>) -> Result<Response<PeerDone>, Status> {
        Err(Status::unimplemented("only snapshots are sent"))
    }

    async fn fetch_snapshot(
        &self,
        request: Request<FetchSnapshotRequest>,
    ) -> Result<Response<Self::FetchSnapshotStream>, Status> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.into_inner());
        let answer = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match answer.ok_or_else(|| Status::unavailable("no answer is planned"))?.as_slice() {
            [Err(status)] => Err(status.clone()),
            chunks => Ok(Response::new(futures::stream::iter(chunks.to_vec()))),
        }
    }
}

fn content() -> Vec<u8> {
    (0..2 * SNAPSHOT_CHUNK_BYTES + 1000).map(|at| (at / 1000) as u8).collect()
}

/// The parts of a file from an offset to its end.
fn parts(content: &[u8], from: usize) -> Chunks {
    let part = |part: &[u8]| Ok(SnapshotChunk { data: Bytes::copy_from_slice(part), same_bytes: 0 });
    content[from..].chunks(SNAPSHOT_CHUNK_BYTES).map(part).collect()
}

fn refuse(reason: Reason) -> Status {
    coppice_proto::status::refuse(reason, "as planned")
}

/// A fetch from a sender on node 2 into an empty directory.
struct Scene {
    rig: Rig,
    sending: Sending,
    into: SimStorage,
    fetch: Fetch<Toy>,
}

impl Scene {
    fn new(answers: impl IntoIterator<Item = Chunks>) -> Self {
        let rig = Rig::new();
        let sending = Sending { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Sending::default() };
        let incoming = rig.net.listen("node-2");
        let max = 2 * SNAPSHOT_CHUNK_BYTES;
        let server = PeerServer::new(sending.clone()).max_encoding_message_size(max);
        tokio::spawn(tonic::transport::Server::builder().add_service(server).serve_with_incoming(incoming));
        let (into, shared) = (SimStorage::new(), shared::<Toy>(None));
        let fetch = Fetch {
            config: Arc::clone(&rig.config),
            mailbox: Arc::clone(&shared.mailbox),
            traffic: Arc::clone(&shared.traffic),
            storage: into.storage(),
            manifest: manifest(7, Position { index: 9, term: 2 }, &content()),
            node: "node-2".to_owned(),
        };
        Self { rig, sending, into, fetch }
    }

    /// Leaves these bytes as an earlier transfer would have.
    fn hold(&self, bytes: &[u8]) {
        let file = self.into.open("toy", OpenMode::OpenOrCreate).expect("there is room");
        file.write_all_at(bytes, 0).expect("there is room");
    }

    fn copied(&self) -> Vec<u8> {
        let file = self.into.open("toy", OpenMode::Existing).expect("it was made");
        let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("it can be read");
        bytes
    }

    /// The offsets that were asked for, and how many parts the receiver claimed to hold.
    fn asked(&self) -> Vec<(u64, usize)> {
        let asked = self.sending.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().map(|request| (request.offset, request.held.len() / HASH_BYTES)).collect()
    }

    fn traffic(&self) -> (u64, u64) {
        let Traffic { sent, held, .. } = &*self.fetch.traffic;
        (sent.load(Ordering::Relaxed), held.load(Ordering::Relaxed))
    }
}

const PART: u64 = SNAPSHOT_CHUNK_BYTES as u64;

#[tokio::test]
async fn a_copy_that_arrives_whole_is_checked_and_kept() {
    let scene = Scene::new([parts(&content(), 0)]);
    scene.fetch.run().await.expect("it is whole");
    assert!(scene.copied() == content());
    assert_eq!((scene.asked(), scene.traffic()), (vec![(0, 0)], (content().len() as u64, 0)));
    let calls = scene.rig.script.take_calls();
    assert_eq!(calls.last().map(String::as_str), Some("finish"), "{calls:?}");
}

#[tokio::test]
async fn a_broken_transfer_goes_on_behind_the_last_part_that_arrived() {
    let mut broken = parts(&content(), 0);
    broken.truncate(1);
    broken.push(Err(Status::unavailable("the link is cut")));
    let scene =
        Scene::new([broken, vec![Err(Status::unavailable("the sender restarts"))], parts(&content(), 256 << 10)]);
    scene.fetch.run().await.expect("it is whole");
    assert!(scene.copied() == content());
    assert_eq!(scene.asked(), [(0, 0), (PART, 0), (PART, 0)]);
    assert_eq!(scene.traffic(), (content().len() as u64, 0), "nothing was sent twice");
}

#[tokio::test]
async fn parts_that_are_here_already_are_named_by_their_hashes_and_not_sent() {
    let same = SnapshotChunk { data: Bytes::new(), same_bytes: SNAPSHOT_CHUNK_BYTES as u32 };
    let scene = Scene::new([[vec![Ok(same)], parts(&content(), SNAPSHOT_CHUNK_BYTES)].concat()]);
    let mut old = content();
    old[SNAPSHOT_CHUNK_BYTES + 5] ^= 1;
    scene.hold(&old);
    scene.fetch.run().await.expect("it is whole");
    assert!(scene.copied() == content());
    assert_eq!((scene.asked(), scene.traffic()), (vec![(0, 3)], (PART + 1000, PART)));
    let asked = scene.sending.asked.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(asked[0].held[..HASH_BYTES], sha256(&content()[..SNAPSHOT_CHUNK_BYTES]).0);
}

#[tokio::test]
async fn a_sender_that_claims_parts_which_are_not_here_is_asked_again() {
    let lie = |same_bytes| vec![Ok(SnapshotChunk { data: Bytes::new(), same_bytes })];
    let scene = Scene::new([lie(u32::MAX), [lie(7), parts(&content(), 0)].concat(), parts(&content(), 0)]);
    scene.fetch.run().await.expect("the third answer is whole");
    assert!(scene.copied() == content());
    assert_eq!(scene.asked(), [(0, 0); 3]);
}

#[tokio::test]
async fn a_copy_with_other_bytes_than_the_manifest_says_is_damaged() {
    let mut wrong = content();
    wrong[300_000] ^= 4;
    let scene = Scene::new([parts(&wrong, 0)]);
    let error = scene.fetch.run().await.expect_err("a bit is flipped");
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error:?}");
}

#[tokio::test]
async fn a_pin_that_is_gone_or_a_disk_that_is_full_ends_a_fetch_at_once() {
    let gone = || vec![Err(refuse(Reason::NotFound))];
    let scene = Scene::new([gone(), parts(&content(), 0)]);
    let error = scene.fetch.run().await.expect_err("the leader offers another snapshot");
    assert_eq!((error.kind(), scene.asked().len()), (ErrorKind::NotFound, 1));
    let scene = Scene::new([parts(&content(), 0), parts(&content(), 0)]);
    scene.rig.script.fail("write", full());
    let error = scene.fetch.run().await.expect_err("there is no room");
    assert_eq!((error.kind(), scene.asked().len()), (ErrorKind::Exhausted, 1));
}

#[tokio::test]
async fn a_malformed_manifest_is_refused_before_anything_is_asked() {
    let mut scene = Scene::new([parts(&content(), 0)]);
    scene.fetch.manifest.truncate(20);
    let error = scene.fetch.run().await.expect_err("it is cut short");
    assert_eq!((error.kind(), scene.asked().len()), (ErrorKind::Corrupted, 0));
}

#[tokio::test]
async fn a_replica_that_stops_ends_its_fetch_and_keeps_the_bytes() {
    let scene = Scene::new([parts(&content(), 0)]);
    scene.hold(&content()[..1000]);
    scene.fetch.mailbox.close();
    assert!(matches!(scene.fetch.run().await, Err(Error::Overdue(_))), "a later fetch may use what is there");
    assert!(scene.asked().is_empty());
    assert_eq!(scene.copied().len(), 1000);
}
