//! The private data of each connection request of the client.

use crate::error::Error;

/// Changes whenever tickets do, so that two versions detect that they differ.
const MAGIC: [u8; 8] = *b"urxe-pc1";

/// Which connection it is, of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) number: u32,
    pub(super) count: u32,
}

impl Ticket {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        [&MAGIC[..], &self.number.to_be_bytes(), &self.count.to_be_bytes()].concat()
    }

    pub(super) fn parse(private_data: &[u8]) -> Result<Ticket, Error> {
        let read = || {
            let rest = private_data.strip_prefix(&MAGIC)?;
            let (number, rest) = rest.split_first_chunk()?;
            let (count, _) = rest.split_first_chunk()?;
            let ticket =
                Ticket { number: u32::from_be_bytes(*number), count: u32::from_be_bytes(*count) };
            (ticket.number < ticket.count && ticket.count <= super::MAX_COUNT).then_some(ticket)
        };
        read().ok_or_else(|| {
            Error::Failed(
                "the client is no `urxe perf-connect`, or of another version of urxe".into(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_parsed_as_it_was_and_other_data_are_refused() {
        let ticket = Ticket { number: 6, count: 7 };
        let mut private_data = ticket.to_bytes();
        private_data.resize(56, 0);
        assert_eq!(Ticket::parse(&private_data).unwrap(), ticket);
        assert!(Ticket::parse(&private_data[..12]).is_err());
        assert!(Ticket::parse(&[0; 56]).is_err());
        assert!(Ticket::parse(&Ticket { number: 7, count: 7 }.to_bytes()).is_err());
        assert!(Ticket::parse(&Ticket { number: 0, count: u32::MAX }.to_bytes()).is_err());
    }
}
