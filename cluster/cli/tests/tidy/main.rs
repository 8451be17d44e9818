//! Checks of the source tree: sizes of files, widths of lines, and loops of imports.
//!
//! Each message names the offender and the rule. `layering.rs` has the rules for packages.

mod imports;
mod source;

use std::{fs, path::Path};

use source::Source;

/// Most files of a crate that may import each other in a loop.
const LOOP_FILES_MAX: usize = 3;
/// Most lines of a file of code, with its tests.
const FILE_LINES_MAX: usize = 1000;
/// Most lines of a function.
const FUNCTION_LINES_MAX: usize = 70;
/// Most characters of a line of a comment or page.
const PROSE_COLUMNS_MAX: usize = 100;

/// Files that may be longer, and why.
const LONG_FILES: &[(&str, &str)] =
    &[("cluster/verify/vectors/second.py", "one file that strangers copy to check proofs without this project")];

/// Folders whose functions may be long scripts of steps.
const SCENES: &[&str] = &["/tests/", "/tests.rs", "_test.go", "/benches/", "e2e/"];

/// Returns a message for each breach of a rule below `root`.
fn offences(root: &Path) -> Vec<String> {
    let sources = source::sources(root);
    let mut offences: Vec<String> = sources.iter().flat_map(offences_of_file).collect();
    for (folder, members) in imports::loops(&sources).into_iter().filter(|(_, members)| members.len() > LOOP_FILES_MAX)
    {
        offences.push(format!(
            "{folder}: {} files import each other in a loop, at most {LOOP_FILES_MAX} may: {}",
            members.len(),
            members.join(", ")
        ));
    }
    offences
}

fn offences_of_file(source: &Source) -> Vec<String> {
    let path = &source.path;
    let mut offences = Vec::new();
    let lines = source.text.lines().count();
    let may_be_long = LONG_FILES.iter().any(|(name, _)| name == path);
    if source.language.is_code() && lines > FILE_LINES_MAX && !may_be_long {
        offences.push(format!("{path}: {lines} lines, a file may have {FILE_LINES_MAX}"));
    }
    for (line, text) in source.prose() {
        let columns = text.chars().count();
        if columns > PROSE_COLUMNS_MAX && !is_one_long_word(text) {
            offences.push(format!("{path}:{line}: {columns} columns, a comment may have {PROSE_COLUMNS_MAX}"));
        }
    }
    if !SCENES.iter().any(|scene| path.contains(scene)) {
        for (line, name, lines) in source.functions() {
            if lines > FUNCTION_LINES_MAX {
                let most = FUNCTION_LINES_MAX;
                offences.push(format!("{path}:{line}: `{name}` has {lines} lines, a function may have {most}"));
            }
        }
    }
    offences
}

/// An address or a path can't be broken.
fn is_one_long_word(text: &str) -> bool {
    text.split_whitespace().any(|word| word.chars().count() > PROSE_COLUMNS_MAX / 2)
}

#[test]
fn the_house_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package lies two levels deep");
    let offences = offences(root);
    assert!(offences.is_empty(), "{} breaches of the rules:\n{}", offences.len(), offences.join("\n"));
}

/// Returns the offences of a tree that holds only these files.
fn offences_of(files: &[(&str, &str)]) -> Vec<String> {
    let root = tempfile::tempdir().expect("a directory for the tree");
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder for the file");
        fs::write(path, text).expect("the file is written");
    }
    offences(root.path())
}

#[test]
fn a_planted_loop_is_found_through_a_re_export() {
    let ring = [
        ("a/src/lib.rs", "mod one; mod two; mod three; mod four;\npub use four::{Four};\n"),
        ("a/src/one.rs", "use crate::two::Two;\npub struct One(Two);\n"),
        ("a/src/two.rs", "use super::three;\npub struct Two(three::Three);\n"),
        ("a/src/three.rs", "pub struct Three(Box<crate::Four>);\n"),
        ("a/src/four.rs", "use crate::{one::{One as First}};\npub struct Four(Box<First>);\n"),
    ];
    let expected = "a: 4 files import each other in a loop, at most 3 may: four, one, three, two";
    assert_eq!(offences_of(&ring), [expected]);
    let mut cut = ring;
    cut[3].1 = "// crate::Four\npub struct Three;\n#[cfg(test)]\nmod tests { use crate::Four; }\n";
    assert_eq!(offences_of(&cut), [""; 0]);
}

#[test]
fn a_planted_long_line_is_found_in_each_language() {
    let long = "word ".repeat(20);
    for (path, text) in [
        ("a/src/lib.rs", format!("/// {long}\n")),
        ("a/b.py", format!("\"\"\"Short.\n\n{long} more\n\"\"\"\n")),
        ("a/b.go", format!("// {long}\n")),
        ("a/b.js", format!("// {long}\n")),
        ("a/b.sh", format!("# {long}\n")),
        ("a/b.md", format!("| {long} |\n\n```\n{long} more\n```\n{long} more\n")),
    ] {
        let found = offences_of(&[(path, &text)]);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].contains("columns, a comment may have 100"), "{found:?}");
    }
}

#[test]
fn a_planted_file_of_1001_lines_is_found_in_each_language() {
    for path in ["a/src/lib.rs", "a/b.py", "a/b.go", "a/b.js"] {
        assert_eq!(offences_of(&[(path, &"\n".repeat(1000))]), [""; 0]);
        let found = offences_of(&[(path, &"\n".repeat(1001))]);
        assert_eq!(found, [format!("{path}: 1001 lines, a file may have 1000")]);
    }
}

#[test]
fn a_planted_long_function_is_found_in_each_language() {
    let body = |line: &str| format!("{line}\n").repeat(69);
    for (path, head, line, tail) in [
        ("a/src/lib.rs", "pub(crate) async fn long(\n) {\n", "    step();", "}\n"),
        ("a/b.py", "def long():\n    step()\n", "    step()", "\ndef next():\n    pass\n"),
        ("a/b.go", "func long() {\n\tstep()\n", "\tstep()", "}\n"),
        ("a/b.js", "export function long() {\n", "  step();", "}\n"),
    ] {
        let found = offences_of(&[(path, &format!("{head}{}{tail}", body(line)))]);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].contains("`long` has 7") && found[0].ends_with("a function may have 70"), "{found:?}");
    }
}

#[test]
fn an_import_inside_a_string_is_not_counted() {
    let text = "const PATH: &str = \"use crate::two;\";\nfn quote() -> char { '\"' }\nfn life<'a>(a: &'a str) -> &'a str { a }\n";
    let ring = [
        ("a/src/lib.rs", "mod one; mod two; mod three; mod four;"),
        ("a/src/one.rs", text),
        ("a/src/two.rs", "use crate::three;"),
        ("a/src/three.rs", "use crate::four;"),
        ("a/src/four.rs", "use crate::one;"),
    ];
    assert_eq!(offences_of(&ring), [""; 0]);
}
