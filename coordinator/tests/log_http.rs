//! The root log as the public sees it: C2SP tiles over HTTP, read without any of the ledger's own
//! messages.

use std::time::Duration;

use coppice_types::{Digest, Params};
use coppice_verify::{
    checkpoint::Checkpoint,
    hash, merkle,
    tile::{Content, TileName, WIDTH},
};
use reqwest::{Client, Method, Response, StatusCode, header};

mod common;

use common::{Running, World, commit, put};

/// Minimum number of entries in the test's log: more than a tile holds.
const ENTRIES: u64 = 270;

async fn request(method: Method, url: &str) -> Response {
    let client = Client::builder().timeout(Duration::from_secs(20)).build().expect("a client");
    client.request(method, url).send().await.expect("the server answers")
}

async fn found(url: &str) -> Vec<u8> {
    let response = request(Method::GET, url).await;
    assert_eq!(response.status(), StatusCode::OK, "{url}");
    response.bytes().await.expect("a body").to_vec()
}

fn header(response: &Response, name: header::HeaderName) -> &str {
    response.headers().get(&name).unwrap_or_else(|| panic!("{name} is set")).to_str().expect("it is text")
}

async fn checkpoint(world: &World, url: &str) -> Checkpoint {
    let note = found(&format!("{url}/checkpoint")).await;
    Checkpoint::open(&note, world.key().verifier()).expect("the ledger's key signed it")
}

/// The names of all tiles of one level, or of all bundles, in a log of this size.
fn names(content: Content, size: u64) -> Vec<TileName> {
    let level = if let Content::Hashes { level } = content { u32::from(level) } else { 0 };
    let hashes = size >> (8 * level);
    let width = u64::from(WIDTH);
    let name = |number: u64| TileName {
        content,
        number,
        width: u16::try_from((hashes - number * width).min(width)).expect("at most 256"),
    };
    (0..hashes.div_ceil(width)).map(name).collect()
}

fn entries_of(mut bundle: &[u8]) -> Vec<Digest> {
    let mut hashes = Vec::new();
    while let Some((len, rest)) = bundle.split_first_chunk::<2>() {
        let (entry, rest) = rest.split_at(usize::from(u16::from_be_bytes(*len)));
        hashes.push(hash::log_entry_hash(entry));
        bundle = rest;
    }
    assert!(bundle.is_empty(), "a bundle ends with an entry");
    hashes
}

fn hashes_of(tile: &[u8]) -> Vec<Digest> {
    tile.chunks(32).map(|hash| Digest::from_slice(hash).expect("32 bytes a hash")).collect()
}

/// Reads everything that a checkpoint implies, and recomputes its root from the entries.
async fn walk(url: &str, checkpoint: &Checkpoint) {
    let mut leaves = Vec::new();
    for name in names(Content::Entries, checkpoint.size) {
        leaves.extend(entries_of(&found(&format!("{url}/{name}")).await));
    }
    assert_eq!(leaves.len() as u64, checkpoint.size);
    assert_eq!(merkle::mth(&leaves), checkpoint.root);
    let mut below = leaves;
    for level in 0..2 {
        let mut hashes = Vec::new();
        for name in names(Content::Hashes { level }, checkpoint.size) {
            hashes.extend(hashes_of(&found(&format!("{url}/{name}")).await));
        }
        assert_eq!(hashes, below, "level {level}");
        below = below.chunks_exact(usize::from(WIDTH)).map(merkle::mth).collect();
    }
}

async fn fill(running: &mut Running, entries: u64) {
    while running.handle.log_size() < entries {
        let request = commit(vec![put("a", "1")], Vec::new());
        running.client.commit(request).await.expect("it commits");
        running.client.head(coppice_proto::v1::HeadRequest::default()).await.expect("there is a head");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_walk_the_log_from_checkpoint_to_entries() {
    let world = World::of(1, &[], Params::default()).await;
    let (mut leader, url) = world.coordinator_with_log("a").await;
    leader.handle.leading().await;
    let first = checkpoint(&world, &url).await;
    walk(&url, &first).await;
    fill(&mut leader, ENTRIES).await;
    // The published checkpoint is at most a second old.
    let mut newest = checkpoint(&world, &url).await;
    while newest.size < ENTRIES {
        tokio::time::sleep(Duration::from_millis(50)).await;
        newest = checkpoint(&world, &url).await;
    }
    walk(&url, &newest).await;
    // A second coordinator, which does not lead, shows the same log.
    let (_follower, other) = world.coordinator_with_log("b").await;
    let there = checkpoint(&world, &other).await;
    assert_eq!(there, newest);
    walk(&other, &there).await;
    // A partial tile is still served when its full tile exists, and is a prefix of it.
    let full = found(&format!("{url}/tile/0/000")).await;
    for width in [1, 255] {
        assert_eq!(found(&format!("{url}/tile/0/000.p/{width}")).await, full[..width * 32]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_say_what_they_are_and_what_is_missing_is_404() {
    let world = World::of(1, &[], Params::default()).await;
    let (mut leader, url) = world.coordinator_with_log("a").await;
    leader.handle.leading().await;
    fill(&mut leader, 3).await;
    for (path, kind, caching) in [
        ("checkpoint", "text/plain; charset=utf-8", "no-cache"),
        ("tile/0/000.p/2", "application/octet-stream", "public, max-age=31536000, immutable"),
        ("tile/entries/000.p/2", "application/octet-stream", "public, max-age=31536000, immutable"),
    ] {
        let path = format!("{url}/{path}");
        let (got, head) = (request(Method::GET, &path).await, request(Method::HEAD, &path).await);
        for response in [&got, &head] {
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(header(response, header::CONTENT_TYPE), kind);
            assert_eq!(header(response, header::CACHE_CONTROL), caching);
        }
        let length = header(&head, header::CONTENT_LENGTH).to_owned();
        assert!(head.bytes().await.expect("no body").is_empty());
        assert_eq!(length, got.bytes().await.expect("a body").len().to_string());
    }
    for missing in [
        "index.html",
        "checkpoint/",
        "checkpoint?a",
        "tile/0/000",
        "tile/0/000.p/200",
        "tile/0/001.p/1",
        "tile/1/000.p/1",
        "tile/0/0",
        "tile/0/000.p/0",
        "tile/0/x000/000.p/1",
        "tile/entries/000",
        "tile/63/x018/x446/x744/x073/x709/x551/615",
        "tile/data/000.p/1",
        "tile/8/0/000.p/1",
    ] {
        let response = request(Method::GET, &format!("{url}/{missing}")).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{missing}");
        assert_eq!(header(&response, header::CACHE_CONTROL), "no-store");
    }
    let refused = request(Method::POST, &format!("{url}/checkpoint")).await;
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(header(&refused, header::ALLOW), "GET,HEAD");
}
