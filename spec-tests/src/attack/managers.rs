//! What a program does with the connection manager.

use super::program::{CAPS, Program};
use super::{Attack, Result, Setting, forever, program, wait};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use urxe_shm::control::{
    CmChannelHandle, CmConnParam, CmIdHandle, CmPortSpace, CmReply, CmRequest, Reply, Request,
};
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
    Attack::new(
        "unread-events",
        unread_events,
        "has thousands of ids with events that it takes none of, and moves and destroys these ids",
    ),
    Attack::new(
        "listeners",
        listeners,
        "listens at all ports that it may, and gives them back, in four sessions",
    ),
];

/// A channel for events of ids.
fn channel(program: &mut Program) -> Result<CmChannelHandle> {
    match program.call(&Request::Cm(CmRequest::CreateChannel))? {
        Reply::Cm(CmReply::Channel(channel)) => Ok(channel),
        _ => Err("no channel".into()),
    }
}

/// An id of the kind that connects RC QPs.
fn id(program: &mut Program, channel: CmChannelHandle) -> Result<CmIdHandle> {
    let (space, qp_type) = (CmPortSpace::Tcp, QpType::Rc);
    let create = CmRequest::CreateId { channel, user_handle: 0, space, qp_type };
    match program.call(&Request::Cm(create))? {
        Reply::Cm(CmReply::Id(id)) => Ok(id),
        _ => Err("no id".into()),
    }
}

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
        let channel = channel(&mut program)?;
        for _ in 0..setting.many(40_000, 5_000) {
            if id(&mut program, channel).is_err() {
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
        let channel = channel(&mut program)?;
        for _ in 0..64 {
            let Ok(id) = id(&mut program, channel) else { break };
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
    let channel = channel(&mut program)?;
    let listener = id(&mut program, channel)?;
    let at = SocketAddr::new(setting.addrs[0], PORT);
    program.call(&Request::Cm(CmRequest::Bind { id: listener, addr: at }))?;
    program.call(&Request::Cm(CmRequest::Listen { id: listener, backlog: 0 }))?;
    ready();
    forever(|| {
        // Until there may be no more ids; then these repeat what they ask.
        let Ok(id) = id(&mut program, channel) else {
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

fn unread_events(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let dst = SocketAddr::new(setting.addrs[1], setting.port);
    let mut program = program(setting)?;
    let channels = [channel(&mut program)?, channel(&mut program)?];
    let with_event = |program: &mut Program| {
        let id = id(program, channels[0])?;
        program.call(&Request::Cm(CmRequest::ResolveAddr {
            id,
            src: None,
            dst,
            timeout_ms: 1000,
        }))?;
        Ok::<_, Box<dyn std::error::Error>>(id)
    };
    let mut ids = VecDeque::new();
    while ids.len() < setting.many(20_000, 5_000) {
        let Ok(id) = with_event(&mut program) else { break };
        ids.push_back(id);
    }
    ready();
    forever(|| {
        for channel in [channels[1], channels[0]] {
            for &id in &ids {
                program.call(&Request::Cm(CmRequest::MigrateId { id, channel }))?;
            }
        }
        for _ in 0..ids.len() {
            if let Some(id) = ids.pop_front() {
                program.call(&Request::Cm(CmRequest::DestroyId { id }))?;
            }
            ids.push_back(with_event(&mut program)?);
        }
        Ok(())
    })
}

fn listeners(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = Vec::new();
    for _ in 0..4 {
        let mut program = program(setting)?;
        let channel = channel(&mut program)?;
        programs.push((program, channel));
    }
    let at = SocketAddr::new(setting.addrs[0], 0);
    let listen = |program: &mut Program, channel| {
        let id = id(program, channel)?;
        program.call(&Request::Cm(CmRequest::Bind { id, addr: at }))?;
        program.call(&Request::Cm(CmRequest::Listen { id, backlog: 0 }))
    };
    let mut is_ready = false;
    forever(|| {
        for (program, channel) in &mut programs {
            for _ in 0..setting.many(20_000, 2_000) {
                if listen(program, *channel).is_err() {
                    break;
                }
            }
        }
        if !std::mem::replace(&mut is_ready, true) {
            ready();
        }
        for (program, channel) in &mut programs {
            program.call(&Request::Cm(CmRequest::DestroyChannel { channel: *channel }))?;
            *channel = self::channel(program)?;
        }
        Ok(())
    })
}
