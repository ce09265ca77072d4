//! Asking the daemon for the objects of its devices, over a connection for one question: nothing of
//! it is left in the program, and a child after `fork` may ask as well.

use crate::refused::{Refused, errno_of};
use crate::session;
use rustix::io::Errno;
use urxe_shm::client::program_name;
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{Cursor, Reply, Request, Resource, ResourceKind};

/// A session that only looks.
pub(super) struct Daemon {
    channel: Channel,
}

impl Daemon {
    pub(super) fn connect() -> Result<Daemon, Refused> {
        let mut daemon = Daemon { channel: session::connect()? };
        let hello = Request::Hello { program: program_name() };
        match daemon.call(&hello)? {
            Reply::Hello { .. } => Ok(daemon),
            _ => Err(Errno::IO.into()),
        }
    }

    /// The objects of one kind of a device that this user may see.
    pub(super) fn resources(
        &mut self,
        device: &str,
        kind: ResourceKind,
    ) -> Result<Vec<Resource>, Refused> {
        let (mut all, mut from) = (Vec::new(), Cursor::default());
        loop {
            let request = Request::Resources { device: device.to_owned(), kind, from };
            let Reply::Resources(page) = self.call(&request)? else {
                return Err(Errno::IO.into());
            };
            all.extend(page.resources);
            match from.advanced_to(page.next) {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    fn call(&mut self, request: &Request) -> Result<Reply, Refused> {
        match self.channel.call(request, &[]) {
            Ok((Reply::Error(error), _)) => {
                Err(Refused::new(errno_of(error.errno), error.to_string()))
            }
            Ok((reply, _)) => Ok(reply),
            Err(ChannelError::Os(error)) => {
                Err(Errno::from_io_error(&error).unwrap_or(Errno::IO).into())
            }
            Err(error) => Err(Refused::new(Errno::IO, error.to_string())),
        }
    }
}
