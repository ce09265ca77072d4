//! What the daemon counts beside the engines, the ports and the data paths: everything that
//! programs do wrong has a name here.

use urxe_types::counters;

counters! {
    /// Of one device's dealings with the machine.
    pub struct DeviceCounters {
        gid_changes: "Times that the GID table changed, because addresses of the machine came or went.",
        port_errors: "Times that the port went down, because its link did or its address was taken away.",
        addresses_refused: "Addresses of the interface that are not served: another urxed or rdma_rxe has UDP port 4791 of them, or the GID table is full.",
        broker_ports_failed: "Times that the port of QP1 failed for good: no connection can be made over this device any more, those that there are go on.",
        cm_messages_without_path: "Messages about connections that were not sent, because the address that they are from is gone.",
    }
}

counters! {
    /// Of what programs have of the connection manager. What began and has not ended is there.
    pub struct CmCounters {
        cm_channels_created: "Event channels of the connection manager that programs made (whole daemon).",
        cm_channels_destroyed: "Those of them that are gone (whole daemon).",
        cm_ids_created: "Ids of the connection manager that programs made, or got with a request (whole daemon).",
        cm_ids_destroyed: "Those of them that are gone (whole daemon).",
        cm_ports_taken: "Ports that ids were bound to (whole daemon).",
        cm_ports_freed: "Those of them that were given up (whole daemon).",
        cm_events_taken: "Events of the connection manager that programs took (whole daemon).",
        cm_events_withdrawn: "Those that were not taken, because what they were about was gone (whole daemon).",
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_nic::HostCounters;

    #[test]
    fn names_are_unique_and_meanings_are_sentences() {
        let (host, daemon) = (HostCounters::default(), DaemonCounters::default());
        let (device, cm) = (DeviceCounters::default(), CmCounters::default());
        let all = host.iter().chain(daemon.iter()).chain(device.iter()).chain(cm.iter());
        let all: Vec<_> = all.collect();
        let mut names: Vec<_> = all.iter().map(|(name, ..)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|(_, _, meaning)| meaning.ends_with('.')));
    }
}
