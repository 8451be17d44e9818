//! All metrics that collections read: name, unit, label, help, and how to read each part.

use super::Instruments;
use crate::replica::Role;

pub(super) fn replicas(it: &Instruments) {
    it.gauges(
        ("coppice.replica.role", "", "role"),
        "1 for the role that the replica has, 0 for the others",
        &[
            ("leader", |look| look.is(Role::Leader)),
            ("follower", |look| look.is(Role::Follower)),
            ("candidate", |look| look.is(Role::Candidate)),
            ("learner", |look| look.is(Role::Learner)),
            ("quarantined", |look| look.is(Role::Quarantined)),
            ("stopped", |look| look.is(Role::Stopped)),
        ],
    );
    it.gauges(
        ("coppice.replica.reader", "", ""),
        "1 if the configuration says that the replica is a reader, which never votes, whatever its role is now",
        &[("", |look| Some(look.is_reader.into()))],
    );
    it.gauges(
        ("coppice.replica.open", "", ""),
        "1 if the replica has its state, 0 if it is quarantined or waits for a snapshot",
        &[("", |look| Some(look.is_open.into()))],
    );
    it.gauges(
        ("coppice.replica.asleep", "", ""),
        "1 if the replica sleeps: its group is quiet, and nodes send one beat for all such groups",
        &[("", |look| Some(look.is_asleep.into()))],
    );
    it.gauges(
        ("coppice.replica.disk_full", "", ""),
        "1 if the replica takes no new versions for want of space",
        &[("", |look| Some(look.status.full.into()))],
    );
    it.counters(
        ("coppice.replica.quarantines", "", ""),
        "Times that the replica stopped trusting itself",
        &[("", |look| Some(look.counted.quarantines))],
    );
    it.gauges(
        ("coppice.replica.queue.messages", "", "lane"),
        "Messages of other replicas, and requests, that wait for the replica",
        &[("peers", |look| Some(look.waiting.0)), ("requests", |look| Some(look.waiting.1))],
    );
}

pub(super) fn raft(it: &Instruments) {
    it.gauges(("coppice.raft.term", "", ""), "Raft's term", &[("", |look| Some(look.status.term))]);
    it.gauges(
        ("coppice.raft.has_leader", "", ""),
        "1 if the replica knows a leader of its group",
        &[("", |look| Some(look.status.leader.is_some().into()))],
    );
    it.gauges(
        ("coppice.raft.voters", "", ""),
        "Voters of the group, as the replica knows them",
        &[("", |look| Some(look.status.voters.len() as u64))],
    );
    it.gauges(
        ("coppice.raft.reader.lag", "", ""),
        "Committed entries that the slowest reader of the group lacks, by its leader",
        &[("", |look| look.status.readers.map(|readers| readers.lag))],
    );
    it.gauges(
        ("coppice.raft.readers.silent", "", ""),
        "Readers of the group that its leader does not hear from",
        &[("", |look| look.status.readers.map(|readers| readers.silent))],
    );
    it.gauges(
        ("coppice.raft.index", "", "of"),
        "The last entry of the log, the last that is known to be committed, and the last that is applied",
        &[
            ("last", |look| Some(look.status.last)),
            ("committed", |look| Some(look.status.committed)),
            ("applied", |look| Some(look.status.applied)),
        ],
    );
    it.counters(
        ("coppice.raft.proposals", "", ""),
        "Commands that the replica has proposed as leader",
        &[("", |look| Some(look.counted.proposals))],
    );
    it.counters(
        ("coppice.raft.elections", "", "outcome"),
        "Elections that the replica has begun, and those that made it leader",
        &[("begun", |look| Some(look.counted.campaigns)), ("won", |look| Some(look.counted.leaderships))],
    );
    it.gauges(
        ("coppice.raft.log.entries", "", ""),
        "Entries that the log holds",
        &[("", |look| Some(look.status.log_entries))],
    );
    it.gauges(
        ("coppice.raft.log.size", "By", ""),
        "Space that the log takes on the disk",
        &[("", |look| Some(look.status.log_bytes))],
    );
}

pub(super) fn snapshots(it: &Instruments) {
    it.counters(
        ("coppice.snapshot.sent", "By", ""),
        "Bytes of snapshots that were handed out to other replicas",
        &[("", |look| Some(look.counted.snapshot_bytes_given))],
    );
    it.counters(
        ("coppice.snapshot.received", "By", "from"),
        "Bytes of snapshots that were taken in: over the network, or found on the disk from an earlier transfer",
        &[
            ("network", |look| Some(look.counted.snapshot_bytes_sent)),
            ("disk", |look| Some(look.counted.snapshot_bytes_held)),
        ],
    );
    it.counters(
        ("coppice.snapshot.pins", "", ""),
        "Snapshots that were made for other replicas",
        &[("", |look| Some(look.counted.snapshots_pinned))],
    );
    it.counters(
        ("coppice.snapshot.installs", "", ""),
        "Snapshots of other replicas that became the replica's state",
        &[("", |look| Some(look.counted.snapshots_installed))],
    );
    it.counters(
        ("coppice.snapshot.checks", "", ""),
        "Own snapshots that another replica refused and that were checked here",
        &[("", |look| Some(look.counted.snapshots_checked))],
    );
}

pub(super) fn engine(it: &Instruments) {
    engine_state(it);
    engine_erasures(it);
    engine_reads(it);
    engine_writes(it);
}

fn engine_state(it: &Instruments) {
    it.gauges(
        ("coppice.engine.version", "", ""),
        "The newest version that touched the shard and is known to be decided",
        &[("", |look| Some(look.shard.as_ref()?.version))],
    );
    it.gauges(
        ("coppice.engine.trees", "", ""),
        "Trees of the newest decided version",
        &[("", |look| Some(look.shard.as_ref()?.trees))],
    );
    it.gauges(
        ("coppice.engine.records", "", ""),
        "Records in the trees of the newest decided version, including those that newer ones hide",
        &[("", |look| Some(look.shard.as_ref()?.records))],
    );
    it.gauges(
        ("coppice.engine.staged.versions", "", ""),
        "Versions that are prepared and not decided",
        &[("", |look| Some(look.shard.as_ref()?.staged))],
    );
    it.gauges(
        ("coppice.engine.versions", "", ""),
        "Versions that are kept",
        &[("", |look| look.usage(|usage| usage.versions))],
    );
    it.gauges(
        ("coppice.engine.unflushed", "By", ""),
        "Bytes that no flush has made durable yet",
        &[("", |look| Some(look.shard.as_ref()?.unflushed_bytes))],
    );
    it.gauges(
        ("coppice.engine.disk", "By", "kind"),
        "Space on the disk by kind of file",
        &[
            ("index", |look| look.usage(|usage| usage.index_bytes)),
            ("data", |look| look.usage(|usage| usage.data_bytes)),
            ("patches", |look| look.usage(|usage| usage.patch_bytes)),
            ("values", |look| look.usage(|usage| usage.value_bytes - usage.cold_value_bytes)),
            ("cold_values", |look| look.usage(|usage| usage.cold_value_bytes)),
            ("meta", |look| look.usage(|usage| usage.meta_bytes)),
        ],
    );
    it.gauges(
        ("coppice.engine.disk.unused", "By", "kind"),
        "Space on the disk that holds nothing that is needed, and is used again or given back",
        &[
            ("index", |look| look.usage(|usage| usage.index_free_bytes)),
            ("data", |look| look.usage(|usage| usage.data_free_bytes)),
            ("patches", |look| look.usage(|usage| usage.patch_free_bytes)),
            ("values", |look| look.usage(|usage| usage.value_bytes.saturating_sub(usage.value_live_bytes))),
        ],
    );
    it.gauges(
        ("coppice.engine.cache", "By", "cache"),
        "Memory of caches: nodes of active and of frozen trees, hashes, filters",
        &[
            ("young", |look| look.usage(|usage| usage.young_cache_bytes)),
            ("old", |look| look.usage(|usage| usage.old_cache_bytes)),
            ("hashes", |look| look.usage(|usage| usage.hash_cache_bytes)),
            ("filters", |look| look.usage(|usage| usage.filter_bytes)),
        ],
    );
}

fn engine_erasures(it: &Instruments) {
    it.gauges(
        ("coppice.engine.erasures.open", "", ""),
        "Erased values that may still be on the replica's disks",
        &[("", |look| Some(look.shard.as_ref()?.erasures.open as u64))],
    );
    it.gauges(
        ("coppice.engine.erased.version", "", ""),
        "The newest version up to which all erasures are done on the replica's disks",
        &[("", |look| Some(look.shard.as_ref()?.erasures.through.0))],
    );
}

fn engine_reads(it: &Instruments) {
    it.counters(
        ("coppice.engine.lookups", "", ""),
        "Keys looked up, by reads and by deletes that ask whether there is something to delete",
        &[("", |look| look.counter(|counters| counters.gets))],
    );
    it.counters(
        ("coppice.engine.filter.skips", "", ""),
        "Trees that a filter excluded from a lookup",
        &[("", |look| look.counter(|counters| counters.filter_skips))],
    );
    it.counters(
        ("coppice.engine.cache.hits", "", "cache"),
        "Nodes found in memory, not flushed yet or in a cache, and pages of shortcuts",
        &[
            ("dirty", |look| look.counter(|counters| counters.node_dirty_hits)),
            ("young", |look| look.counter(|counters| counters.node_young_hits)),
            ("old", |look| look.counter(|counters| counters.node_old_hits)),
            ("shortcuts", |look| look.counter(|counters| counters.shortcut_hits)),
        ],
    );
    it.counters(
        ("coppice.engine.reads", "", "of"),
        "Reads of files: nodes, values, and pages of shortcuts",
        &[
            ("nodes", |look| look.counter(|counters| counters.span_reads)),
            ("values", |look| look.counter(|counters| counters.value_file_reads)),
            ("shortcuts", |look| look.counter(|counters| counters.shortcut_reads)),
        ],
    );
    it.counters(
        ("coppice.engine.read", "By", ""),
        "Bytes of nodes that were read from files",
        &[("", |look| look.counter(|counters| counters.span_read_bytes))],
    );
    it.counters(
        ("coppice.engine.value.reads", "", ""),
        "Values read, from memory or from files",
        &[("", |look| look.counter(|counters| counters.value_reads))],
    );
    it.counters(
        ("coppice.engine.scrubbed", "By", ""),
        "Bytes that were read in the background and found sound",
        &[("", |look| look.counter(|counters| counters.scrubbed_bytes))],
    );
    it.counters(
        ("coppice.engine.scrubs", "", ""),
        "Times that all files were read in the background and found sound",
        &[("", |look| look.counter(|counters| counters.scrubs))],
    );
}

fn engine_writes(it: &Instruments) {
    it.counters(
        ("coppice.engine.cold.moved", "By", ""),
        "Bytes of values that were copied to the cold directory",
        &[("", |look| look.counter(|counters| counters.cold_write_bytes))],
    );
    it.counters(
        ("coppice.engine.cold.failures", "", ""),
        "Failed moves to the cold directory; each is tried again",
        &[("", |look| look.counter(|counters| counters.cold_failures))],
    );
    it.counters(
        ("coppice.engine.stages", "", ""),
        "Versions prepared",
        &[("", |look| look.counter(|counters| counters.stages))],
    );
    it.counters(
        ("coppice.engine.flushes", "", ""),
        "Flushes",
        &[("", |look| look.counter(|counters| counters.flushes))],
    );
    it.counters(
        ("coppice.engine.merges", "", ""),
        "Merges of trees that were built",
        &[("", |look| look.counter(|counters| counters.merges_built))],
    );
    it.counters(
        ("coppice.engine.merge.records", "", ""),
        "Records that merges have read",
        &[("", |look| look.counter(|counters| counters.merge_records))],
    );
    it.counters(
        ("coppice.engine.nodes.made", "", ""),
        "Nodes made, flushed or not",
        &[("", |look| look.counter(|counters| counters.nodes_made))],
    );
    it.counters(
        ("coppice.engine.nodes.written", "", ""),
        "Nodes written to files",
        &[("", |look| look.counter(|counters| counters.span_writes))],
    );
    it.counters(
        ("coppice.engine.staged", "By", ""),
        "Bytes of keys and values that were to be written: the base of write amplification",
        &[("", |look| look.counter(|counters| counters.user_bytes))],
    );
    it.counters(
        ("coppice.engine.written", "By", "of"),
        "Bytes written to files: nodes, values, the meta log",
        &[
            ("nodes", |look| look.counter(|counters| counters.span_write_bytes)),
            ("values", |look| look.counter(|counters| counters.value_write_bytes)),
            ("meta", |look| look.counter(|counters| counters.meta_write_bytes)),
        ],
    );
    it.counters(
        ("coppice.engine.discarded", "By", ""),
        "Bytes of free pages that were given back to the file system",
        &[("", |look| look.counter(|counters| counters.discarded_bytes))],
    );
}

pub(super) fn root_group(it: &Instruments) {
    it.gauges(
        ("coppice.root.log.entries", "", ""),
        "Entries of the root log, as the replica has applied it",
        &[("", |look| Some(look.root.as_ref()?.entries))],
    );
    it.gauges(
        ("coppice.root.sessions", "", ""),
        "Open sessions of clients",
        &[("", |look| Some(look.root.as_ref()?.sessions))],
    );
    it.gauges(
        ("coppice.root.term", "", ""),
        "The leading coordinator's term",
        &[("", |look| Some(look.root.as_ref()?.term))],
    );
    it.gauges(
        ("coppice.root.disk", "By", ""),
        "Space of the root group's state on the disk",
        &[("", |look| Some(look.root.as_ref()?.disk_bytes))],
    );
}

pub(super) fn pim(it: &Instruments) {
    it.counters(
        ("coppice.pim.queries", "", "outcome"),
        "Single keys to be proven on a reader with memory modules: answered by its prover, or left to the engine since too few came, the version is not in the modules, too many wait, or the answer was late",
        &[
            ("answered", |look| look.asked(0)),
            ("small", |look| look.asked(1)),
            ("unserved", |look| look.asked(2)),
            ("busy", |look| look.asked(3)),
            ("late", |look| look.asked(4)),
        ],
    );
    it.counters(
        ("coppice.pim.lookups", "", "by"),
        "Different lookups in trees that lie in memory modules, by the modules and by the processor",
        &[
            ("dpus", |look| look.pim(|figures| figures.counts.pim_lookups)),
            ("host", |look| look.pim(|figures| figures.counts.lookups - figures.counts.pim_lookups)),
        ],
    );
    it.counters(
        ("coppice.pim.batches", "", ""),
        "Batches of queries that were answered",
        &[("", |look| look.pim(|figures| figures.counts.batches))],
    );
    it.gauges(
        ("coppice.pim.dpus", "", "state"),
        "DPUs in service, and those that gave a bad answer or failed",
        &[
            ("in", |look| look.pim(|figures| figures.dpus.1 as u64)),
            ("out", |look| look.pim(|figures| (figures.dpus.0 - figures.dpus.1) as u64)),
        ],
    );
    it.gauges(
        ("coppice.pim.version", "", ""),
        "The newest version that lies in the memory modules",
        &[("", |look| look.pim(|figures| figures.newest))],
    );
    it.gauges(
        ("coppice.pim.versions", "", ""),
        "Versions that lie in the memory modules",
        &[("", |look| look.pim(|figures| figures.versions as u64))],
    );
    it.counters(
        ("coppice.pim.versions.too_large", "", ""),
        "Versions with more nodes than pim.nodes_max",
        &[("", |look| look.pim(|figures| figures.too_large))],
    );
    it.gauges(
        ("coppice.pim.nodes", "", ""),
        "Nodes that the processor holds for the memory modules",
        &[("", |look| look.pim(|figures| figures.nodes as u64))],
    );
    it.counters(
        ("coppice.pim.refreshed", "By", ""),
        "Bytes of new pages that were written to the memory modules",
        &[("", |look| look.pim(|figures| figures.counts.refreshed_bytes))],
    );
}
