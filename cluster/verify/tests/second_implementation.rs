//! A second implementation in Python, written from `docs/verification.md`, agrees with the vectors.

use std::process::Command;

#[test]
fn the_second_implementation_agrees_with_the_vectors() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors/second.py");
    let Ok(output) = Command::new("python3").arg(script).output() else {
        eprintln!("NOT CHECKED: there is no python3 to run {script}");
        return;
    };
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    assert_eq!(out.lines().filter(|line| line.ends_with("agree")).count(), 5, "{out}");
}
