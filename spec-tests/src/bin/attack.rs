//! Attacks a daemon, with victims beside; `cargo xtask attack` starts it.

#![allow(clippy::print_stdout)] // the table is what it is for

use clap::Parser;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use serde_json::json;
use std::io::BufRead;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use urxe_spec_tests::attack::found::FOUND;
use urxe_spec_tests::attack::table::{self, Attacker, Row};
use urxe_spec_tests::attack::testbed::{Extent, Testbed};
use urxe_spec_tests::attack::victim::{Victim, newcomer};
use urxe_spec_tests::attack::{self, Attack, Result, Setting};

/// Attacks a daemon of its own, and shows what becomes of it, of a newcomer and of victims beside
/// the attacker: one of the same user and, as root, one of another.
///
/// The attacker is of another user than the daemon first and then of the daemon's own, or only of
/// the latter if this is not run as root.
#[derive(Parser)]
#[command(bin_name = "cargo xtask attack")]
struct Args {
    /// Everything smaller and soon over, and judged by nothing that other programs on the machine
    /// can cause: how much slower victims become is shown and not judged.
    #[arg(long)]
    short: bool,
    /// Only the attacks with this in their names.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// How many slots the daemon has for programs of its own user, among them an attacker and a
    /// victim [default: what it has by default].
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Show JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Make no attack: show which repeats what was found once, and which are beside that.
    #[arg(long)]
    list: bool,
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
    unshared: bool,
    #[arg(long, hide = true)]
    socket: Option<PathBuf>,
    #[arg(long, hide = true)]
    addr: Vec<IpAddr>,
    #[arg(long, hide = true)]
    qpn: Vec<u32>,
    #[arg(long, hide = true, default_value_t = 0)]
    port: u16,
    /// The attacker that an attacker was started by.
    #[arg(long, hide = true)]
    parent: Option<i32>,
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
    let is_user = role.newcomer || role.victim.is_some() || role.attacker.is_some();
    if is_user && role.parent.is_none() {
        // As users who have logged in each: a system that shares processors out by session
        // (autogroup) then does so by user, however many threads and processes one has. It fails
        // only where it is so already.
        let _ = setsid();
    }
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
        // Whoever is started by an attacker goes with it, also if it went before.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if role.parent.is_some_and(|parent| getppid() != Pid::from_raw(parent)) {
            return Ok(ExitCode::SUCCESS);
        }
        let setting = Setting {
            socket,
            addrs: role.addr[..].try_into()?,
            qpns: role.qpn[..].try_into()?,
            port: role.port,
            is_short: args.short,
            is_unshared: role.unshared,
        };
        let attack = attack::all().find(|attack| attack.name == name).ok_or("no such attack")?;
        let ended = (attack.run)(&setting, &mut || println!("ready"));
        println!("{}", ended.map_or_else(|error| error.to_string(), |()| "it ended".to_owned()));
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        list(args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    make_attacks(args)
}

/// Shows what was found once and what repeats it.
fn list(as_json: bool) -> Result {
    let names = |attacks: &mut dyn Iterator<Item = &Attack>| -> Vec<&str> {
        attacks.map(|attack| attack.name).collect()
    };
    let mut own = attack::all().filter(|attack| attack.found.is_none());
    if as_json {
        let found: Vec<_> = (FOUND.iter())
            .map(|found| json!({ "found": found, "attacks": names(&mut found.attacks()) }))
            .collect();
        let all = json!({ "found": found, "besides": names(&mut own) });
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    for found in FOUND {
        let mut by = names(&mut found.attacks());
        by.extend(found.rules);
        println!("{:<4} {}\n     {}", found.id, found.what, by.join(", "));
    }
    println!("besides");
    for attack in own {
        println!("     {}: {}", attack.name, attack.what);
    }
    Ok(())
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
    let window = Duration::from_millis(if args.short { 250 } else { 3000 });
    let extent = Extent { is_short: args.short, window, trials: 3, slots: args.slots };
    if !rustix::process::geteuid().is_root() {
        eprintln!("attack: not root, so all programs are of the daemon's user");
    }
    let wanted = || attack::all().filter(|attack| attack.name.contains(&args.only));
    if wanted().next().is_none() {
        return Err(format!("no attack has {:?} in its name; see --list", args.only).into());
    }
    let mut testbed = Testbed::new(extent)?;
    let mut rows = Vec::new();
    for attacker in [Attacker::OtherUser, Attacker::DaemonsUser] {
        for attack in wanted() {
            let begun = Instant::now();
            let row = testbed.attack(attack, attacker);
            let Some(row) = row.map_err(|error| format!("{}: {error}", attack.name))? else {
                continue;
            };
            let (took, news) = (begun.elapsed().as_secs_f64(), row.news().join(", "));
            eprintln!("{took:>5.1} s  {}: {} {news}", attack.name, attack.what);
            if let Some(why) = &row.could_not_run {
                eprintln!("could not run: {}: {why}", attack.name);
            }
            rows.push(row);
        }
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&rows)?),
        false => print!("{}", table::show(&rows)),
    }
    let said = testbed.said();
    let (left, workers) = testbed.finish()?;
    let mut problems = judge(&rows, args.short);
    if rows.is_empty() {
        problems.push("no attack was made: this user can make none of these".to_owned());
    }
    // What else there is more than before the first program is not of those that are gone: tables,
    // and sockets for source ports, which were used for the first time.
    if left.sessions > 0 || left.objects > 0 {
        problems.push(format!("when all were gone: {left:?}"));
    }
    if workers > 0 {
        problems.push(format!("when all were gone: {workers} workers left"));
    }
    if problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{}\nthe daemon said:\n{said}", problems.join("\n"));
    Ok(ExitCode::FAILURE)
}

/// What must not be so.
fn judge(rows: &[Row], is_short: bool) -> Vec<String> {
    for (attack, problem) in table::not_seen(rows) {
        eprintln!("{attack}: {problem} is known and was not seen: is it so no more?");
    }
    let mut problems = Vec::new();
    for row in rows {
        let mut news = row.news();
        if !is_short && !row.is_within_bounds() {
            news.push("victims slowed down beyond the bounds");
        }
        problems.extend(news.iter().map(|news| format!("{}: {news}", row.attack)));
    }
    problems
}
