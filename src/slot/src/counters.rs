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
        accept_pauses: "Times that no program was accepted for up to a millisecond because many had just connected (whole daemon).",
        requests: "Control requests answered (whole daemon).",
        requests_refused: "Control requests answered with an error (whole daemon).",
        requests_malformed: "Control messages that are no request (whole daemon).",
        requests_oversized: "Control messages longer than any may be (whole daemon).",
        requests_with_lost_descriptors: "Control messages with more descriptors than any may have (whole daemon).",
        control_rests: "Times that requests had to wait because requests had taken their part of a slot's time (whole daemon).",
        replies_undeliverable: "Sessions closed because their program does not read its replies (whole daemon).",
        sockets_failed: "Sessions closed because their socket failed (whole daemon).",
        event_pipes_failed: "Sessions closed because the system refused to watch a pipe of theirs that was full of events (whole daemon).",
        slots_ended: "Slots that ended although they were not to, and their programs' devices with them (whole daemon).",
        sysfs_errors: "Times that the files in which rdma-core looks for devices could not be brought up to date (whole daemon).",
        acks_held: "Times that an ACK to a single message waited up to 10 us for what its program answers, to leave with it (whole daemon).",
        acks_held_in_vain: "Times that such an ACK left alone after all, because the program sent nothing (whole daemon).",
        slow_yields: "Times that a slot yielded the processor while it looked for work, and others kept it for more than 0.5 ms: they are busy and do not yield (whole daemon).",
        sleeps: "Times that a slot slept for want of work (whole daemon).",
    }
}

counters! {
    /// What all ways to peers that QPs go have together: outward, what goes to peers; inward, what
    /// comes from them because it was asked for, by READs and atomics.
    pub struct PathSums {
        paths: "Ways to peers that queue pairs go.",
        path_outward_window_bytes: "Bytes that may be under way to peers, on all paths together.",
        path_outward_in_flight_bytes: "Bytes that are under way to peers, headers included.",
        path_outward_rate_bytes_per_second: "How fast what goes to peers may go, on all paths that have a rate together.",
        path_outward_waiting_qps: "Queue pairs that wait, for their path's window or pace, to send to their peers.",
        path_inward_window_bytes: "Bytes that may be under way from peers as answers to READs and atomics, on all paths together.",
        path_inward_in_flight_bytes: "Bytes that are under way from peers as answers to READs and atomics.",
        path_inward_rate_bytes_per_second: "How fast answers to READs and atomics may come, on all paths that have a rate together.",
        path_inward_waiting_qps: "Queue pairs that wait, for their path's window or pace, to ask their peers.",
    }
}
