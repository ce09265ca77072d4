//! Attacks a daemon, with victims beside; `cargo xtask attack` starts it.

#![allow(clippy::print_stdout)] // the table is what it is for

use clap::Parser;
use std::io::BufRead;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use urxe_spec_tests::attack::testbed::{Extent, Result, Testbed};
use urxe_spec_tests::attack::victim::{Victim, newcomer};
use urxe_spec_tests::attack::{self, Attack, Setting, table};

/// Attacks a daemon of its own, and shows what becomes of it, of a newcomer and of victims beside
/// the attacker: one of the same user and, as root, one of another.
#[derive(Parser)]
#[command(bin_name = "cargo xtask attack")]
struct Args {
    /// Everything smaller and sooner over: about a minute.
    #[arg(long)]
    short: bool,
    /// Only the attacks with this in their names.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Show JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    role: Role,
}

/// What a process is that this program starts of itself.
#[derive(clap::Args)]
struct Role {
    #[arg(long, hide = true)]
    attacker: Option<String>,
    #[arg(long, hide = true)]
    victim: Option<u16>,
    #[arg(long, hide = true)]
    newcomer: bool,
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
    #[arg(long, hide = true)]
    addr: Vec<IpAddr>,
    #[arg(long, hide = true)]
    qpn: Vec<u32>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("attack: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let role = &args.role;
    let socket = role.socket.clone().unwrap_or_default();
    if role.newcomer {
        match newcomer(&socket) {
            Ok(()) => println!("served"),
            Err(error) => println!("{error}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(port) = role.victim {
        let addrs = role.addr[..].try_into()?;
        return be_victim(Victim::new(&socket, addrs, port)?);
    }
    if let Some(name) = &role.attacker {
        let setting = Setting {
            socket,
            addrs: role.addr[..].try_into()?,
            qpns: role.qpn[..].try_into()?,
            is_short: args.short,
        };
        let attack = attack::all().find(|attack| attack.name == name).ok_or("no such attack")?;
        println!("{}", (attack.run)(&setting, &mut || println!("ready")));
        return Ok(ExitCode::SUCCESS);
    }
    make_attacks(args)
}

/// Measures whenever it is asked, for as many milliseconds as it is told.
fn be_victim(victim: Victim) -> Result<ExitCode> {
    println!("{}", serde_json::to_string(&victim.qpns())?);
    for line in std::io::stdin().lock().lines() {
        let time = Duration::from_millis(line?.parse()?);
        let seen = victim.measure(time).map_err(|error| error.to_string());
        println!("{}", serde_json::to_string(&seen)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn make_attacks(args: &Args) -> Result<ExitCode> {
    let window = Duration::from_millis(if args.short { 400 } else { 3_000 });
    let wanted: Vec<&Attack> =
        attack::all().filter(|attack| attack.name.contains(&args.only)).collect();
    if !rustix::process::geteuid().is_root() {
        eprintln!("attack: not root, so all programs are of one user");
    }
    let mut testbed = Testbed::new(Extent { is_short: args.short, window })?;
    let mut rows = Vec::new();
    for attack in wanted {
        eprintln!("{}: {}", attack.name, attack.what);
        rows.push(testbed.attack(attack)?);
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&rows)?),
        false => print!("{}", table::show(&rows)),
    }
    for (attack, problem) in table::not_seen(&rows) {
        eprintln!("{attack}: {problem} is known and was not seen: is it so no more?");
    }
    let news: Vec<_> = rows.iter().filter(|row| !row.news().is_empty()).collect();
    for row in &news {
        eprintln!("{}: {}", row.attack, row.news().join(", "));
    }
    Ok(match news.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
