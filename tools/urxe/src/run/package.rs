//! In which package of Debian a verbs program is.

use std::ffi::OsStr;

/// Packages, and what the names of their programs begin with.
const PACKAGES: [(&str, &[&str]); 6] = [
    ("perftest", &["ib_atomic_", "ib_read_", "ib_send_", "ib_write_", "raw_ethernet_"]),
    ("ibverbs-utils", &["ibv_"]),
    (
        "rdmacm-utils",
        &[
            "cmtime",
            "mckey",
            "rcopy",
            "rdma_",
            "riostream",
            "rping",
            "rstream",
            "ucmatose",
            "udaddy",
            "udpong",
        ],
    ),
    ("qperf", &["qperf"]),
    ("ucx-utils", &["ucx_"]),
    ("libfabric-bin", &["fi_"]),
];

/// The package that has a program, if it is a known one.
pub(super) fn of(program: &OsStr) -> Option<&'static str> {
    let program = program.to_str()?;
    let has_it = |names: &[&str]| names.iter().any(|name| program.starts_with(name));
    PACKAGES.into_iter().find(|(_, names)| has_it(names)).map(|(package, _)| package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_programs_are_found_in_their_packages() {
        let of = |program| of(OsStr::new(program));
        assert_eq!(of("ib_write_bw"), Some("perftest"));
        assert_eq!(of("ibv_devinfo"), Some("ibverbs-utils"));
        assert_eq!(of("rping"), Some("rdmacm-utils"));
        assert_eq!(of("ucx_perftest"), Some("ucx-utils"));
        assert_eq!(of("my-program"), None);
    }
}
