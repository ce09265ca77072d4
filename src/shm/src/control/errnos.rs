//! What the errnos of verbs calls usually mean.

use rustix::io::Errno;

/// With its name and what to look at. A refusal of the daemon says more than its errno
/// ([`ControlError::message`](super::ControlError::message)).
pub const ERRNOS: &[(Errno, &str, &str)] = &[
    (
        Errno::PERM,
        "EPERM",
        "This user may not: Q_Keys from 0x80000000 on are for root, and a slot of a program's own is \
         for the user who runs the daemon.",
    ),
    (
        Errno::NOENT,
        "ENOENT",
        "A handle names nothing: the object was destroyed, or is of another context.",
    ),
    (
        Errno::IO,
        "EIO",
        "The device is lost: the daemon, or the slot that served this program, has ended. Close the \
         context and open the device again.",
    ),
    (
        Errno::AGAIN,
        "EAGAIN",
        "There is nothing to take from a channel that does not wait, or no room at the moment: try \
         again.",
    ),
    (
        Errno::NOMEM,
        "ENOMEM",
        "A queue is full (ibv_post_send, ibv_post_recv: poll completions first, or ask for more \
         entries when the QP is made), or a quota of objects or memory is used up.",
    ),
    (
        Errno::ACCESS,
        "EACCES",
        "Memory that this program cannot write to was to be registered with local write access, or \
         the daemon's socket is closed to this user.",
    ),
    (Errno::FAULT, "EFAULT", "Not all of the memory that was to be registered is mapped."),
    (
        Errno::BUSY,
        "EBUSY",
        "The object is in use: first destroy what was made from it (QPs before their CQs and SRQ, \
         windows before their MR, everything before its PD).",
    ),
    (Errno::NODEV, "ENODEV", "No device has this name, number or address."),
    (
        Errno::INVAL,
        "EINVAL",
        "An argument is out of its range, or does not fit the others: a GID index or port that is \
         not there, an attribute that the transition of ibv_modify_qp needs or does not allow, a \
         capability beyond ibv_query_device, access flags that exclude each other.",
    ),
    (
        Errno::NOSPC,
        "ENOSPC",
        "Of what was asked for there is no more: slots, ports, numbers of a table.",
    ),
    (Errno::NOSYS, "ENOSYS", "The device does not have this operation."),
    (
        Errno::PROTO,
        "EPROTO",
        "Program and daemon do not understand each other: they are of two versions, or a message \
         was none.",
    ),
    (
        Errno::OPNOTSUPP,
        "EOPNOTSUPP",
        "The device does not have this operation, or not for objects of this type.",
    ),
    (
        Errno::ADDRINUSE,
        "EADDRINUSE",
        "Another id listens at this port (rdma_bind_addr, rdma_listen), or another RoCE device of \
         this machine has UDP port 4791 of the address.",
    ),
    (
        Errno::ADDRNOTAVAIL,
        "EADDRNOTAVAIL",
        "The address is none of this machine's, or no device serves it.",
    ),
    (
        Errno::NETUNREACH,
        "ENETUNREACH",
        "No route leads to the address, or none from an address that a device serves.",
    ),
    (Errno::HOSTUNREACH, "EHOSTUNREACH", "The address is not reached: its neighbour is silent."),
    (
        Errno::USERS,
        "EUSERS",
        "So many users have programs at the daemon that there is no slot for another one.",
    ),
    (
        Errno::TIMEDOUT,
        "ETIMEDOUT",
        "No answer came: the peer is gone, a firewall stands between, or its program does not \
         listen.",
    ),
    (
        Errno::CONNREFUSED,
        "ECONNREFUSED",
        "The other side refused: no program listens at that port, or it said no. At the daemon's \
         socket: no daemon runs.",
    ),
];

/// The name of an errno; its number where it has none here.
pub fn name(errno: Errno) -> String {
    let known = ERRNOS.iter().find(|(known, ..)| *known == errno);
    known.map_or_else(|| format!("errno {}", errno.raw_os_error()), |(_, name, _)| (*name).into())
}

/// What an errno usually means; what the system says where nothing is known here.
pub fn meaning(errno: Errno) -> String {
    let known = ERRNOS.iter().find(|(known, ..)| *known == errno);
    known.map_or_else(|| errno.to_string(), |(.., meaning)| (*meaning).into())
}
