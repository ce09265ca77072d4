//! Multicast groups.

use super::*;

#[test]
fn every_member_of_a_group_gets_a_copy_the_sender_too() {
    let (group, [mut a, mut b, mut c]) = (fresh_group(), [(); 3].map(|()| open(fresh_addr())));
    for port in [&mut a, &mut b, &mut c] {
        port.join(group).unwrap();
        port.join(group).unwrap();
    }
    let flow = send_to_group(&mut a, group, 0);
    assert_eq!(flow.dst, group, "the group is what the ICRC covers");
    for port in [&mut a, &mut b, &mut c] {
        assert_receives(port, &flow, 0);
    }
    b.leave(group).unwrap();
    b.leave(group).unwrap();
    let flow = send_to_group(&mut c, group, 100);
    assert_receives(&mut a, &flow, 100);
    assert_receives(&mut c, &flow, 100);
    assert!(recv_all(&mut b, Instant::now()).is_empty(), "a port that has left receives nothing");
    b.join(group).unwrap();
    let flow = send_to_group(&mut a, group, 200);
    assert_receives(&mut b, &flow, 200);
}

#[test]
fn a_sender_that_is_no_member_receives_no_copy() {
    let (group, (mut a, mut b)) = (fresh_group(), pair());
    b.join(group).unwrap();
    let flow = send_to_group(&mut a, group, 0);
    assert_receives(&mut b, &flow, 0);
    assert!(recv_all(&mut a, Instant::now()).is_empty());
}

#[test]
fn other_groups_and_own_traffic_do_not_mix() {
    let (mut a, mut b) = pair();
    let (one, other) = (fresh_group(), fresh_group());
    a.join(one).unwrap();
    b.join(other).unwrap();
    let to_one = send_to_group(&mut b, one, 0);
    let to_other = send_to_group(&mut a, other, 100);
    assert_receives(&mut a, &to_one, 0);
    assert_receives(&mut b, &to_other, 100);
    // And between the addresses as ever.
    round_trip_back(a, b);
}

#[test]
fn over_the_ipv6_loopback_address_a_port_receives_from_itself() {
    let addr = Ipv6Addr::LOCALHOST.into();
    let mut port = open_shared(|| UdpPort::open(addr, &UdpOptions::default()));
    for group in ["ff02::4791", "ff15::4791"] {
        let group: IpAddr = group.parse().unwrap();
        port.join(group).unwrap();
        let flow = send_to_group(&mut port, group, 0);
        assert_receives(&mut port, &flow, 0);
        port.leave(group).unwrap();
        let _ = send_to_group(&mut port, group, 100);
        assert!(recv_all(&mut port, Instant::now()).is_empty());
    }
}

#[test]
fn only_a_group_can_be_joined() {
    let mut port = open(fresh_addr());
    for wrong in [fresh_addr(), Ipv6Addr::LOCALHOST.into(), [255; 4].into()] {
        for error in [port.join(wrong).unwrap_err(), port.leave(wrong).unwrap_err()] {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&format!("{wrong}: not a multicast")), "{error}");
        }
    }
}

#[test]
fn over_a_cable_members_on_both_ends_receive_and_so_does_the_sender() {
    let groups = [("239.47.91.1", Cable::V4), ("ff02::4791", Cable::V6), ("ff15::1", Cable::V6)];
    for (group, addrs) in groups {
        // A cable for each: a child that another test is just starting has this process's sockets
        // until it executes its program, so an address can be taken for a while after its port
        // has been closed.
        let Some(cable) = Cable::new(9000) else { return };
        let group: IpAddr = group.parse().unwrap();
        let joined = move |own: usize| {
            move || {
                let mut port = open(addrs[own]);
                port.join(group).unwrap();
                port
            }
        };
        let (mut a, mut b) = (cable.a.run(joined(0)), cable.b.run(joined(1)));
        let flow = send_to_group(&mut a, group, 0);
        assert_receives(&mut a, &flow, 0);
        assert_receives(&mut b, &flow, 0);
        assert_eq!(b.counters().rx_calls, 1, "all of it in one call");
    }
}

#[test]
fn a_port_that_goes_to_another_interface_is_a_member_there() {
    let Some(cable) = Cable::new(1500) else { return };
    let (addr, group) = (Cable::V4[0], IpAddr::from([239, 47, 91, 4]));
    let mut port = cable.a.run(move || {
        let mut port = open(addr);
        port.join(group).unwrap();
        port
    });
    cable.a.ip("link del wire");
    port.remove_address(addr);
    for command in [
        "link add other type veth peer name far",
        "link set far up",
        "link set other up",
        "addr add 10.47.91.1/24 dev other",
    ] {
        cable.a.ip(command);
    }
    while !cable.a.ip("link show other").contains("state UP") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut port = cable.a.run(move || {
        port.add_address(addr).unwrap();
        port
    });
    assert_eq!(port.caps().interface.as_deref(), Some("other"));
    let flow = send_to_group(&mut port, group, 0);
    assert_receives(&mut port, &flow, 0);
}
