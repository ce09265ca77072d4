//! What is shown: rates between two looks at the daemon, sorted and filtered. No terminal.

use crate::daemon_client::{DaemonClient, DeviceStats};
use crate::error::Error;
use crate::growth::Growth;
use crate::path_view::PathView;
use crate::res::failure;
use crate::table::{Align, Table};
use crate::units;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_shm::control::{ResourceDetail, ResourceKind};

/// How many intervals a plot remembers.
const PLOTTED: usize = 200;

/// What the daemon said at one time.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) devices: Vec<Device>,
}

/// What it said of one device.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) stats: DeviceStats,
    /// By QPN.
    pub(super) qps: BTreeMap<u32, Qp>,
}

/// What is not counted of a queue pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Qp {
    pub(super) transport: &'static str,
    pub(super) peer: Option<IpAddr>,
    pub(super) peer_qpn: Option<u32>,
    /// The number of its path, of RC.
    pub(super) path: Option<u32>,
    /// The number of the cause of its last failure.
    pub(super) cause: Option<u32>,
}

impl Look {
    /// Asks the daemon.
    pub(super) fn take(client: &mut DaemonClient) -> Result<Look, Error> {
        let mut devices = Vec::new();
        for device in client.devices()? {
            let stats = client.stats(&device.name)?;
            let objects = client.resources(&device.name, ResourceKind::Qp)?;
            let qps = objects.into_iter().filter_map(|object| match object.detail {
                ResourceDetail::Qp { qp_type, peer, path, cause, .. } => {
                    let (gid, peer_qpn) = peer.unzip();
                    let peer = gid.map(|gid| gid.to_ip());
                    let transport = qp_type.name();
                    Some((object.number, Qp { transport, peer, peer_qpn, path, cause }))
                }
                _ => None,
            });
            devices.push(Device { name: device.name, stats, qps: qps.collect() });
        }
        Ok(Look { at: Instant::now(), devices })
    }
}

/// What happened between two looks.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Rates {
    /// Seconds in which it happened.
    pub(super) interval_s: f64,
    pub(super) qps: Vec<Row>,
}

/// What one queue pair did.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) device: String,
    pub(super) qpn: u32,
    #[serde(rename = "type")]
    pub(super) transport: &'static str,
    pub(super) state: String,
    pub(super) program: String,
    pub(super) peer: Option<IpAddr>,
    pub(super) peer_qpn: Option<u32>,
    /// Work requests that ended well, in a second.
    pub(super) messages_per_s: f64,
    pub(super) sent_gbit_s: f64,
    pub(super) received_packets_per_s: f64,
    pub(super) received_gbit_s: f64,
    /// Packets sent again.
    pub(super) repeats_per_s: f64,
    /// Of its path, as what is below.
    pub(super) round_trip_us: Option<f64>,
    pub(super) window: Option<u64>,
    pub(super) held_by: Option<&'static str>,
    pub(super) last_cut: Option<&'static str>,
    /// Of its last failure: the number, as in `vendor_err`, and the name.
    pub(super) cause: Option<String>,
}

/// Looks one after the other, and what happens between them.
pub(super) struct Looks {
    growth: Growth,
    before: Instant,
}

impl Looks {
    /// Begins with a first one.
    pub(super) fn from(first: &Look) -> Looks {
        let mut looks = Looks { growth: Growth::default(), before: first.at };
        looks.since_last(first);
        looks
    }

    /// What was counted since the last one.
    pub(super) fn since_last(&mut self, now: &Look) -> Rates {
        let before = std::mem::replace(&mut self.before, now.at);
        let interval = now.at.saturating_duration_since(before);
        let seconds = interval.max(Duration::from_millis(1)).as_secs_f64();
        let qps = now.devices.iter().flat_map(|device| {
            let grown = self.growth.since_last(&device.name, &device.stats, now.at);
            device.rows(&grown, seconds)
        });
        Rates { interval_s: seconds, qps: qps.collect() }
    }
}

impl Rates {
    /// Keeps what has this text in its line.
    pub(super) fn retain(&mut self, text: &str) {
        self.qps.retain(|row| row.has(text));
    }
}

impl Device {
    /// What its QPs did, of which the counters have `grown` so much.
    fn rows(&self, grown: &DeviceStats, seconds: f64) -> Vec<Row> {
        let counter = |name| grown.qp_counters.iter().position(|info| info.name == name);
        let [messages, sent, packets, received, repeats] = [
            "sent_messages",
            "sent_bytes",
            "received_packets",
            "received_bytes",
            "retransmitted_packets",
        ]
        .map(counter);
        let paths: HashMap<u32, PathView> =
            grown.paths.iter().map(|path| (path.number, PathView::from(path))).collect();
        let rows = grown.qps.iter().map(|qp| {
            let rate = |counter: Option<usize>| {
                let value = counter.and_then(|counter| qp.values.get(counter).copied());
                value.unwrap_or(0) as f64 / seconds
            };
            let object = self.qps.get(&qp.qpn).cloned().unwrap_or_default();
            let path = object.path.and_then(|path| paths.get(&path));
            Row {
                device: self.name.clone(),
                qpn: qp.qpn,
                transport: object.transport,
                state: format!("{:?}", qp.state).to_uppercase(),
                program: qp.program.clone(),
                peer: object.peer,
                peer_qpn: object.peer_qpn,
                messages_per_s: rate(messages),
                sent_gbit_s: rate(sent) * 8e-9,
                received_packets_per_s: rate(packets),
                received_gbit_s: rate(received) * 8e-9,
                repeats_per_s: rate(repeats),
                round_trip_us: path.and_then(|path| path.round_trip_us),
                window: path.map(|path| path.outward.window),
                held_by: path.map(|path| path.outward.held_by),
                last_cut: path.and_then(|path| path.outward.last_cut),
                cause: object.cause.map(failure),
            }
        });
        rows.collect()
    }
}

/// Gbit/s, of which one among very many queue pairs has little.
pub(super) fn gbit(value: f64) -> String {
    if value == 0.0 || value >= 0.1 { format!("{value:.2}") } else { format!("{value:.5}") }
}

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Device,
    Qpn,
    Transport,
    State,
    Program,
    Peer,
    Messages,
    Sent,
    Packets,
    Received,
    Repeats,
    RoundTrip,
    Window,
    HeldBy,
}

impl Column {
    pub(super) const ALL: [Column; 14] = [
        Column::Device,
        Column::Qpn,
        Column::Transport,
        Column::State,
        Column::Program,
        Column::Peer,
        Column::Messages,
        Column::Sent,
        Column::Packets,
        Column::Received,
        Column::Repeats,
        Column::RoundTrip,
        Column::Window,
        Column::HeldBy,
    ];

    /// What is shown of these where there is room for so many characters of a line, each column
    /// with `gap` to the next: whole columns, because a figure without its first digits is another
    /// figure. The one that `sort` names is shown before others.
    pub(super) fn fitting(
        widths: &[usize; 14],
        gap: usize,
        room: usize,
        sort: Option<Column>,
    ) -> Vec<Column> {
        // What tells most comes first.
        let order = [
            Column::Qpn,
            Column::Sent,
            Column::Received,
            Column::Messages,
            Column::Program,
            Column::Repeats,
            Column::Device,
            Column::HeldBy,
            Column::RoundTrip,
            Column::Window,
            Column::Peer,
            Column::State,
            Column::Packets,
            Column::Transport,
        ];
        let mut used = 0;
        let mut shown: Vec<Column> = Vec::new();
        for column in sort.into_iter().chain(order) {
            let before = if shown.is_empty() { 0 } else { used + gap };
            let after = before + widths[column as usize];
            if !shown.contains(&column) && (shown.is_empty() || after <= room) {
                shown.push(column);
                used = after;
            }
        }
        shown.sort_by_key(|&column| column as usize);
        shown
    }

    pub(super) fn head(self) -> &'static str {
        match self {
            Column::Device => "device",
            Column::Qpn => "qpn",
            Column::Transport => "type",
            Column::State => "state",
            Column::Program => "program",
            Column::Peer => "peer",
            Column::Messages => "msg/s",
            Column::Sent => "out Gbit/s",
            Column::Packets => "in pkt/s",
            Column::Received => "in Gbit/s",
            Column::Repeats => "repeats/s",
            Column::RoundTrip => "rtt us",
            Column::Window => "window",
            Column::HeldBy => "held by",
        }
    }

    pub(super) fn align(self) -> Align {
        match self {
            Column::Device | Column::Qpn | Column::Transport | Column::State => Align::Left,
            Column::Program | Column::Peer | Column::HeldBy => Align::Left,
            _ => Align::Right,
        }
    }

    pub(super) fn cell(self, row: &Row) -> String {
        let number = |value: f64| units::count(value.round() as u64);
        let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        match self {
            Column::Device => row.device.clone(),
            Column::Qpn => format!("{:#08x}", row.qpn),
            Column::Transport => row.transport.to_owned(),
            Column::State => row.state.clone(),
            Column::Program => row.program.clone(),
            Column::Peer => known(row.peer.map(|peer| peer.to_string())),
            Column::Messages => number(row.messages_per_s),
            Column::Sent => gbit(row.sent_gbit_s),
            Column::Packets => number(row.received_packets_per_s),
            Column::Received => gbit(row.received_gbit_s),
            Column::Repeats => number(row.repeats_per_s),
            Column::RoundTrip => known(row.round_trip_us.map(|us| format!("{us:.1}"))),
            Column::Window => known(row.window.map(units::count)),
            Column::HeldBy => known(row.held_by.map(str::to_owned)),
        }
    }

    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let figure = |row: &Row| match self {
            Column::Messages => Some(row.messages_per_s),
            Column::Sent => Some(row.sent_gbit_s),
            Column::Packets => Some(row.received_packets_per_s),
            Column::Received => Some(row.received_gbit_s),
            Column::Repeats => Some(row.repeats_per_s),
            Column::RoundTrip => Some(row.round_trip_us.unwrap_or(-1.0)),
            Column::Window => Some(row.window.map_or(-1.0, |window| window as f64)),
            _ => None,
        };
        match (figure(one), figure(other)) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.cell(one).cmp(&self.cell(other)),
        }
    }
}

impl Row {
    fn has(&self, text: &str) -> bool {
        text.is_empty() || Column::ALL.iter().any(|column| column.cell(self).contains(text))
    }

    fn key(&self) -> (String, u32) {
        (self.device.clone(), self.qpn)
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = Column::ALL.map(|column| (column.head(), column.align()));
        let mut table = Table::new(&columns);
        let mut rows: Vec<&Row> = self.qps.iter().collect();
        rows.sort_by(|one, other| busiest_first(one, other));
        for row in rows {
            table.row(Column::ALL.map(|column| column.cell(row)).to_vec());
        }
        write!(f, "{table}")
    }
}

fn busiest_first(one: &Row, other: &Row) -> Ordering {
    let all = |row: &Row| row.sent_gbit_s + row.received_gbit_s;
    all(other).total_cmp(&all(one)).then_with(|| one.key().cmp(&other.key()))
}

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Rows(i32),
    Columns(i32),
    Enter,
    Escape,
    Backspace,
    Interrupt,
    Other,
}

/// What the user looks at.
#[derive(Debug, Default)]
pub(super) struct Top {
    rates: Rates,
    /// `None`: the busiest first.
    sort: Option<Column>,
    is_reversed: bool,
    filter: String,
    /// The filter is being typed.
    is_typing: bool,
    selected: Option<(String, u32)>,
    /// The selected one is looked at alone.
    is_alone: bool,
    /// Sent and received of each queue pair, in kbit/s, the oldest first.
    plots: HashMap<(String, u32), VecDeque<u64>>,
}

impl Top {
    pub(super) fn new(filter: String) -> Top {
        Top { filter, ..Top::default() }
    }

    /// Takes what has happened since.
    pub(super) fn update(&mut self, rates: Rates) {
        let mut plots = HashMap::new();
        for row in &rates.qps {
            let mut plot: VecDeque<u64> = self.plots.remove(&row.key()).unwrap_or_default();
            if plot.len() == PLOTTED {
                plot.pop_front();
            }
            plot.push_back(((row.sent_gbit_s + row.received_gbit_s) * 1e6) as u64);
            plots.insert(row.key(), plot);
        }
        // What is gone is forgotten with its plot.
        self.plots = plots;
        self.rates = rates;
    }

    /// What is shown, in order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> =
            self.rates.qps.iter().filter(|row| row.has(&self.filter)).collect();
        match self.sort {
            None => rows.sort_by(|one, other| busiest_first(one, other)),
            // The largest first.
            Some(column) => rows.sort_by(|one, other| column.compare(other, one)),
        }
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// The place of the selected row among those that are shown.
    pub(super) fn selected(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows().iter().position(|row| row.device == selected.0 && row.qpn == selected.1)
    }

    /// The queue pair that is looked at alone, if it is still there, and its plot.
    pub(super) fn alone(&self) -> Option<(&Row, Vec<u64>)> {
        let selected = self.selected.as_ref().filter(|_| self.is_alone)?;
        let row = self.rates.qps.iter().find(|row| row.key() == *selected)?;
        let plot = self.plots.get(selected).into_iter().flatten().copied().collect();
        Some((row, plot))
    }

    pub(super) fn sort(&self) -> Option<Column> {
        self.sort
    }

    /// Beside the table: how much is shown, and what the user types.
    pub(super) fn status(&self) -> String {
        let (rows, all) = (self.rows(), self.rates.qps.len());
        let shown = rows.len();
        let sum = |rate: fn(&Row) -> f64| gbit(rows.iter().map(|row| rate(row)).sum());
        let (sent, received) = (sum(|row| row.sent_gbit_s), sum(|row| row.received_gbit_s));
        let filter = match (self.is_typing, self.filter.is_empty()) {
            (true, _) => format!("  /{}_", self.filter),
            (false, false) => format!("  with {:?}", self.filter),
            (false, true) => String::new(),
        };
        let seconds = self.rates.interval_s;
        format!(
            "{shown} of {all} queue pairs in {seconds:.1} s: {sent} Gbit/s out, {received} \
             in{filter}"
        )
    }

    /// Does what a key asks for; `false` if that is to end.
    pub(super) fn press(&mut self, key: Key) -> bool {
        if self.is_typing {
            match key {
                Key::Char(char) => self.filter.push(char),
                Key::Backspace => drop(self.filter.pop()),
                Key::Enter => self.is_typing = false,
                Key::Escape => (self.is_typing, self.filter) = (false, String::new()),
                Key::Interrupt => return false,
                Key::Rows(_) | Key::Columns(_) | Key::Other => {}
            }
            return true;
        }
        match key {
            Key::Char('q') | Key::Interrupt => return false,
            Key::Char('/') => self.is_typing = true,
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Enter => self.is_alone = self.selected().is_some(),
            Key::Escape => self.is_alone = false,
            Key::Rows(by) => self.select(by),
            Key::Columns(by) => self.sort_by(by),
            Key::Char(_) | Key::Backspace | Key::Other => {}
        }
        true
    }

    fn select(&mut self, by: i32) {
        let now = self.selected().map_or(if by > 0 { -1 } else { 0 }, |place| place as i32);
        let rows = self.rows();
        let last = rows.len().saturating_sub(1) as i32;
        let place = now.saturating_add(by).clamp(0, last) as usize;
        self.selected = rows.get(place).map(|row| row.key());
    }

    fn sort_by(&mut self, by: i32) {
        let count = Column::ALL.len() as i32;
        let now = self.sort.and_then(|sort| Column::ALL.iter().position(|&column| column == sort));
        // Before the first column stands the order of the beginning.
        let next = (now.map_or(-1, |place| place as i32) + by + 1).rem_euclid(count + 1) - 1;
        self.sort = usize::try_from(next).ok().map(|place| Column::ALL[place]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::{CounterInfo, PathState, QpStats};
    use urxe_types::QpState;

    fn look(at: Instant, qps: &[(u32, u64, u64)]) -> Look {
        let counter = |name: &str| CounterInfo { name: name.into(), meaning: String::new() };
        let stats = DeviceStats {
            qp_counters: vec![counter("sent_bytes"), counter("sent_messages")],
            qps: qps
                .iter()
                .map(|&(qpn, bytes, messages)| QpStats {
                    qpn,
                    state: QpState::Rts,
                    program: format!("program{qpn}"),
                    values: vec![bytes, messages],
                })
                .collect(),
            ..DeviceStats::default()
        };
        let device = Device { name: "urxe0".into(), stats, qps: BTreeMap::new() };
        Look { at, devices: vec![device] }
    }

    fn between(before: &Look, now: &Look) -> Rates {
        Looks::from(before).since_last(now)
    }

    fn rates() -> Rates {
        let start = Instant::now();
        let before = look(start, &[(1, 0, 0), (2, 1_000, 10), (3, 5_000, 5)]);
        let now = [(1, 1_000_000_000, 50), (2, 1_000, 210), (3, 2_000, 1), (4, 500, 2)];
        between(&before, &look(start + Duration::from_secs(2), &now))
    }

    fn qpns(top: &Top) -> Vec<u32> {
        top.rows().iter().map(|row| row.qpn).collect()
    }

    #[test]
    fn rates_are_per_second_and_what_is_new_has_counted_from_0() {
        let rates = rates();
        assert_eq!(rates.interval_s, 2.0);
        assert_eq!((rates.qps[0].sent_gbit_s, rates.qps[0].messages_per_s), (4.0, 25.0));
        assert_eq!((rates.qps[1].sent_gbit_s, rates.qps[1].messages_per_s), (0.0, 100.0));
        // Another queue pair has the number now.
        assert_eq!(rates.qps[2].messages_per_s, 0.5);
        assert_eq!(rates.qps[3].messages_per_s, 1.0);
        assert_eq!(rates.qps[3].round_trip_us, None);
    }

    #[test]
    fn each_queue_pair_has_the_figures_of_its_own_path_also_where_several_lead_to_its_peer() {
        let start = Instant::now();
        let mut now = look(start, &[(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0)]);
        let path = |number, window| {
            let mut path = PathState { number, ..crate::path_view::tests::path() };
            path.outward.window = window;
            path
        };
        now.devices[0].stats.paths = vec![path(7, 1_000), path(0x0100_0007, 2_000)];
        let paths = [(1, Some(7)), (2, Some(0x0100_0007)), (3, None), (4, Some(8))];
        now.devices[0].qps = paths.map(|(qpn, path)| (qpn, Qp { path, ..Qp::default() })).into();
        let rates = between(&look(start, &[]), &now);
        let windows: Vec<Option<u64>> = rates.qps.iter().map(|row| row.window).collect();
        assert_eq!(windows, [Some(1_000), Some(2_000), None, None]);
    }

    #[test]
    fn columns_are_shown_whole_and_that_of_the_order_in_any_case() {
        let widths = Column::ALL.map(|column| column.head().len());
        let fitting = |room, sort| Column::fitting(&widths, 1, room, sort);
        assert_eq!(fitting(1_000, None), Column::ALL);
        for room in 0..200 {
            for sort in std::iter::once(None).chain(Column::ALL.map(Some)) {
                let shown = fitting(room, sort);
                let taken: usize = shown.iter().map(|&column| widths[column as usize] + 1).sum();
                assert!(taken - 1 <= room || shown.len() == 1, "{room}: {shown:?}");
                assert!(sort.is_none_or(|sort| shown.contains(&sort)), "{room}: {shown:?}");
            }
        }
    }

    #[test]
    fn a_small_rate_is_told_from_none() {
        assert_eq!([0.0, 0.000_12, 0.5, 21.25].map(gbit), ["0.00", "0.00012", "0.50", "21.25"]);
    }

    #[test]
    fn the_last_cause_is_named() {
        let start = Instant::now();
        let mut now = look(start, &[(1, 0, 0)]);
        let qp = Qp { transport: "RC", cause: Some(2), ..Qp::default() };
        now.devices[0].qps.insert(1, qp);
        let rates = between(&look(start, &[]), &now);
        assert_eq!(rates.qps[0].cause.as_deref(), Some("0x2 AckTimeout"));
    }

    #[test]
    fn the_busiest_come_first_or_what_a_column_says() {
        let mut top = Top::new(String::new());
        top.update(rates());
        assert_eq!(qpns(&top), [1, 3, 4, 2]);
        while top.sort() != Some(Column::Messages) {
            assert!(top.press(Key::Columns(1)));
        }
        assert_eq!(qpns(&top), [2, 1, 4, 3]);
        assert!(top.press(Key::Char('r')));
        assert_eq!(qpns(&top), [3, 4, 1, 2]);
        for _ in 0..=Column::ALL.len() {
            assert!(top.press(Key::Columns(-1)));
        }
        assert_eq!(top.sort(), Some(Column::Messages), "once round");
    }

    #[test]
    fn a_filter_is_typed_and_removed() {
        let mut top = Top::new("program1".into());
        top.update(rates());
        assert_eq!(qpns(&top), [1]);
        for key in [Key::Char('/'), Key::Backspace, Key::Char('4'), Key::Enter] {
            assert!(top.press(key));
        }
        assert_eq!((qpns(&top), top.status().contains("program4")), (vec![4], true));
        assert!(top.press(Key::Char('/')) && top.press(Key::Char('q')), "q is a letter here");
        assert!(top.press(Key::Escape));
        assert_eq!(top.rows().len(), 4);
        assert!(!top.press(Key::Char('q')));
    }

    #[test]
    fn the_selected_one_stays_selected_where_the_order_changes_and_is_forgotten_when_it_is_gone() {
        let mut top = Top::new(String::new());
        top.update(rates());
        assert_eq!(top.selected(), None);
        top.press(Key::Rows(1));
        top.press(Key::Rows(1));
        assert_eq!(top.selected(), Some(1));
        top.press(Key::Char('r'));
        assert_eq!(top.selected(), Some(2), "queue pair 3");
        top.press(Key::Rows(20));
        assert_eq!(top.selected(), Some(3));
        top.press(Key::Enter);
        assert_eq!(top.alone().map(|(row, plot)| (row.qpn, plot)), Some((1, vec![4_000_000])));
        top.update(rates());
        assert_eq!(top.alone().map(|(_, plot)| plot.len()), Some(2));
        top.update(Rates::default());
        assert!(top.alone().is_none() && top.plots.is_empty());
    }

    #[test]
    fn a_plot_does_not_grow_without_bound() {
        let mut top = Top::new(String::new());
        (0..2 * PLOTTED).for_each(|_| top.update(rates()));
        assert!(top.plots.values().all(|plot| plot.len() == PLOTTED));
    }
}
