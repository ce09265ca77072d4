//! What the broker is told by a descriptor that is ready.

/// What a descriptor that is ready means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// The daemon is to end.
    Stop,
    /// A program wants to connect.
    Listener,
    /// A link or an address of the machine has changed.
    Watch,
    /// A device's port can receive, or send again.
    Port { device: usize },
    /// A slot has said something, or takes more.
    Slot { slot: usize },
    /// A worker has ended.
    Workers,
    /// Another thread asks for something.
    Woken,
}

impl Token {
    /// As it is registered.
    pub(super) fn to_mio(self) -> mio::Token {
        let (kind, index) = match self {
            Token::Stop => (0, 0),
            Token::Listener => (1, 0),
            Token::Watch => (2, 0),
            Token::Port { device } => (3, device),
            Token::Slot { slot } => (4, slot),
            Token::Workers => (5, 0),
            Token::Woken => (6, 0),
        };
        mio::Token(kind << 16 | index)
    }

    /// As it was registered.
    pub(super) fn from_mio(token: mio::Token) -> Token {
        let mio::Token(number) = token;
        let index = number & 0xffff;
        match number >> 16 {
            1 => Token::Listener,
            2 => Token::Watch,
            3 => Token::Port { device: index },
            4 => Token::Slot { slot: index },
            5 => Token::Workers,
            6 => Token::Woken,
            _ => Token::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::SlotCount;

    #[test]
    fn tokens_survive_the_kernel() {
        let tokens = [
            Token::Stop,
            Token::Listener,
            Token::Watch,
            Token::Port { device: urxe_slot::limits::MAX_DEVICES - 1 },
            Token::Slot { slot: SlotCount::MAX.get() - 1 },
            Token::Workers,
            Token::Woken,
        ];
        for token in tokens {
            assert_eq!(Token::from_mio(token.to_mio()), token);
        }
    }
}
