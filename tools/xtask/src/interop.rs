//! Stock programs of rdma-core, by the scripts of `interop/`.

use crate::packages::{
    self, CC, DEBIAN_KEYS, IBVERBS_DEV, IBVERBS_UTILS, IP, KMOD, PERFTEST, PYTHON, PYVERBS, QEMU,
    RDMACM_UTILS, RXE_PROVIDER, ZSTD,
};
use std::ffi::OsString;
use std::process::{Command, Stdio};
use urxe_shell::{Result, release_binary, root, run, run_for_reason};

/// The address of the device that the Python tests run on. Those of the connection manager take
/// the first address that the device's interface has, so it must be that one.
const ADDR: &str = "127.0.0.1";

/// What keeps rdma-core's Python tests from running.
pub(crate) fn lacks_python_tests() -> Option<String> {
    packages::lacking(&[PYVERBS, RXE_PROVIDER])
        .or_else(|| cannot(script("pyverbs/run").arg("--unpack")))
}

/// rdma-core's Python tests, compared with the list of what is expected: served by the daemon, and
/// each program with a slot of its own.
pub(crate) fn python_tests() -> Result {
    let urxe = release_binary("urxe");
    for place in ["", "--in-process "] {
        let prefix = format!("{} run --addr {ADDR} {place}--", urxe.display());
        run_for_reason(script("pyverbs/run").args(["--with", &prefix]))?;
    }
    Ok(())
}

/// What keeps two generations of rdma-core from being tried.
pub(crate) fn lacks_generations() -> Option<String> {
    // A program of the other release that does nothing.
    let other = ["--", "/usr/bin/python3", "-c", ""];
    packages::lacking(&[IBVERBS_UTILS, PERFTEST, PYTHON, RXE_PROVIDER])
        .or_else(|| cannot(script("rdma-core/newer").args(other)))
}

/// Programs of two generations of rdma-core, each as server and as client of the other.
pub(crate) fn generations() -> Result {
    let folder = release_binary("");
    run(script("rdma-core/both-ways").arg("--bin").arg(folder))
}

/// What keeps kernel rxe from being tried.
pub(crate) fn lacks_kernel_rxe() -> Option<String> {
    // To build the guest takes the mirror; what keeps it from being built is said here.
    let guest = [QEMU, KMOD, ZSTD, DEBIAN_KEYS, IP];
    let ours = [CC, IBVERBS_DEV, IBVERBS_UTILS, PERFTEST, PYVERBS, RDMACM_UTILS, RXE_PROVIDER];
    packages::lacking_root_or(&[&guest[..], &ours].concat())
        .or_else(|| cannot(script("rxe/guest.py").arg("build")))
}

/// Kernel rxe, in a virtual machine, on the other end of the wire.
pub(crate) fn kernel_rxe() -> Result {
    let folder = release_binary("");
    for place in [None, Some("--in-process")] {
        run(script("run").args(["rxe", "--short", "--bin"]).arg(&folder).args(place))?;
    }
    Ok(())
}

/// What keeps `urxe conform` from being tried on anything. Kernel rxe needs the
/// guest, too.
pub(crate) fn lacks_conform() -> Option<String> {
    packages::lacking(&[CC, IBVERBS_DEV, IBVERBS_UTILS, PERFTEST, RDMACM_UTILS, RXE_PROVIDER])
}

/// What `urxe conform` says of urxe and of kernel rxe, compared with what is known of them. Without
/// options, in short.
pub(crate) fn conform(options: &[OsString]) -> Result {
    let folder = release_binary("");
    run(script("run").args(["conform", "--bin"]).arg(folder).args(options))
}

fn script(name: &str) -> Command {
    Command::new(root().join("interop").join(name))
}

/// Exit status of a script whose work cannot be done on this machine: that of `interop/debian.py`.
const CANNOT: i32 = 77;

/// Why a command cannot be done here. A script that is broken lacks nothing, and does not end as
/// one that does: its stage is run, and fails.
fn cannot(command: &mut Command) -> Option<String> {
    let ended = command.stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    (ended.status.code() == Some(CANNOT)).then(|| said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_script_that_says_so_cannot_be_run_here() {
        let ended = |script| cannot(Command::new("sh").args(["-c", script]));
        assert_eq!(ended("echo no network >&2; exit 77"), Some("no network".to_owned()));
        assert_eq!(ended("echo ImportError: a module >&2; exit 1"), None);
        assert_eq!(ended(""), None);
        assert_eq!(cannot(&mut Command::new("/no/such/script")), None);
    }
}
