//! The kernel's structures, as they stand in `rdma/ib_user_verbs.h` and `rdma/rdma_user_rxe.h`.
//!
//! Names of fields are the kernel's, so that a test can ask the C compiler about every size and
//! offset. Everything is in the machine's own byte order, except GUIDs and GIDs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Defines structures of the kernel: ours, the kernel's name, its size, its fields.
macro_rules! kernel_structs {
    ($(
        $(#[$doc:meta])*
        $name:ident = $theirs:ident ($size:literal) { $($field:ident: $type:ty,)* }
    )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(
                Clone, Copy, Debug, Default, PartialEq, Eq,
                FromBytes, IntoBytes, KnownLayout, Immutable,
            )]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
            const _: () = assert!(size_of::<$name>() == $size);
        )*

        /// Each structure's name and size, and its fields' names and offsets.
        #[cfg(test)]
        const LAYOUTS: &[(&str, usize, &[(&str, usize)])] = &[$((
            stringify!($theirs),
            size_of::<$name>(),
            &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
        ),)*];
    };
}

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
    /// On-demand paging. We have none.
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

    CreateCompChannel = ib_uverbs_create_comp_channel (8) {
        response: u64,
    }
    CreateCompChannelResp = ib_uverbs_create_comp_channel_resp (4) {
        fd: u32,
    }
    /// Where a ring lies: an offset and a size for `mmap`.
    MmInfo = mminfo (16) {
        offset: u64,
        size: u32,
        pad: u32,
    }
    CreateCq = ib_uverbs_create_cq (32) {
        response: u64,
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        reserved: u32,
    }
    CreateCqResp = ib_uverbs_create_cq_resp (8) {
        cq_handle: u32,
        cqe: u32,
    }
    ExCreateCq = ib_uverbs_ex_create_cq (32) {
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        comp_mask: u32,
        flags: u32,
        reserved: u32,
    }
    ExCreateCqResp = ib_uverbs_ex_create_cq_resp (16) {
        base: CreateCqResp,
        comp_mask: u32,
        response_length: u32,
    }
    ResizeCq = ib_uverbs_resize_cq (16) {
        response: u64,
        cq_handle: u32,
        cqe: u32,
    }
    ResizeCqResp = ib_uverbs_resize_cq_resp (8) {
        cqe: u32,
        reserved: u32,
    }
    ReqNotifyCq = ib_uverbs_req_notify_cq (8) {
        cq_handle: u32,
        solicited_only: u32,
    }
    DestroyCq = ib_uverbs_destroy_cq (16) {
        response: u64,
        cq_handle: u32,
        reserved: u32,
    }
    DestroyCqResp = ib_uverbs_destroy_cq_resp (8) {
        comp_events_reported: u32,
        async_events_reported: u32,
    }

    CreateQp = ib_uverbs_create_qp (56) {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
    }
    CreateQpResp = ib_uverbs_create_qp_resp (32) {
        qp_handle: u32,
        qpn: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        reserved: u32,
    }
    ExCreateQp = ib_uverbs_ex_create_qp (64) {
        user_handle: u64,
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
        comp_mask: u32,
        create_flags: u32,
        rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }
    ExCreateQpResp = ib_uverbs_ex_create_qp_resp (40) {
        base: CreateQpResp,
        comp_mask: u32,
        response_length: u32,
    }
    /// The driver's part; `rq_mi` is all zeroes if the QP has an SRQ.
    RxeCreateQpResp = rxe_create_qp_resp (32) {
        rq_mi: MmInfo,
        sq_mi: MmInfo,
    }
    QpDest = ib_uverbs_qp_dest (32) {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }
    QueryQp = ib_uverbs_query_qp (16) {
        response: u64,
        qp_handle: u32,
        attr_mask: u32,
    }
    QueryQpResp = ib_uverbs_query_qp_resp (128) {
        dest: QpDest,
        alt_dest: QpDest,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        sq_sig_all: u8,
        reserved: [u8; 5],
    }
    ModifyQp = ib_uverbs_modify_qp (112) {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }
    ExModifyQp = ib_uverbs_ex_modify_qp (120) {
        base: ModifyQp,
        rate_limit: u32,
        reserved: u32,
    }
    ExModifyQpResp = ib_uverbs_ex_modify_qp_resp (8) {
        comp_mask: u32,
        response_length: u32,
    }
    DestroyQp = ib_uverbs_destroy_qp (16) {
        response: u64,
        qp_handle: u32,
        reserved: u32,
    }
    DestroyQpResp = ib_uverbs_destroy_qp_resp (4) {
        events_reported: u32,
    }
    /// With `librxe` it posts nothing: it is the doorbell.
    PostSend = ib_uverbs_post_send (24) {
        response: u64,
        qp_handle: u32,
        wr_count: u32,
        sge_count: u32,
        wqe_size: u32,
    }
    PostSendResp = ib_uverbs_post_send_resp (4) {
        bad_wr: u32,
    }
    AttachMcast = ib_uverbs_attach_mcast (24) {
        gid: [u8; 16],
        qp_handle: u32,
        mlid: u16,
        reserved: u16,
    }

    CreateSrq = ib_uverbs_create_srq (32) {
        response: u64,
        user_handle: u64,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
    CreateSrqResp = ib_uverbs_create_srq_resp (16) {
        srq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srqn: u32,
    }
    /// The driver's part.
    RxeCreateSrqResp = rxe_create_srq_resp (24) {
        mi: MmInfo,
        srq_num: u32,
        reserved: u32,
    }
    ModifySrq = ib_uverbs_modify_srq (16) {
        srq_handle: u32,
        attr_mask: u32,
        max_wr: u32,
        srq_limit: u32,
    }
    /// The driver's part: where in the program a new ring's place is wanted.
    RxeModifySrq = rxe_modify_srq_cmd (8) {
        mmap_info_addr: u64,
    }
    QuerySrq = ib_uverbs_query_srq (16) {
        response: u64,
        srq_handle: u32,
        reserved: u32,
    }
    QuerySrqResp = ib_uverbs_query_srq_resp (16) {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        reserved: u32,
    }
    DestroySrq = ib_uverbs_destroy_srq (16) {
        response: u64,
        srq_handle: u32,
        reserved: u32,
    }
    DestroySrqResp = ib_uverbs_destroy_srq_resp (4) {
        events_reported: u32,
    }

    /// What `read` gives of a completion channel.
    CompEvent = ib_uverbs_comp_event_desc (8) {
        cq_handle: u64,
    }
    /// What `read` gives of the asynchronous events.
    AsyncEvent = ib_uverbs_async_event_desc (16) {
        element: u64,
        event_type: u32,
        reserved: u32,
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

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
    ];

    #[test]
    fn the_kernel_headers_say_the_same() {
        let headers = ["/usr/include/rdma/rdma_user_rxe.h", "/usr/include/rdma/ib_user_verbs.h"];
        if let Some(missing) = headers.iter().find(|header| !Path::new(header).exists()) {
            eprintln!("could not run: no {missing} (package linux-libc-dev)");
            return;
        }
        let mut c = String::from(
            "#include <stddef.h>\n#include <linux/in.h>\n#include <linux/in6.h>\n\
             #include <rdma/rdma_user_rxe.h>\n#include <rdma/ib_user_verbs.h>\n",
        );
        let mut says = |what: String, value: usize| {
            writeln!(c, "_Static_assert({what} == {value}, \"{what}\");").unwrap();
        };
        for &(name, size, fields) in LAYOUTS {
            says(format!("sizeof(struct {name})"), size);
            for (field, offset) in fields {
                says(format!("offsetof(struct {name}, {field})"), *offset);
            }
        }
        // Another name for the same thing.
        says("sizeof(struct ib_uverbs_detach_mcast)".into(), size_of::<AttachMcast>());
        for &(name, value) in NUMBERS {
            says(name.into(), value as usize);
        }
        let compiler = Command::new("cc")
            .args(["-x", "c", "-fsyntax-only", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut compiler) = compiler else {
            eprintln!("could not run: no C compiler");
            return;
        };
        compiler.stdin.take().unwrap().write_all(c.as_bytes()).unwrap();
        let output = compiler.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
