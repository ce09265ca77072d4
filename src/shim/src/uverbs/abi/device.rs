//! Opening a device, and asking about it and its port.

use crate::kernel::kernel_structs;

kernel_structs! {
    GetContext = ib_uverbs_get_context (8) {
        response: u64,
    }
    GetContextResp = ib_uverbs_get_context_resp (8) {
        async_fd: u32,
        num_comp_vectors: u32,
    }
    QueryDevice = ib_uverbs_query_device (8) {
        response: u64,
    }
    QueryDeviceResp = ib_uverbs_query_device_resp (176) {
        fw_ver: u64,
        node_guid: [u8; 8],
        sys_image_guid: [u8; 8],
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        reserved: [u8; 4],
    }
    ExQueryDevice = ib_uverbs_ex_query_device (8) {
        comp_mask: u32,
        reserved: u32,
    }
    /// On-demand paging.
    OdpCaps = ib_uverbs_odp_caps (24) {
        general_caps: u64,
        per_transport_caps: [u32; 3],
        reserved: u32,
    }
    /// Receive-side scaling. We have none.
    RssCaps = ib_uverbs_rss_caps (16) {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        reserved: u32,
    }
    /// Tag matching. We have none.
    TmCaps = ib_uverbs_tm_caps (24) {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
        reserved: u32,
    }
    /// Moderation of completion events. We have none.
    CqModerationCaps = ib_uverbs_cq_moderation_caps (8) {
        max_cq_moderation_count: u16,
        max_cq_moderation_period: u16,
        reserved: u32,
    }
    ExQueryDeviceResp = ib_uverbs_ex_query_device_resp (304) {
        base: QueryDeviceResp,
        comp_mask: u32,
        response_length: u32,
        odp_caps: OdpCaps,
        timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        rss_caps: RssCaps,
        max_wq_type_rq: u32,
        raw_packet_caps: u32,
        tm_caps: TmCaps,
        cq_moderation_caps: CqModerationCaps,
        max_dm_size: u64,
        xrc_odp_caps: u32,
        reserved: u32,
    }
    QueryPort = ib_uverbs_query_port (16) {
        response: u64,
        port_num: u8,
        reserved: [u8; 7],
    }
    QueryPortResp = ib_uverbs_query_port_resp (40) {
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        state: u8,
        max_mtu: u8,
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        reserved: u8,
    }
}
