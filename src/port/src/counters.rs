//! What a port counts: every drop has a name.

urxe_types::counters! {
    /// What a port and the wrappers around it have done. Counts of datagrams unless the meaning
    /// says otherwise; all from the opening of the port.
    pub struct PortCounters {
        tx_datagrams: "Datagrams sent.",
        tx_bytes: "Bytes sent, UDP payloads only.",
        tx_calls: "System calls made to send.",
        tx_blocked: "Sends that found the way out full and were continued later (number of times).",
        tx_too_large: "Not sent: larger than the path takes (EMSGSIZE).",
        tx_unreachable: "Not sent: no route to the peer (ENETUNREACH, EHOSTUNREACH).",
        tx_refused: "Not sent: the peer has no RoCE port open (ECONNREFUSED).",
        tx_forbidden: "Not sent: a firewall or policy forbids it (EPERM, EACCES).",
        tx_no_buffer: "Not sent: the kernel had no memory or the device queue was full (ENOBUFS, ENOMEM).",
        tx_wrong_flow: "Not sent: the flow's source is none of this port, an address that was taken away for example.",
        tx_failed: "Not sent: any other error.",
        icmp_errors: "Told by ICMP of something sent that it did not arrive: the peer has no RoCE port open, there is no way there, it is too long, or a firewall forbids it.",
        rx_datagrams: "Datagrams received.",
        rx_bytes: "Bytes received, UDP payloads only.",
        rx_calls: "System calls made to receive.",
        rx_truncated: "Received incomplete and dropped (a super-packet counts once).",
        rx_malformed: "Dropped: outer headers that contradict each other, or an empty datagram.",
        rx_refused: "Dropped by the kernel because the address and UDP port that they came from had sent hundreds of packets within 10 ms, of which all were dropped, or messages of no use to the connection manager: then nothing is taken from there for 0.1 s, or up to 1.6 s if it goes on.",
        rx_overflow: "Lost by the kernel because the receive buffer was full.",
        loopback_datagrams: "Sent through memory, to QPs that this process serves on this device or another: among those sent.",
        loopback_overflow: "Lost of those sent through memory: the slot that they were for had not received yet what was sent to it before, and had no room for more. RC sends them again; UC and UD are to be sent more slowly.",
        segmentation_refused: "1 once the kernel refused a segmented send: datagram by datagram since.",
        flow_labels_refused: "1 once the kernel refused to send an IPv6 flow label, which another program has for itself: sent with label 0 since.",
        groups_lost: "Multicast groups that could not be joined again on another interface: nothing is received for them any more.",
        source_ports_refused: "UDP source ports that could not be had (taken by another program, or no more descriptors): their flows leave from port 4791, and share its way through the network.",
        fault_dropped: "Dropped by fault injection.",
        fault_duplicated: "Sent or handed over twice by fault injection.",
        fault_delayed: "Held back by fault injection.",
        fault_reordered: "Overtaken by later ones through fault injection.",
        fault_corrupted: "Changed by fault injection.",
        captured: "Written to the capture file.",
        capture_failed: "1 once the capture file could not be written: nothing is captured since.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_listed_with_its_own_value() {
        let counters = PortCounters { tx_datagrams: 7, capture_failed: 1, ..Default::default() };
        let of = |name| counters.iter().find(|c| c.0 == name).map(|c| c.1);
        assert_eq!(of("tx_datagrams"), Some(7));
        assert_eq!(of("capture_failed"), Some(1));
        assert_eq!(of("rx_truncated"), Some(0));
        assert_eq!(counters.iter().map(|c| c.1).sum::<u64>(), 8);
    }
}
