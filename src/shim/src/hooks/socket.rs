//! The netlink family of RDMA, which asks the kernel for its devices.

use super::{fail, hooks};
use crate::{next, paths};
use libc::c_int;
use rustix::io::Errno;

/// `NETLINK_RDMA`.
const NETLINK_RDMA: c_int = 20;

hooks! {
    /// The kernel would list no device of ours, and rdma-core would believe it. Where there is no
    /// such family, it looks into `/sys/class`.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && paths::tree().is_some() {
            return fail(Errno::PROTONOSUPPORT);
        }
        next::socket(domain, kind, protocol)
    }
}
