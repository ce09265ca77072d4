//! The way to a program that waits on a TCP port.

use super::{Agent, AgentError, Command};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// A program on a TCP port.
pub struct TcpAgent {
    stream: BufReader<TcpStream>,
}

/// The longest answer that is taken.
const LONGEST_ANSWER: u64 = 16 << 20;
/// What a program is given beyond the time that a command itself may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl TcpAgent {
    /// Connects with the program there.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn connect(to: impl ToSocketAddrs) -> io::Result<TcpAgent> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(TcpAgent { stream: BufReader::new(stream) })
    }

    fn exchange(&mut self, command: &Command) -> io::Result<Value> {
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        let mut answer = String::new();
        if (&mut self.stream).take(LONGEST_ANSWER).read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Agent for TcpAgent {
    fn call(&mut self, command: &Command) -> Result<Value, AgentError> {
        let answer = self.exchange(command).map_err(|error| AgentError::Gone(error.to_string()))?;
        let Some(reason) = answer.get("error").and_then(Value::as_str) else { return Ok(answer) };
        Err(AgentError::Refused {
            command: command.name(),
            reason: reason.to_string(),
            errno: answer.get("errno").and_then(Value::as_i64).map(|errno| errno as i32),
        })
    }
}
