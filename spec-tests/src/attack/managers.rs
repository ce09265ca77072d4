//! What a program does with the connection manager.

use super::program::CAPS;
use super::{Attack, Result, Setting, forever, program, wait};
use std::net::SocketAddr;
use std::time::Duration;
use urxe_shm::control::{CmConnParam, CmPortSpace, CmReply, CmRequest, Reply, Request};
use urxe_types::QpType;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new(
        "cm-channels",
        cm_channels,
        "takes descriptors as channels of the connection manager",
    )
    .found("H8"),
    Attack::new("cm-ids", cm_ids, "creates ids of the connection manager").found("H8"),
    Attack::new("connect-storm", connect_storm, "asks its victims for connections, and drops them")
        .found("T16"),
    Attack::new(
        "unread-requests",
        unread_requests,
        "listens, asks itself for connections, and takes no event of any",
    ),
];

fn cm_channels(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = vec![program(setting)?, program(setting)?];
    for program in &mut programs {
        for _ in 0..10_000 {
            // The descriptor that comes with it is let go.
            if program.call(&Request::Cm(CmRequest::CreateChannel)).is_err() {
                break;
            }
        }
    }
    ready();
    wait()
}

fn cm_ids(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = Vec::new();
    for _ in 0..4 {
        let mut program = program(setting)?;
        let reply = program.call(&Request::Cm(CmRequest::CreateChannel))?;
        let Reply::Cm(CmReply::Channel(channel)) = reply else { return Ok(()) };
        let (space, qp_type) = (CmPortSpace::Tcp, QpType::Rc);
        let request = CmRequest::CreateId { channel, user_handle: 0, space, qp_type };
        for _ in 0..setting.many(40_000, 5_000) {
            if program.call(&Request::Cm(request.clone())).is_err() {
                break;
            }
        }
        programs.push(program);
    }
    ready();
    wait()
}

fn connect_storm(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let qp = program.create_qp(QpType::Rc, CAPS, None)?;
    let dst = SocketAddr::new(setting.addrs[1], setting.port);
    let qpn = qp.created.qpn.get();
    ready();
    forever(|| {
        let Reply::Cm(CmReply::Channel(channel)) =
            program.call(&Request::Cm(CmRequest::CreateChannel))?
        else {
            return Err("no channel".into());
        };
        for _ in 0..64 {
            let (space, qp_type) = (CmPortSpace::Tcp, QpType::Rc);
            let create = CmRequest::CreateId { channel, user_handle: 0, space, qp_type };
            let Ok(Reply::Cm(CmReply::Id(id))) = program.call(&Request::Cm(create)) else { break };
            let param = CmConnParam { qpn, retry_count: 7, ..CmConnParam::default() };
            let steps = [
                CmRequest::ResolveAddr { id, src: None, dst, timeout_ms: 1000 },
                CmRequest::ResolveRoute { id, timeout_ms: 1000 },
                CmRequest::Connect { id, param },
            ];
            for step in steps {
                let _ = program.call(&Request::Cm(step));
            }
        }
        program.call(&Request::Cm(CmRequest::DestroyChannel { channel })).map(drop)
    })
}

fn unread_requests(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    const PORT: u16 = 31_000;
    let mut program = program(setting)?;
    let qp = program.create_qp(QpType::Rc, CAPS, None)?;
    let Reply::Cm(CmReply::Channel(channel)) =
        program.call(&Request::Cm(CmRequest::CreateChannel))?
    else {
        return Err("no channel".into());
    };
    let (space, qp_type) = (CmPortSpace::Tcp, QpType::Rc);
    let create = Request::Cm(CmRequest::CreateId { channel, user_handle: 0, space, qp_type });
    let Reply::Cm(CmReply::Id(listener)) = program.call(&create)? else {
        return Err("no id".into());
    };
    let at = SocketAddr::new(setting.addrs[0], PORT);
    program.call(&Request::Cm(CmRequest::Bind { id: listener, addr: at }))?;
    program.call(&Request::Cm(CmRequest::Listen { id: listener, backlog: 0 }))?;
    ready();
    forever(|| {
        // Until there may be no more ids; then these repeat what they ask.
        let Ok(Reply::Cm(CmReply::Id(id))) = program.call(&create) else {
            std::thread::sleep(Duration::from_millis(10));
            return Ok(());
        };
        let qpn = qp.created.qpn.get();
        let param = CmConnParam { qpn, retry_count: 7, ..CmConnParam::default() };
        let steps = [
            CmRequest::ResolveAddr { id, src: None, dst: at, timeout_ms: 1000 },
            CmRequest::ResolveRoute { id, timeout_ms: 1000 },
            CmRequest::Connect { id, param },
        ];
        for step in steps {
            let _ = program.call(&Request::Cm(step));
        }
        Ok(())
    })
}
