//! What a daemon counts beside the engines, the ports and the data paths: everything that programs
//! do wrong has a name here. Broker and slots each count their part.

use urxe_types::counters;

counters! {
    /// Of the daemon's dealings with its sessions.
    pub struct DaemonCounters {
        sessions_opened: "Programs that connected (whole daemon).",
        sessions_closed: "Programs that are gone (whole daemon).",
        sessions_refused: "Programs turned away because too many were connected (whole daemon).",
        sessions_silent: "Programs turned away because they connected and did not say who they are (whole daemon).",
        requests: "Control requests answered (whole daemon).",
        requests_refused: "Control requests answered with an error (whole daemon).",
        requests_malformed: "Control messages that are no request (whole daemon).",
        requests_oversized: "Control messages longer than any may be (whole daemon).",
        requests_with_lost_descriptors: "Control messages with more descriptors than any may have (whole daemon).",
        replies_undeliverable: "Sessions closed because their program does not read its replies (whole daemon).",
        sockets_failed: "Sessions closed because their socket failed (whole daemon).",
        event_pipes_failed: "Sessions closed because the system refused to watch a pipe of theirs that was full of events (whole daemon).",
        slots_ended: "Slots that ended although they were not to, and their programs' devices with them (whole daemon).",
        sysfs_errors: "Times that the files in which rdma-core looks for devices could not be brought up to date (whole daemon).",
        sleeps: "Times that a slot slept for want of work (whole daemon).",
    }
}
