//! What becomes of a run that the kernel refuses to send.

use super::socket::{has_label, message};
use super::{UdpPort, segments_of_first};
use crate::SendOutcome;
use crate::caps::Segmentation;
use std::io;
use urxe_wire::batch::{Run, TxBatch};

impl UdpPort {
    /// Deals with a first run that could not be sent. Blocked: try again later.
    pub(super) fn failed(
        &mut self,
        (index, src_port): (usize, u16),
        mut error: io::Error,
        batch: &mut TxBatch,
    ) -> io::Result<SendOutcome> {
        let segments = segments_of_first(batch);
        if self.labels
            && error.raw_os_error() == Some(libc::EINVAL)
            && batch.runs().next().is_some_and(|run| has_label(&run))
        {
            // ADDR-006: without its label it may go.
            match self.send_first((index, src_port), batch, |run| run) {
                Ok(()) => {
                    self.labels = false;
                    self.counters.flow_labels_refused = 1;
                    self.sent(1, batch);
                    return Ok(SendOutcome::Done);
                }
                Err(of_unlabelled) => error = of_unlabelled,
            }
        }
        if let Some(errno @ (libc::EIO | libc::EINVAL)) = error.raw_os_error()
            && batch.runs().next().is_some_and(|run| run.is_segmented())
        {
            // That may be the segmentation's fault, or even one datagram is too large for the path,
            // which older kernels report the same way. The first datagram, sent by itself, tells;
            // its identification is 0 either way.
            match self.send_first((index, src_port), batch, first_alone) {
                Ok(()) => {
                    self.segmentation = Segmentation::Refused { errno };
                    self.counters.segmentation_refused = 1;
                    batch.split();
                    self.sent(1, batch);
                    return Ok(SendOutcome::Done);
                }
                Err(of_one) => error = of_one,
            }
        }
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                self.counters.tx_blocked += 1;
                if self.is_poller {
                    return Ok(SendOutcome::Blocked);
                }
                self.sockets.watch_for_room(index, |socket| socket.sender(src_port))?;
                return Ok(SendOutcome::Blocked);
            }
            Some(libc::EINTR) => {}
            _ if self.is_lost_by_poller(&error) => return Ok(SendOutcome::Blocked),
            _ => {
                // COUNT-015, RC-REQ-040
                self.counters.count_send_error(&error, segments);
                batch.advance(1);
            }
        }
        Ok(SendOutcome::Done)
    }

    /// Sends this of the first run, without its flow label.
    fn send_first(
        &mut self,
        (index, src_port): (usize, u16),
        batch: &TxBatch,
        of_run: impl FnOnce(Run<'_>) -> Run<'_>,
    ) -> io::Result<()> {
        let Some(run) = batch.runs().next() else { return Ok(()) };
        self.counters.tx_calls += 1;
        let message = message(&of_run(run), false, &self.sockets);
        let socket = self.sockets[index].sender(src_port);
        self.sender.send(socket, std::iter::once(message)).map(|_| ())
    }
}

/// The first datagram of a run.
fn first_alone(run: Run<'_>) -> Run<'_> {
    Run { bytes: &run.bytes[..run.segment_len], segments: 1, ..run }
}
