//! Files that hold a secret, like a private key or a password.
//!
//! A file that everybody on the machine can read is refused, since it keeps no secret. Group access
//! is allowed: Kubernetes gives a pod its secrets as files of root and of the pod's group, with
//! mode 0440.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// Largest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 1 << 20;
/// The permission bits of users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;

/// Checks that others have no access to a file.
///
/// # Errors
/// If others have access, or the file can't be inspected. The message says how to fix it.
pub fn check_secret(path: &Path) -> io::Result<()> {
    check(&fs::metadata(path)?, path)
}

/// Reads the text of a file, if others have no access to it.
///
/// # Errors
/// Like [`check_secret`], and if the file is not text or is too long for a secret.
pub fn read_secret(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    check(&file.metadata()?, path)?;
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SECRET_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too long for a key or a password"));
    }
    Ok(text)
}

/// Accepts pipes and devices without a check, because their permissions say nothing.
fn check(found: &fs::Metadata, path: &Path) -> io::Result<()> {
    let mode = found.permissions().mode() & 0o777;
    if !found.is_file() || mode & OTHERS == 0 {
        return Ok(());
    }
    let message = format!("everybody can use this secret (mode {mode:03o}): run `chmod 600 {}`", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_others_can_use_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        fs::write(&path, "secret").expect("a file can be written");
        for (mode, taken) in
            [(0o600, true), (0o400, true), (0o440, true), (0o660, true), (0o604, false), (0o644, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!(check_secret(&path).is_ok(), taken, "{mode:o}");
            match read_secret(&path) {
                Ok(text) => assert!(taken && text == "secret", "{mode:o}"),
                Err(error) => assert!(!taken && error.to_string().contains("chmod 600"), "{mode:o}: {error}"),
            }
        }
    }

    #[test]
    fn a_file_that_is_too_long_is_not_a_secret() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        fs::write(&path, vec![b'a'; (1 << 20) + 1]).expect("a file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        assert_eq!(read_secret(&path).expect_err("too long").kind(), io::ErrorKind::FileTooLarge);
    }
}
