//! Packets as the daemon sends and receives them.

use super::Arguments;
use super::output::Sink;
use super::streams::{Item, Streams};
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::output;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_shm::control::CaptureSpec;

/// Bytes of a packet that hold all headers.
const HEADERS: u32 = 64;

/// Bytes that no packet has more of.
const WHOLE: u32 = 65_507;

/// How long the end of a capture may take: a pipe that is full is read within it.
const END: Duration = Duration::from_secs(2);

/// Longer than a data path waits before it tries a pipe again that was full.
const SETTLE: Duration = Duration::from_millis(20);

/// Shows packets until there are enough, the time is over, or a signal comes.
pub(super) fn run(arguments: &Arguments) -> Result<(), Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Error::system("catching signals"))?;
    }
    let usual = if arguments.write.is_some() { WHOLE } else { HEADERS };
    let filter = arguments.filter();
    let spec = CaptureSpec {
        devices: arguments.devices.clone(),
        qps: filter.qps,
        peers: filter.peers,
        opcodes: filter.opcodes.iter().map(|opcode| opcode.byte()).collect(),
        programs: arguments.programs.clone(),
        snaplen: arguments.snaplen.unwrap_or(usual),
    };
    let stopped = Arc::clone(&stop);
    let mut client = DaemonClient::connect_unless_stopped(&arguments.daemon, "capture", stopped)?;
    let counters = client.begin_capture(spec)?;
    let mut sink = Sink::open(arguments.write.as_deref(), arguments.json)?;
    let mut streams = Streams::new(client);
    let until = arguments.seconds.and_then(|seconds| {
        // Never, if there is no such time.
        Instant::now().checked_add(Duration::from_secs(seconds.get()))
    });
    let (mut shown, mut lost) = (0, 0);
    let most = arguments.count.map_or(u64::MAX, |count| count.get());
    let mut add = |item: Item<'_>, sink: &mut Sink| {
        match item {
            Item::Packet(device, packet) => {
                sink.packet(device, &packet, &counters)?;
                shown += 1;
            }
            Item::Lost(count) => {
                sink.lost(count)?;
                lost += count;
            }
        }
        Ok(shown < most)
    };
    let mut is_said = false;
    let is_over = || stop.load(Ordering::Relaxed) || until.is_some_and(|at| Instant::now() >= at);
    let mut wants_more = true;
    let mut looked = Ok(());
    while wants_more && looked.is_ok() && !is_over() {
        looked = streams.look();
        if looked.is_ok() && !std::mem::replace(&mut is_said, true) {
            let devices = streams.names();
            let of = if devices.is_empty() { "" } else { " of " };
            output::note(format_args!("urxe capture: packets{of}{devices}; Ctrl-C ends it"));
        }
        wants_more = streams.show(false, |item| add(item, &mut sink))?;
        sink.flush()?;
    }
    if wants_more {
        // Programs may have begun since it was asked last.
        looked = looked.and_then(|()| streams.take_new());
        let is_whole = show_rest(&mut streams, &mut sink, &mut add)?;
        if !is_whole {
            output::note(
                "urxe capture: the end is missing: packets come faster than they are taken",
            );
        }
    }
    output::note(format_args!("urxe capture: {shown} packets, {lost} not captured"));
    looked
}

/// Shows what was captured until now, as long as `add` wants more. Returns whether that is all.
fn show_rest(
    streams: &mut Streams,
    sink: &mut Sink,
    mut add: impl FnMut(Item<'_>, &mut Sink) -> Result<bool, Error>,
) -> Result<bool, Error> {
    let until = Instant::now() + END;
    let mut is_whole = true;
    // What a pipe had no room for comes when there is some.
    for wait in [Duration::ZERO, SETTLE] {
        sleep(wait);
        let mut rest = streams.open();
        while is_whole && !rest.is_empty() {
            rest = streams.read_ready(&rest, Duration::ZERO)?;
            let wants_more = streams.show(false, |item| add(item, sink))?;
            sink.flush()?;
            if !wants_more {
                return Ok(true);
            }
            is_whole = rest.is_empty() || Instant::now() < until;
        }
    }
    streams.show(true, |item| add(item, sink))?;
    sink.flush()?;
    Ok(is_whole)
}
