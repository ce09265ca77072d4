//! READs and atomics of the requester of a reliable connection.

use crate::agent::{SendWr, Status};
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::{End, SOURCE, Setup, TARGET};
use crate::expect::request;
use crate::packet::{Packet, atomic_response, positive_ack, read_responses};
use crate::script::{OUR_ADDR, OUR_RKEY, Script, our_memory};
use urxe_types::PathMtu;
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "requester-read/names-what-it-wants",
        "RC-REQ-010",
        "A READ asks with address, key and length, and succeeds with the data in its place.",
        |t| read(t, 100),
    ),
    Check::new(
        "requester-read/long-one-covers-its-range",
        "RC-REQ-011",
        "The requests of a long READ, one or several, cover its range end to end.",
        |t| read(t, 7000),
    ),
    Check::new(
        "requester-read/of-nothing",
        "RC-REQ-007",
        "A READ of no bytes is a request that is answered by a response without payload.",
        |t| read(t, 0),
    ),
    Check::new(
        "requester-read/takes-a-psn-for-each-response",
        "RC-REQ-010",
        "The request after a READ of three responses has the PSN after theirs.",
        takes_a_psn_for_each_response,
    ),
    Check::new(
        "requester-read/psn-wraps-among-responses",
        "RC-REQ-031",
        "The responses of a READ go on over the wrap from 0xffffff to 0.",
        psn_wraps_among_responses,
    ),
    Check::new(
        "requester-read/one-outstanding-at-most",
        "RC-REQ-012",
        "With max_rd_atomic 1, a READ waits for the answer of the one before it.",
        |t| outstanding(t, 1),
    ),
    Check::new(
        "requester-read/two-outstanding-at-most",
        "RC-REQ-012",
        "With max_rd_atomic 2, no third READ is outstanding.",
        |t| outstanding(t, 2),
    ),
    Check::new(
        "requester-read/fence-waits-for-the-answer",
        "RC-REQ-013",
        "A SEND with a fence is not sent before the READ before it has its answer.",
        fence_waits_for_the_answer,
    ),
    Check::new(
        "requester-read/answer-acknowledges-what-is-before-it",
        "RC-COMP-002",
        "The answer to a READ acknowledges the SEND before it.",
        answer_acknowledges_what_is_before,
    ),
    Check::new(
        "requester-read/ack-behind-it-means-its-answer-was-lost",
        "RC-COMP-004",
        "An ACK of a request behind a READ without answer does not complete the READ, which is \
         asked for again.",
        ack_behind_it,
    ),
    Check::new(
        "requester-read/plain-ack-is-no-answer",
        "RC-COMP-005",
        "An ACK of a READ lacks the data: the READ is asked for again.",
        plain_ack_is_no_answer,
    ),
    Check::new(
        "requester-read/lost-response-is-asked-for-again",
        "RC-COMP-004",
        "If a response in the midst is lost, it is asked for again, with the PSN and the address \
         of that place.",
        lost_response,
    ),
    Check::new(
        "requester-read/repeated-response-does-no-harm",
        "RC-COMP-022",
        "A response that comes twice is stored once.",
        repeated_response,
    ),
    Check::new(
        "requester-atomic/compare-and-swap",
        "RC-COMP-003",
        "COMPARE-AND-SWAP names address, key, swap and compare values; its result is in the \
         program's byte order.",
        compare_and_swap,
    ),
    Check::new(
        "requester-atomic/fetch-and-add",
        "RC-COMP-003",
        "FETCH-AND-ADD names address, key and what is added.",
        fetch_and_add,
    ),
    Check::new(
        "requester-atomic/counts-as-outstanding",
        "RC-REQ-012",
        "With max_rd_atomic 1, an atomic waits for the answer of the one before it.",
        atomics_count,
    ),
    Check::new(
        "requester-atomic/plain-ack-is-no-answer",
        "RC-COMP-005",
        "An ACK of an atomic lacks the result: the same atomic is sent again.",
        atomic_needs_its_answer,
    ),
];

fn read(t: &mut Script<'_>, len: usize) -> Outcome {
    t.connect(&Setup::rc())?;
    t.post(&[SendWr::read(1, TARGET..TARGET + len, OUR_ADDR, OUR_RKEY)])?;
    let (data, next) = t.serve_read(0, len, 1)?;
    t.expect_success([1])?;
    expect_buffer(t, TARGET, &data)?;
    t.expect_requester_works(next, 2)
}

fn expect_buffer(t: &mut Script<'_>, at: usize, data: &[u8]) -> Outcome {
    let found = t.buffer(at, data.len())?;
    let differs = found.iter().zip(data).position(|(found, wanted)| found != wanted);
    ensure(differs.is_none(), "the answer in its place", || {
        format!("another byte at {}", differs.unwrap_or_default())
    })
}

fn takes_a_psn_for_each_response(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let sent = t.bytes(8);
    t.fill(SOURCE, &sent)?;
    t.post(&[
        SendWr::read(1, TARGET..TARGET + 2500, OUR_ADDR, OUR_RKEY),
        SendWr::send(2, SOURCE..SOURCE + 8).fence(),
    ])?;
    let (data, next) = t.serve_read(0, 2500, 1)?;
    ensure(next == 3, "three PSNs for 2500 bytes", || next.to_string())?;
    t.expect(request(RC_SEND_ONLY, 3).payload(&sent))?;
    t.send(positive_ack(3, 2))?;
    t.expect_success(1..=2)?;
    expect_buffer(t, TARGET, &data)
}

fn psn_wraps_among_responses(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { their_psn: Some(0xff_ffff), ..Setup::rc() })?;
    t.post(&[SendWr::read(1, TARGET..TARGET + 2500, OUR_ADDR, OUR_RKEY)])?;
    let (data, next) = t.serve_read(0, 2500, 1)?;
    t.expect_success([1])?;
    expect_buffer(t, TARGET, &data)?;
    t.expect_requester_works(next, 2)
}

fn outstanding(t: &mut Script<'_>, most: u8) -> Outcome {
    t.connect(&Setup { max_rd_atomic: Some(most), ..Setup::rc() }.reading(64))?;
    t.begin()?;
    let mut asked = 0;
    for answered in 0..5 {
        let may_ask = (answered + i32::from(most)).min(5);
        // Of what may be outstanding at least one comes.
        while asked <= answered {
            let next = t.next(t.waits().reply)?;
            let next = next.ok_or_else(|| Stop::failed("the next READ", "nothing"))?;
            // One without an answer may come again meanwhile.
            if t.place(&next) >= asked {
                t.check(&request(RC_READ_REQUEST, asked), &next)?;
                asked += 1;
            }
        }
        for more in t.collect(t.waits().quiet)? {
            let place = t.place(&more);
            let fits = more.opcode() == RC_READ_REQUEST as u8 && place < may_ask;
            ensure(fits, &format!("at most {most} READs without an answer"), || more.to_string())?;
            asked = asked.max(place + 1);
        }
        let data = t.bytes(64);
        t.send_all(&read_responses(answered, &data, PathMtu::Mtu1024, answered as u32 + 1))?;
    }
    t.expect_done()
}

fn fence_waits_for_the_answer(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let sent = t.bytes(8);
    t.fill(SOURCE, &sent)?;
    t.post(&[
        SendWr::read(1, TARGET..TARGET + 64, OUR_ADDR, OUR_RKEY),
        SendWr::send(2, SOURCE..SOURCE + 8).fence(),
    ])?;
    t.expect(request(RC_READ_REQUEST, 0))?;
    t.expect_nothing_new(1)?;
    let data = t.bytes(64);
    t.send_all(&read_responses(0, &data, PathMtu::Mtu1024, 1))?;
    t.expect(request(RC_SEND_ONLY, 1).payload(&sent))?;
    t.send(positive_ack(1, 2))?;
    t.expect_success(1..=2)
}

/// Posts a SEND and a READ, or the other way round, and takes in the packets. Some devices wait
/// with a request until the READ before it is answered: those are not asked further.
fn read_and_send(t: &mut Script<'_>, read_first: bool) -> Outcome {
    t.connect(&Setup::rc())?;
    let sent = t.bytes(8);
    t.fill(SOURCE, &sent)?;
    let read = SendWr::read(1, TARGET..TARGET + 64, OUR_ADDR, OUR_RKEY);
    let send = SendWr::send(2, SOURCE..SOURCE + 8);
    t.post(&if read_first { [read, send] } else { [send, read] })?;
    let opcodes =
        if read_first { [RC_READ_REQUEST, RC_SEND_ONLY] } else { [RC_SEND_ONLY, RC_READ_REQUEST] };
    t.expect(request(opcodes[0], 0))?;
    t.expect(request(opcodes[1], 1)).map(drop)
}

fn answer_acknowledges_what_is_before(t: &mut Script<'_>) -> Outcome {
    read_and_send(t, false)?;
    let data = t.bytes(64);
    t.send_all(&read_responses(1, &data, PathMtu::Mtu1024, 2))?;
    t.expect_success([2, 1])?;
    expect_buffer(t, TARGET, &data)
}

fn ack_behind_it(t: &mut Script<'_>) -> Outcome {
    read_and_send(t, true)?;
    t.send(positive_ack(1, 2))?;
    t.expect(request(RC_READ_REQUEST, 0).reth(OUR_ADDR, OUR_RKEY, 64))?;
    t.expect_no_completion()?;
    let data = t.bytes(64);
    t.send_all(&read_responses(0, &data, PathMtu::Mtu1024, 1))?;
    // The SEND is known to be done; it may be repeated nevertheless.
    t.send(positive_ack(1, 2))?;
    t.expect_success(1..=2)?;
    expect_buffer(t, TARGET, &data)
}

fn plain_ack_is_no_answer(t: &mut Script<'_>) -> Outcome {
    needs_its_answer(t, Setup::rc().reading(64), RC_READ_REQUEST)
}

/// What is posted is acknowledged without what it asks for: it is sent again, as it was.
fn needs_its_answer(t: &mut Script<'_>, setup: Setup, opcode: urxe_wire::Opcode) -> Outcome {
    t.connect(&Setup { max_rd_atomic: Some(1), ..setup })?;
    t.begin()?;
    let first = t.expect(request(opcode, 0))?;
    t.send(positive_ack(0, 1))?;
    match t.end_within(t.waits().quiet)? {
        None => {}
        // A response without data may be called bad.
        Some(End::Failed(Some(Status::BadRespErr) | None)) => {
            t.allow("calls an ACK in the place of an answer a bad response");
            return Ok(());
        }
        Some(end) => return Err(Stop::failed("the request again", format!("{end:?}"))),
    }
    let again = t.expect(request(opcode, 0))?;
    ensure(again.body() == first.body(), "the request again, as it was", || again.to_string())?;
    t.expect_succeeded(0)?;
    t.finish_work()
}

/// Answers the next READ REQUEST of the READ of `data` in packets of 256 bytes, but for one place.
/// Returns whether it asked for that place.
fn serve_all_but(t: &mut Script<'_>, data: &[u8], missing: Option<i32>) -> Outcome<bool> {
    let Some(asked) = t.next(t.waits().reply)? else {
        return Err(Stop::failed("a READ REQUEST for what is missing", "nothing"));
    };
    let place = t.place(&asked);
    let (addr, _, len) = asked.reth().unwrap_or_default();
    let (from, len) = (addr.wrapping_sub(OUR_ADDR), len as usize);
    let is_right = asked.opcode() == RC_READ_REQUEST as u8
        && (0..4).contains(&place)
        && from == 256 * place as u64
        && from as usize + len <= data.len();
    ensure(is_right, "a READ REQUEST whose address is that of its PSN", || {
        format!("{asked}, {from:#x} after the first address")
    })?;
    let part = &data[from as usize..from as usize + len];
    let answers = read_responses(place, part, PathMtu::Mtu256, 1);
    let end = place + answers.len() as i32;
    let leave = missing.filter(|missing| (place..end).contains(missing));
    let kept = (place..).zip(answers).filter(|(at, _)| Some(*at) != leave);
    let kept: Vec<Packet> = kept.map(|(_, answer)| answer).collect();
    t.send_all(&kept)?;
    Ok(leave.is_some())
}

fn lost_response(t: &mut Script<'_>) -> Outcome {
    let setup = Setup { mtu: PathMtu::Mtu256, max_rd_atomic: Some(1), ..Setup::rc() };
    t.connect(&setup.reading(1000))?;
    t.begin()?;
    let data = our_memory(OUR_ADDR, 1000);
    while !serve_all_but(t, &data, Some(1))? {}
    // What is behind it may be asked for again too.
    serve_all_but(t, &data, None)?;
    t.finish_work()?;
    expect_told(t, TARGET, &data)
}

/// If the program tells what stands in its buffer, it is this.
fn expect_told(t: &mut Script<'_>, at: usize, data: &[u8]) -> Outcome {
    if t.is_told() { expect_buffer(t, at, data) } else { Ok(()) }
}

fn repeated_response(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_rd_atomic: Some(1), ..Setup::rc() }.reading(64))?;
    t.begin()?;
    t.expect(request(RC_READ_REQUEST, 0))?;
    let data = t.bytes(64);
    let first = read_responses(0, &data, PathMtu::Mtu1024, 1);
    t.send_all(&first)?;
    t.expect(request(RC_READ_REQUEST, 1))?;
    t.send_all(&first)?;
    t.expect_succeeded(1)?;
    let other = t.bytes(64);
    t.send_all(&read_responses(1, &other, PathMtu::Mtu1024, 2))?;
    t.finish_work()?;
    expect_told(t, TARGET, &data)
}

fn expect_atomic(t: &mut Script<'_>, opcode: urxe_wire::Opcode, at: i32, body: &[u8]) -> Outcome {
    let arrived = t.expect(request(opcode, at))?;
    ensure(arrived.body() == body, "address, key and values as they were posted", || {
        format!("{:02x?}", arrived.body())
    })
}

/// An AtomicETH.
fn atomic_header(addr: u64, swap_or_add: u64, compare: u64) -> Vec<u8> {
    let numbers = [swap_or_add.to_be_bytes(), compare.to_be_bytes()].concat();
    [&addr.to_be_bytes()[..], &OUR_RKEY.to_be_bytes(), &numbers].concat()
}

fn compare_and_swap(t: &mut Script<'_>) -> Outcome {
    const WAS: u64 = 0x0102_0304_0506_0708;
    const NEW: u64 = 0x1112_1314_1516_1718;
    const FOUND: u64 = 0x2122_2324_2526_2728;
    t.connect(&Setup::rc())?;
    t.post(&[SendWr::cmp_swap(1, TARGET, OUR_ADDR, OUR_RKEY, [WAS, NEW])])?;
    expect_atomic(t, RC_COMPARE_SWAP, 0, &atomic_header(OUR_ADDR, NEW, WAS))?;
    t.send(atomic_response(0, 1, FOUND))?;
    t.expect_success([1])?;
    expect_buffer(t, TARGET, &FOUND.to_ne_bytes())
}

fn fetch_and_add(t: &mut Script<'_>) -> Outcome {
    const ADD: u64 = 0x8182_8384_8586_8788;
    const FOUND: u64 = 0x3132_3334_3536_3738;
    t.connect(&Setup::rc())?;
    t.post(&[SendWr::fetch_add(1, TARGET, OUR_ADDR + 8, OUR_RKEY, ADD)])?;
    let arrived = t.expect(request(RC_FETCH_ADD, 0))?;
    // What it compares with means nothing.
    let wanted = atomic_header(OUR_ADDR + 8, ADD, 0);
    ensure(arrived.body().starts_with(&wanted[..20]), "address, key and addend", || {
        format!("{:02x?}", arrived.body())
    })?;
    t.send(atomic_response(0, 1, FOUND))?;
    t.expect_success([1])?;
    expect_buffer(t, TARGET, &FOUND.to_ne_bytes())
}

fn atomics_count(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup { max_rd_atomic: Some(1), ..Setup::rc() }.adding())?;
    t.begin()?;
    t.expect(request(RC_FETCH_ADD, 0))?;
    t.expect_nothing_new(1)?;
    t.send(atomic_response(0, 1, 5))?;
    t.expect(request(RC_FETCH_ADD, 1))?;
    t.finish_work()
}

fn atomic_needs_its_answer(t: &mut Script<'_>) -> Outcome {
    needs_its_answer(t, Setup::rc().adding(), RC_FETCH_ADD)
}
