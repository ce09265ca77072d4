//! The kernel's structures, as they stand in `rdma/ib_user_verbs.h` and `rdma/rdma_user_rxe.h`.

mod device;
mod ioctl;
mod objects;
mod queues;

pub(crate) use device::*;
pub(crate) use ioctl::*;
pub(crate) use objects::*;
pub(crate) use queues::*;

use crate::kernel::kernel_structs;

kernel_structs! {
    /// What every command begins with.
    CommandHeader = ib_uverbs_cmd_hdr (8) {
        command: u32,
        in_words: u16,
        out_words: u16,
    }
    /// What follows it in an extended command.
    ExtendedHeader = ib_uverbs_ex_cmd_hdr (16) {
        response: u64,
        provider_in_words: u16,
        provider_out_words: u16,
        cmd_hdr_reserved: u32,
    }
}

/// In [`CommandHeader::command`]: it is an extended one.
pub(crate) const EXTENDED: u32 = 0x8000_0000;

/// The numbers of the commands: `ib_uverbs_write_cmds`.
pub(crate) mod number {
    pub(crate) const GET_CONTEXT: u32 = 0;
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const QUERY_PORT: u32 = 2;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const DEALLOC_PD: u32 = 4;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const DESTROY_AH: u32 = 8;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const DEREG_MR: u32 = 13;
    pub(crate) const ALLOC_MW: u32 = 14;
    pub(crate) const DEALLOC_MW: u32 = 16;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const CREATE_CQ: u32 = 18;
    pub(crate) const RESIZE_CQ: u32 = 19;
    pub(crate) const DESTROY_CQ: u32 = 20;
    pub(crate) const REQ_NOTIFY_CQ: u32 = 23;
    pub(crate) const CREATE_QP: u32 = 24;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
    pub(crate) const DESTROY_QP: u32 = 27;
    pub(crate) const POST_SEND: u32 = 28;
    pub(crate) const ATTACH_MCAST: u32 = 30;
    pub(crate) const DETACH_MCAST: u32 = 31;
    pub(crate) const CREATE_SRQ: u32 = 32;
    pub(crate) const MODIFY_SRQ: u32 = 33;
    pub(crate) const QUERY_SRQ: u32 = 34;
    pub(crate) const DESTROY_SRQ: u32 = 35;
    pub(crate) const OPEN_XRCD: u32 = 37;
    pub(crate) const CREATE_XSRQ: u32 = 39;
    pub(crate) const CREATE_FLOW: u32 = 50;
    pub(crate) const CREATE_WQ: u32 = 52;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::check_headers;

    /// The kernel's names of the numbers that we use.
    const NUMBERS: &[(&str, u32)] = &[
        ("IB_USER_VERBS_CMD_FLAG_EXTENDED", EXTENDED),
        ("IB_USER_VERBS_CMD_GET_CONTEXT", number::GET_CONTEXT),
        ("IB_USER_VERBS_CMD_QUERY_DEVICE", number::QUERY_DEVICE),
        ("IB_USER_VERBS_CMD_QUERY_PORT", number::QUERY_PORT),
        ("IB_USER_VERBS_CMD_ALLOC_PD", number::ALLOC_PD),
        ("IB_USER_VERBS_CMD_DEALLOC_PD", number::DEALLOC_PD),
        ("IB_USER_VERBS_CMD_CREATE_AH", number::CREATE_AH),
        ("IB_USER_VERBS_CMD_DESTROY_AH", number::DESTROY_AH),
        ("IB_USER_VERBS_CMD_REG_MR", number::REG_MR),
        ("IB_USER_VERBS_CMD_DEREG_MR", number::DEREG_MR),
        ("IB_USER_VERBS_CMD_ALLOC_MW", number::ALLOC_MW),
        ("IB_USER_VERBS_CMD_DEALLOC_MW", number::DEALLOC_MW),
        ("IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL", number::CREATE_COMP_CHANNEL),
        ("IB_USER_VERBS_CMD_CREATE_CQ", number::CREATE_CQ),
        ("IB_USER_VERBS_CMD_RESIZE_CQ", number::RESIZE_CQ),
        ("IB_USER_VERBS_CMD_DESTROY_CQ", number::DESTROY_CQ),
        ("IB_USER_VERBS_CMD_REQ_NOTIFY_CQ", number::REQ_NOTIFY_CQ),
        ("IB_USER_VERBS_CMD_CREATE_QP", number::CREATE_QP),
        ("IB_USER_VERBS_CMD_QUERY_QP", number::QUERY_QP),
        ("IB_USER_VERBS_CMD_MODIFY_QP", number::MODIFY_QP),
        ("IB_USER_VERBS_CMD_DESTROY_QP", number::DESTROY_QP),
        ("IB_USER_VERBS_CMD_POST_SEND", number::POST_SEND),
        ("IB_USER_VERBS_CMD_ATTACH_MCAST", number::ATTACH_MCAST),
        ("IB_USER_VERBS_CMD_DETACH_MCAST", number::DETACH_MCAST),
        ("IB_USER_VERBS_CMD_CREATE_SRQ", number::CREATE_SRQ),
        ("IB_USER_VERBS_CMD_MODIFY_SRQ", number::MODIFY_SRQ),
        ("IB_USER_VERBS_CMD_QUERY_SRQ", number::QUERY_SRQ),
        ("IB_USER_VERBS_CMD_DESTROY_SRQ", number::DESTROY_SRQ),
        ("IB_USER_VERBS_CMD_OPEN_XRCD", number::OPEN_XRCD),
        ("IB_USER_VERBS_CMD_CREATE_XSRQ", number::CREATE_XSRQ),
        ("IB_USER_VERBS_EX_CMD_CREATE_FLOW", number::CREATE_FLOW),
        ("IB_USER_VERBS_EX_CMD_CREATE_WQ", number::CREATE_WQ),
    ];

    #[test]
    fn the_kernel_headers_say_the_same() {
        let layouts = [LAYOUTS, device::LAYOUTS, ioctl::LAYOUTS, objects::LAYOUTS, queues::LAYOUTS];
        let numbers = NUMBERS.iter().map(|&(name, value)| (name, value as usize));
        // Another name for the same thing.
        let same = [("sizeof(struct ib_uverbs_detach_mcast)", size_of::<AttachMcast>())];
        check_headers(
            &[
                "rdma_user_rxe.h",
                "ib_user_verbs.h",
                "rdma_user_ioctl_cmds.h",
                "ib_user_ioctl_cmds.h",
                "ib_user_ioctl_verbs.h",
            ],
            layouts.into_iter().flatten(),
            numbers.chain(same).chain(control::ALL.iter().copied()),
        );
    }
}
