//! What a command prints on standard output: text for people, or JSON for programs.

use crate::error::Error;
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};

/// Writes a result: as one line of JSON, or as text.
pub(crate) fn print<T: Serialize + Display>(as_json: bool, result: &T) -> Result<(), Error> {
    if as_json { json(result) } else { text(result) }
}

/// The version of what is printed as JSON, by all commands: higher once a key is no more, or means
/// something else. A key more changes nothing. `JSON.md` has the keys.
const JSON_VERSION: u32 = 1;

/// A result with the version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    result: &'a T,
}

/// Writes an object as one line of JSON, with the version in front.
pub(crate) fn json(result: &impl Serialize) -> Result<(), Error> {
    text(json_line(result)?)
}

/// An object as one line of JSON, with the version in front.
pub(crate) fn json_line(result: &impl Serialize) -> Result<String, Error> {
    let mut line = serde_json::to_string(&Versioned { version: JSON_VERSION, result })
        .map_err(|error| Error::Failed(format!("the result cannot be written as JSON: {error}")))?;
    line.push('\n');
    Ok(line)
}

/// Writes text.
///
/// A closed pipe (`urxe stat | head`) is [`Error::ReaderGone`], which ends the program quietly.
pub(crate) fn text(text: impl Display) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Error::ReaderGone),
        result => result.map_err(Error::system("writing to standard output")),
    }
}

/// What came of writing something, for a command that ends as it would have ended otherwise if
/// nobody reads it: it says by its exit code what it has found out.
pub(crate) fn even_if_unread(written: Result<(), Error>) -> Result<(), Error> {
    match written {
        Err(Error::ReaderGone) => Ok(()),
        written => written,
    }
}

/// Writes a remark for people: to standard error, so that it never mixes with results.
pub(crate) fn note(text: impl Display) {
    // If standard error is closed, there is no reader to miss it.
    let _ = writeln!(io::stderr(), "{text}");
}
