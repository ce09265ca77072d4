//! Connections by address, in tasks.

use super::{ConnParam, ConnectRequest, Connection, EventChannel, Listener};
use crate::asynchronous::Readiness;
use crate::{Context, Error, Qp};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// An event channel whose events are waited for in tasks: of one listener and the connections that
/// come through it, or of one connection.
#[derive(Clone, Debug)]
struct Channel(Arc<Readiness<EventChannel>>);

impl Channel {
    fn new(context: &Context) -> Result<Channel, Error> {
        Ok(Channel(Arc::new(Readiness::new(context.create_event_channel()?)?)))
    }

    fn get(&self) -> &EventChannel {
        self.0.get()
    }

    /// Waits until an attempt, which takes events of one object and does not wait, finds what it
    /// looks for.
    async fn until<R>(
        &self,
        mut attempt: impl FnMut() -> Result<Option<R>, Error>,
    ) -> Result<R, Error> {
        let channel = &self.get().0;
        let attempt = || {
            let before = channel.events_read();
            let found = attempt();
            // It may have read events of others, or have left some of others in the pipe.
            if channel.events_read() != before {
                self.0.tell_others();
            }
            found
        };
        self.0.until(attempt, |_| Ok(())).await
    }
}

/// [`Listener`], for tasks.
#[derive(Clone, Debug)]
pub struct AsyncListener {
    listener: Listener,
    channel: Channel,
}

impl AsyncListener {
    /// Listens at an address of any device, or at the wildcard; at port 0 at one that is free. At
    /// most `backlog` requests wait to be taken (0: as many as the daemon allows). To be called
    /// within a runtime.
    ///
    /// # Errors
    /// As [`EventChannel::listen`].
    pub fn bind(context: &Context, at: SocketAddr, backlog: u32) -> Result<AsyncListener, Error> {
        let channel = Channel::new(context)?;
        let listener = channel.get().listen(at, backlog)?;
        Ok(AsyncListener { listener, channel })
    }

    /// Where it listens, with the port that it was given.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The next peer that asks for a connection. Who drops the future loses no request.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub async fn next(&self) -> Result<AsyncConnectRequest, Error> {
        let request = self.channel.until(|| self.listener.wait(Some(Duration::ZERO))).await?;
        Ok(AsyncConnectRequest { request, channel: self.channel.clone() })
    }
}

/// [`ConnectRequest`], for tasks. Who drops it refuses it.
#[derive(Debug)]
pub struct AsyncConnectRequest {
    request: ConnectRequest,
    channel: Channel,
}

impl AsyncConnectRequest {
    /// The request: who asks, where, and with which parameters.
    pub fn request(&self) -> &ConnectRequest {
        &self.request
    }

    /// Accepts, and waits until the peer has confirmed it: from then on work can be posted. Who
    /// drops the future gives the connection up.
    ///
    /// # Errors
    /// As [`ConnectRequest::accept`] and [`Connection::wait_established`].
    pub async fn accept(self, qp: &Qp, param: &ConnParam) -> Result<AsyncConnection, Error> {
        AsyncConnection::established(self.request.accept(qp, param)?, self.channel).await
    }

    /// Refuses, as [`ConnectRequest::reject`].
    ///
    /// # Errors
    /// As [`ConnectRequest::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.request.reject(private_data)
    }
}

/// [`Connection`], for tasks: one that is established.
#[derive(Clone, Debug)]
pub struct AsyncConnection {
    connection: Connection,
    channel: Channel,
}

impl AsyncConnection {
    /// Connects, and waits until the connection is established. Who drops the future gives it up.
    /// To be called within a runtime.
    ///
    /// # Errors
    /// As [`EventChannel::connect`] and [`Connection::wait_established`].
    pub async fn connect(
        to: SocketAddr,
        qp: &Qp,
        param: &ConnParam,
    ) -> Result<AsyncConnection, Error> {
        let channel = Channel::new(&qp.context())?;
        let connection = channel.get().connect(to, qp, param)?;
        AsyncConnection::established(connection, channel).await
    }

    async fn established(
        connection: Connection,
        channel: Channel,
    ) -> Result<AsyncConnection, Error> {
        let attempt = || Ok(connection.is_established(Some(Duration::ZERO))?.then_some(()));
        channel.until(attempt).await?;
        Ok(AsyncConnection { connection, channel })
    }

    /// The connection: its queue pair, addresses, and what the peer said of itself.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until the connection is over, as [`Connection::wait_disconnected`].
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub async fn disconnected(&self) -> Result<(), Error> {
        let has_ended = || self.connection.wait_disconnected(Some(Duration::ZERO));
        self.channel.until(|| Ok(has_ended()?.then_some(()))).await
    }

    /// Ends the connection, as [`Connection::disconnect`].
    ///
    /// # Errors
    /// As [`Connection::disconnect`].
    pub fn disconnect(&self) -> Result<(), Error> {
        self.connection.disconnect()
    }
}
