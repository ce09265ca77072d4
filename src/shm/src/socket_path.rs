//! Where the daemon's control socket is, if nobody says otherwise.

use rustix::io::Errno;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The control socket's path: `$URXE_SOCKET`, else for root `/run/urxe/urxed.sock`, else
/// `$XDG_RUNTIME_DIR/urxe/urxed.sock`, else `/tmp/urxe-<uid>/urxed.sock`. Programs and the daemon
/// ask here alike.
pub fn socket_path() -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let uid = rustix::process::geteuid();
    if let Some(path) = var("URXE_SOCKET") {
        path.into()
    } else if uid.is_root() {
        "/run/urxe/urxed.sock".into()
    } else if let Some(directory) = var("XDG_RUNTIME_DIR") {
        PathBuf::from(directory).join("urxe/urxed.sock")
    } else {
        shared_directory().join("urxed.sock")
    }
}

/// Our own directory in a place where anybody might have made it.
fn shared_directory() -> PathBuf {
    format!("/tmp/urxe-{}", rustix::process::geteuid().as_raw()).into()
}

/// Makes the socket's directory, for its owner alone, if there is none.
pub(crate) fn make_directory(socket: &Path) -> io::Result<()> {
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
    if socket.parent() != Some(&directory) {
        return Ok(());
    }
    let found = std::fs::symlink_metadata(&directory)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if ours && found.mode() & 0o077 == 0 { Ok(()) } else { Err(Errno::ACCESS.into()) }
}
