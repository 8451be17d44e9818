//! The command `coppice dev`: a cluster from start to Ctrl-C.
//!
//! Everything that can be refused is checked before the data directory is touched, so a refused
//! option leaves nothing behind.

use std::{path::PathBuf, time::Duration};

use coppice_coordinator::{Anchoring, Quorum, Retention, TimeLedger, Tsa, Witness, process::witnesses_by_policy};
use coppice_env::SystemRng;
use coppice_process::{Format, Log, health};
use coppice_shard_node::Tuning;
use coppice_timestamp::Authority;
use coppice_types::escape::guard_but;
use coppice_verify::cosignature::WitnessKey;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    Cluster, Options,
    home::Home,
    listener::{DEFAULT_PORT, Listener},
    shape::Wanted,
};
use crate::{
    args,
    commands::verify::parse_vkey,
    failure::{Code, Failure},
    files, input,
    output::{self, Output, line, object},
    text,
};

/// If the free space is below this many times the reserve with one busy replica on each node, the
/// replicas reserve less.
const SMALL_DISK: u64 = 16;
/// Size of a flush on a small disk.
const SMALL_FLUSH_BYTES: u64 = 4 << 20;
/// Spare space on a small disk: enough for the longest message, and for the commands that free
/// space.
const SMALL_SPARE_BYTES: u64 = 16 << 20;

/// Runs a cluster until Ctrl-C or SIGTERM.
pub async fn dev(args: &args::Dev, output: Output) -> Result<(), Failure> {
    start_log()?;
    health::note_panics();
    let wanted = Wanted::parse(args)?;
    if args.pim && args.readers == 0 {
        return Err(Failure::usage("--pim is for readers: add --readers"));
    }
    let witnesses = match &args.witness_policy {
        Some(path) => Some(witnesses_by_policy(path)?),
        None => witnesses(&args.witness)?,
    };
    let anchoring = anchoring(args)?;
    let (listen, moved) = listen(args)?;
    let http_listen = args.http_listen.map(|address| Listener::bind(address, "--http-listen")).transpose()?;
    // Signals are caught before anything is made, so that they stop a start, too.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let temporary = match args.data_dir {
        Some(_) => None,
        None => Some(files::private_dir().map_err(|error| Failure::usage(format!("no temporary directory: {error}")))?),
    };
    let dir = args.data_dir.as_deref().or_else(|| temporary.as_ref().map(tempfile::TempDir::path));
    let home = Home::open(dir.ok_or_else(|| Failure::usage("no data directory"))?, &wanted, &mut SystemRng)?;
    let (key, next_key) = home.keys()?;
    let disk = Disk::of(&home, args.readers)?;
    let options = Options {
        storage: home.storage(),
        shape: home.shape().clone(),
        readers: args.readers,
        pim: args.pim,
        key,
        next_key,
        listen,
        http_listen,
        witnesses,
        anchoring,
        retention: retention(args),
        tuning: disk.tuning.clone(),
    };
    let cluster = tokio::select! {
        cluster = Cluster::start(options) => cluster.map_err(|failure| home.explain(failure))?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    home.key_is_in_force()?;
    let (pim, exposed) = (args.pim, is_exposed(args));
    tell(&Ready { cluster: &cluster, home: &home, disk: &disk, pim, moved, exposed }, output)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        why = health::broken() => return Err(broken(why)),
    }
    cluster.stop().await?;
    if output.json { object(&json!({ "event": "stopped" })) } else { Ok(()) }
}

fn is_exposed(args: &args::Dev) -> bool {
    args.listen.is_some_and(|address| !address.ip().is_loopback())
}

/// Binds the requested address, or the default one. Returns whether the default was taken.
fn listen(args: &args::Dev) -> Result<(Listener, bool), Failure> {
    match args.listen {
        Some(address) if is_exposed(args) && !args.plaintext => {
            let failure = Failure::usage(format!("--listen {address}: everybody who reaches it could do anything"));
            let hint = "A development cluster has no certificates. Listen on 127.0.0.1, or add --plaintext.";
            Err(failure.hint(hint))
        }
        Some(address) => Ok((Listener::bind(address, "--listen")?, false)),
        None => Listener::bind_default(),
    }
}

/// Disk space that the nodes reserve.
struct Disk {
    tuning: Tuning,
    free_bytes: u64,
    /// The space that idle replicas reserve. A busy one reserves more as it needs it.
    reserve_bytes: u64,
}

impl Disk {
    /// Reserves less if the disk is small, at the price of smaller flushes.
    fn of(home: &Home, readers: u32) -> Result<Self, Failure> {
        let free_bytes = home.storage().free_bytes().map_err(|error| Failure::file(home.dir(), &error))?;
        let shape = home.shape();
        Ok(Self::fitting(free_bytes, u64::from(shape.replicas + readers), shape.splits.len() as u64 + 2))
    }

    fn fitting(free_bytes: u64, nodes: u64, groups: u64) -> Self {
        let mut tuning = Tuning::default();
        let idle = |tuning: &Tuning| nodes * groups * tuning.share_bytes(0, 0, 0);
        if free_bytes / SMALL_DISK < idle(&tuning) + nodes * tuning.reserve_bytes(0) {
            (tuning.flush_bytes_max, tuning.spare_bytes) = (SMALL_FLUSH_BYTES, SMALL_SPARE_BYTES);
        }
        let reserve_bytes = idle(&tuning);
        Self { tuning, free_bytes, reserve_bytes }
    }
}

/// The facts that are printed once a cluster serves.
struct Ready<'a> {
    cluster: &'a Cluster,
    home: &'a Home,
    disk: &'a Disk,
    /// Whether readers have emulated memory modules.
    pim: bool,
    moved: bool,
    exposed: bool,
}

impl Ready<'_> {
    fn event(&self) -> Value {
        json!({
            "event": "ready",
            "endpoint": self.cluster.endpoint(),
            "data_dir": self.home.dir(),
            "vkey": self.home.vkey(),
            "shards": self.cluster.groups().len() - 1,
            "replicas": self.home.shape().replicas,
            "readers": self.readers(),
            "log_url": self.cluster.log_url(),
            "exposed": self.exposed,
            "default_port_taken": self.moved,
            "reserve_bytes": self.disk.reserve_bytes,
            "free_bytes": self.disk.free_bytes,
        })
    }

    /// The number of nodes with readers.
    fn readers(&self) -> usize {
        self.cluster.nodes().len() - self.home.shape().replicas as usize
    }

    fn people(&self) -> String {
        let (shards, replicas) = (self.cluster.groups().len() - 1, self.home.shape().replicas as usize);
        let count =
            |number: usize, one: &str| if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") };
        let (shards, replicas) = (count(shards, "shard"), count(replicas, "replica"));
        let dir = self.home.dir().display();
        let readers = match self.readers() {
            0 => String::new(),
            readers => {
                let modules = if self.pim { " with emulated memory modules" } else { "" };
                format!(", and {} of each shard{modules}", count(readers, "reader"))
            }
        };
        let mut lines = vec![
            format!("{shards} and the root group, {replicas} each{readers}, in {dir}"),
            format!("public key {}", self.home.vkey()),
            format!(
                "disk       {} MiB reserved for when it is full, more under load; {} MiB were free",
                self.disk.reserve_bytes >> 20,
                self.disk.free_bytes >> 20
            ),
        ];
        if let Some(url) = self.cluster.log_url() {
            lines.push(format!("root log   {url}"));
        }
        if self.moved {
            lines.push(format!("port       {DEFAULT_PORT} is taken, so a free one was chosen"));
        }
        if self.exposed {
            lines.push("warning    everybody who reaches this address can read and write".to_owned());
        }
        lines.push(format!("next       export COPPICE_ENDPOINT={}", self.cluster.endpoint()));
        lines.push("           coppice commit --put greeting=hello".to_owned());
        lines.push("           coppice get greeting --proof greeting.proof".to_owned());
        lines.push(format!("           coppice verify greeting.proof --key \"@{dir}/ledger.vkey\""));
        lines.join("\n")
    }
}

/// With `--json`, prints one event. Otherwise prints the ready line, and all other facts to
/// standard error.
fn tell(ready: &Ready<'_>, output: Output) -> Result<(), Failure> {
    if output.json {
        return object(&ready.event());
    }
    line(&format!("ready {}", ready.cluster.endpoint()))?;
    output::tell(&guard_but(&ready.people(), &['\n']));
    Ok(())
}

/// Starts the log, in the format of the cluster's processes.
fn start_log() -> Result<(), Failure> {
    let filter = std::env::var("COPPICE_LOG").ok().filter(|filter| !filter.is_empty());
    let log = Log { filter: filter.unwrap_or_else(|| "warn".to_owned()), format: Format::Text };
    log.start().map_err(|refused| Failure::usage(refused.message))
}

/// The witnesses of the command line, of which a majority counts; `None` if there are none.
fn witnesses(words: &[String]) -> Result<Option<(Vec<Witness>, Quorum)>, Failure> {
    let witness = |pair: &[String]| {
        let [key, url] = pair else { return Err(Failure::usage("--witness takes a key and a URL")) };
        // The key is not repeated: it may be a private one.
        let refuse =
            |error| Failure::usage(format!("--witness: the word before {url} is not a witness's key: {error}"));
        Ok(Witness { key: WitnessKey::parse(key).map_err(refuse)?, url: url.clone() })
    };
    let witnesses = words.chunks(2).map(witness).collect::<Result<Vec<_>, _>>()?;
    if witnesses.is_empty() {
        return Ok(None);
    }
    let majority = Quorum::from(witnesses.len() / 2 + 1);
    let checked = coppice_coordinator::check_witnesses(&witnesses, &majority);
    checked.map_err(|error| Failure::usage(format!("--witness: {error}")))?;
    Ok(Some((witnesses, majority)))
}

/// The authorities of the command line. Checkpoints are stamped while nothing is committed, too, so
/// that whatever is tried out lies between two anchors.
fn anchoring(args: &args::Dev) -> Result<Option<Anchoring>, Failure> {
    if args.tsa.len() != args.tsa_root.len() {
        return Err(Failure::usage("each --tsa needs a --tsa-root"));
    }
    let tsa = |(url, root): (&String, &PathBuf)| {
        let wrong = |error| Failure::usage(format!("--tsa-root {}: {error}", text::path(root)));
        Ok(Tsa { url: url.clone(), authority: Authority::from_certificates(&input::read(root)?).map_err(wrong)? })
    };
    let authorities = args.tsa.iter().zip(&args.tsa_root).map(tsa).collect::<Result<Vec<_>, Failure>>()?;
    let time_ledgers = args.time_ledger.chunks(2).map(time_ledger).collect::<Result<Vec<_>, Failure>>()?;
    let count = authorities.len() + time_ledgers.len();
    if count == 0 {
        return Ok(None);
    }
    let quorum = Authority::majority(count);
    let (every, cosigned) = (args.anchor_every, !args.witness.is_empty() || args.witness_policy.is_some());
    let anchoring = Anchoring { authorities, time_ledgers, quorum, every, cosigned, idle: true };
    anchoring.check().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Some(anchoring))
}

/// A time ledger by its address and key.
fn time_ledger(words: &[String]) -> Result<TimeLedger, Failure> {
    let [address, key] = words else { return Err(Failure::usage("--time-ledger has an address and a key")) };
    let refuse = |error: String| Failure::usage(format!("--time-ledger {}: {error}", text::safe(address)));
    TimeLedger::at("dev", address, parse_vkey(key)?, None).map_err(refuse)
}

fn retention(args: &args::Dev) -> Option<Retention> {
    let hours = args.retain_hours.map(|hours| Retention::Age(Duration::from_secs(3600 * u64::from(hours))));
    args.retain_versions.map(Retention::Versions).or(hours)
}

/// A cluster that can't go on is not stopped in order, which might wait for the broken part.
fn broken(why: &str) -> Failure {
    let message = format!("the cluster can't go on: {why}");
    Failure::new(Code::Unavailable, message).hint("the message above says more; please report it, and start again")
}

fn no_signals(error: std::io::Error) -> Failure {
    Failure::new(Code::Unavailable, format!("signals cannot be waited for: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_small_on_a_small_disk() {
        let (large, small) = (Disk::fitting(1 << 40, 3, 65), Disk::fitting(4 << 30, 3, 3));
        assert_eq!(large.reserve_bytes, 195 * (5 << 18));
        assert_eq!(small.reserve_bytes, 9 * (1 << 19));
        let busy = small.reserve_bytes + 3 * small.tuning.reserve_bytes(0);
        assert!(busy <= small.free_bytes / SMALL_DISK);
    }

    #[test]
    fn a_witness_that_can_not_be_asked_is_refused_without_its_key() {
        let secret = "PRIVATE+KEY+w+00000000+AAAA";
        let failure = witnesses(&[secret.to_owned(), "http://w/".to_owned()]).expect_err("it is a private key");
        assert!(!failure.message.contains("AAAA") && failure.message.contains("http://w/"), "{failure:?}");
    }
}
