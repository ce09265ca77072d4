//! `urxe-apps`: what RDMA is for. Each application is a command.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the result is what it is for")]

use clap::{Parser, Subcommand};
use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;
use urxe_apps::cluster::{Cluster, Ran};
use urxe_apps::error::Error;
use urxe_apps::rdmc;

/// What RDMA is for: known algorithms, each on several processes of this machine.
///
/// Each command starts a daemon with a device for each node, and a process for each node, shows
/// what came of it, and leaves nothing behind. Needs no privilege and no hardware.
#[derive(Parser, Debug)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Large-object multicast: node 0 sends an object to all others, block by block.
    Rdmc {
        #[command(flatten)]
        cluster: Cluster,
        #[command(flatten)]
        arguments: rdmc::Arguments,
    },
}

fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Rdmc { cluster, arguments } => {
            match cluster.run(|node| rdmc::run(arguments, node))? {
                Ran::Node => Ok(()),
                Ran::Launcher(reports) => {
                    let summary = rdmc::Summary::new(arguments, cluster.nodes.into(), &reports);
                    show(cluster, &summary, summary.intact)
                }
            }
        }
    }
}

/// Prints the result. It is an error if the guarantees do not hold in it.
fn show(cluster: &Cluster, summary: &(impl Serialize + Display), holds: bool) -> Result<(), Error> {
    if cluster.json {
        let json = serde_json::to_string(summary);
        println!("{}", json.map_err(|error| Error::Broken(error.to_string()))?);
    } else {
        println!("{summary}");
    }
    if holds { Ok(()) } else { Err(Error::Broken("a guarantee does not hold".into())) }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urxe-apps: {error}");
            ExitCode::FAILURE
        }
    }
}
