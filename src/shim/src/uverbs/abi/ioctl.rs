//! Commands by `ioctl`, of which libraries have some that there is no other way for. They stand in
//! `rdma/rdma_user_ioctl_cmds.h` and `rdma/ib_user_ioctl_cmds.h`.

use crate::kernel::{kernel_numbers, kernel_structs};

kernel_structs! {
    /// What every such command begins with; its attributes follow.
    IoctlHeader = ib_uverbs_ioctl_hdr (24) {
        length: u16,
        object_id: u16,
        method_id: u16,
        num_attrs: u16,
        reserved1: u64,
        driver_id: u32,
        reserved2: u32,
    }
    /// A value of up to 8 bytes, or the address of a longer one.
    IoctlAttr = ib_uverbs_attr (16) {
        attr_id: u16,
        len: u16,
        flags: u16,
        attr_data: u16,
        data: u64,
    }
    /// A piece of registered memory.
    Sge = ib_uverbs_sge (16) {
        addr: u64,
        length: u32,
        lkey: u32,
    }
}

kernel_numbers! {
    /// `ioctl`'s number, objects and methods, and what they are given.
    control {
        VERBS_IOCTL: u32 = RDMA_VERBS_IOCTL 0xc018_1b01,
        MANDATORY = UVERBS_ATTR_F_MANDATORY 1,
        OBJECT_MR = UVERBS_OBJECT_MR 7,
        ADVISE_MR = UVERBS_METHOD_ADVISE_MR 2,
        PD_HANDLE = UVERBS_ATTR_ADVISE_MR_PD_HANDLE 0,
        ADVICE = UVERBS_ATTR_ADVISE_MR_ADVICE 1,
        FLAGS = UVERBS_ATTR_ADVISE_MR_FLAGS 2,
        SGE_LIST = UVERBS_ATTR_ADVISE_MR_SGE_LIST 3,
        PREFETCH_WRITE: u64 = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE 1,
        PREFETCH_NO_FAULT: u64 = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT 2,
        FLUSH: u32 = IB_UVERBS_ADVISE_MR_FLAG_FLUSH 1,
    }
}
