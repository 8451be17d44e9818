//! A node with readers beside three others.

use super::{STOP_LIMIT, assert_all_there, load_file, serve::metric};
use crate::{
    common,
    harness::{Cluster, until},
};

/// Waits until both shards have their reader, and three voters.
fn until_read(cluster: &Cluster) {
    until("both shards have a reader", || {
        let groups = cluster.replicas()?;
        let reads = |group: &&Vec<(String, String, u64)>| {
            group.iter().any(|(name, role, _)| name == "node-5" && role == "learner")
        };
        let votes = |group: &Vec<(String, String, u64)>| {
            group.iter().filter(|(_, role, _)| role == "leader" || role == "follower").count() == 3
        };
        (groups.iter().filter(reads).count() == 2 && groups.iter().all(votes)).then_some(())
    });
}

/// The number of reads that readers have answered.
fn reads(cluster: &Cluster) -> f64 {
    metric(&cluster.metrics(4), "coppice_read_calls_total", "replica=\"reader\"")
}

#[test]
fn a_reader_joins_a_cluster_that_was_founded_without_one_and_takes_reads() {
    let cluster = Cluster::tls();
    let mut nodes = cluster.nodes();
    let coordinator = cluster.coordinator();
    cluster.until_it_commits("ready=yes");
    cluster.add_reader();
    // Nobody knows the reader yet, so it is not let in. It goes on asking.
    let mut reader = cluster.node(5);
    for ordinal in (1..=3).rev() {
        assert!(nodes.remove(ordinal - 1).stop() < STOP_LIMIT);
        nodes.insert(ordinal - 1, cluster.node(ordinal));
        cluster.until_ready(ordinal, "");
    }
    assert!(coordinator.stop() < STOP_LIMIT);
    let coordinator = cluster.coordinator();
    until_read(&cluster);
    let (file, history) = load_file(cluster.dir.path(), 1, 120);
    let load = cluster.start(&["load", &file]);
    reader.kill();
    reader = cluster.node(5);
    load.finish(common::LIMIT).expect(0);
    until_read(&cluster);
    assert_all_there(&cluster, &history);
    until("a reader answers", || {
        assert_eq!(cluster.run(&["get", "ready"]).expect(0).stdout, "yes");
        (reads(&cluster) >= 10.0).then_some(())
    });
    assert!(reader.stop() < STOP_LIMIT);
    assert_eq!(cluster.run(&["get", "ready"]).expect(0).stdout, "yes");
    common::assert_sound(&cluster.path("node-5"));
    drop((coordinator, nodes));
}

#[test]
fn settings_of_memory_modules_are_checked_and_without_the_library_a_line_says_so() {
    let cluster = Cluster::plain();
    cluster.add_reader();
    let refused = |ordinal, more: &[&str]| common::run(&mut cluster.node_command(ordinal, more)).expect(2).stderr;
    let library = "pim.library=libdpu-that-nobody-has.so";
    let voter = refused(1, &["--set", library]);
    assert!(voter.contains("reader = true"), "{voter}");
    let unknown = refused(5, &["--set", library, "--set", "pim.dpsu=4"]);
    assert!(unknown.contains("dpsu"), "{unknown}");
    let none = refused(5, &["--set", library, "--set", "pim.dpus=0"]);
    assert!(none.contains("dpus = 0"), "{none}");
    let mut reader = cluster.node_with(5, &["--set", library], &[]);
    reader.says("no libdpu-that-nobody-has.so");
    reader.says("serving");
    assert_eq!(reader.log().matches("no processing in memory").count(), 1);
}
