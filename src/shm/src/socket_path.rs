//! Where the daemon's control socket is, if nobody says otherwise, and what lies beside it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The control socket's path: `$URXE_SOCKET`, else for root `/run/urxe/urxed.sock`, else
/// `$XDG_RUNTIME_DIR/urxe/urxed.sock`, else `/tmp/urxe-<uid>/urxed.sock`. Programs and the daemon
/// ask here alike.
pub fn socket_path() -> PathBuf {
    path_from(|name| std::env::var_os(name), rustix::process::geteuid().is_root())
}

fn path_from(var: impl Fn(&str) -> Option<OsString>, is_root: bool) -> PathBuf {
    let var = |name| var(name).filter(|value| !value.is_empty());
    if let Some(path) = var("URXE_SOCKET") {
        path.into()
    } else if is_root {
        "/run/urxe/urxed.sock".into()
    } else if let Some(directory) = var("XDG_RUNTIME_DIR") {
        PathBuf::from(directory).join("urxe/urxed.sock")
    } else {
        shared_directory().join("urxed.sock")
    }
}

/// The directory in which the daemon of a socket shows its devices as files, the way `/sys/class`
/// and `/dev` would: beside the socket, with its name, and `.sysfs` instead of `.sock`.
pub fn sysfs_directory(socket: &Path) -> PathBuf {
    let socket = socket.as_os_str().as_bytes();
    let mut directory = socket.strip_suffix(b".sock").unwrap_or(socket).to_vec();
    directory.extend(b".sysfs");
    OsString::from_vec(directory).into()
}

/// Our own directory in a place where anybody might have made it.
fn shared_directory() -> PathBuf {
    format!("/tmp/urxe-{}", rustix::process::geteuid().as_raw()).into()
}

/// Makes the socket's directory, for its owner alone (root's is open to all), if there is none.
///
/// # Errors
/// If it cannot be made, or is not ours alone although it should be.
pub fn make_directory(socket: &Path) -> io::Result<()> {
    let Some(directory) = socket.parent() else { return Ok(()) };
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    match std::fs::DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    check_directory(socket)
}

/// Refuses the directory in `/tmp` if somebody else made it, or could put a socket into it.
pub(crate) fn check_directory(socket: &Path) -> io::Result<()> {
    let directory = shared_directory();
    if socket.parent() == Some(&directory) { check_private(&directory) } else { Ok(()) }
}

/// Whether only we can put anything into a directory.
fn check_private(directory: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(directory)?;
    let uid = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let message = format!(
        "{} has owner {} and mode {:o}, expected a directory of owner {uid} and mode 700",
        directory.display(),
        found.uid(),
        found.mode() & 0o7777,
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn path_with(set: &[(&str, &str)], is_root: bool) -> PathBuf {
        let var = |name: &str| {
            let value = set.iter().find(|(key, _)| *key == name);
            value.map(|(_, value)| OsString::from(value))
        };
        path_from(var, is_root)
    }

    #[test]
    fn the_first_place_that_applies_is_taken() {
        let (socket, runtime) = (("URXE_SOCKET", "/a/b.sock"), ("XDG_RUNTIME_DIR", "/run/user/1"));
        assert_eq!(path_with(&[socket, runtime], true), Path::new("/a/b.sock"));
        assert_eq!(path_with(&[socket], false), Path::new("/a/b.sock"));
        assert_eq!(path_with(&[runtime], true), Path::new("/run/urxe/urxed.sock"));
        assert_eq!(path_with(&[runtime], false), Path::new("/run/user/1/urxe/urxed.sock"));
        assert_eq!(path_with(&[("URXE_SOCKET", "")], true), Path::new("/run/urxe/urxed.sock"));
        let in_tmp = format!("/tmp/urxe-{}/urxed.sock", rustix::process::geteuid().as_raw());
        assert_eq!(path_with(&[("XDG_RUNTIME_DIR", "")], false), Path::new(&in_tmp));
    }

    #[test]
    fn every_socket_has_a_sysfs_directory_of_its_own() {
        let of = |socket| sysfs_directory(Path::new(socket));
        assert_eq!(of("/run/urxe/urxed.sock"), Path::new("/run/urxe/urxed.sysfs"));
        assert_eq!(of("urxed-10.0.0.1.sock"), Path::new("urxed-10.0.0.1.sysfs"));
        // Not every dot begins an extension.
        assert_eq!(of("/tmp/urxed-10.0.0.1"), Path::new("/tmp/urxed-10.0.0.1.sysfs"));
        assert_eq!(of("/tmp/urxed.socket"), Path::new("/tmp/urxed.socket.sysfs"));
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = std::env::temp_dir().join(format!("urxe-shm-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(mode)).unwrap();
            check_private(&directory).map_err(|error| error.kind())
        };
        let results = [with_mode(0o700), with_mode(0o770), with_mode(0o701)];
        std::fs::remove_dir(&directory).unwrap();
        let refused = Err(io::ErrorKind::PermissionDenied);
        assert_eq!(results, [Ok(()), refused, refused]);
    }

    #[test]
    fn a_link_to_a_directory_is_refused() {
        let link = std::env::temp_dir().join(format!("urxe-shm-link-{}", std::process::id()));
        std::os::unix::fs::symlink("/", &link).unwrap();
        let result = check_private(&link);
        std::fs::remove_file(&link).unwrap();
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
