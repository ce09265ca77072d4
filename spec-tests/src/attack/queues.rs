//! What a program does with its queues: their rings, doorbells, events and number.

use super::program::{CAPS, init, to};
use super::{Attack, Result, Setting, forever, program};
use crate::rng::Rng;
use rustix::io::write;
use std::time::Duration;
use urxe_shm::control::{QpCaps, Reply, Request, RingLocation, SrqAttr};
use urxe_shm::ring::doorbell::DOORBELL_SIZE;
use urxe_types::{Extra, QpState, QpType, SendData, SendOp, SendWr};

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new(
        "event-pipe",
        event_pipe,
        "fills its event pipe, shrunk to a page, and destroys what events wait for",
    )
    .found("C1"),
    Attack::new(
        "doorbells",
        doorbells,
        "rings the doorbells of thousands of QPs every millisecond",
    )
    .found("H6"),
    Attack::new("freeing", freeing, "creates and destroys send queues of hundreds of megabytes")
        .found("H7"),
    Attack::new("ring-scribble", ring_scribble, "writes into its send queue while it is read")
        .found("T8"),
    Attack::new(
        "ring-storm",
        ring_storm,
        "two threads write random words into queues of every kind in use",
    )
    .found("T8"),
    Attack::new(
        "doorbell-scribble",
        doorbell_scribble,
        "writes into its doorbell pages without end",
    )
    .found("H6"),
    Attack::new(
        "wake-storm",
        wake_storm,
        "wakes its slot without end, and has nothing to do for it",
    ),
    Attack::new("qp-churn", qp_churn, "creates, changes and destroys QPs"),
    Attack::new("cq-overrun", cq_overrun, "never polls a CQ of one entry"),
    Attack::new("unread-channels", unread_channels, "reads no event of its completion channels"),
    Attack::new(
        "srq-limits",
        srq_limits,
        "changes limits and sizes of shared receive queues without end, and reads no event",
    ),
    Attack::new("resize-storm", resize_storm, "resizes CQs that completions come to without end"),
];

fn event_pipe(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    ready();
    forever(|| {
        let mut program = program(setting)?;
        rustix::pipe::fcntl_setpipe_size(&program.events, 4096)?;
        let attr = SrqAttr { max_wr: 16, max_sge: 1, limit: 0 };
        let request = Request::CreateSrq { pd: program.pd, attr, user_handle: 0 };
        let Reply::Srq { srq, .. } = program.call(&request)? else { return Ok(()) };
        let a = program.create_qp(QpType::Rc, CAPS, Some(srq))?;
        let b = program.create_qp(QpType::Rc, CAPS, Some(srq))?;
        for at in 0..260 {
            let qp = if at == 250 { &a } else { &b };
            program.modify(qp, init())?;
            program.modify(qp, to(QpState::Err))?;
            program.modify(qp, to(QpState::Reset))?;
            if at == 250 {
                program.call(&Request::DestroyQp { qp: a.created.qp })?;
            }
        }
        Ok(())
    })
}

fn doorbells(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let mut slots = Vec::new();
    for _ in 0..setting.many(60_000, 4_000) {
        let Ok(qp) = program.create_qp(QpType::Rc, CAPS, None) else { break };
        slots.push(qp.created.doorbell_slot);
    }
    ready();
    forever(|| {
        slots.iter().for_each(|slot| program.ring(*slot));
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    })
}

fn freeing(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let max_send_wr = setting.many(1 << 19, 1 << 17) as u32;
    let caps = QpCaps { max_send_wr, max_send_sge: 32, max_inline_data: 512, ..CAPS };
    let mut is_ready = false;
    forever(|| {
        let qp = program.create_qp(QpType::Rc, caps, None)?;
        let ring = qp.created.send_ring;
        for at in (0..u64::from(ring.size)).step_by(4096) {
            // Behind the header, so that the ring stays one.
            let at = (ring.offset + at + 2048).min(ring.offset + u64::from(ring.size) - 1);
            program.memory.write(at, &[1])?;
        }
        if !std::mem::replace(&mut is_ready, true) {
            ready();
        }
        program.call(&Request::DestroyQp { qp: qp.created.qp }).map(drop)
    })
}

fn ring_scribble(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let pair = program.connected_pair(setting.addrs[0], CAPS)?;
    let ring = pair[0].created.send_ring;
    let mut rng = Rng::new(1);
    ready();
    forever(|| {
        let at = ring.offset + rng.range(0..=u64::from(ring.size) - 8);
        program.memory.write(at, &rng.next_u64().to_ne_bytes())?;
        program.ring(pair[0].created.doorbell_slot);
        Ok(())
    })
}

fn doorbell_scribble(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    for _ in 0..setting.many(1_000, 100) {
        program.create_qp(QpType::Rc, CAPS, None)?;
    }
    ready();
    let ones = [0xff; DOORBELL_SIZE as usize];
    forever(|| Ok(program.memory.write(0, &ones)?))
}

fn qp_churn(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    forever(|| {
        let [a, b] = program.connected_pair(setting.addrs[0], CAPS)?;
        program.call(&Request::DestroyQp { qp: a.created.qp })?;
        program.call(&Request::DestroyQp { qp: b.created.qp }).map(drop)
    })
}

fn cq_overrun(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    forever(|| {
        program.change_cq(1)?;
        let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
        let wr = SendWr { op: SendOp::Send(Extra::None), signaled: true, ..SendWr::default() };
        for _ in 0..CAPS.max_send_wr {
            let _ = pair[0].sends.push(&wr, SendData::Inline(&[1]));
        }
        pair[0].sends.publish();
        program.ring(pair[0].created.doorbell_slot);
        for qp in pair {
            program.modify(&qp, to(QpState::Err))?;
            program.call(&Request::DestroyQp { qp: qp.created.qp })?;
        }
        program.call(&Request::DestroyCq { cq: program.cq }).map(drop)
    })
}

fn ring_storm(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let memory = std::sync::Arc::clone(&program.memory);
    let rings = std::sync::Mutex::new(Vec::<RingLocation>::new());
    let scribble = |seed: u64| {
        let mut rng = Rng::new(seed);
        loop {
            let all = rings.lock().map_or_else(|_| Vec::new(), |rings| rings.clone());
            for ring in all {
                // Half of them go to where the indices are.
                let end = u64::from(ring.size) - 8;
                let end = if rng.percent(50) { end.min(512) } else { end };
                let word = match rng.percent(50) {
                    true => rng.range(0..=64),
                    false => rng.next_u64(),
                };
                let at = ring.offset + rng.range(0..=end);
                let _ = memory.write(at, &word.to_ne_bytes()[..rng.pick(&[1, 4, 8])]);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| scribble(1));
        scope.spawn(|| scribble(2));
        ready();
        forever(|| {
            let (cq, ring) = program.change_cq(64)?;
            let attr = SrqAttr { max_wr: 16, max_sge: 1, limit: 0 };
            let request = Request::CreateSrq { pd: program.pd, attr, user_handle: 0 };
            let Reply::Srq { srq, ring: of_srq, .. } = program.call(&request)? else {
                return Err("no SRQ".into());
            };
            let mut used = vec![ring, of_srq];
            let mut qps = Vec::new();
            for srq in [None, Some(srq)] {
                qps.push(program.create_qp(QpType::Rc, CAPS, srq)?);
                used.extend(
                    qps.iter()
                        .flat_map(|qp| [Some(qp.created.send_ring), qp.created.recv_ring])
                        .flatten(),
                );
            }
            program.connect(&qps[0], setting.addrs[0], qps[1].created.qpn)?;
            program.connect(&qps[1], setting.addrs[0], qps[0].created.qpn)?;
            *rings.lock().map_err(|_| "a thread has panicked")? = used;
            for _ in 0..200 {
                for qp in &mut qps {
                    program.post(qp, SendOp::Send(Extra::None), &[]);
                }
                std::thread::yield_now();
            }
            rings.lock().map_err(|_| "a thread has panicked")?.clear();
            for qp in qps {
                program.call(&Request::DestroyQp { qp: qp.created.qp })?;
            }
            program.call(&Request::DestroySrq { srq })?;
            program.call(&Request::DestroyCq { cq }).map(drop)
        })
    })
}

fn wake_storm(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let program = program(setting)?;
    ready();
    forever(|| {
        let _ = write(&program.wake, &1u64.to_ne_bytes());
        program.ring(7);
        Ok(())
    })
}

fn unread_channels(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = Vec::new();
    for _ in 0..setting.many(200, 20) {
        let mut program = program(setting)?;
        let pipe = program.change_channel(16)?;
        // The smallest that there is is soon full.
        rustix::pipe::fcntl_setpipe_size(&pipe, 4096)?;
        let pair = program.connected_pair(setting.addrs[0], CAPS)?;
        programs.push((program, pair, pipe));
    }
    ready();
    forever(|| {
        for (program, [a, b], _pipe) in &mut programs {
            program.arm()?;
            program.post(a, SendOp::Send(Extra::None), &[]);
            // What is posted completes with an error, which is an event.
            for qp in [&*a, &*b] {
                program.modify(qp, to(QpState::Err))?;
                program.modify(qp, to(QpState::Reset))?;
            }
            a.sends.reset();
            program.connect(a, setting.addrs[0], b.created.qpn)?;
            program.connect(b, setting.addrs[0], a.created.qpn)?;
        }
        Ok(())
    })
}

fn srq_limits(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let attr = SrqAttr { max_wr: 64, max_sge: 1, limit: 1 };
    let create = Request::CreateSrq { pd: program.pd, attr, user_handle: 0 };
    let mut used = Vec::new();
    for _ in 0..setting.many(200, 20) {
        let Reply::Srq { srq, .. } = program.call(&create)? else { return Err("no SRQ".into()) };
        let mut a = program.create_qp(QpType::Rc, CAPS, Some(srq))?;
        let b = program.create_qp(QpType::Rc, CAPS, Some(srq))?;
        program.connect(&a, setting.addrs[0], b.created.qpn)?;
        program.connect(&b, setting.addrs[0], a.created.qpn)?;
        // It finds no receive, now and each time that it is tried again.
        program.post(&mut a, SendOp::Send(Extra::None), &[]);
        used.push((srq, a, b));
    }
    ready();
    let mut max_wr = 16;
    forever(|| {
        max_wr = if max_wr == 16 { 4096 } else { 16 };
        for (srq, ..) in &used {
            let (srq, limit) = (*srq, Some(8));
            program.call(&Request::ModifySrq { srq, max_wr: Some(max_wr), limit })?;
        }
        Ok(())
    })
}

fn resize_storm(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    forever(|| {
        let (cq, _) = program.change_cq(1024)?;
        let [mut a, b] = program.connected_pair(setting.addrs[0], CAPS)?;
        for round in 0..100 {
            let wr = SendWr { op: SendOp::Send(Extra::None), signaled: true, ..SendWr::default() };
            let _ = a.sends.push(&wr, SendData::Sges(&[]));
            a.sends.publish();
            program.ring(a.created.doorbell_slot);
            // It is refused while more completions are there than would have room.
            let cqe = if round % 2 == 0 { 1 << 16 } else { 1024 };
            let _ = program.call(&Request::ResizeCq { cq, cqe });
        }
        for qp in [a, b] {
            program.call(&Request::DestroyQp { qp: qp.created.qp })?;
        }
        program.call(&Request::DestroyCq { cq }).map(drop)
    })
}
