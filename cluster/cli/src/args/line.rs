//! The command line as a whole: rules that no single option can express.

use std::env;

use clap::{Arg, ArgAction, Command, CommandFactory, builder::Resettable};

use super::Arguments;

/// The help heading of the options for reaching a ledger.
pub(super) const CONNECTION: &str = "Connection";

/// Commands that open no connection to a coordinator.
const OFFLINE: [&str; 12] = [
    "dev",
    "serve",
    "verify",
    "evidence",
    "cosigner",
    "keygen",
    "fsck",
    "pim",
    "completions",
    "man",
    "version",
    "help",
];

/// The command line. For every option, a variable that is set to the empty text counts as not set.
/// Commands that open no connection do not have the options for one.
#[must_use]
pub fn command() -> Command {
    let command = unset_empty(Arguments::command());
    let is_connection = |arg: &&Arg| arg.get_help_heading() == Some(CONNECTION);
    let connection: Vec<Arg> = command.get_arguments().filter(is_connection).cloned().collect();
    command.mut_subcommands(|command| {
        if !OFFLINE.contains(&command.get_name()) {
            return command;
        }
        // An argument with the same id keeps the global one away.
        connection.iter().fold(command, |command, arg| command.arg(refused(arg)))
    })
}

/// An option that a command does not have: it is hidden, and refused if given.
fn refused(arg: &Arg) -> Arg {
    let refuse = |_: &str| Err::<String, _>("this command opens no connection");
    let takes_value = arg.get_action().takes_values();
    let arg = arg.clone().global(false).hide(true).env(Resettable::Reset).default_value(Resettable::Reset);
    // A switch has a default value, which would be refused although nobody gave it.
    let arg = if takes_value { arg } else { arg.action(ArgAction::Set).num_args(0..=1).default_missing_value("true") };
    arg.value_parser(refuse)
}

fn unset_empty(command: Command) -> Command {
    let is_empty = |arg: &Arg| arg.get_env().and_then(env::var_os).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg });
    command.mut_subcommands(unset_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offline_commands_have_no_options_of_a_connection() {
        let mut command = command();
        command.build();
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            let shown = command.get_arguments().any(|arg| arg.get_id() == "endpoint" && !arg.is_hide_set());
            assert_eq!(shown, !OFFLINE.contains(&command.get_name()), "{}", command.get_name());
        }
    }
}
