//! Bounds of a node: memory, sizes of messages and pages, and time limits.

use std::time::Duration;

use coppice_types::Params;

/// How long a connection may take to open.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two probes of an open connection.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Limit on the number of reads that share a call.
pub const READ_PARTS_MAX: usize = 256;

/// HTTP/2 flow control window. It is so large that a large message does not take several round
/// trips.
pub const WINDOW_BYTES: u32 = 2 << 20;
/// Room in a message beyond the limit that genesis sets: names, hashes and raft's own fields around
/// a batch.
pub const MESSAGE_OVERHEAD_BYTES: usize = 1 << 20;

/// Limit on the messages of peers that wait for a replica. Further ones are dropped; raft repeats
/// them.
pub const PEER_QUEUE_MAX: usize = 4096;
/// Limit on the requests that wait for a replica. Further ones are refused.
pub const REQUEST_QUEUE_MAX: usize = 1024;
/// Limit on the messages that wait for the connection to one other node. Further ones are dropped.
pub const OUTGOING_QUEUE_MAX: usize = 4096;
/// Limit on the commands of one replica whose outcome is awaited.
pub const WAITERS_MAX: usize = 1024;
/// Limit on the reads of one replica that wait for a read index.
pub const PARKED_MAX: usize = 1024;
/// Limit on the staged versions of one shard. Further ones are refused before they are proposed.
pub const STAGED_MAX: usize = 256;
/// Limit on the built merges that one replica reports, and that others remember.
pub const BUILT_MERGES_MAX: usize = 64;
/// Limit on the prepare ids of the present term whose abort is remembered.
pub const ABORTED_MAX: usize = 128;
/// Limit on the entries whose digests are compared at a time.
pub const AGREEMENTS_MAX: usize = 1024;
/// Limit on the messages of a stream that are prepared before the caller takes them.
pub const STREAM_QUEUE_MAX: usize = 4;
/// Limit on the records in one page of a scan.
pub const PAGE_RECORDS_MAX: usize = 1024;
/// Bytes of records in one page of a scan.
pub const SCAN_CHUNK_BYTES: usize = 256 << 10;
/// Bytes in one message of a snapshot.
pub const SNAPSHOT_CHUNK_BYTES: usize = 256 << 10;

/// Limit on the parts of a snapshot that a receiver may claim to hold in one request. Their hashes
/// take 128 KiB.
pub const SNAPSHOT_HELD_MAX: usize = 4096;
/// Size of the hash of a part.
pub const HASH_BYTES: usize = 32;

/// The largest message that a node takes or sends.
#[must_use]
pub const fn message_bytes(params: &Params) -> usize {
    params.message_bytes_max as usize + MESSAGE_OVERHEAD_BYTES
}

/// Additional room in a message between replicas, since raft sends several entries at once.
pub const PEER_MESSAGE_EXTRA_BYTES: usize = 8 << 20;
