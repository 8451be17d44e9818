use coppice_process::{access::Role, ledger::Node};
use coppice_types::{RaftId, ShardId};

use super::*;

/// The settings of node 2 of three, with two shards.
pub(in crate::process) fn config() -> Config {
    let node = |ordinal: u32| Node { ordinal, address: format!("node-{ordinal}.example:7000"), ..Node::default() };
    Config {
        node: "node-2".to_owned(),
        cluster_id: "00112233445566778899aabbccddeeff".to_owned(),
        data_dir: PathBuf::from("/data/coppice"),
        cold: None,
        listen: SocketAddr::from(([127, 0, 0, 1], 7000)),
        health_listen: None,
        bootstrap: Bootstrap::default(),
        log: coppice_process::log_filter(),
        log_format: Format::default(),
        telemetry: Telemetry::default(),
        stop_timeout_ms: stop_timeout_ms(),
        nodes: (1..=3).map(|ordinal| (format!("node-{ordinal}"), node(ordinal))).collect(),
        ledger: Ledger::default(),
        placement: BTreeMap::new(),
        metadata: None,
        tls: None,
        access: Access::default(),
        tuning: Tuning::default(),
        pim: None,
    }
}

/// The complaint about the settings after a change.
fn wrong(change: impl FnOnce(&mut Config)) -> String {
    let mut config = config();
    change(&mut config);
    config.check().expect_err("it is wrong").message
}

fn placed(places: &[(&str, &[&str])]) -> Config {
    let names = |nodes: &[&str]| nodes.iter().map(|node| (*node).to_owned()).collect();
    let placement = places.iter().map(|(group, nodes)| ((*group).to_owned(), names(nodes))).collect();
    Config { placement, ..config() }
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    config().check().expect("it is sound");
    let cold = |dir: &str| Some(Cold { dir: PathBuf::from(dir), hot_value_bytes: 0, bytes_per_s: 0 });
    assert!(wrong(|it| it.node = "node-9".to_owned()).contains("node-9"));
    assert!(wrong(|it| it.nodes.clear()).contains("no node"));
    assert!(wrong(|it| it.cluster_id = "0011".to_owned()).contains("cluster_id"));
    assert!(wrong(|it| it.listen = SocketAddr::from(([10, 0, 0, 1], 7000))).contains("without [tls]"));
    assert!(wrong(|it| it.ledger.shards = 0).contains("shards"));
    for dir in ["/data/coppice", "/data/coppice/cold", "/data"] {
        assert!(wrong(|it| it.cold = cold(dir)).contains("not apart"), "{dir}");
    }
    assert!(Config { cold: cold("/data/cold"), ..config() }.check().is_ok());
    let store = Store { dir: Some(PathBuf::from("/store")), ..Store::default() };
    assert!(wrong(|it| it.metadata = Some(store)).contains("metadata"));
}

#[test]
fn modules_are_for_readers_and_within_their_bounds() {
    let with = |change: fn(&mut Pim)| {
        let mut config = config();
        config.nodes.get_mut("node-2").expect("it is configured").reader = true;
        let mut pim = Pim::emulated();
        change(&mut pim);
        Config { pim: Some(pim), ..config }
    };
    with(|_| ()).check().expect("it is sound");
    let voter = Config { pim: Some(Pim::emulated()), ..config() };
    assert!(voter.check().expect_err("a voter").message.contains("reader = true"));
    type Change = fn(&mut Pim);
    let wrong: [(&str, Change); 4] = [
        ("library", |pim| pim.library.clear()),
        ("dpus", |pim| pim.dpus = 0),
        ("nodes_max", |pim| pim.nodes_max = 0),
        ("batch_wait_ms", |pim| pim.batch_wait_ms = 5000),
    ];
    for (named, change) in wrong {
        assert!(with(change).check().expect_err(named).message.contains(named), "{named}");
    }
}

#[test]
fn ticks_and_segments_have_a_range_with_both_of_its_ends() {
    let with = |tick_ms, log_segment_bytes| {
        let tuning = Tuning { tick_ms, log_segment_bytes, ..Tuning::default() };
        Config { tuning, ..config() }.check().is_ok()
    };
    assert!(with(1, 64 << 10) && with(10_000, 1 << 30));
    assert_eq!([with(0, 1 << 20), with(10_001, 1 << 20)], [false, false]);
    assert_eq!([with(50, (64 << 10) - 1), with(50, (1 << 30) + 1)], [false, false]);
}

#[test]
fn groups_that_are_not_placed_are_on_all_nodes_and_others_only_where_they_are_placed() {
    let all: BTreeSet<u32> = [1, 2, 3].into();
    let shard = |number| GroupId::Shard(ShardId(number));
    let formation = config().formation().expect("it is sound");
    let expected = [(GroupId::Root, all.clone()), (shard(0), all.clone()), (shard(1), all.clone())];
    assert_eq!((formation.groups, formation.new), (expected.into(), false));
    let formation = placed(&[("root", &["node-1"]), ("1", &["node-2", "node-3"])]).formation().expect("it is sound");
    assert_eq!(formation.groups, [(shard(0), all), (shard(1), [2, 3].into())].into());
    let new = Config { bootstrap: Bootstrap::New, ..config() };
    assert!(new.formation().expect("it is sound").new);
}

#[test]
fn a_placement_of_unknown_groups_or_on_unknown_nodes_is_refused() {
    let wrong = |places: &[(&str, &[&str])]| placed(places).formation().expect_err("it is wrong").message;
    assert!(wrong(&[("2", &["node-1"])]).contains("`2`"));
    assert!(wrong(&[("Root", &["node-1"])]).contains("`Root`"));
    assert!(wrong(&[("00", &["node-1"])]).contains("`00`"), "each group has one name");
    assert!(wrong(&[("1", &["node-4"])]).contains("node-4"));
    assert!(wrong(&[("1", &[])]).contains("on no node"));
}

#[test]
fn the_owner_of_a_directory_follows_from_name_cluster_and_ledger() {
    let owner = config().owner().expect("it is sound");
    assert_eq!((owner.node.as_str(), owner.ordinal, owner.cluster.0[15]), ("node-2", 2, 0xff));
    let other = Config { ledger: Ledger { shards: 3, ..Ledger::default() }, ..config() };
    assert_ne!(other.owner().expect("it is sound").ledger, owner.ledger);
    assert_eq!(other.groups().expect("it is sound").len(), 4);
    assert_eq!(RaftId::new(owner.ordinal, 1).ordinal(), 2);
    assert_eq!(config().access.expects(Role::Node, "node-2"), Access::default().expects(Role::Node, "node-2"));
}

#[test]
fn without_a_cold_directory_all_values_stay_and_nothing_is_moved() {
    let tuning = config().tuning();
    assert_eq!((tuning.cold_bytes_per_s, tuning.engine.hot_value_bytes_max), (0, u64::MAX));
    let cold = Cold { dir: PathBuf::from("/cold"), hot_value_bytes: 7, bytes_per_s: 9 };
    let tuning = Config { cold: Some(cold), ..config() }.tuning();
    assert_eq!((tuning.cold_bytes_per_s, tuning.engine.hot_value_bytes_max), (9, 7));
}

#[test]
fn defaults_in_the_settings_are_those_of_the_replicas() {
    let (ours, theirs) = (config().tuning(), crate::Tuning::default());
    assert_eq!(format!("{ours:?}"), format!("{:?}", crate::Tuning { cold_bytes_per_s: 0, ..theirs }));
}
