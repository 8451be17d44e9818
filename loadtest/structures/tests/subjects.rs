//! A small measurement: all subjects give the same answers, or the run fails. Also checks the
//! report.

use coppice_env::SimRng;
use coppice_structures::{
    measure::{Spread, sharing, table},
    report::{Conditions, Report, markdown},
    structures,
    subject::{Hashed, Subject, Tpbf, Write},
    workload::{Scale, Workload, Zipf, documents, parties, ycsb},
};

/// The quick workload, cut short.
fn small() -> Workload {
    let mut workload = ycsb(Scale::Quick, 0.9);
    workload.updates.truncate(3);
    let versions = workload.load.iter().chain(&workload.updates).flatten();
    workload.state = versions.map(|write| (write.key.clone(), write.value.clone().expect("puts only"))).collect();
    workload
}

#[test]
fn all_subjects_agree_and_share_as_their_kind_does() {
    let table = table(&small(), 1).expect("all answer, and answer the same");
    let names: Vec<&str> = table.rows.iter().map(|row| row.structure.as_str()).collect();
    assert_eq!(names, ["TPBF (the engine)", "Merkle Patricia trie", "Merkle bucket tree", "POS-tree", "MVMB+-tree"]);
    for row in &table.rows {
        let sizes = &row.sizes;
        assert!(sizes.conflicts > 0 && sizes.changed > 0, "{}", row.structure);
        assert!((0.0..1.0).contains(&sizes.deduplication), "{}: {sizes:?}", row.structure);
        assert!((0.0..1.0).contains(&sizes.node_sharing) && sizes.node_sharing > 0.3, "{}: {sizes:?}", row.structure);
        assert!(sizes.all_bytes > sizes.newest_bytes && sizes.all_nodes > sizes.newest_nodes, "{}", row.structure);
        assert!(sizes.proof_present_bytes > 100.0 && sizes.proof_absent_bytes > 100.0, "{}", row.structure);
    }

    let shared = sharing(&parties(Scale::Quick, 3, 100), 100).expect("loads");
    for (row, structure) in shared.iter().zip(structures()) {
        // Where the shape follows from the content, three parties with the same records have one
        // tree.
        let one_tree = (row.node_sharing - 2.0 / 3.0).abs() < 1e-9;
        assert_eq!(one_tree, structure.is_canonical(), "{}: {}", row.structure, row.node_sharing);
    }

    let conditions = Conditions {
        scale: "quick".to_owned(),
        repetitions: 1,
        processor: "one".to_owned(),
        processors: 1,
        load_before: "0".to_owned(),
        load_after: "0".to_owned(),
    };
    let report = Report { conditions, tables: vec![table], sharing: shared, missing: vec!["the rest".to_owned()] };
    let text = markdown(&report);
    assert_eq!(text.lines().filter(|line| line.starts_with("| POS-tree |")).count(), 3, "{text}");
    assert!(text.contains("**Not measured:** the rest"));
}

#[test]
fn versions_of_large_values_are_told_apart() {
    let mut subjects: Vec<Box<dyn Subject>> = vec![Box::new(Tpbf::new().expect("a directory"))];
    subjects.extend(structures().into_iter().map(|structure| Box::new(Hashed::new(structure)) as Box<dyn Subject>));
    for mut subject in subjects {
        let write = |value: Option<&[u8]>| vec![Write { key: b"key".to_vec(), value: value.map(<[u8]>::to_vec) }];
        let (first, second) = (vec![1; 5000], vec![2; 5000]);
        subject.commit(&write(Some(&first))).expect("commits");
        subject.commit(&write(Some(&second))).expect("commits");
        subject.commit(&write(None)).expect("commits");
        let values: Vec<_> = (0..=3).map(|version| subject.get(version, b"key").expect("reads")).collect();
        assert_eq!(values, [None, Some(first), Some(second), None], "{}", subject.name());
        let [one, both] = [&[1][..], &[1, 2]].map(|versions| subject.footprint(versions).expect("counts"));
        assert!(both.bytes >= one.bytes + 5000, "{}: the values are two", subject.name());
        assert!(both.bytes_summed >= both.bytes && both.nodes_summed >= both.nodes, "{}", subject.name());
        for version in 0..=3 {
            let proof = subject.prove(version, b"key").expect("proves");
            assert_eq!(subject.verify(version, b"key", &proof).expect("verifies"), [1, 2].contains(&version));
            assert!(subject.verify((version + 1) % 4, b"key", &proof).is_err() || version == 3);
        }
    }
}

#[test]
fn ranks_follow_zipfs_law() {
    let mut rng = SimRng::new(3);
    let count = |theta: f64, rng: &mut SimRng| {
        let zipf = Zipf::new(1000, theta);
        let ranks: Vec<u64> = (0..20_000).map(|_| zipf.next(rng)).collect();
        assert!(ranks.iter().all(|rank| *rank < 1000));
        ranks.iter().filter(|rank| **rank < 10).count()
    };
    // The share of the first ten of a thousand ranks: a hundredth if all are equally likely,
    // zeta(10)/zeta(1000) otherwise.
    assert!((120..300).contains(&count(0.0, &mut rng)));
    let zeta = |items: u32| (1..=items).map(|rank| f64::from(rank).powf(-0.9)).sum::<f64>();
    let expected = 20_000.0 * zeta(10) / zeta(1000);
    assert!((count(0.9, &mut rng) as f64 / expected - 1.0).abs() < 0.1);
}

#[test]
fn figures_are_put_in_order() {
    assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
}

#[test]
fn data_that_is_not_there_is_named() {
    let error = documents("/nowhere/at/all".as_ref()).expect_err("there is none");
    assert!(format!("{error:#}").contains("/nowhere/at/all/eips-history.jsonl.gz"));
}
