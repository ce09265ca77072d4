//! Completion queues, queue pairs and shared receive queues, and their events.

use super::AhAttr;
use crate::kernel::kernel_structs;

kernel_structs! {
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
    /// A QP's attributes, as the connection manager tells them.
    UserQpAttr = ib_uverbs_qp_attr (144) {
        qp_attr_mask: u32,
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
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
        reserved: [u8; 5],
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
