use std::time::Duration;

use super::*;
use crate::{figures::Series, jobs::Outcome};

#[test]
fn every_round_takes_all_systems_before_the_next() {
    let compared = |quick| -> Vec<(u64, Store)> {
        let seeds = plan(quick).into_iter().filter_map(|step| match step.job {
            Job::Compare(scale) => Some((scale.seed, step.store)),
            _ => None,
        });
        seeds.collect()
    };
    let full = compared(false);
    assert_eq!(full.len(), Store::ALL.len() + 2 * 4);
    assert!(full.is_sorted_by(|a, b| a.0 <= b.0));
    let quick = compared(true);
    assert_eq!(quick.iter().filter(|(_, store)| *store == Store::Coppice).count(), 3);
    assert_eq!(quick.iter().filter(|(_, store)| *store == Store::Nomt).count(), 1);
}

#[test]
fn all_systems_have_the_same_cache_bytes_and_records_in_a_comparison() {
    for quick in [true, false] {
        let steps = plan(quick);
        let mut scales = steps.iter().filter(|step| matches!(step.job, Job::Compare(_))).map(|step| step.job.scale());
        let first = scales.next().expect("there are some");
        assert!(scales.all(|scale| (scale.records, scale.cache_bytes) == (first.records, first.cache_bytes)));
    }
}

#[test]
fn a_run_has_a_bound_on_its_expected_time() {
    for (quick, minutes, with_firewood) in [(true, 5, 6), (false, 40, 43)] {
        let steps = plan(quick);
        let time = |wanted: fn(&&Step) -> bool| steps.iter().filter(wanted).map(Step::expected).sum::<Duration>();
        // Firewood is measured on demand.
        for (all, most) in [(time(|step| step.store != Store::Firewood), minutes), (time(|_| true), with_firewood)] {
            assert!(all <= Duration::from_secs(60 * most), "{all:?} of {most} min");
        }
    }
}

#[test]
fn curves_of_several_steps_become_one_with_a_line_for_each_system() {
    let mut collected = Collected::default();
    let series = |points: &[(f64, f64)]| Series::new("disk", "", "", "", [(String::new(), points.to_vec())].into());
    collected.add_series("ours", series(&[(1.0, 10.0), (2.0, 20.0)]));
    collected.add_series("ours", series(&[(2.0, 21.0), (3.0, 30.0)]));
    collected.add_series("other", series(&[(1.0, 7.0)]));
    let [series] = collected.series().try_into().expect("there is one");
    assert_eq!(series.lines["ours"], [(1.0, 10.0), (2.0, 21.0), (3.0, 30.0)]);
    assert_eq!(series.lines["other"], [(1.0, 7.0)]);
}

#[test]
fn a_job_is_read_as_it_was_written() {
    for step in plan(false) {
        let text = serde_json::to_string(&step.job).expect("writes");
        assert_eq!(serde_json::from_str::<Job>(&text).expect("reads"), step.job);
    }
}

#[test]
fn points_of_a_sweep_become_one_curve_for_each_figure() {
    let mut collected = Collected::default();
    let scale = base_scale(true);
    for (x, put) in [(8.0, 100.0), (16.0, 200.0)] {
        let target = Target::Curve("capacity", x);
        let step = Step { store: Store::Coppice, job: Job::Point(scale.clone(), Some(8)), target };
        let sample = [("put".to_owned(), put), ("get".to_owned(), 7.0)].into();
        collected.add(&step, "Coppice", Outcome { sample, series: Vec::new() });
    }
    let series = collected.series();
    assert_eq!(
        series.iter().map(|series| series.id.as_str()).collect::<Vec<_>>(),
        ["get-by-capacity", "put-by-capacity"]
    );
    assert_eq!(series[1].lines["Coppice"], [(8.0, 100.0), (16.0, 200.0)]);
}

#[test]
fn our_engine_does_every_job_that_only_it_can_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let scale = Scale { records: 2000, value_bytes: 20, batch: 100, seconds: 0.01, ..base_scale(true) };
    let [plateau, ..] = plateaus(true);
    let plateau_scale = Scale { seconds: 10.0, ..scale.clone() };
    let plateau = PlateauScale { scale: plateau_scale, rounds: 1, retain: 3, looks: 4, ..plateau };
    let jobs = [
        Job::Point(scale.clone(), Some(64)),
        Job::Plateau(plateau),
        Job::Reads(scale.clone()),
        Job::Growth(scale.clone()),
        Job::GrowthAndReads(scale),
    ];
    for (at, job) in jobs.iter().enumerate() {
        let dir = dir.path().join(at.to_string());
        assert!(!job.run_ours(Store::Coppice, &dir).expect("runs").sample.is_empty());
    }
    assert!(jobs[0].run_ours(Store::Redb, dir.path()).is_err());
}
