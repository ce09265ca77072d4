//! `liburxe_shim.so`: stands where the kernel's verbs devices and its connection manager would be,
//! under stock libibverbs and librdmacm.
//!
//! The library is preloaded into a program that knows nothing of urxe. Where the program opens
//! an RDMA device it gets a descriptor of ours, and what it writes there, commands of the kernel's
//! user ABI, becomes requests to the daemon. Nothing is decided here: limits, states, rights and
//! errors are the daemon's, so that this client and the Rust library behave alike.
//!
//! ```text
//! program ─ libibverbs ─ librxe ─ write(2) ─ hooks ─ descriptors ─ uverbs ─ session ─ urxed
//!                          └───── rings in the session's memfd, mapped natively ──────┘
//! ```
//!
//! - [`hooks`]: the functions of libc that are interposed. [`next`]: those of libc itself.
//! - [`polling`]: programs that look for completions yield the processor meanwhile.
//! - [`failures`], [`posting`]: why work requests fail, or are not taken, for their users.
//! - [`provider`]: how we come before the provider's functions.
//! - [`lost`]: what they are told when their daemon is gone.
//! - [`reasons`]: what their users are told on stderr. [`refused`]: refusals with their sentences.
//! - [`descriptors`]: which descriptor of the program is what. All others cost one look-up.
//! - [`paths`]: which paths are ours, and where they really lead.
//! - [`own_slot`]: whether the data path runs in this process.
//! - [`session`]: the one connection of this process to its daemon.
//! - [`uverbs`]: the kernel's commands: framing, decoding, doing, answering; event accounting.
//! - [`ucma`]: the same for the connection manager's commands.
//! - [`netlink`]: what the kernel says of its devices to `rdma` of iproute2.
//! - [`kernel`]: how the kernel's structures are written down.
//! - [`memory`]: the program's memory.
//!
//! What holds everywhere, because the program knows nothing of us and may do anything:
//!
//! - Hooks are called before anything of ours has run, from any thread, from signal handlers and
//!   after `fork`. What every call goes through needs no beginning, takes no lock and allocates
//!   nothing; only what concerns a device of ours does more.
//! - A child of `fork` has its parent's descriptors, but no session: commands fail with `EIO`, and
//!   what it closes is not closed for its parent. Its own `open` makes a session of its own. A
//!   child of `vfork` changes nothing here: its memory is its parent's.
//! - A number says nothing for sure: the program may close any descriptor without our knowing, by
//!   a system call of its own. Before anything but a doorbell is done, the file behind the number
//!   must still be the one that it was.
//!
//! Programs that do not call libc (static ones, or with system calls of their own) are not helped,
//! nor is one that is given an open device by another process.

// Nothing here is public: the library's interface is that of the libraries it stands before.
#![allow(rustdoc::private_intra_doc_links)]

pub(crate) mod descriptors;
mod failures;
mod hooks;
mod kernel;
pub(crate) mod lost;
mod memory;
mod netlink;
mod next;
mod own_slot;
mod paths;
mod polling;
mod posting;
mod provider;
mod reasons;
mod refused;
pub(crate) mod session;
pub(crate) mod ucma;
pub(crate) mod uverbs;
