//! Programs that come from distribution packages.

use urxe_shell::{has, is_root};

/// A program and the Debian package that has it.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    /// What must be found in PATH; absolute for what is no program.
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

pub(crate) const IP: Package = Package { program: "ip", package: "iproute2" };
pub(crate) const RDMA: Package = Package { program: "rdma", package: "iproute2" };
pub(crate) const ETHTOOL: Package = Package { program: "ethtool", package: "ethtool" };
pub(crate) const TCPDUMP: Package = Package { program: "tcpdump", package: "tcpdump" };
pub(crate) const TSHARK: Package = Package { program: "tshark", package: "tshark" };
pub(crate) const NFTABLES: Package = Package { program: "nft", package: "nftables" };
pub(crate) const IPERF3: Package = Package { program: "iperf3", package: "iperf3" };
pub(crate) const SETPRIV: Package = Package { program: "setpriv", package: "util-linux" };
pub(crate) const PRLIMIT: Package = Package { program: "prlimit", package: "util-linux" };
pub(crate) const PYTHON: Package = Package { program: "python3", package: "python3" };
pub(crate) const SCAPY: Package = Package {
    program: "/usr/lib/python3/dist-packages/scapy/contrib/roce.py",
    package: "python3-scapy",
};
pub(crate) const IBVERBS_UTILS: Package =
    Package { program: "ibv_rc_pingpong", package: "ibverbs-utils" };
pub(crate) const RDMACM_UTILS: Package = Package { program: "rping", package: "rdmacm-utils" };
pub(crate) const PERFTEST: Package = Package { program: "ib_write_bw", package: "perftest" };
pub(crate) const QPERF: Package = Package { program: "qperf", package: "qperf" };
pub(crate) const FIO: Package = Package { program: "fio", package: "fio" };
pub(crate) const UCX_UTILS: Package = Package { program: "ucx_perftest", package: "ucx-utils" };
pub(crate) const PYVERBS: Package = Package {
    program: "/usr/lib/python3/dist-packages/pyverbs/__init__.py",
    package: "python3-pyverbs",
};
pub(crate) const PYTEST: Package =
    Package { program: "/usr/lib/python3/dist-packages/pytest", package: "python3-pytest" };
pub(crate) const RXE_PROVIDER: Package =
    Package { program: "/etc/libibverbs.d/rxe.driver", package: "ibverbs-providers" };
pub(crate) const VALGRIND: Package = Package { program: "valgrind", package: "valgrind" };
pub(crate) const CLANG: Package = Package { program: "clang", package: "clang" };
/// The libraries of its sanitizers.
pub(crate) const CLANG_RUNTIMES: Package =
    Package { program: "/usr/share/doc/libclang-rt-dev", package: "libclang-rt-dev" };
pub(crate) const BINUTILS: Package = Package { program: "objcopy", package: "binutils" };
pub(crate) const DPKG_DEB: Package = Package { program: "dpkg-deb", package: "dpkg" };
pub(crate) const LINTIAN: Package = Package { program: "lintian", package: "lintian" };
pub(crate) const MMDEBSTRAP: Package = Package { program: "mmdebstrap", package: "mmdebstrap" };
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
pub(crate) const RDMACM_DEV: Package =
    Package { program: "/usr/include/rdma/rdma_cma.h", package: "librdmacm-dev" };

/// Every package that a command of ours needs.
pub(crate) const ALL: [Package; 32] = [
    IP,
    ETHTOOL,
    TCPDUMP,
    TSHARK,
    NFTABLES,
    IPERF3,
    SETPRIV,
    PRLIMIT,
    PYTHON,
    SCAPY,
    IBVERBS_UTILS,
    RDMACM_UTILS,
    RDMACM_DEV,
    PERFTEST,
    QPERF,
    FIO,
    UCX_UTILS,
    PYVERBS,
    PYTEST,
    RXE_PROVIDER,
    VALGRIND,
    CLANG,
    CLANG_RUNTIMES,
    CC,
    BINUTILS,
    LINTIAN,
    MMDEBSTRAP,
    QEMU,
    KMOD,
    ZSTD,
    DEBIAN_KEYS,
    IBVERBS_DEV,
];

impl Package {
    fn is_there(self) -> bool {
        match self.program.starts_with('/') {
            true => std::path::Path::new(self.program).exists(),
            false => has(self.program),
        }
    }
}

/// The packages of these that are not installed.
pub(crate) fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().filter(|package| !package.is_there()).map(|package| package.package).collect()
}

/// What keeps a stage from running that needs these packages.
pub(crate) fn lacking(packages: &[Package]) -> Option<String> {
    let missing = missing(packages).join(" ");
    let how = || format!("needs {missing}: cargo xtask setup, or apt-get install {missing}");
    (!missing.is_empty()).then(how)
}

/// What keeps a stage from running that needs root and these packages.
pub(crate) fn lacking_root_or(packages: &[Package]) -> Option<String> {
    if !is_root() {
        return Some("needs root, for network namespaces".to_owned());
    }
    lacking(packages)
}
