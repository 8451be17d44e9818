//! Commands of a page, run as they are printed.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use super::{LIMIT, Running};

/// The text on pages that stands for any other text.
const ANY: &str = "...";
/// Ends the output of a command. No command prints it.
const END: &str = "=== the command has ended ===";

/// A command of a page, and what it prints.
pub struct Printed {
    pub command: String,
    pub output: Vec<String>,
}

/// The commands in a page's blocks of code. A command begins with a dollar sign, and goes on in the
/// next line after a backslash. What follows it in its block is its output.
pub fn commands(page: &str) -> Vec<Printed> {
    let mut commands: Vec<Printed> = Vec::new();
    let (mut inside, mut has_command) = (false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            (inside, has_command) = (!inside, false);
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            has_command = true;
            commands.push(Printed { command: command.to_owned(), output: Vec::new() });
        } else if let Some(last) = commands.last_mut().filter(|_| has_command) {
            if last.command.ends_with('\\') && last.output.is_empty() {
                last.command += &format!("\n{line}");
            } else {
                last.output.push(line.to_owned());
            }
        }
    }
    commands
}

/// Whether a line is the printed one, in which [`ANY`] stands for any text.
pub fn matches(printed: &str, line: &str) -> bool {
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
pub fn is_output(printed: &[String], lines: &[&str]) -> bool {
    match printed.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == ANY => (0..=lines.len()).any(|at| is_output(rest, &lines[at..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, lines)| matches(first, line) && is_output(rest, lines))
        }
    }
}

/// Runs commands in one shell, and compares what each prints. In commands and outputs, the first
/// text of each pair stands for the second one.
pub fn run_all(commands: &[Printed], work: &Path, endpoint: &str, pairs: &[(String, String)]) {
    let replaced = |text: &str| pairs.iter().fold(text.to_owned(), |text, (printed, real)| text.replace(printed, real));
    // Processes in the background end with the shell.
    let mut script = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n".to_owned();
    for printed in commands {
        script += &format!("{}\necho\necho '{END}'\n", replaced(&printed.command));
    }
    fs::write(work.join("script"), script).expect("a file can be written");
    let dir = Path::new(env!("CARGO_BIN_EXE_coppice")).parent().expect("it is in a directory");
    let path = format!("{}:{}", dir.display(), env::var("PATH").unwrap_or_default());
    // `timeout` ends the whole group of processes.
    let mut shell = Command::new("timeout");
    let limit = LIMIT * 2;
    shell.args(["--kill-after=5", &limit.as_secs().to_string(), "bash", "script"]);
    shell.current_dir(work).env("PATH", path).env("COPPICE_ENDPOINT", endpoint).stdin(Stdio::null());
    let child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("there is a shell");
    let done = Running::new(child, "the commands of the page".to_owned()).finish(limit + LIMIT);
    let outputs: Vec<&str> = done.stdout.split_terminator(&format!("{END}\n")).collect();
    assert_eq!(outputs.len(), commands.len(), "{done:?}");
    for (printed, output) in commands.iter().zip(outputs) {
        // The shell adds one line break. What has none of its own, like a value, ends with it.
        let output = output.strip_suffix('\n').unwrap_or(output);
        let lines: Vec<&str> = output.lines().map(|line| line.trim_end_matches('\r')).collect();
        let expected: Vec<String> = printed.output.iter().map(|line| replaced(line)).collect();
        let same = is_output(&expected, &lines);
        assert!(same, "$ {}\nprinted: {:#?}\nit says: {lines:#?}\n{}", printed.command, printed.output, done.stderr);
    }
}
