//! Objects of a device, as the kernel would describe them.

use super::message::{Attr, attr, byte, command, long, nested, text, word};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use urxe_shm::control::{CmIdState, Resource, ResourceDetail, ResourceKind};
use urxe_types::QpType;

/// `RDMA_NLDEV_PRINT_TYPE_HEX`: a number of the driver's is shown with sixteen digits.
const HEX: u8 = 1;

/// One kind of object that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Where the objects come from.
    pub(super) of: Source,
    /// The attribute that is the table of them, and the one that is an entry of it.
    pub(super) table: u16,
    pub(super) entry: u16,
    /// The attribute that is an object's number.
    pub(super) number: u16,
}

/// Where objects come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The daemon lists them.
    Listed(ResourceKind),
    /// They are what other objects say that they are in.
    Domains,
}

impl Kind {
    /// What a command asks for; `None` if it asks for something else.
    pub(super) fn of(command: u16) -> Option<Kind> {
        use Source::{Domains, Listed};
        let (of, table, entry, number) = match command {
            command::RES_QP_GET => {
                (Listed(ResourceKind::Qp), attr::RES_QP, attr::RES_QP_ENTRY, attr::RES_LQPN)
            }
            command::RES_CQ_GET => {
                (Listed(ResourceKind::Cq), attr::RES_CQ, attr::RES_CQ_ENTRY, attr::RES_CQN)
            }
            command::RES_MR_GET => {
                (Listed(ResourceKind::Mr), attr::RES_MR, attr::RES_MR_ENTRY, attr::RES_MRN)
            }
            command::RES_SRQ_GET => {
                (Listed(ResourceKind::Srq), attr::RES_SRQ, attr::RES_SRQ_ENTRY, attr::RES_SRQN)
            }
            command::RES_CM_ID_GET => (
                Listed(ResourceKind::CmId),
                attr::RES_CM_ID,
                attr::RES_CM_ID_ENTRY,
                attr::RES_CM_IDN,
            ),
            command::RES_PD_GET => (Domains, attr::RES_PD, attr::RES_PD_ENTRY, attr::RES_PDN),
            _ => return None,
        };
        Some(Kind { of, table, entry, number })
    }
}

/// A protection domain that has objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) number: u32,
    objects: u64,
    owner: Vec<Attr>,
}

/// The kinds of objects that are in a protection domain.
pub(super) const IN_DOMAINS: [ResourceKind; 4] =
    [ResourceKind::Qp, ResourceKind::Srq, ResourceKind::Mr, ResourceKind::Mw];

/// The protection domains that objects are in. One that nothing was made in is not known.
pub(super) fn domains<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Vec<Domain> {
    let mut domains = BTreeMap::new();
    for resource in resources {
        let domain = domains.entry(resource.pd).or_insert_with(|| Domain {
            number: resource.pd,
            objects: 0,
            owner: owner(&resource.program).to_vec(),
        });
        domain.objects += 1;
    }
    domains.into_values().collect()
}

impl Domain {
    pub(super) fn attrs(&self) -> Vec<Attr> {
        let own = [word(attr::RES_PDN, self.number), long(attr::RES_USECNT, self.objects)];
        own.into_iter().chain(self.owner.iter().cloned()).collect()
    }
}

/// The attributes of an object. What the kernel has no attribute for is the driver's: `rdma -d`
/// shows it.
pub(super) fn attrs(resource: &Resource) -> Vec<Attr> {
    let Resource { number, program, uid, pd, detail } = resource;
    let number = *number;
    let mut driver = Vec::new();
    let mut attrs = match detail {
        ResourceDetail::Qp {
            qp_type,
            state,
            send_cq,
            recv_cq,
            srq,
            peer,
            path: _,
            sq_psn,
            rq_psn,
            cause,
        } => {
            /// `IB_MIG_MIGRATED`: there is one path.
            const MIGRATED: u8 = 0;
            driver.extend([("send_cq", *send_cq), ("recv_cq", *recv_cq)]);
            driver.extend(srq.map(|srq| ("srq", srq)));
            driver.extend(cause.map(|cause| ("cause", cause)));
            let mut attrs = vec![
                word(attr::PORT_INDEX, 1),
                word(attr::RES_LQPN, number),
                word(attr::RES_SQ_PSN, *sq_psn),
                byte(attr::RES_TYPE, *qp_type as u8),
                byte(attr::RES_STATE, *state as u8),
            ];
            if *qp_type != QpType::Ud {
                attrs.push(word(attr::RES_RQPN, peer.map_or(0, |(_, qpn)| qpn)));
                attrs.push(word(attr::RES_RQ_PSN, *rq_psn));
                attrs.push(byte(attr::RES_PATH_MIG_STATE, MIGRATED));
            }
            attrs
        }
        ResourceDetail::Cq { cqe, unread, qps, failed } => {
            driver.extend([("unread", *unread), ("overrun", u32::from(*failed))]);
            vec![
                word(attr::RES_CQN, number),
                word(attr::RES_CQE, *cqe),
                long(attr::RES_USECNT, u64::from(*qps)),
            ]
        }
        ResourceDetail::Srq { max_wr, posted, limit, qps } => {
            /// `IB_SRQT_BASIC`: the only kind there is.
            const BASIC: u8 = 0;
            driver.extend([("max_wr", *max_wr), ("posted", *posted)]);
            driver.extend([("limit", *limit), ("qps", *qps)]);
            vec![word(attr::RES_SRQN, number), byte(attr::RES_TYPE, BASIC)]
        }
        ResourceDetail::Mr { iova, length, access, copied, .. } => {
            driver.extend([("access", access.bits()), ("copied", u32::from(copied.is_some()))]);
            vec![
                word(attr::RES_MRN, number),
                word(attr::RES_RKEY, number),
                word(attr::RES_LKEY, number),
                long(attr::RES_IOVA, *iova),
                long(attr::RES_MRLEN, *length),
            ]
        }
        // There is no command that asks for them.
        ResourceDetail::Mw { .. } => Vec::new(),
        ResourceDetail::CmId { space, qp_type, state, qpn, local, peer } => {
            let mut attrs = vec![
                word(attr::PORT_INDEX, 1),
                word(attr::RES_CM_IDN, number),
                byte(attr::RES_TYPE, *qp_type as u8),
                byte(attr::RES_STATE, cm_state(*state)),
                word(attr::RES_PS, *space as u32),
            ];
            attrs.extend(qpn.map(|qpn| word(attr::RES_LQPN, qpn)));
            attrs.extend(local.map(|local| address(attr::RES_SRC_ADDR, local)));
            attrs.extend(peer.map(|peer| address(attr::RES_DST_ADDR, peer)));
            attrs
        }
    };
    // The others are in none.
    if !matches!(detail, ResourceDetail::Cq { .. } | ResourceDetail::CmId { .. }) {
        attrs.push(word(attr::RES_PDN, *pd));
    }
    attrs.extend(owner(program));
    driver.push(("uid", *uid));
    attrs.push(nested(attr::DRIVER, &of_driver(&driver)));
    attrs
}

/// Numbers with names. Those that are patterns of bits are shown as such.
fn of_driver(numbers: &[(&str, u32)]) -> Vec<Attr> {
    let mut attrs = Vec::new();
    for &(name, value) in numbers {
        attrs.push(text(attr::DRIVER_STRING, name));
        if matches!(name, "access" | "cause") {
            attrs.push(byte(attr::DRIVER_PRINT_TYPE, HEX));
        }
        attrs.push(word(attr::DRIVER_U32, value));
    }
    attrs
}

/// A program by its process id, which stands in brackets behind its name; by its name, where there
/// is none.
fn owner(program: &str) -> [Attr; 1] {
    let pid = program.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
    match pid.and_then(|(_, pid)| pid.parse().ok()) {
        Some(pid) => [word(attr::RES_PID, pid)],
        None => [text(attr::RES_KERN_NAME, program)],
    }
}

/// `rdma_cm_state`, of the kernel's `rdma_cm.h`.
fn cm_state(state: CmIdState) -> u8 {
    match state {
        CmIdState::AddrResolved => 2,
        CmIdState::RouteResolved => 4,
        CmIdState::Connected => 5,
        CmIdState::Over => 6,
        CmIdState::Bound => 7,
        CmIdState::Listening => 8,
    }
}

/// A `sockaddr_storage`.
fn address(kind: u16, address: SocketAddr) -> Attr {
    const STORAGE: usize = 128;
    let mut bytes = Vec::with_capacity(STORAGE);
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend((libc::AF_INET as u16).to_ne_bytes());
            bytes.extend(v4.port().to_be_bytes());
            bytes.extend(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes.extend((libc::AF_INET6 as u16).to_ne_bytes());
            bytes.extend(v6.port().to_be_bytes());
            bytes.extend(v6.flowinfo().to_be_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes.resize(STORAGE, 0);
    Attr::new(kind, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::CmPortSpace;
    use urxe_types::{Gid, QpState};

    fn resource(number: u32, pd: u32, program: &str, detail: ResourceDetail) -> Resource {
        Resource { number, program: program.into(), uid: 1000, pd, detail }
    }

    fn qp(qp_type: QpType) -> Resource {
        let detail = ResourceDetail::Qp {
            qp_type,
            state: QpState::Err,
            send_cq: 1,
            recv_cq: 2,
            srq: None,
            peer: Some((Gid::default(), 0x30)),
            path: Some(4),
            sq_psn: 5,
            rq_psn: 6,
            cause: Some(2),
        };
        resource(0x11, 3, "ib_send_bw[42]", detail)
    }

    #[test]
    fn a_connected_qp_has_its_peer_and_a_datagram_one_has_none() {
        let rc = attrs(&qp(QpType::Rc));
        for expected in [
            word(attr::RES_LQPN, 0x11),
            word(attr::RES_RQPN, 0x30),
            word(attr::RES_RQ_PSN, 6),
            word(attr::RES_SQ_PSN, 5),
            byte(attr::RES_TYPE, 2),
            byte(attr::RES_STATE, 6),
            word(attr::RES_PID, 42),
            word(attr::RES_PDN, 3),
        ] {
            assert!(rc.contains(&expected), "{expected:?}");
        }
        let ud = attrs(&qp(QpType::Ud));
        assert!(!ud.contains(&word(attr::RES_RQPN, 0x30)) && ud.len() == rc.len() - 3);
    }

    #[test]
    fn facts_that_the_kernel_has_no_attribute_for_are_the_drivers() {
        let driver = of_driver(&[("send_cq", 1), ("recv_cq", 2), ("cause", 2), ("uid", 1000)]);
        assert!(attrs(&qp(QpType::Rc)).contains(&nested(attr::DRIVER, &driver)));
        let hex = driver.iter().filter(|&attr| *attr == byte(attr::DRIVER_PRINT_TYPE, HEX));
        assert_eq!(hex.count(), 1);
    }

    #[test]
    fn a_program_without_a_process_id_is_known_by_its_name() {
        for (program, expected) in [
            ("x[7]", word(attr::RES_PID, 7)),
            ("x[y][7]", word(attr::RES_PID, 7)),
            ("[7]", word(attr::RES_PID, 7)),
            ("x[-7]", text(attr::RES_KERN_NAME, "x[-7]")),
            ("x", text(attr::RES_KERN_NAME, "x")),
            ("", text(attr::RES_KERN_NAME, "")),
        ] {
            assert_eq!(owner(program), [expected]);
        }
    }

    #[test]
    fn a_listener_has_its_address_and_port() {
        let detail = ResourceDetail::CmId {
            space: CmPortSpace::Tcp,
            qp_type: QpType::Rc,
            state: CmIdState::Listening,
            qpn: None,
            local: Some("1.2.3.4:7471".parse().unwrap()),
            peer: Some("[fe80::1]:18515".parse().unwrap()),
        };
        let attrs = attrs(&resource(9, 0, "rping[3]", detail));
        let storage = |begins: &[u8]| {
            let mut bytes = begins.to_vec();
            bytes.resize(128, 0);
            bytes
        };
        let v4 = [&2_u16.to_ne_bytes()[..], &[0x1d, 0x2f, 1, 2, 3, 4]].concat();
        let v6 = [&10_u16.to_ne_bytes()[..], &[0x48, 0x53, 0, 0, 0, 0, 0xfe, 0x80]].concat();
        let mut v6 = storage(&v6);
        v6[23] = 1;
        for expected in [
            byte(attr::RES_STATE, 8),
            word(attr::RES_PS, 0x106),
            Attr::new(attr::RES_SRC_ADDR, storage(&v4)),
            Attr::new(attr::RES_DST_ADDR, v6),
        ] {
            assert!(attrs.contains(&expected), "{expected:?}");
        }
        assert!(!attrs.contains(&word(attr::RES_PDN, 0)));
    }

    #[test]
    fn domains_are_those_that_objects_are_in() {
        let mr = |number, pd| {
            let detail = ResourceDetail::Mr {
                iova: 0,
                length: 1,
                access: urxe_types::Access::empty(),
                copied: None,
                has_mapped_pages: false,
            };
            resource(number, pd, "x[7]", detail)
        };
        let found = domains(&[mr(1, 4), qp(QpType::Rc), mr(2, 4)]);
        let found: Vec<_> = found.iter().map(|domain| (domain.number, domain.objects)).collect();
        assert_eq!(found, [(3, 1), (4, 2)]);
    }

    #[test]
    fn every_command_for_objects_has_a_kind() {
        for command in [
            command::RES_QP_GET,
            command::RES_CQ_GET,
            command::RES_MR_GET,
            command::RES_PD_GET,
            command::RES_SRQ_GET,
            command::RES_CM_ID_GET,
        ] {
            assert!(Kind::of(command).is_some());
        }
        assert_eq!((Kind::of(command::RES_GET), Kind::of(0)), (None, None));
    }
}
