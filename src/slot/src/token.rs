//! What the event loop watches, as mio numbers it.

use urxe_nic::ChannelId;

/// What a descriptor that is ready means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The broker has said something, or takes more.
    Link,
    /// The alarm has woken us: the timers are looked at in any case.
    Alarm,
    /// A session has rung that was not looked at.
    Ring { key: u32 },
    /// A device's port can receive, or send again.
    Port { device: usize },
    /// A session's socket has a request, or its program is gone.
    Session { key: u32 },
    /// An event channel that was full takes records again.
    Channel { device: usize, channel: ChannelId },
}

impl Token {
    pub(crate) fn to_mio(self) -> mio::Token {
        let (kind, device, key) = match self {
            Token::Link => (0, 0, 0),
            Token::Alarm => (1, 0, 0),
            Token::Port { device } => (2, device, 0),
            Token::Session { key } => (3, 0, key),
            Token::Channel { device, channel } => (4, device, channel.0),
            Token::Ring { key } => (5, 0, key),
        };
        mio::Token(kind << 48 | device << 32 | key as usize)
    }

    pub(crate) fn from_mio(token: mio::Token) -> Token {
        let mio::Token(number) = token;
        let (device, key) = (number >> 32 & 0xffff, number as u32);
        match number >> 48 {
            1 => Token::Alarm,
            2 => Token::Port { device },
            3 => Token::Session { key },
            4 => Token::Channel { device, channel: ChannelId(key) },
            5 => Token::Ring { key },
            _ => Token::Link,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        let tokens = [
            Token::Link,
            Token::Alarm,
            Token::Ring { key: u32::MAX },
            Token::Port { device: crate::limits::MAX_DEVICES - 1 },
            Token::Session { key: u32::MAX },
            Token::Channel { device: crate::limits::MAX_DEVICES - 1, channel: ChannelId(u32::MAX) },
        ];
        for token in tokens {
            assert_eq!(Token::from_mio(token.to_mio()), token);
        }
    }
}
