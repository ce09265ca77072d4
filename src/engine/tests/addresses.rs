//! The GID table and the link's MTU change while QPs live.

mod script;

use script::*;
use std::net::IpAddr;
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::Opcode;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_address_that_goes_leaves_a_hole_and_the_others_keep_their_index() {
    let mut t = Script::in_reset();
    t.device.set_gid(1, Some(ip("10.0.0.5")));
    t.device.set_gid(2, Some(ip("fe80::5")));
    t.device.set_gid(1, None);
    assert_eq!(t.device.gids()[..3], [Some(LOCAL), None, Some(ip("fe80::5"))]);
    assert_eq!(t.device.gids().len(), limits::GID_TABLE_LEN);
}

#[test]
fn a_new_address_can_be_used_at_once_and_one_that_has_gone_no_more() {
    let mut t = Script::in_reset();
    t.device.set_gid(3, Some(ip("10.0.0.5")));
    let av = usual().av.map(|av| AddressVector { sgid_index: 3, ..av });
    t.connect(&QpAttr { av, ..usual() });
    t.post(1, SendOp::Send(Extra::None), &[]);
    assert_eq!(t.next_sent().0.src, ip("10.0.0.5"));
    t.device.set_gid(3, None);
    t.create(QpType::Rc, None);
    t.enter_init(&usual()).unwrap();
    let error = t.enter_rtr(&QpAttr { av, ..usual() }).unwrap_err();
    assert_eq!(error, ModifyQpError::Flow(FlowError::NoSuchGid(3)));
}

#[test]
fn a_connected_qp_keeps_its_address_and_its_path_mtu() {
    let mut t = Script::new();
    t.device.set_gid(0, Some(ip("10.0.0.9")));
    t.device.set_active_mtu(PathMtu::Mtu256);
    t.post(1, SendOp::Send(Extra::None), &[t.sge(0, 256)]);
    t.fill(0, &bytes(0, 256));
    t.expect(pkt(Opcode::RC_SEND_ONLY, 200).payload(&bytes(0, 256)).ack_req());
}

#[test]
fn to_an_address_of_this_machine_every_path_mtu_is_carried() {
    let local = ["10.0.0.77", "127.0.0.9"].map(ip);
    for dgid in local.into_iter().chain([ip("10.0.0.78")]) {
        let mut t = Script::in_reset();
        t.device.set_local_addrs([local[0]].into());
        let av = usual().av.map(|av| AddressVector { dgid, ..av });
        let attr = QpAttr { av, path_mtu: Some(PathMtu::Mtu4096), ..usual() };
        t.enter_init(&attr).unwrap();
        match t.enter_rtr(&attr) {
            Ok(()) => assert!(local.contains(&dgid), "{dgid}"),
            Err(error) => {
                assert!(!local.contains(&dgid), "{dgid}: {error}");
                assert!(error.to_string().starts_with("path_mtu 4096: "), "{error}");
            }
        }
    }
}

#[test]
fn a_larger_link_mtu_allows_a_larger_path_mtu() {
    let attr = QpAttr { path_mtu: Some(PathMtu::Mtu4096), ..usual() };
    let mut t = Script::in_reset();
    t.enter_init(&attr).unwrap();
    assert!(matches!(t.enter_rtr(&attr), Err(ModifyQpError::MtuTooLarge { .. })));
    t.device.set_active_mtu(PathMtu::Mtu4096);
    t.enter_rtr(&attr).unwrap();
}
