//! A process from its command line to its exit code.

use std::{
    ffi::OsString,
    future::Future,
    io::{ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Arg, ArgAction, ArgMatches, Command, builder::Resettable};
use coppice_types::escape::guard_but;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{Code, Failure, Log, Telemetry, config::Sources};

const AFTER_HELP: &str = "Settings come from the files, then from environment variables (COPPICE_ and the key in capitals, `__` between \
                          the parts of a nested key: COPPICE_TLS__CA), then from flags. docs/OPERATIONS.md describes every key.\n\n\
                          Exit codes: 0 stopped in order, 2 wrong configuration, 3 refused (directory in use or another's), 4 failed.";

/// The flags that every process has.
const COMMON_FLAGS: [Flag; 3] = [
    Flag {
        name: "health-listen",
        value: "ADDRESS",
        help: "Where to tell how it does, and its metrics, over plain HTTP: IP:PORT [default: nowhere]",
    },
    Flag { name: "log", value: "FILTER", help: "What is logged: a level, or a filter [default: info]" },
    Flag { name: "log-format", value: "text|json", help: "How a log line looks [default: text]" },
];

/// A flag for one setting.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, which is the setting's with `-` for `_`.
    pub name: &'static str,
    /// What its value is, in capitals.
    pub value: &'static str,
    /// What it says.
    pub help: &'static str,
}

/// What a process is called and takes.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The binary's name.
    pub name: &'static str,
    /// The version that it prints.
    pub version: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// Whether others call it than processes of the cluster and their operators.
    pub serves_clients: bool,
    /// Settings that have a flag of their own, beside those that every process has.
    pub flags: &'static [Flag],
}

impl Program {
    fn all_flags(&self) -> impl Iterator<Item = &Flag> {
        self.flags.iter().chain(&COMMON_FLAGS)
    }
}

/// Settings that a process can start with.
pub trait Settings: Serialize + DeserializeOwned {
    /// What is logged.
    fn log(&self) -> Log;

    /// What the process is called, unlike any other of its program.
    fn name(&self) -> &str;

    /// Where metrics and spans are sent.
    fn telemetry(&self) -> &Telemetry;

    /// Checks what no single value tells.
    ///
    /// # Errors
    /// If settings contradict each other.
    fn check(&self) -> Result<(), Failure>;
}

/// Tells a process to stop.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: watch::Receiver<bool>,
}

impl Stop {
    /// Asked for by the sender: once it says `true`.
    pub(crate) fn by_order() -> (watch::Sender<bool>, Self) {
        let (order, asked) = watch::channel(false);
        (order, Self { asked })
    }

    /// Whether the process was asked to stop.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.asked.borrow()
    }

    /// Ends when the process is asked to stop.
    pub async fn asked(&self) {
        let mut asked = self.asked.clone();
        if asked.wait_for(|asked| *asked).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Runs a process: reads its settings, serves until SIGTERM or SIGINT, gives its exit code. A second signal ends it at once.
pub fn run<C, F, Fut>(program: &Program, serve: F) -> ExitCode
where
    C: Settings,
    F: FnOnce(C, Stop) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let matches = match command(program).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            // Nothing is left to tell if the terminal is gone.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Code::Usage as u8 } else { 0 });
        }
    };
    match start(&matches, program, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The message may have words of others, and standard error may be gone.
            let _ = writeln!(std::io::stderr(), "{}", guard_but(&format!("{}: {failure}", program.name), &['\n']));
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Segments and connections are many files, and the limit that a process begins with is often a thousand. What the system does not grant
/// is not needed yet.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = limit.current, "the limit of open files stays");
    }
}

fn start<C, F, Fut>(matches: &ArgMatches, program: &Program, serve: F) -> Result<(), Failure>
where
    C: Settings,
    F: FnOnce(C, Stop) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let settings: C = sources(matches, program, std::env::vars_os())?.load()?;
    let check = || settings.telemetry().check().and_then(|()| settings.check());
    if matches.get_flag("print-config") {
        let printed = crate::config::print(&settings)?;
        // A private key in place of a file's name is a mistake that the check names; it is not shown.
        if !printed.contains("PRIVATE+KEY") {
            let broken = |error| Failure::new(Code::Unavailable, format!("standard output: {error}"));
            let written = std::io::stdout().write_all(printed.as_bytes());
            written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(broken(error)) })?;
        }
        return check();
    }
    check()?;
    settings.log().start()?;
    crate::health::note_panics();
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Code::Unavailable, format!("no threads: {error}")))?;
    let result = runtime.block_on(async {
        let stop = listen_for_signals()?;
        let telemetry = settings.telemetry().start(program, settings.name())?;
        let served = serve(settings, stop).await;
        // It fails only if it panicked: then there is nothing left to send.
        let _ = tokio::task::spawn_blocking(|| telemetry.stop()).await;
        served
    });
    // What is left has nothing to finish.
    runtime.shutdown_background();
    result
}

/// Where the settings come from.
fn sources(
    matches: &ArgMatches,
    program: &Program,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Sources, Failure> {
    let files = matches.get_many::<PathBuf>("config").unwrap_or_default().cloned().collect();
    let mut flags = Vec::new();
    for flag in program.all_flags() {
        if let Some(value) = matches.get_one::<String>(flag.name) {
            flags.push((flag.name.replace('-', "_"), value.clone()));
        }
    }
    for pair in matches.get_many::<String>("set").unwrap_or_default() {
        let (key, value) = pair.split_once('=').ok_or_else(|| Failure::usage(format!("--set {pair}: no KEY=VALUE")))?;
        flags.push((key.to_owned(), value.to_owned()));
    }
    let text = |text: OsString| text.into_string().ok();
    let environment = environment.into_iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect();
    Ok(Sources { files, environment, flags })
}

fn command(program: &Program) -> Command {
    let mut command = Command::new(program.name)
        .version(program.version)
        .about(program.about)
        .after_help(AFTER_HELP)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .env("COPPICE_CONFIG")
                .action(ArgAction::Append)
                .help("A TOML file of settings; repeatable, a later file overrides an earlier one"),
        )
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the settings that are in force, without secrets, check them, and end"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .help("Any setting: --set tls.ca=ca.pem"),
        );
    if std::env::var_os("COPPICE_CONFIG").is_some_and(|value| value.is_empty()) {
        // Set to nothing is not set.
        command = command.mut_arg("config", |config| config.env(Resettable::Reset));
    }
    for flag in program.all_flags() {
        command = command.arg(Arg::new(flag.name).long(flag.name).value_name(flag.value).help(flag.help));
    }
    command
}

/// The first SIGTERM or SIGINT asks to stop, the second ends the process.
fn listen_for_signals() -> Result<Stop, Failure> {
    let failed = |error| Failure::new(Code::Unavailable, format!("signals cannot be waited for: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (ask, stop) = Stop::by_order();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if ask.send_replace(true) {
                tracing::warn!("a second signal: ending at once");
                std::process::exit(i32::from(Code::Unavailable as u8));
            }
            tracing::info!("asked to stop; a second signal ends at once");
        }
    });
    Ok(stop)
}
