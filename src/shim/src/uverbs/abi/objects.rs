//! Protection domains, address handles, memory regions and windows.

use crate::kernel::kernel_structs;

kernel_structs! {
    AllocPd = ib_uverbs_alloc_pd (8) {
        response: u64,
    }
    AllocPdResp = ib_uverbs_alloc_pd_resp (4) {
        pd_handle: u32,
    }
    DeallocPd = ib_uverbs_dealloc_pd (4) {
        pd_handle: u32,
    }

    GlobalRoute = ib_uverbs_global_route (24) {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
    }
    AhAttr = ib_uverbs_ah_attr (32) {
        grh: GlobalRoute,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved: u8,
    }
    CreateAh = ib_uverbs_create_ah (56) {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        reserved: u32,
        attr: AhAttr,
    }
    CreateAhResp = ib_uverbs_create_ah_resp (4) {
        ah_handle: u32,
    }
    /// The driver's part.
    RxeCreateAhResp = rxe_create_ah_resp (8) {
        ah_num: u32,
        reserved: u32,
    }
    DestroyAh = ib_uverbs_destroy_ah (4) {
        ah_handle: u32,
    }

    RegMr = ib_uverbs_reg_mr (40) {
        response: u64,
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }
    RegMrResp = ib_uverbs_reg_mr_resp (12) {
        mr_handle: u32,
        lkey: u32,
        rkey: u32,
    }
    DeregMr = ib_uverbs_dereg_mr (4) {
        mr_handle: u32,
    }
    AllocMw = ib_uverbs_alloc_mw (16) {
        response: u64,
        pd_handle: u32,
        mw_type: u8,
        reserved: [u8; 3],
    }
    AllocMwResp = ib_uverbs_alloc_mw_resp (8) {
        mw_handle: u32,
        rkey: u32,
    }
    DeallocMw = ib_uverbs_dealloc_mw (4) {
        mw_handle: u32,
    }
}
