use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use super::*;
use crate::failure::Code;

/// Runs git without the settings of this machine.
fn git(dir: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"];
    let mut command = Command::new("git");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").arg("-C").arg(dir);
    let output = command.args(identity).args(arguments).output().expect("git is needed for this test");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("it has one")).expect("a directory can be made");
    fs::write(path, bytes).expect("a file can be written");
}

fn commit(dir: &Path, message: &str) {
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "--allow-empty", "-m", message]);
}

fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    git(dir.path(), &["init", "-q"]);
    write(dir.path(), "a", b"one");
    write(dir.path(), "with space", b"\n\0binary");
    commit(dir.path(), "first");
    write(dir.path(), "a", b"two");
    fs::remove_file(dir.path().join("with space")).expect("it is there");
    write(dir.path(), "big", &[7; 2000]);
    commit(dir.path(), "second: with a colon");
    commit(dir.path(), "empty");
    dir
}

type Changes = Vec<(String, Option<Vec<u8>>)>;

fn changes(batch: &v1::Batch) -> Changes {
    let operations = batch.operations.iter();
    operations
        .map(|operation| {
            let value = match &operation.change {
                Some(Change::Put(value)) => Some(value.to_vec()),
                _ => None,
            };
            (String::from_utf8_lossy(&operation.key).into_owned(), value)
        })
        .collect()
}

fn put(key: &str, value: &[u8]) -> (String, Option<Vec<u8>>) {
    (key.to_owned(), Some(value.to_vec()))
}

fn gone(key: &str) -> (String, Option<Vec<u8>>) {
    (key.to_owned(), None)
}

fn read(dir: &Path, params: &Params) -> Result<(Vec<v1::Batch>, Vec<String>), Failure> {
    let mut commits = Commits::open(dir, params)?;
    let mut batches = Vec::new();
    while let Some(item) = commits.next()? {
        batches.push(item.batch);
    }
    Ok((batches, commits.skipped().to_vec()))
}

fn notes(batches: &[v1::Batch]) -> Vec<String> {
    let note = |batch: &v1::Batch| {
        let metadata: serde_json::Value = serde_json::from_slice(&batch.metadata).expect("metadata is JSON");
        metadata["note"].as_str().expect("a note").to_owned()
    };
    batches.iter().map(note).collect()
}

#[test]
fn each_commit_is_one_batch() {
    let dir = repository();
    let params = Params { value_bytes_max: 1000, ..Params::default() };
    let (batches, skipped) = read(dir.path(), &params).expect("a repository");
    assert_eq!(changes(&batches[0]), [put("a", b"one"), put("with space", b"\n\0binary")]);
    assert_eq!(changes(&batches[1]), [put("a", b"two"), gone("big"), gone("with space")]);
    assert!(changes(&batches[2]).is_empty());
    assert_eq!(notes(&batches), ["first", "second: with a colon", "empty"]);
    assert_eq!(skipped.len(), 1);
    assert!(skipped[0].contains("big at ") && skipped[0].contains("2000 bytes"));
}

#[test]
fn files_that_become_directories_and_back_keep_no_old_value() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let remove = |name: &str| {
        let path = dir.path().join(name);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it is there");
    };
    git(dir.path(), &["init", "-q"]);
    write(dir.path(), "x", b"file");
    write(dir.path(), "deep/er/y", b"1");
    write(dir.path(), "deep/er/z", b"2");
    commit(dir.path(), "files");
    remove("x");
    write(dir.path(), "x/inner", b"file");
    remove("deep/er/z");
    commit(dir.path(), "a directory");
    remove("x");
    write(dir.path(), "x", b"again");
    commit(dir.path(), "a file again");
    git(dir.path(), &["update-index", "--chmod=+x", "x"]);
    git(dir.path(), &["commit", "-q", "-m", "executable"]);
    let (batches, skipped) = read(&dir.path().join("deep"), &Params::default()).expect("a repository around it");
    assert_eq!(changes(&batches[0]), [put("deep/er/y", b"1"), put("deep/er/z", b"2"), put("x", b"file")]);
    assert_eq!(changes(&batches[1]), [gone("deep/er/z"), gone("x"), put("x/inner", b"file")]);
    assert_eq!(changes(&batches[2]), [put("x", b"again"), gone("x/inner")]);
    assert!(changes(&batches[3]).is_empty(), "the content is the same");
    assert!(skipped.is_empty());
}

#[test]
fn paths_that_cannot_be_keys_are_left_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    git(dir.path(), &["init", "-q"]);
    write(dir.path(), "1234567", b"just fits");
    write(dir.path(), "12345678", b"too long");
    write(dir.path(), "1234/67/9", b"too deep");
    commit(dir.path(), "one");
    fs::remove_dir_all(dir.path().join("1234")).expect("it is there");
    commit(dir.path(), "two");
    let params = Params { key_bytes_max: 7, ..Params::default() };
    let (batches, skipped) = read(dir.path(), &params).expect("a repository");
    assert_eq!(changes(&batches[0]), [put("1234567", b"just fits")]);
    assert!(changes(&batches[1]).is_empty());
    let named: Vec<&str> = skipped.iter().map(|line| line.split(" at ").next().unwrap_or_default()).collect();
    assert_eq!(named, ["1234/67", "12345678"]);
}

#[test]
fn a_directory_without_a_repository_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let failure = Commits::open(dir.path(), &Params::default()).err().expect("no repository");
    assert_eq!((failure.code, failure.message.contains("no git repository")), (Code::Usage, true), "{failure:?}");
    git(dir.path(), &["init", "-q"]);
    let failure = Commits::open(dir.path(), &Params::default()).err().expect("no commit");
    assert!(failure.message.contains("no commit at HEAD"), "{failure:?}");
    fs::write(dir.path().join(".git/config"), "[core]\n\trepositoryformatversion = 9\n").expect("it is ours");
    let failure = Commits::open(dir.path(), &Params::default()).err().expect("no repository that git knows");
    assert!(failure.message.contains("git says"), "{failure:?}");
}

#[test]
fn a_history_that_is_cut_off_is_refused() {
    let dir = repository();
    let clone = tempfile::tempdir().expect("a temporary directory");
    let url = format!("file://{}", dir.path().display());
    git(clone.path(), &["clone", "-q", "--depth", "1", &url, "."]);
    let failure = Commits::open(clone.path(), &Params::default()).err().expect("a shallow clone");
    assert!(failure.message.contains("is missing") && failure.hint.is_some(), "{failure:?}");
}

/// The settings of a foreign repository name a program in each place where git accepts one.
#[test]
fn no_program_of_the_repository_is_run() {
    let dir = repository();
    let (program, ran) = (dir.path().join(".git/program"), dir.path().join(".git/ran"));
    fs::write(&program, format!("#!/bin/sh\necho \"$0 $*\" >> '{}'\nexit 1\n", ran.display()))
        .expect("a file can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let run = program.display().to_string();
    let keys = [
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.askPass",
        "core.sshCommand",
        "core.gitProxy",
        "core.alternateRefsCommand",
        "pager.cat-file",
        "alias.cat-file",
        "gpg.program",
        "gpg.ssh.program",
        "gpg.ssh.defaultKeyCommand",
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
        "merge.evil.driver",
        "credential.helper",
        "interactive.diffFilter",
        "sequence.editor",
        "trailer.evil.command",
        "remote.origin.uploadpack",
        "remote.origin.vcs",
        "uploadpack.packObjectsHook",
        "difftool.evil.cmd",
        "mergetool.evil.cmd",
        "browser.evil.cmd",
        "ssh.variant",
        "submodule.evil.update",
    ];
    for key in keys {
        let value =
            if key.starts_with("alias") || key.starts_with("submodule") { format!("!{run}") } else { run.clone() };
        git(dir.path(), &["config", key, &value]);
    }
    for (key, value) in [
        ("log.showSignature", "true"),
        ("i18n.logOutputEncoding", "UTF-16"),
        ("log.mailmap", "true"),
        ("core.quotePath", "true"),
        ("diff.noprefix", "true"),
        ("core.hooksPath", ".git"),
        ("diff.renames", "copies"),
        ("core.precomposeUnicode", "true"),
        ("core.ignoreCase", "true"),
        ("core.useReplaceRefs", "true"),
    ] {
        git(dir.path(), &["config", key, value]);
    }
    fs::write(dir.path().join(".git/info/attributes"), "* diff=evil filter=evil merge=evil\n").expect("it is ours");
    for hook in ["post-index-change", "reference-transaction", "fsmonitor-watchman"] {
        let path = dir.path().join(".git/hooks").join(hook);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory can be made");
        fs::copy(&program, path).expect("a file can be copied");
    }
    let _ = fs::remove_file(&ran);
    let (batches, _) = read(dir.path(), &Params::default()).expect("a repository");
    assert_eq!(notes(&batches), ["first", "second: with a colon", "empty"]);
    assert!(!ran.exists(), "{}", fs::read_to_string(&ran).unwrap_or_default());
    // A partial clone has promised objects. Git would fetch them with the programs that the
    // settings name.
    git(dir.path(), &["config", "core.repositoryFormatVersion", "1"]);
    git(dir.path(), &["config", "extensions.partialClone", "origin"]);
    git(dir.path(), &["config", "remote.origin.promisor", "true"]);
    for (url, vcs) in [
        (dir.path().display().to_string(), false),
        ("ssh://host/path".into(), false),
        (format!("ext::{run} %S"), false),
        ("x".into(), true),
    ] {
        git(dir.path(), &["config", "remote.origin.url", &url]);
        if !vcs {
            git(dir.path(), &["config", "remote.origin.vcs", ""]);
            git(dir.path(), &["config", "--unset", "remote.origin.vcs"]);
        } else {
            git(dir.path(), &["config", "remote.origin.vcs", "ext"]);
        }
        let blob = git(dir.path(), &["rev-parse", "HEAD:a"]);
        let object = dir.path().join(".git/objects").join(&blob[..2]).join(&blob[2..]);
        let aside = dir.path().join(".git/aside");
        fs::rename(&object, &aside).expect("a loose object");
        let _ = fs::remove_file(&ran);
        let failure = read(dir.path(), &Params::default()).expect_err("a file is missing");
        assert!(failure.message.contains("missing") || failure.message.contains("git says"), "{failure:?}");
        assert!(!ran.exists(), "{url}: {}", fs::read_to_string(&ran).unwrap_or_default());
        fs::rename(&aside, &object).expect("it is there");
    }
}

/// Replacements and grafts change what git shows, but not what a load reads.
#[test]
fn replacements_and_grafts_change_nothing() {
    let dir = repository();
    let expected = read(dir.path(), &Params::default()).expect("a repository").0;
    let head = git(dir.path(), &["rev-parse", "HEAD"]);
    let first = git(dir.path(), &["rev-list", "--max-parents=0", "HEAD"]);
    git(dir.path(), &["replace", &head, &first]);
    fs::write(dir.path().join(".git/info/grafts"), format!("{head}\n")).expect("it is ours");
    assert_eq!(git(dir.path(), &["rev-list", "--count", "HEAD"]), "1", "git itself shows something else");
    assert_eq!(read(dir.path(), &Params::default()).expect("a repository").0, expected);
}

/// Objects are found by name, so in a forged repository a history can be a loop, and a tree can
/// contain itself.
#[test]
fn histories_and_trees_with_cycles_come_to_an_end() {
    let dir = repository();
    let path = |id: &str| dir.path().join(".git/objects").join(&id[..2]).join(&id[2..]);
    let forge = |id: &str, kind: &str, content: &[u8]| {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &[format!("{kind} {}\0", content.len()).as_bytes(), content].concat())
            .expect("memory takes it");
        let path = path(id);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory can be made");
        // Loose objects are read-only files.
        let _ = fs::remove_file(&path);
        fs::write(path, encoder.finish().expect("memory takes it")).expect("a file can be written");
    };
    let (ancestor, tree) = ("11".repeat(20), "22".repeat(20));
    let commit = |parent: &str| {
        let who = "a <a@example.org> 1 +0000";
        format!("tree {tree}\n{parent}author {who}\ncommitter {who}\n\nround\n")
    };
    let entries: Vec<u8> =
        [b"40000 a\0".as_slice(), &[0x22; 20], b"40000 b\0", &[0x22; 20], b"100644 c\0", &[0x33; 20]].concat();
    forge(&tree, "tree", &entries);
    forge(&ancestor, "commit", commit(&format!("parent {ancestor}\n")).as_bytes());
    // Git checks the hash of only one commit: the one that is checked out.
    let reference = dir.path().join(".git").join(git(dir.path(), &["symbolic-ref", "HEAD"]));
    let check_out = |content: String| {
        let file = dir.path().join("commit");
        fs::write(&file, content).expect("a file can be written");
        let id = git(dir.path(), &["hash-object", "-t", "commit", "-w", "--literally", &file.display().to_string()]);
        fs::write(&reference, format!("{id}\n")).expect("it is ours");
    };
    for (parent, expected) in [(String::new(), "changes more than"), (format!("parent {ancestor}\n"), "own ancestor")] {
        check_out(commit(&parent));
        match read(dir.path(), &Params::default()) {
            Err(failure) => assert!(failure.message.contains(expected), "{failure:?}"),
            Ok(_) => panic!("what has no end was read"),
        }
    }
}

#[test]
fn a_commit_is_read_as_it_is_stored() {
    let id = "ab".repeat(20);
    let text = format!(
        "tree {id}\nparent {id}\nparent {}\nauthor A <a@b> 1 +0000\ncommitter C > D <c@d> 1700000000 +0100\n\
         gpgsig -----BEGIN SSH SIGNATURE-----\n committer forged <x> 5 +0000\n -----END SSH SIGNATURE-----\n\n\n  two\nlines \n\nbody\n",
        "cd".repeat(20)
    );
    let commit = parse_commit(text.as_bytes()).expect("a commit");
    assert_eq!(commit.parent.as_deref(), Some(id.as_str()));
    assert_eq!((commit.time_ms, commit.subject.as_str()), (Some(1_700_000_000_000), "  two lines"));
    let strange = format!("tree {id}\nauthor A <a@b> 1 +0000\ncommitter C <c@d> -5 +0000\n\nx");
    assert_eq!(parse_commit(strange.as_bytes()).expect("a commit").time_ms, None, "a time before 1970 is none");
    for bad in ["", "tree short\n", "parent x\n\n", &format!("tree {id}\nauthor A <a@b> 1 +0000\n\nno committer")] {
        assert_eq!(parse_commit(bad.as_bytes()), None, "{bad:?}");
    }
}
