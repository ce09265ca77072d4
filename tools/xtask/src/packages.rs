//! Programs that come from distribution packages.

use std::process::Command;
use urxe_shell::{has, is_root, run};

/// A program and the Debian package that has it.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    /// What must be found in PATH; absolute for what is no program.
    pub(crate) program: &'static str,
    /// The package.
    pub(crate) package: &'static str,
}

pub(crate) const IP: Package = Package { program: "ip", package: "iproute2" };
pub(crate) const ETHTOOL: Package = Package { program: "ethtool", package: "ethtool" };
pub(crate) const TCPDUMP: Package = Package { program: "tcpdump", package: "tcpdump" };
pub(crate) const TSHARK: Package = Package { program: "tshark", package: "tshark" };
pub(crate) const IPERF3: Package = Package { program: "iperf3", package: "iperf3" };
pub(crate) const SCAPY: Package = Package {
    program: "/usr/lib/python3/dist-packages/scapy/contrib/roce.py",
    package: "python3-scapy",
};
pub(crate) const IBVERBS_UTILS: Package =
    Package { program: "ibv_rc_pingpong", package: "ibverbs-utils" };
pub(crate) const RDMACM_UTILS: Package = Package { program: "rping", package: "rdmacm-utils" };
pub(crate) const PERFTEST: Package = Package { program: "ib_write_bw", package: "perftest" };
pub(crate) const UCX_UTILS: Package = Package { program: "ucx_perftest", package: "ucx-utils" };
pub(crate) const PYVERBS: Package = Package {
    program: "/usr/lib/python3/dist-packages/pyverbs/__init__.py",
    package: "python3-pyverbs",
};
pub(crate) const RXE_PROVIDER: Package =
    Package { program: "/etc/libibverbs.d/rxe.driver", package: "ibverbs-providers" };
pub(crate) const VALGRIND: Package = Package { program: "valgrind", package: "valgrind" };
pub(crate) const CLANG: Package = Package { program: "clang", package: "clang" };
pub(crate) const CC: Package = Package { program: "cc", package: "gcc" };
pub(crate) const QEMU: Package =
    Package { program: "qemu-system-x86_64", package: "qemu-system-x86" };
pub(crate) const KMOD: Package = Package { program: "depmod", package: "kmod" };
pub(crate) const ZSTD: Package = Package { program: "zstd", package: "zstd" };
pub(crate) const DEBIAN_KEYS: Package = Package {
    program: "/usr/share/keyrings/debian-archive-keyring.gpg",
    package: "debian-archive-keyring",
};
pub(crate) const IBVERBS_DEV: Package =
    Package { program: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" };

impl Package {
    fn is_there(self) -> bool {
        match self.program.starts_with('/') {
            true => std::path::Path::new(self.program).exists(),
            false => has(self.program),
        }
    }
}

/// Installs what is missing, if we may. Returns what is still missing, in a sentence.
pub(crate) fn lacking(packages: &[Package]) -> Option<String> {
    let missing = || packages.iter().filter(|package| !package.is_there());
    missing().next()?;
    let names: Vec<_> = missing().map(|package| package.package).collect();
    if is_root() && has("apt-get") {
        eprintln!("installing {}", names.join(", "));
        let apt = |args: &[&str]| {
            run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(args))
        };
        // What fails here shows in what is still missing.
        let _ = apt(&["-qq", "update"]);
        let mut args = vec!["-qq", "install", "-y", "--no-install-recommends"];
        args.extend(&names);
        let _ = apt(&args);
    }
    missing().next()?;
    Some(format!("needs {}: apt-get install {}", names.join(", "), names.join(" ")))
}

/// What keeps a stage from running that needs root and these packages.
pub(crate) fn lacking_root_or(packages: &[Package]) -> Option<String> {
    if !is_root() {
        return Some("needs root, for network namespaces".to_owned());
    }
    lacking(packages)
}
