//! `urxe top`: what queue pairs do now, live.

mod model;
mod screen;
mod svg;

use crate::asking::Asked;
use crate::cli::DaemonArguments;
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::{output, units};
use clap::Args;
use model::{Key, Look, Looks, Top};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  urxe top
      All queue pairs, those that move most first, every second anew.
  urxe top --once --filter ib_write_bw
      What the queue pairs of one program do within a second, as a table.
  urxe top --json --interval 5
      The same of all, as one JSON object.
  urxe top --svg top.svg
      A picture of what the terminal would show.

Keys:
  up, down, page up, page down   select a queue pair
  return, escape                 look at the selected one alone, and return
  left, right                    sort by another column
  r                              the other way round
  /                              show only lines with a text: return ends it, escape removes it
  q                              end

The round trip, the window and what holds a queue pair are those of the path to its peer, which it
shares with others of its slot and traffic class (urxe res path lists the paths); UC and UD have
none, and ordinary users are not shown any. A narrow terminal shows fewer columns, that of the
order in any case. Of WRITEs that go in parts, received packets tell more than messages would.";

/// How often it is looked whether a signal has come.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(100);

/// Show what queue pairs do now: rates, repeats, round trips, windows.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Time between two looks at the daemon.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    interval: Duration,

    /// Show only queue pairs whose line has this text: a device, program, peer, or state.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Print one table of what happens within an interval, and end.
    #[arg(long)]
    once: bool,

    /// The same as one JSON object.
    #[arg(long)]
    json: bool,

    /// Draw what a terminal would show of it into a file, and end.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["once", "json"])]
    svg: Option<PathBuf>,
}

/// Reads an interval.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::parse_duration(text)?;
    let least = Duration::from_millis(100);
    match interval >= least {
        true => Ok(interval),
        false => Err(format!("{text:?} is too short, expected 100ms or more")),
    }
}

/// Looks at the daemon again and again, or twice.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut client = DaemonClient::connect(&arguments.daemon, "top")?;
    if arguments.once || arguments.json || arguments.svg.is_some() {
        let mut looks = Looks::from(&Look::take(&mut client)?);
        sleep(arguments.interval);
        let mut rates = looks.since_last(&Look::take(&mut client)?);
        if let Some(path) = &arguments.svg {
            let mut top = Top::new(arguments.filter.clone());
            top.update(rates);
            let written = std::fs::write(path, svg::picture(&mut top));
            return written.map_err(Error::system(path.display().to_string()));
        }
        rates.retain(&arguments.filter);
        return output::print(arguments.json, &rates);
    }
    if !stdout().is_terminal() {
        let expected = "expected a terminal, or --once or --json";
        return Err(Error::Failed(format!("standard output: {expected}")));
    }
    // A daemon may say nothing: until the terminal is changed, any signal ends it.
    let first = Look::take(&mut client)?;
    // Raw mode would outlive a process that a signal ends; Ctrl-C is a key in it.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGQUIT, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Error::system("catching signals"))?;
    }
    let mut terminal = ratatui::try_init().map_err(Error::system("preparing the terminal"))?;
    let ended = live(client, &first, arguments, &mut terminal, &stop);
    ratatui::restore();
    ended
}

/// Shows what there is until the user or a signal ends it.
fn live(
    mut client: DaemonClient,
    first: &Look,
    arguments: &Arguments,
    terminal: &mut DefaultTerminal,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let mut looks = Looks::from(first);
    let mut top = Top::new(arguments.filter.clone());
    let mut next = Instant::now() + arguments.interval;
    while show_until(next, &mut top, terminal, stop)? {
        // In another thread: while a daemon says nothing, keys do what they do otherwise.
        let mut asked = Asked::begin(move || Look::take(&mut client).map(|look| (client, look)));
        let (same, look) = loop {
            asked = match asked.within(LOOK_FOR_SIGNALS) {
                Ok(answer) => break answer?,
                Err(asked) => asked,
            };
            if !show_until(Instant::now(), &mut top, terminal, stop)? {
                return Ok(());
            }
        };
        client = same;
        top.update(looks.since_last(&look));
        next = Instant::now() + arguments.interval;
    }
    Ok(())
}

/// Shows it, with what keys change of that, until it is this late; `false` if it is to end.
fn show_until(
    next: Instant,
    top: &mut Top,
    terminal: &mut DefaultTerminal,
    stop: &AtomicBool,
) -> Result<bool, Error> {
    loop {
        let drawn = terminal.draw(|frame| screen::draw(top, frame));
        drawn.map_err(Error::system("writing to the terminal"))?;
        match wait(next, stop)? {
            Wait::Over => return Ok(false),
            Wait::Event(Event::Key(pressed)) if !top.press(key(pressed)) => return Ok(false),
            Wait::Event(_) => {}
            Wait::Due => return Ok(true),
        }
    }
}

/// What came first.
enum Wait {
    /// A signal that ends it.
    Over,
    Event(Event),
    /// The next look.
    Due,
}

/// Waits until `next`, or for something to come before.
fn wait(next: Instant, stop: &AtomicBool) -> Result<Wait, Error> {
    let reading = || Error::system("reading keys");
    while !stop.load(Ordering::Relaxed) {
        let left = next.saturating_duration_since(Instant::now());
        // The wait for keys goes on after a signal.
        if event::poll(left.min(LOOK_FOR_SIGNALS)).map_err(reading())? {
            return Ok(Wait::Event(event::read().map_err(reading())?));
        }
        if left.is_zero() {
            return Ok(Wait::Due);
        }
    }
    Ok(Wait::Over)
}

/// What a key means here.
fn key(event: KeyEvent) -> Key {
    if event.kind == KeyEventKind::Release {
        return Key::Other;
    }
    match event.code {
        KeyCode::Char('c') if event.modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(char) => Key::Char(char),
        KeyCode::Up => Key::Rows(-1),
        KeyCode::Down => Key::Rows(1),
        KeyCode::PageUp => Key::Rows(-20),
        KeyCode::PageDown => Key::Rows(20),
        KeyCode::Left => Key::Columns(-1),
        KeyCode::Right => Key::Columns(1),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => Key::Other,
    }
}
