//! Where the daemon's control socket is, if nobody says otherwise, and what lies beside it.

use crate::control::channel::Channel;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The socket of root's daemon, which an administrator may open to all users (`--mode 666`).
pub const SYSTEM_SOCKET: &str = "/run/urxe/urxed.sock";

/// The socket that a daemon of ours listens at: `$URXE_SOCKET`, else for root [`SYSTEM_SOCKET`],
/// else `$XDG_RUNTIME_DIR/urxe/urxed.sock`, else `/tmp/urxe-<uid>/urxed.sock`.
pub fn socket_path() -> PathBuf {
    path_from(|name| std::env::var_os(name), rustix::process::geteuid().is_root())
}

fn path_from(var: impl Fn(&str) -> Option<OsString>, is_root: bool) -> PathBuf {
    let var = |name| var(name).filter(|value| !value.is_empty());
    if let Some(path) = var("URXE_SOCKET") {
        path.into()
    } else if is_root {
        SYSTEM_SOCKET.into()
    } else if let Some(directory) = var("XDG_RUNTIME_DIR") {
        PathBuf::from(directory).join("urxe/urxed.sock")
    } else {
        shared_directory().join("urxed.sock")
    }
}

/// The sockets at which programs look for a daemon if nobody names one, in this order:
/// [`socket_path`], then, unless `$URXE_SOCKET` is set, [`SYSTEM_SOCKET`].
pub fn daemon_sockets() -> Vec<PathBuf> {
    sockets_from(|name| std::env::var_os(name), rustix::process::geteuid().is_root())
}

fn sockets_from(var: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Vec<PathBuf> {
    let is_named = var("URXE_SOCKET").is_some_and(|path| !path.is_empty());
    let own = path_from(var, is_root);
    let system = (!is_named && own != Path::new(SYSTEM_SOCKET)).then(|| SYSTEM_SOCKET.into());
    std::iter::once(own).chain(system).collect()
}

/// Connects to the daemon at a socket, or, if none is named, to the first that answers at one of
/// the [`daemon_sockets`]. Returns the socket too.
///
/// # Errors
/// If no daemon answers at any of them.
pub fn connect_to_daemon(named: Option<&Path>) -> Result<(PathBuf, Channel), NoDaemon> {
    connect_to_first(named.map_or_else(daemon_sockets, |path| vec![path.to_owned()]))
}

fn connect_to_first(sockets: Vec<PathBuf>) -> Result<(PathBuf, Channel), NoDaemon> {
    let mut tried = Vec::new();
    for socket in sockets {
        match Channel::connect(&socket) {
            Ok(channel) => return Ok((socket, channel)),
            Err(error) => tried.push((socket, error)),
        }
    }
    Err(NoDaemon { tried })
}

/// No daemon answers.
#[derive(Debug)]
pub struct NoDaemon {
    /// The sockets that were tried, and what the system said of each.
    pub tried: Vec<(PathBuf, io::Error)>,
}

impl std::error::Error for NoDaemon {}

impl fmt::Display for NoDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (socket, error)) in self.tried.iter().enumerate() {
            let before = if index == 0 { "no urxe daemon answers at" } else { ", nor at" };
            write!(f, "{before} {}: {error}", socket.display())?;
        }
        Ok(())
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
    fn the_daemon_of_the_system_is_looked_for_after_ones_own() {
        let sockets = |set: &[(&str, &str)], is_root| {
            let var = |name: &str| {
                let value = set.iter().find(|(key, _)| *key == name);
                value.map(|(_, value)| OsString::from(value))
            };
            sockets_from(var, is_root)
        };
        let runtime = ("XDG_RUNTIME_DIR", "/run/user/1");
        let both = ["/run/user/1/urxe/urxed.sock", "/run/urxe/urxed.sock"].map(PathBuf::from);
        assert_eq!(sockets(&[runtime], false), both);
        assert_eq!(sockets(&[runtime], true), both[1..]);
        let named = [runtime, ("URXE_SOCKET", "/a/b.sock")];
        assert_eq!(sockets(&named, false), [PathBuf::from("/a/b.sock")]);
    }

    #[test]
    fn a_daemon_that_answers_nowhere_is_said_to_be_missing_at_each_place() {
        let places = ["/nonexistent/a.sock", "/nonexistent/b.sock"].map(PathBuf::from);
        let said = connect_to_first(places.to_vec()).unwrap_err().to_string();
        for place in &places {
            assert!(said.contains(&format!("at {}: No such file", place.display())), "{said}");
        }
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
