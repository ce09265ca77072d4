//! Stock programs of rdma-core, by the scripts of `interop/`.

use crate::packages::{
    self, CC, DEBIAN_KEYS, IBVERBS_DEV, IBVERBS_UTILS, IP, KMOD, PERFTEST, PYVERBS, QEMU,
    RDMACM_UTILS, RXE_PROVIDER, ZSTD,
};
use std::ffi::OsString;
use std::process::Command;
use urxe_shell::{Result, output, release_binary, root, run, run_for_reason};

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
    packages::lacking(&[IBVERBS_UTILS, PERFTEST, RXE_PROVIDER])
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

/// Why a command cannot be done here. A script that is broken lacks nothing: its stage is run, and
/// fails.
fn cannot(command: &mut Command) -> Option<String> {
    const BROKEN: [&str; 4] = ["NameError:", "AttributeError:", "SyntaxError:", "TypeError:"];
    let is_broken = |reason: &String| BROKEN.iter().any(|error| reason.contains(error));
    output(command).err().filter(|reason| !is_broken(reason))
}
