//! What a port counts: every drop has a name.

use std::ops::Add;

/// One counter with its name and meaning, for a person or a metrics page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The field's name in [`PortCounters`].
    pub name: &'static str,
    /// What it counts.
    pub meaning: &'static str,
    /// Its value.
    pub value: u64,
}

macro_rules! counters {
    ($($name:ident: $meaning:literal,)*) => {
        /// What a port and the wrappers around it have done. Counts of datagrams unless the
        /// meaning says otherwise; all from the opening of the port.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PortCounters {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        impl PortCounters {
            /// Every counter with its name and meaning, in the order of the declaration.
            pub fn list(&self) -> impl Iterator<Item = Counter> {
                [$(Counter { name: stringify!($name), meaning: $meaning, value: self.$name },)*]
                    .into_iter()
            }
        }

        /// Counter by counter: what a wrapper counted on top of the port below it.
        impl Add for PortCounters {
            type Output = PortCounters;

            fn add(self, other: PortCounters) -> PortCounters {
                PortCounters { $($name: self.$name + other.$name,)* }
            }
        }
    };
}

counters! {
    tx_datagrams: "datagrams sent",
    tx_bytes: "bytes sent, UDP payloads only",
    tx_calls: "system calls made to send",
    tx_blocked: "sends that found the way out full and were continued later (number of times)",
    tx_too_large: "not sent: larger than the path takes (EMSGSIZE)",
    tx_unreachable: "not sent: no route to the peer (ENETUNREACH, EHOSTUNREACH)",
    tx_refused: "not sent: the peer has no RoCE port open (ECONNREFUSED)",
    tx_forbidden: "not sent: a firewall or policy forbids it (EPERM, EACCES)",
    tx_no_buffer: "not sent: the kernel had no memory or the device queue was full (ENOBUFS, ENOMEM)",
    tx_wrong_flow: "not sent: the flow's source is none of this port, an address that was taken away for example",
    tx_failed: "not sent: any other error",
    rx_datagrams: "datagrams received",
    rx_bytes: "bytes received, UDP payloads only",
    rx_calls: "system calls made to receive",
    rx_truncated: "received incomplete and dropped (a super-packet counts once)",
    rx_malformed: "dropped: outer headers that contradict each other, or an empty datagram",
    rx_overflow: "lost by the kernel because the receive buffer was full",
    segmentation_refused: "1 once the kernel refused a segmented send: datagram by datagram since",
    fault_dropped: "dropped by fault injection",
    fault_duplicated: "sent or handed over twice by fault injection",
    fault_delayed: "held back by fault injection",
    fault_reordered: "overtaken by later ones through fault injection",
    fault_corrupted: "changed by fault injection",
    captured: "written to the capture file",
    capture_failed: "1 once the capture file could not be written: nothing is captured since",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_listed_with_its_own_value() {
        let counters = PortCounters { tx_datagrams: 7, capture_failed: 1, ..Default::default() };
        let of = |name| counters.list().find(|c| c.name == name).map(|c| c.value);
        assert_eq!(of("tx_datagrams"), Some(7));
        assert_eq!(of("capture_failed"), Some(1));
        assert_eq!(of("rx_truncated"), Some(0));
        assert_eq!(counters.list().map(|c| c.value).sum::<u64>(), 8);
    }
}
