//! Files that hold a secret: a private key, a password.
//!
//! A file that everybody on the machine can read keeps no secret, so it is refused. Group access is allowed: Kubernetes
//! gives a pod its secrets as files of root and the pod's group, with mode 0440.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Longest secret, in bytes.
const SECRET_BYTES_MAX: u64 = 1 << 20;
/// Permission bits of everybody who is neither the owner nor in the group.
const OTHERS: u32 = 0o007;

/// Checks that a file is kept from others.
///
/// # Errors
/// If others have access to it, or it can't be looked at. The message says how to mend it.
pub fn check_secret(path: &Path) -> io::Result<()> {
    check(&fs::metadata(path)?, path)
}

/// Reads the text of a file that is kept from others.
///
/// # Errors
/// As [`check_secret`], and if it is no text or longer than a secret may be.
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

/// Pipes and devices have no permissions that tell anything.
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
    fn what_is_too_long_is_no_secret() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        fs::write(&path, vec![b'a'; (1 << 20) + 1]).expect("a file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        assert_eq!(read_secret(&path).expect_err("too long").kind(), io::ErrorKind::FileTooLarge);
    }
}
