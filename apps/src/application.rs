//! What each application is to the program that runs it.

use crate::cluster::{Cluster, Node, Ran};
use crate::error::Error;
use clap::{Args, Command, FromArgMatches};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use urxe_chart::Chart;

/// An application, which its arguments are all that is known of beforehand.
pub trait Application: Args {
    /// What a node says when it has ended.
    type Report: Serialize + DeserializeOwned + Send;
    /// What the reports of all nodes come to.
    type Summary: Serialize + Display;

    /// How many nodes there are if nobody says so.
    const NODES: u8 = 4;

    /// Runs a node.
    ///
    /// # Errors
    /// What kept it from its end.
    fn run(&self, node: Node) -> Result<Self::Report, Error>;

    /// Puts the reports together, by rank; a node that was killed has none. Whether what the
    /// application guarantees holds in them.
    fn summary(&self, nodes: usize, reports: &[Option<Self::Report>]) -> (Self::Summary, bool);

    /// The ways to run it that are worth comparing: the arguments of each, as on a command line.
    fn ways() -> Vec<String>;

    /// What running it in all these ways came to.
    fn chart(summaries: &[Self::Summary]) -> Chart;
}

/// An application, and the nodes that it runs on.
#[derive(Args, Clone, Debug)]
pub struct Run<A: Application> {
    #[command(flatten)]
    cluster: Cluster,
    /// Run it in all ways that are worth comparing, one after the other, and print a table.
    #[arg(long, conflicts_with = "here")]
    table: bool,
    /// The same, and draw it.
    #[arg(long, value_name = "FILE", conflicts_with = "here")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    application: A,
}

impl<A: Application> Run<A> {
    /// Runs one node, or all of them; then the text to be shown is returned.
    ///
    /// # Errors
    /// [`Error::Broken`] if a guarantee does not hold; else as [`Cluster::run`].
    pub fn run(&self) -> Result<Option<String>, Error> {
        if !self.cluster.is_node() && (self.table || self.svg.is_some()) {
            return self.compare().map(Some);
        }
        let summary = self.once(&[])?;
        summary.map(|summary| self.shown(&summary, &summary)).transpose()
    }

    /// Runs it in all ways.
    fn compare(&self) -> Result<String, Error> {
        let mut summaries = Vec::new();
        for way in A::ways() {
            let added: Vec<OsString> = way.split_whitespace().map(OsString::from).collect();
            summaries.extend(Self::with(&added)?.once(&added)?);
        }
        let chart = A::chart(&summaries);
        if let Some(path) = &self.svg {
            let saved = chart.save(path, &urxe_chart::command("urxe-apps"));
            saved.map_err(Error::io("writing the picture"))?;
        }
        self.shown(&summaries, &chart)
    }

    /// The same with arguments added, which count before those that a person has given.
    fn with(added: &[OsString]) -> Result<Run<A>, Error> {
        // The first is the program, and the second, which is skipped as that, the application.
        let given = std::env::args_os().skip(1).chain(added.iter().cloned());
        let command = Run::<A>::augment_args(Command::new("way").args_override_self(true));
        let matches = command.try_get_matches_from(given);
        let run = matches.and_then(|matches| Run::from_arg_matches(&matches));
        run.map_err(|error| Error::Arguments(error.to_string()))
    }

    /// Runs it once, with these arguments added for the nodes. Nothing if this is one of them.
    fn once(&self, added: &[OsString]) -> Result<Option<A::Summary>, Error> {
        let ran = self.cluster.run(A::NODES, added, |node| self.application.run(node))?;
        let Ran::Launcher(reports) = ran else { return Ok(None) };
        let (summary, holds) = self.application.summary(reports.len(), &reports);
        if holds { Ok(Some(summary)) } else { Err(Error::Broken(self.shown(&summary, &summary)?)) }
    }

    fn shown(&self, json: &impl Serialize, text: &impl Display) -> Result<String, Error> {
        match self.cluster.json {
            true => serde_json::to_string(json).map_err(|error| Error::Broken(error.to_string())),
            false => Ok(text.to_string()),
        }
    }
}
