//! What each application is to the program that runs it.

use crate::cluster::{Cluster, Node, Ran};
use crate::error::Error;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// An application, which its arguments are all that is known of beforehand.
pub trait Application: Args {
    /// What a node says when it has ended.
    type Report: Serialize + DeserializeOwned + Send;
    /// What the reports of all nodes come to.
    type Summary: Serialize + Display;

    /// Runs a node.
    ///
    /// # Errors
    /// What kept it from its end.
    fn run(&self, node: Node) -> Result<Self::Report, Error>;

    /// Puts the reports together, by rank; a node that was killed has none. Whether what the
    /// application guarantees holds in them.
    fn summary(&self, nodes: usize, reports: &[Option<Self::Report>]) -> (Self::Summary, bool);
}

/// An application, and the nodes that it runs on.
#[derive(Args, Clone, Debug)]
pub struct Run<A: Application> {
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    application: A,
}

impl<A: Application> Run<A> {
    /// Runs one node, or all of them; then the text to be shown is returned.
    ///
    /// # Errors
    /// [`Error::Broken`] if a guarantee does not hold; else as [`Cluster::run`].
    pub fn run(&self) -> Result<Option<String>, Error> {
        let Ran::Launcher(reports) = self.cluster.run(|node| self.application.run(node))? else {
            return Ok(None);
        };
        let (summary, holds) = self.application.summary(self.cluster.nodes.into(), &reports);
        let text = match self.cluster.json {
            true => {
                serde_json::to_string(&summary).map_err(|error| Error::Broken(error.to_string()))?
            }
            false => summary.to_string(),
        };
        if holds { Ok(Some(text)) } else { Err(Error::Broken(text)) }
    }
}
