//! What a data path counts beside the engine and the port.

use urxe_types::{EntryError, counters};

counters! {
    /// Of one device's dealings with the memory and the rings of programs.
    pub struct HostCounters {
        malformed_opcode: "Work requests whose opcode is none, or none that this device does.",
        malformed_num_sge: "Work requests with more SGEs than their queue was made for.",
        malformed_inline_length: "Work requests with more inline data than their queue was made for.",
        malformed_inline_opcode: "READs, atomics and FLUSHes with inline data, which makes no sense.",
        broken_send_queues: "Send queues whose cursors the program overwrote; their QPs are in ERR.",
        broken_receive_queues: "Receive queues whose cursors the program overwrote; they take no more receives.",
        broken_completion_queues: "Completion queues whose cursors the program overwrote; they take no more completions.",
        memory_faults: "Accesses to registered memory that was not there any more; their QPs are in ERR.",
        memory_stalls: "Times that memory reached by system calls was waited for so long that other programs were kept waiting: its program forked, or its pages came from a disk. Whose QPs rest for it count drop_memory_stalls.",
        sources_refused: "Times that a source, an address and a UDP port, was refused, for 0.1 s at first and up to 1.6 s if it went on, because hundreds of its packets within 10 ms had been dropped, or been messages of no use to the connection manager, and none taken. What it sends then is counted as rx_refused.",
        unguarded_calls: "Calls of the engine that reached the memory of the program they run in by system calls, because it handles or blocks SIGSEGV or SIGBUS itself.",
        completion_events: "Events written to completion channels.",
        async_events: "Asynchronous events written.",
        lost_events: "Events lost because the program let thousands wait, one of the same object among them, or is gone.",
    }
}

counters! {
    /// What there is, of each kind of object.
    pub struct ObjectCounts {
        qps: "Queue pairs that there are.",
        cqs: "Completion queues that there are.",
        srqs: "Shared receive queues that there are.",
        mrs: "Memory registrations that there are.",
        mws: "Memory windows that there are.",
        pds: "Protection domains that there are.",
    }
}

impl HostCounters {
    /// Counts an entry that is no work request under its reason.
    pub(crate) fn count_malformed(&mut self, error: EntryError) {
        *match error {
            EntryError::Opcode { .. } => &mut self.malformed_opcode,
            EntryError::TooManySges { .. } => &mut self.malformed_num_sge,
            EntryError::InlineTooLong { .. } => &mut self.malformed_inline_length,
            EntryError::InlineNotAllowed { .. } => &mut self.malformed_inline_opcode,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_listed_with_its_own_value() {
        let counters = HostCounters { memory_faults: 7, ..HostCounters::default() };
        let found = counters.iter().find(|(name, ..)| *name == "memory_faults");
        assert_eq!(found.map(|(_, value, _)| value), Some(7));
    }
}
