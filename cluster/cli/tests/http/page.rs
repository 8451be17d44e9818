//! Commands of a page, run as they are printed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    common::{self, LIMIT, Running},
    start,
};

/// What stands on pages for the address of the ledger.
const ADDRESS: &str = "127.0.0.1:7401";
/// What stands on pages for text that differs.
const ANY: &str = "...";
/// Ends the output of a command. No command prints it.
const END: &str = "=== the command has ended ===";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels below the root").to_owned()
}

/// A command of a page, and what it prints.
struct Printed {
    command: String,
    output: Vec<String>,
}

/// The commands in a page's blocks of code. A command begins with a dollar sign.
fn commands(page: &str) -> Vec<Printed> {
    let mut commands: Vec<Printed> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            commands.push(Printed { command: command.to_owned(), output: Vec::new() });
        } else if let Some(last) = commands.last_mut().filter(|_| inside) {
            last.output.push(line.to_owned());
        }
    }
    commands
}

/// Whether a line is the printed one, in which [`ANY`] stands for any text.
fn matches(printed: &str, line: &str) -> bool {
    let mut parts = printed.split(ANY);
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Whether an output is the printed one. A line that is [`ANY`] alone stands for any lines.
fn is_output(printed: &[String], lines: &[&str]) -> bool {
    match printed.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == ANY => (0..=lines.len()).any(|at| is_output(rest, &lines[at..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, lines)| matches(first, line) && is_output(rest, lines))
        }
    }
}

/// Runs commands in one shell, and compares what each prints.
fn run_all(commands: &[Printed], work: &Path, endpoint: &str) {
    let address = endpoint.replace("http://", "");
    let mut script = String::new();
    for printed in commands {
        script += &format!("{}\necho\necho '{END}'\n", printed.command.replace(ADDRESS, &address));
    }
    fs::write(work.join("script"), script).expect("a file can be written");
    let dir = Path::new(env!("CARGO_BIN_EXE_coppice")).parent().expect("it is in a directory");
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.arg("script").current_dir(work).env("PATH", path).env("COPPICE_ENDPOINT", endpoint).stdin(Stdio::null());
    let child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("there is a shell");
    let done = Running::new(child, "the commands of the page".to_owned()).finish(LIMIT);
    let outputs: Vec<&str> = done.stdout.split_terminator(&format!("{END}\n")).collect();
    assert_eq!(outputs.len(), commands.len(), "{done:?}");
    for (printed, output) in commands.iter().zip(outputs) {
        // The shell adds one line break. What has none of its own, like a value, ends with it.
        let output = output.strip_suffix('\n').unwrap_or(output);
        let lines: Vec<&str> = output.lines().map(|line| line.trim_end_matches('\r')).collect();
        let same = is_output(&printed.output, &lines);
        assert!(same, "$ {}\nprinted: {:#?}\nit says: {lines:#?}\n{}", printed.command, printed.output, done.stderr);
    }
}

#[test]
fn the_commands_of_the_page_do_what_it_says() {
    let curl = common::run(Command::new("curl").arg("--version"));
    assert_eq!(curl.code, 0, "there is no curl: apt-get install curl");
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let page = fs::read_to_string(workspace().join("docs/http.md")).expect("the page is there");
    let commands = commands(&page);
    assert!(commands.iter().filter(|printed| printed.command.contains("curl")).count() >= 30, "thirty lines of curl");
    run_all(&commands, work.path(), &dev.endpoint);
    let codes: Vec<&str> = commands
        .iter()
        .flat_map(|printed| &printed.output)
        .map(String::as_str)
        .filter(|line| line.len() == 3)
        .collect();
    for code in ["200", "404", "405", "409", "410", "425"] {
        assert!(codes.contains(&code), "the page shows a {code}");
    }
}

#[test]
fn the_first_write_of_the_readme_does_what_it_says() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dev = start(work.path());
    let page = fs::read_to_string(workspace().join("README.md")).expect("the page is there");
    let (_, section) = page.split_once("## First write with curl").expect("a section");
    let section = section.split("\n## ").next().expect("it ends");
    let commands = commands(section);
    assert!(commands.last().is_some_and(|printed| printed.command.starts_with("coppice verify")), "it ends in a proof");
    run_all(&commands, work.path(), &dev.endpoint);
}

#[test]
fn a_printed_line_stands_for_some_lines_and_no_others() {
    assert!(matches("a ... c", "a b c") && matches("...", "x") && matches("a", "a") && matches("a...", "a"));
    assert!(!matches("a ... c", "a b d") && !matches("a", "ab") && !matches("", "a") && !matches("a...b", "a"));
    let printed = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(is_output(&printed(&["a", "..."]), &["a", "b", "c"]) && is_output(&printed(&["..."]), &[]));
    assert!(!is_output(&printed(&["a"]), &["a", "b"]) && !is_output(&printed(&["a", "b"]), &["a"]));
    assert!(!is_output(&[], &["a"]));
}
