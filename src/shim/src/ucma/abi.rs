//! The kernel's structures, as they stand in `rdma/rdma_user_cm.h` and `rdma/ib_user_sa.h`.

use crate::kernel::kernel_structs;
use crate::uverbs::abi::AhAttr;
pub(super) use crate::uverbs::abi::UserQpAttr as QpAttr;
use urxe_shm::control::CM_MAX_PRIVATE_DATA;

/// `struct sockaddr_in6`, in which the address of either family lies in older commands.
pub(super) type SockaddrIn6 = [u8; 28];

/// `struct sockaddr_storage`, in which an address of any family lies in newer commands.
pub(super) type SockaddrStorage = [u8; 128];

/// Room for private data.
pub(super) const PRIVATE_DATA: usize = CM_MAX_PRIVATE_DATA;

kernel_structs! {
    /// What every command begins with.
    CommandHeader = rdma_ucm_cmd_hdr (8) {
        cmd: u32,
        r#in: u16,
        out: u16,
    }
    CreateId = rdma_ucm_create_id (24) {
        uid: u64,
        response: u64,
        ps: u16,
        qp_type: u8,
        reserved: [u8; 5],
    }
    CreateIdResp = rdma_ucm_create_id_resp (4) {
        id: u32,
    }
    DestroyId = rdma_ucm_destroy_id (16) {
        response: u64,
        id: u32,
        reserved: u32,
    }
    DestroyIdResp = rdma_ucm_destroy_id_resp (4) {
        events_reported: u32,
    }
    BindIp = rdma_ucm_bind_ip (40) {
        response: u64,
        addr: SockaddrIn6,
        id: u32,
    }
    Bind = rdma_ucm_bind (136) {
        id: u32,
        addr_size: u16,
        reserved: u16,
        addr: SockaddrStorage,
    }
    ResolveIp = rdma_ucm_resolve_ip (64) {
        src_addr: SockaddrIn6,
        dst_addr: SockaddrIn6,
        id: u32,
        timeout_ms: u32,
    }
    ResolveAddr = rdma_ucm_resolve_addr (272) {
        id: u32,
        timeout_ms: u32,
        src_size: u16,
        dst_size: u16,
        reserved: u32,
        src_addr: SockaddrStorage,
        dst_addr: SockaddrStorage,
    }
    ResolveRoute = rdma_ucm_resolve_route (8) {
        id: u32,
        timeout_ms: u32,
    }
    /// Of `QUERY`; `QUERY_ROUTE` has the same without an option.
    Query = rdma_ucm_query (16) {
        response: u64,
        id: u32,
        option: u32,
    }
    /// A path, as it is told to programs.
    UserPathRec = ib_user_path_rec (64) {
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: [u8; 2],
        slid: [u8; 2],
        raw_traffic: u32,
        flow_label: [u8; 4],
        reversible: u32,
        mtu: u32,
        pkey: [u8; 2],
        hop_limit: u8,
        traffic_class: u8,
        numb_path: u8,
        sl: u8,
        mtu_selector: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
    QueryRouteResp = rdma_ucm_query_route_resp (208) {
        node_guid: [u8; 8],
        ib_route: [UserPathRec; 2],
        src_addr: SockaddrIn6,
        dst_addr: SockaddrIn6,
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
        ibdev_index: u32,
        reserved1: u32,
    }
    QueryAddrResp = rdma_ucm_query_addr_resp (280) {
        node_guid: [u8; 8],
        port_num: u8,
        reserved: u8,
        pkey: [u8; 2],
        src_size: u16,
        dst_size: u16,
        src_addr: SockaddrStorage,
        dst_addr: SockaddrStorage,
        ibdev_index: u32,
        reserved1: u32,
    }
    /// Of a path, followed by as many [`PathRecData`].
    QueryPathResp = rdma_ucm_query_path_resp (8) {
        num_paths: u32,
        reserved: u32,
    }
    /// A path, as it stands in a message to a subnet manager.
    PathRecData = ib_path_rec_data (72) {
        flags: u32,
        reserved: u32,
        path_rec: [u8; 64],
    }
    ConnParam = rdma_ucm_conn_param (272) {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; PRIVATE_DATA],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }
    UdParam = rdma_ucm_ud_param (304) {
        qp_num: u32,
        qkey: u32,
        ah_attr: AhAttr,
        private_data: [u8; PRIVATE_DATA],
        private_data_len: u8,
        reserved: [u8; 7],
    }
    /// Enhanced connection establishment: what drivers of certain vendors tell each other.
    Ece = rdma_ucm_ece (8) {
        vendor_id: u32,
        attr_mod: u32,
    }
    Connect = rdma_ucm_connect (288) {
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }
    Listen = rdma_ucm_listen (8) {
        id: u32,
        backlog: u32,
    }
    Accept = rdma_ucm_accept (296) {
        uid: u64,
        conn_param: ConnParam,
        id: u32,
        reserved: u32,
        ece: Ece,
    }
    Reject = rdma_ucm_reject (264) {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; PRIVATE_DATA],
    }
    Disconnect = rdma_ucm_disconnect (4) {
        id: u32,
    }
    InitQpAttr = rdma_ucm_init_qp_attr (16) {
        response: u64,
        id: u32,
        qp_state: u32,
    }
    GetEvent = rdma_ucm_get_event (8) {
        response: u64,
    }
    /// What an event is; `param` is a [`ConnParam`] or a [`UdParam`].
    EventResp = rdma_ucm_event_resp (336) {
        uid: u64,
        id: u32,
        event: u32,
        status: u32,
        param: [u8; size_of::<UdParam>()],
        reserved: u32,
        ece: Ece,
    }
    SetOption = rdma_ucm_set_option (24) {
        optval: u64,
        id: u32,
        level: u32,
        optname: u32,
        optlen: u32,
    }
    Notify = rdma_ucm_notify (8) {
        id: u32,
        event: u32,
    }
    JoinIpMcast = rdma_ucm_join_ip_mcast (48) {
        response: u64,
        uid: u64,
        addr: SockaddrIn6,
        id: u32,
    }
    JoinMcast = rdma_ucm_join_mcast (152) {
        response: u64,
        uid: u64,
        id: u32,
        addr_size: u16,
        join_flags: u16,
        addr: SockaddrStorage,
    }
    MigrateId = rdma_ucm_migrate_id (16) {
        response: u64,
        id: u32,
        fd: u32,
    }
    MigrateResp = rdma_ucm_migrate_resp (4) {
        events_reported: u32,
    }
}

/// The numbers of the commands.
pub(super) mod number {
    pub(crate) const CREATE_ID: u32 = 0;
    pub(crate) const DESTROY_ID: u32 = 1;
    pub(crate) const BIND_IP: u32 = 2;
    pub(crate) const RESOLVE_IP: u32 = 3;
    pub(crate) const RESOLVE_ROUTE: u32 = 4;
    pub(crate) const QUERY_ROUTE: u32 = 5;
    pub(crate) const CONNECT: u32 = 6;
    pub(crate) const LISTEN: u32 = 7;
    pub(crate) const ACCEPT: u32 = 8;
    pub(crate) const REJECT: u32 = 9;
    pub(crate) const DISCONNECT: u32 = 10;
    pub(crate) const INIT_QP_ATTR: u32 = 11;
    pub(crate) const GET_EVENT: u32 = 12;
    pub(crate) const GET_OPTION: u32 = 13;
    pub(crate) const SET_OPTION: u32 = 14;
    pub(crate) const NOTIFY: u32 = 15;
    pub(crate) const JOIN_IP_MCAST: u32 = 16;
    pub(crate) const LEAVE_MCAST: u32 = 17;
    pub(crate) const MIGRATE_ID: u32 = 18;
    pub(crate) const QUERY: u32 = 19;
    pub(crate) const BIND: u32 = 20;
    pub(crate) const RESOLVE_ADDR: u32 = 21;
    pub(crate) const JOIN_MCAST: u32 = 22;
}

/// What `QUERY` may ask for.
pub(super) mod query {
    pub(crate) const ADDR: u32 = 0;
    pub(crate) const PATH: u32 = 1;
    pub(crate) const GID: u32 = 2;
}

/// Levels of options, and options.
pub(super) mod option {
    pub(crate) const LEVEL_ID: u32 = 0;
    pub(crate) const LEVEL_IB: u32 = 1;

    pub(crate) const ID_TOS: u32 = 0;
    pub(crate) const ID_REUSEADDR: u32 = 1;
    pub(crate) const ID_AFONLY: u32 = 2;
    pub(crate) const ID_ACK_TIMEOUT: u32 = 3;

    pub(crate) const IB_PATH: u32 = 1;
}

/// What a path is for, in [`PathRecData::flags`]: connection management and the connection, there
/// and back.
pub(super) const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;

/// A member of a multicast group that sends and receives, and one that only sends.
pub(super) const JOIN_FULL_MEMBER: u16 = 0;
pub(super) const JOIN_SEND_ONLY: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::check_headers;

    /// The kernel's names of the numbers that we use.
    const NUMBERS: &[(&str, u32)] = &[
        ("RDMA_USER_CM_CMD_CREATE_ID", number::CREATE_ID),
        ("RDMA_USER_CM_CMD_DESTROY_ID", number::DESTROY_ID),
        ("RDMA_USER_CM_CMD_BIND_IP", number::BIND_IP),
        ("RDMA_USER_CM_CMD_RESOLVE_IP", number::RESOLVE_IP),
        ("RDMA_USER_CM_CMD_RESOLVE_ROUTE", number::RESOLVE_ROUTE),
        ("RDMA_USER_CM_CMD_QUERY_ROUTE", number::QUERY_ROUTE),
        ("RDMA_USER_CM_CMD_CONNECT", number::CONNECT),
        ("RDMA_USER_CM_CMD_LISTEN", number::LISTEN),
        ("RDMA_USER_CM_CMD_ACCEPT", number::ACCEPT),
        ("RDMA_USER_CM_CMD_REJECT", number::REJECT),
        ("RDMA_USER_CM_CMD_DISCONNECT", number::DISCONNECT),
        ("RDMA_USER_CM_CMD_INIT_QP_ATTR", number::INIT_QP_ATTR),
        ("RDMA_USER_CM_CMD_GET_EVENT", number::GET_EVENT),
        ("RDMA_USER_CM_CMD_GET_OPTION", number::GET_OPTION),
        ("RDMA_USER_CM_CMD_SET_OPTION", number::SET_OPTION),
        ("RDMA_USER_CM_CMD_NOTIFY", number::NOTIFY),
        ("RDMA_USER_CM_CMD_JOIN_IP_MCAST", number::JOIN_IP_MCAST),
        ("RDMA_USER_CM_CMD_LEAVE_MCAST", number::LEAVE_MCAST),
        ("RDMA_USER_CM_CMD_MIGRATE_ID", number::MIGRATE_ID),
        ("RDMA_USER_CM_CMD_QUERY", number::QUERY),
        ("RDMA_USER_CM_CMD_BIND", number::BIND),
        ("RDMA_USER_CM_CMD_RESOLVE_ADDR", number::RESOLVE_ADDR),
        ("RDMA_USER_CM_CMD_JOIN_MCAST", number::JOIN_MCAST),
        ("RDMA_USER_CM_QUERY_ADDR", query::ADDR),
        ("RDMA_USER_CM_QUERY_PATH", query::PATH),
        ("RDMA_USER_CM_QUERY_GID", query::GID),
        ("RDMA_OPTION_ID", option::LEVEL_ID),
        ("RDMA_OPTION_IB", option::LEVEL_IB),
        ("RDMA_OPTION_ID_TOS", option::ID_TOS),
        ("RDMA_OPTION_ID_REUSEADDR", option::ID_REUSEADDR),
        ("RDMA_OPTION_ID_AFONLY", option::ID_AFONLY),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", option::ID_ACK_TIMEOUT),
        ("RDMA_OPTION_IB_PATH", option::IB_PATH),
        ("(IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL)", PATH_FLAGS),
        ("RDMA_MAX_PRIVATE_DATA", PRIVATE_DATA as u32),
        ("RDMA_MC_JOIN_FLAG_FULLMEMBER", JOIN_FULL_MEMBER as u32),
        ("RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER", JOIN_SEND_ONLY as u32),
        ("sizeof(struct sockaddr_in6)", size_of::<SockaddrIn6>() as u32),
        ("sizeof(struct __kernel_sockaddr_storage)", size_of::<SockaddrStorage>() as u32),
    ];

    #[test]
    fn the_kernel_headers_say_the_same() {
        let numbers = NUMBERS.iter().map(|&(name, value)| (name, value as usize));
        check_headers(&["rdma_user_cm.h"], LAYOUTS, numbers);
    }
}
