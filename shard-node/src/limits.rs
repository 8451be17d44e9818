//! Every bound of a node: what is held in memory, how much at a time, and for how long.

use std::time::Duration;

use coppice_types::Params;

/// How long a connection may take to open.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often an open connection is probed.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// HTTP/2 flow control windows, so that one large message does not wait for several round trips.
pub const WINDOW_BYTES: u32 = 2 << 20;
/// What a message may need beyond the limit that genesis sets: names, hashes and raft's own fields around a batch.
pub const MESSAGE_OVERHEAD_BYTES: usize = 1 << 20;

/// Messages of peers that wait for a replica; more are dropped, raft repeats them.
pub const PEER_QUEUE_MAX: usize = 4096;
/// Requests that wait for a replica; more are refused.
pub const REQUEST_QUEUE_MAX: usize = 1024;
/// Messages that wait for the connection to one other node; more are dropped.
pub const OUTGOING_QUEUE_MAX: usize = 4096;
/// Commands whose outcome is awaited, of one replica.
pub const WAITERS_MAX: usize = 1024;
/// Reads that wait for a state or a read index, of one replica.
pub const PARKED_MAX: usize = 1024;
/// Staged versions of one shard; more are refused before they are proposed.
pub const STAGED_MAX: usize = 256;
/// Prepare ids of the present term whose abort is remembered.
pub const ABORTED_MAX: usize = 128;
/// Entries whose digests are compared at a time.
pub const AGREEMENTS_MAX: usize = 1024;
/// Messages of a stream that are made before the caller takes them.
pub const STREAM_QUEUE_MAX: usize = 4;
/// Most records of one page of a scan.
pub const PAGE_RECORDS_MAX: usize = 1024;
/// Bytes of records in one page of a scan.
pub const SCAN_CHUNK_BYTES: usize = 256 << 10;
/// Bytes in one message of a snapshot.
pub const SNAPSHOT_CHUNK_BYTES: usize = 256 << 10;

/// Parts of a snapshot that a receiver says that it holds, in one request: their hashes take 128 KiB.
pub const SNAPSHOT_HELD_MAX: usize = 4096;
/// Bytes of such a hash.
pub const HASH_BYTES: usize = 32;

/// The largest message that a node takes or sends.
#[must_use]
pub const fn message_bytes(params: &Params) -> usize {
    params.message_bytes_max as usize + MESSAGE_OVERHEAD_BYTES
}
/// What messages between replicas may have beyond that: raft sends several entries at once.
pub const PEER_MESSAGE_EXTRA_BYTES: usize = 8 << 20;
