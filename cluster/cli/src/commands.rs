//! What each command does.

pub mod fsck;
pub mod keygen;
pub mod log;
pub mod read;
pub mod verify;
pub mod write;

use clap::CommandFactory;
use coppice_client::{Client, Options};

use crate::{
    args::{Arguments, Command, Common},
    dev,
    failure::Failure,
    load,
    output::Output,
};

/// Runs a command to its end.
///
/// # Errors
/// Whatever keeps it from doing what it was asked for, with an exit code.
pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let output = Output::new(&arguments.common);
    let client = || connect(&arguments.common);
    match &arguments.command {
        Command::Load(args) => load::load(&client()?, args, output).await,
        Command::Commit(args) => write::commit(&client()?, args, output).await,
        Command::Get(args) => read::get(&client()?, args, output).await,
        Command::Range(args) => read::range(&client()?, args, arguments.common.trust.is_some(), output).await,
        Command::History(args) => read::history(&client()?, args, output).await,
        Command::Diff(args) => read::diff(&client()?, args, output).await,
        Command::Head => log::head(&client()?, output).await,
        Command::Header(args) => log::header(&client()?, args, output).await,
        Command::Checkpoint(args) => log::checkpoint(&client()?, args, output).await,
        Command::Log(args) => log::log(&client()?, args, output).await,
        Command::Prune(args) => write::prune(&client()?, args, output).await,
        Command::Rollback(args) => write::rollback(&client()?, args, output).await,
        Command::Status => log::status(&client()?, output).await,
        Command::Verify(args) => verify::verify(args, output),
        Command::Keygen(args) => keygen::keygen(args, output),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Arguments::command(), "coppice", &mut std::io::stdout());
            Ok(())
        }
        Command::Fsck(args) => fsck::fsck(args, output),
        Command::Dev(args) => dev::serve::dev(args, output).await,
    }
}

fn connect(common: &Common) -> Result<Client, Failure> {
    let Some(endpoint) = common.endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) else {
        let failure = Failure::usage("which ledger? There is neither --endpoint nor COPPICE_ENDPOINT");
        return Err(failure.hint(
            "Start one with `coppice dev`, and set COPPICE_ENDPOINT to the endpoint that it prints after `ready`.",
        ));
    };
    let trust = common.trust.as_deref().map(verify::parse_vkey).transpose()?;
    Ok(Client::new(Options { trust, ..Options::new(endpoint) })?)
}
