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

use crate::{
    Code, Failure, Log, Program, Stop, Telemetry, broken,
    config::{self, Sources},
    stop::listen_for_signals,
};

const AFTER_HELP: &str = "Settings come from the files, then from environment variables (COPPICE_ and the key in capitals, `__` between \
                          the parts of a nested key: COPPICE_TLS__CA), then from flags. docs/operations.md describes every key.\n\n\
                          Exit codes: 0 stopped in order, 2 wrong configuration, 3 refused (directory in use or another's), 4 failed.";

/// Settings that a process can start with.
pub trait Settings: Serialize + DeserializeOwned {
    /// The settings of the log.
    fn log(&self) -> Log;

    /// The name of the process, unique among those of its program.
    fn name(&self) -> &str;

    /// The settings of metrics and spans.
    fn telemetry(&self) -> &Telemetry;

    /// Checks settings against each other.
    ///
    /// # Errors
    /// If settings contradict each other.
    fn check(&self) -> Result<(), Failure>;
}

/// Runs a process: reads its settings, serves until SIGTERM or SIGINT, and returns its exit code. A
/// second signal ends it at once.
pub fn run<C, F, Fut>(program: &Program, serve: F) -> ExitCode
where
    C: Settings,
    F: FnOnce(C, Stop) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let matches = match command(program).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            // If the terminal is gone, the error can't be reported.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Code::Usage as u8 } else { 0 });
        }
    };
    match run_parsed(&matches, program, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The message may contain text from outside, and standard error may be gone.
            let _ = writeln!(std::io::stderr(), "{}", guard_but(&format!("{}: {failure}", program.name), &['\n']));
            ExitCode::from(failure.code as u8)
        }
    }
}

/// Raises the limit of open files as far as the system allows. Segments and connections need many
/// files, and the default is often a thousand. A refusal does no harm until the files are needed.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = limit.current, "the limit of open files stays");
    }
}

/// Like [`run`], for a process that is a subcommand: `matches` are those of its [`arguments`].
///
/// # Errors
/// The reason why the process could not start, or ended.
pub fn run_parsed<C, F, Fut>(matches: &ArgMatches, program: &Program, serve: F) -> Result<(), Failure>
where
    C: Settings,
    F: FnOnce(C, Stop) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let settings: C = sources(matches, program, std::env::vars_os())?.load()?;
    let check = || settings.telemetry().check().and_then(|()| settings.check());
    if matches.get_flag("print-config") {
        let printed = config::print(&settings)?;
        // A private key in place of a file's name is a mistake. It is not printed; the check below
        // reports it.
        if !printed.contains("PRIVATE+KEY") {
            let broken = |error| Failure::new(Code::Unavailable, format!("standard output: {error}"));
            let written = std::io::stdout().write_all(printed.as_bytes());
            written.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(broken(error)) })?;
        }
        return check();
    }
    check()?;
    settings.log().start()?;
    broken::note_panics();
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Code::Unavailable, format!("no threads: {error}")))?;
    let result = runtime.block_on(async {
        let stop = listen_for_signals()?;
        let telemetry = settings.telemetry().start(program, settings.name())?;
        let served = serve(settings, stop).await;
        // This fails only if the task panicked. Then nothing is left to send.
        let _ = tokio::task::spawn_blocking(|| telemetry.stop()).await;
        served
    });
    // The remaining tasks have nothing to finish.
    runtime.shutdown_background();
    result
}

/// The sources of the settings.
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
    arguments(program, Command::new(program.name).version(program.version))
}

/// Adds the arguments and the help of a process to a command.
#[must_use]
pub fn arguments(program: &Program, command: Command) -> Command {
    let mut command = command
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
        // An empty variable counts as not set.
        command = command.mut_arg("config", |config| config.env(Resettable::Reset));
    }
    for flag in program.all_flags() {
        command = command.arg(Arg::new(flag.name).long(flag.name).value_name(flag.value).help(flag.help));
    }
    command
}
