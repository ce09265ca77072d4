//! What the kernel says of an rxe device, where the daemon has nothing to say.

use super::abi::{ExQueryDeviceResp, OdpCaps, QueryDeviceResp, QueryPortResp};
use urxe_shm::control::{self, DeviceAttr, LinkRate, PortAttr};

/// `ib_uverbs_device_cap_flags`: what rxe claims and we keep. Not among it: path migration, and
/// counters of bad P_Keys and Q_Keys in the port's attributes.
pub(crate) mod capability {
    pub(super) const CHANGE_PHY_PORT: u64 = 1 << 5;
    pub(super) const UD_AV_PORT_ENFORCE: u64 = 1 << 6;
    pub(super) const PORT_ACTIVE_EVENT: u64 = 1 << 10;
    pub(super) const SYS_IMAGE_GUID: u64 = 1 << 11;
    pub(super) const RC_RNR_NAK_GEN: u64 = 1 << 12;
    pub(super) const SRQ_RESIZE: u64 = 1 << 13;
    pub(super) const MEM_WINDOW: u64 = 1 << 17;
    pub(super) const MEM_MGT_EXTENSIONS: u64 = 1 << 21;
    pub(super) const MEM_WINDOW_TYPE_2B: u64 = 1 << 24;
    pub(super) const FLUSH_GLOBAL: u64 = 1 << 38;
    pub(super) const ATOMIC_WRITE: u64 = 1 << 40;

    pub(crate) const ALL: u64 = CHANGE_PHY_PORT
        | UD_AV_PORT_ENFORCE
        | PORT_ACTIVE_EVENT
        | SYS_IMAGE_GUID
        | RC_RNR_NAK_GEN
        | SRQ_RESIZE
        | MEM_WINDOW
        | MEM_MGT_EXTENSIONS
        | MEM_WINDOW_TYPE_2B
        | FLUSH_GLOBAL
        | ATOMIC_WRITE;
}

/// The answer to `QUERY_DEVICE`.
pub(crate) fn attributes(attr: &DeviceAttr) -> QueryDeviceResp {
    /// `IB_ATOMIC_HCA`: atomic among this device's own operations.
    const ATOMIC_HCA: u32 = 1;
    let groups = attr.max_mcast_grp;
    QueryDeviceResp {
        fw_ver: firmware_version(&attr.fw_ver),
        node_guid: attr.node_guid,
        sys_image_guid: attr.node_guid,
        max_mr_size: attr.max_mr_size,
        page_size_cap: 0xffff_f000,
        vendor_id: 0xff_ffff,
        max_qp: attr.max_qp,
        max_qp_wr: attr.max_qp_wr,
        device_cap_flags: capability::ALL as u32,
        max_sge: attr.max_sge,
        max_sge_rd: attr.max_sge,
        max_cq: attr.max_cq,
        max_cqe: attr.max_cqe,
        max_mr: attr.max_mr,
        max_pd: attr.max_pd,
        max_qp_rd_atom: attr.max_qp_rd_atom.into(),
        max_res_rd_atom: u32::from(attr.max_qp_rd_atom).saturating_mul(attr.max_qp),
        max_qp_init_rd_atom: attr.max_qp_init_rd_atom.into(),
        atomic_cap: ATOMIC_HCA,
        max_mw: attr.max_mw,
        max_mcast_grp: groups,
        max_mcast_qp_attach: attr.max_mcast_qp_attach,
        max_total_mcast_qp_attach: attr.max_mcast_qp_attach.saturating_mul(groups),
        max_ah: attr.max_ah,
        max_srq: attr.max_srq,
        max_srq_wr: attr.max_srq_wr,
        max_srq_sge: attr.max_srq_sge,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: attr.phys_port_cnt,
        ..QueryDeviceResp::default()
    }
}

/// The answer to the extended `QUERY_DEVICE`, but for its length. Of what it has more, we have
/// on-demand paging.
pub(crate) fn extended_attributes(attr: &DeviceAttr) -> ExQueryDeviceResp {
    ExQueryDeviceResp {
        base: attributes(attr),
        odp_caps: odp_caps(&attr.odp_caps),
        device_cap_flags_ex: capability::ALL,
        ..ExQueryDeviceResp::default()
    }
}

/// On-demand paging: all that the transports can do, but for a region of all memory there is.
fn odp_caps(caps: &control::OdpCaps) -> OdpCaps {
    /// `IB_ODP_SUPPORT`.
    const SUPPORT: u64 = 1;
    let per_transport_caps = [caps.rc, caps.uc, caps.ud];
    let any = per_transport_caps != [0; 3];
    OdpCaps { general_caps: if any { SUPPORT } else { 0 }, per_transport_caps, reserved: 0 }
}

/// The answer to `QUERY_PORT`.
pub(crate) fn port(attr: &PortAttr) -> QueryPortResp {
    /// There is a communication manager, and GIDs are made of IP addresses.
    const CM_SUP_AND_IP_BASED_GIDS: u32 = 1 << 16 | 1 << 26;
    const STATE_DOWN: u8 = 1;
    const STATE_ACTIVE: u8 = 4;
    const PHYS_STATE_DISABLED: u8 = 3;
    const PHYS_STATE_LINK_UP: u8 = 5;
    const LINK_LAYER_ETHERNET: u8 = 2;
    let (state, phys_state) = match attr.active {
        true => (STATE_ACTIVE, PHYS_STATE_LINK_UP),
        false => (STATE_DOWN, PHYS_STATE_DISABLED),
    };
    let rate = LinkRate::of_ethernet(attr.speed_mbps);
    QueryPortResp {
        port_cap_flags: CM_SUP_AND_IP_BASED_GIDS,
        max_msg_sz: attr.max_msg_sz,
        gid_tbl_len: attr.gid_tbl_len,
        pkey_tbl_len: attr.pkey_tbl_len,
        state,
        max_mtu: attr.max_mtu.code(),
        active_mtu: attr.active_mtu.code(),
        max_vl_num: 1,
        active_width: rate.active_width(),
        active_speed: rate.active_speed(),
        phys_state,
        link_layer: LINK_LAYER_ETHERNET,
        ..QueryPortResp::default()
    }
}

/// What `major.minor.patch` is as a number.
fn firmware_version(text: &str) -> u64 {
    let mut numbers = text.split('.').map(|part| part.parse::<u16>().unwrap_or(0));
    let mut next = || u64::from(numbers.next().unwrap_or(0));
    next() << 32 | next() << 16 | next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(firmware_version("1.2.3"), 0x1_0002_0003);
        assert_eq!(firmware_version("0.1.0-rc"), 1 << 16);
        assert_eq!(firmware_version(""), 0);
    }
}
