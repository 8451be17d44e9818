//! `coppice dev` killed in the middle of a load, several times. Everything acknowledged stays,
//! header for header. The load goes on where it stopped, the files are sound, and the clients of
//! the dead server give up by themselves.

mod common;

use std::{path::PathBuf, time::Duration};

use common::Dev;
use coppice_env::{Rng, SimRng};

const ROUNDS: u32 = 5;

/// Longest time until a client of a dead server ends.
const GIVE_UP: Duration = Duration::from_secs(15);

struct Round {
    dir: tempfile::TempDir,
    /// The headers of the root log when it was last read.
    log: Vec<String>,
}

impl Round {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory"), log: Vec::new() }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn start(&self) -> Dev {
        Dev::start(&self.data(), &common::small_shape("EIPS/eip-4"))
    }

    /// Checks that the log extends the one that was read last.
    fn compare(&mut self, dev: &Dev) {
        let log: Vec<String> = dev.run(&["log", "--json"]).expect(0).stdout.lines().map(str::to_owned).collect();
        assert!(
            log.len() >= self.log.len(),
            "the log has {} entries after {} were acknowledged",
            log.len(),
            self.log.len()
        );
        assert!(log.starts_with(&self.log), "a header changed");
        self.log = log;
    }
}

fn input(dir: &std::path::Path) -> (PathBuf, u64) {
    if let Some(path) = common::shared("eips-history.jsonl.gz") {
        let lines = common::read_history(&path).len() as u64;
        return (path, lines);
    }
    let (path, history) = (dir.join("generated.jsonl"), common::generated(5, 300, 700));
    common::write_history(&path, &history);
    (path, history.len() as u64)
}

#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed_in_a_load() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let (input, total) = input(work.path());
    let input = input.display().to_string();
    let mut rng = SimRng::new(17);
    let mut round = Round::new();
    let mut in_the_middle = 0;
    for _ in 0..ROUNDS {
        let dev = round.start();
        round.compare(&dev);
        let before = dev.version();
        if before == total {
            dev.stop();
            common::assert_sound(&round.data());
            round = Round::new();
            continue;
        }
        let load = dev.spawn(&["load", &input]);
        // The server is killed at one of the versions that this load makes. A fast load may end
        // before that.
        let at = before + 1 + rng.below(total - before);
        while dev.version() < at {}
        round.compare(&dev);
        dev.kill();
        let done = load.finish(GIVE_UP);
        if done.code == 0 {
            assert!(done.stdout.contains(&format!("the last is version {total}")), "{done:?}");
        } else {
            in_the_middle += 1;
            assert!(done.code == 4 && done.stderr.contains("Load the same input again"), "{done:?}");
        }
    }
    assert!(in_the_middle > 0, "no kill hit a load");
    let dev = round.start();
    round.compare(&dev);
    dev.run(&["load", &input]).expect(0);
    round.compare(&dev);
    assert_eq!(dev.version(), total);
    let again = dev.run(&["load", &input, "--json"]).expect(0).json();
    assert_eq!((again["applied"].as_u64(), again["already_there"].as_u64()), (Some(0), Some(total)));
    assert_eq!(dev.version(), total);
    dev.stop();
    common::assert_sound(&round.data());
}

#[test]
fn clients_of_a_dead_server_end_with_code_4() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = Dev::start(&work.path().join("data"), &["--replicas".to_owned(), "1".to_owned()]);
    dev.run(&["commit", "--put", "k=v"]).expect(0);
    let endpoint = dev.endpoint.clone();
    dev.kill();
    for arguments in [
        &["get", "k"][..],
        &["commit", "--put", "k=w"],
        &["head"],
        &["log"],
        &["status"],
        &["rollback", "--to", "0", "--reason", "x"],
    ] {
        let child = common::coppice()
            .env("COPPICE_ENDPOINT", &endpoint)
            .args(arguments)
            .args(["--json"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn();
        let done =
            common::Running::new(child.expect("the command can be run"), format!("{arguments:?}")).finish(GIVE_UP);
        assert_eq!(done.code, 4, "{arguments:?}: {done:?}");
        assert!(done.error()["hint"].as_str().is_some_and(|hint| hint.contains("Is the cluster running")), "{done:?}");
    }
}
