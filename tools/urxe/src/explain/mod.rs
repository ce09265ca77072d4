//! `urxe explain`: what a number or a name means that urxe, or a verbs program, has shown.

mod terms;

use crate::error::Error;
use crate::output;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::fmt;
use terms::{Kind, Term};

const EXAMPLES: &str = "\
Examples:
  urxe explain 12
      Everything that has this number: a status, a vendor_err, an errno, a reason of a REJ.
  urxe explain 0x6 --kind vendor-err
      The cause that is behind an error completion with `vendor_err 0x6`.
  urxe explain IBV_WC_RETRY_EXC_ERR EINVAL early_dropped RC-RESP-004
      A status, an errno, a counter of `urxe stat`, a rule.
  urxe explain --list --kind counter";

/// Say what a status, vendor_err, errno, counter, reject reason or rule means.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A number (12, 0x6, -22) or a name or part of it, in any case.
    #[arg(value_name = "TERM", required_unless_present = "list", allow_negative_numbers = true)]
    terms: Vec<String>,
    /// Only what is of this kind.
    #[arg(long)]
    kind: Option<Kind>,
    /// List all that there is.
    #[arg(long, conflicts_with = "terms")]
    list: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What the terms mean.
#[derive(Serialize)]
struct Explained {
    explained: Vec<Term>,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.explained.iter().try_for_each(|term| writeln!(f, "{term}"))
    }
}

/// Prints what each of the terms means.
///
/// # Errors
/// If one of them is nothing that is known. What is like it is named.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut all = terms::all();
    all.retain(|term| arguments.kind.is_none_or(|kind| term.kind == kind));
    if arguments.list {
        return output::print(arguments.json, &Explained { explained: all });
    }
    let mut explained = Vec::new();
    for wanted in &arguments.terms {
        let found = terms::find(&all, wanted);
        if found.is_empty() {
            return Err(unknown(&all, wanted, arguments.kind));
        }
        explained.extend(found.into_iter().cloned());
    }
    output::print(arguments.json, &Explained { explained })
}

fn unknown(all: &[Term], wanted: &str, kind: Option<Kind>) -> Error {
    let what = match kind.and_then(|kind| kind.to_possible_value()) {
        Some(kind) => format!("no {} is called {wanted:?}", kind.get_name()),
        None => format!("nothing is called {wanted:?}"),
    };
    let like = terms::like(all, wanted);
    Error::Usage(match like.is_empty() {
        true => format!("{what}: expected a status, vendor_err, errno, counter or rule (--list)"),
        false => format!("{what}: is it one of {}?", like.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_that_is_unknown_is_refused_with_those_like_it() {
        let all = terms::all();
        let said = unknown(&all, "early_droped", None).to_string();
        assert!(said.contains("\"early_droped\"") && said.contains("early_dropped"), "{said}");
        let said = unknown(&all, "?", Some(Kind::VendorErr)).to_string();
        assert!(said.contains("no vendor-err is called"), "{said}");
    }
}
