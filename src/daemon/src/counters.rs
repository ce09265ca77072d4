//! What the broker counts of devices and of the connection manager.

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

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_nic::HostCounters;
    use urxe_slot::DaemonCounters;

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
