//! What the broker counts of devices and of the connection manager.

use urxe_cm::CmCounter;
use urxe_engine::Counter;
use urxe_nic::HostCounters;
use urxe_port::PortCounters;
use urxe_slot::DaemonCounters;
use urxe_types::counters;

counters! {
    /// Of one device's dealings with the machine.
    pub struct DeviceCounters {
        gid_changes: "Times that the GID table changed, because addresses of the machine came or went.",
        port_errors: "Times that the port went down, because its link did or its address was taken away.",
        addresses_refused: "Addresses of the interface that are not served: another urxed or rdma_rxe has UDP port 4791 of them, or the GID table is full.",
        broker_ports_failed: "Times that the port of QP1 failed for good: no connection can be made over this device any more, those that there are go on.",
        drop_ended_slot: "Dropped: for a QP of a slot that nobody runs, because the program that ran it (--in-process) or the last program of its user has ended. Its peer has not noticed yet.",
        cm_messages_without_path: "Messages about connections that were not sent, because the address that they are from is gone.",
    }
}

counters! {
    /// Of what programs have of the connection manager. What began and has not ended is there.
    pub struct CmObjectCounters {
        cm_channels_created: "Event channels of the connection manager that programs made (whole daemon).",
        cm_channels_destroyed: "Those of them that are gone (whole daemon).",
        cm_ids_created: "Ids of the connection manager that programs made, or got with a request (whole daemon).",
        cm_ids_destroyed: "Those of them that are gone (whole daemon).",
        cm_ports_taken: "Ports that ids were bound to (whole daemon).",
        cm_ports_freed: "Those of them that were given up (whole daemon).",
        cm_events_taken: "Events of the connection manager that programs took (whole daemon).",
        cm_events_withdrawn: "Those that were not taken, because what they were about was gone (whole daemon).",
        cm_requests_without_id: "Requests of peers that were refused, because the program that listens, or its user, may have no more ids (whole daemon).",
    }
}

/// Name and meaning of everything that a daemon counts: the lines of `urxe stat`.
pub fn counter_meanings() -> Vec<(&'static str, &'static str)> {
    let engine = Counter::ALL.iter().map(|counter| (counter.name(), counter.meaning()));
    let cm = CmCounter::ALL.iter().map(|counter| (counter.name(), counter.meaning()));
    let (port, host, daemon) =
        (PortCounters::default(), HostCounters::default(), DaemonCounters::default());
    let (device, cm_objects) = (DeviceCounters::default(), CmObjectCounters::default());
    let sets = port.iter().chain(host.iter()).chain(daemon.iter());
    let sets = sets.chain(device.iter()).chain(cm_objects.iter());
    engine.chain(cm).chain(sets.map(|(name, _, meaning)| (name, meaning))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_meanings_are_sentences() {
        let all = counter_meanings();
        let mut names: Vec<_> = all.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|(_, meaning)| meaning.ends_with('.')));
    }
}
