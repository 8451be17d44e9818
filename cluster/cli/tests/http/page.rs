//! Commands of pages, run as they are printed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    common::{
        self,
        page::{commands, is_output, matches, run_all},
    },
    start,
};

/// What stands on pages for the address of the ledger.
const ADDRESS: &str = "127.0.0.1:7401";
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels below the root").to_owned()
}

/// The address on pages, and that of the ledger here.
fn address(endpoint: &str) -> [(String, String); 1] {
    [(ADDRESS.to_owned(), endpoint.replace("http://", ""))]
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
    run_all(&commands, work.path(), &dev.endpoint, &address(&dev.endpoint));
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
    let last = commands.last().map(|printed| printed.command.as_str()).unwrap_or_default();
    assert!(last.contains("second.py") && !section.contains("coppice verify"), "it ends in a proof, without Rust");
    std::os::unix::fs::symlink(workspace().join("cluster"), work.path().join("cluster")).expect("a link");
    run_all(&commands, work.path(), &dev.endpoint, &address(&dev.endpoint));
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
