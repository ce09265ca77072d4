//! `urxe res`: the objects of a device with their owners and states, in the manner of
//! `rdma resource`.

use crate::cli::DaemonArguments;
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::output;
use crate::path_view::PathView;
use crate::table::{Align, Table};
use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt;
use std::net::IpAddr;
use urxe_engine::Cause;
use urxe_verbs::cm::{IdState, PortSpace};
use urxe_verbs::{Access, MwType, QpState, Resource, ResourceDetail, ResourceKind};

const EXAMPLES: &str = "\
Examples:
  urxe res
      All objects of all devices.
  urxe res qp
      Queue pairs: transport, state, peer, PSNs, and the queues that they use.
  urxe res cm-id
      Listeners and connections by address.
  urxe res path
      Ways to peers: windows, rates, round trips, and what QPs wait for.
  urxe res mr --device urxe0 --json
      Memory registrations of one device, for a script.

Objects of other users, and paths, are shown to root and to the user that the daemon runs as.";

/// List QPs, CQs, SRQs, MRs, memory windows, connections by address and paths, with owner and
/// state.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Only objects of this kind [default: all].
    #[arg(value_enum)]
    kind: Option<Kind>,

    /// Only this device [default: all].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Print one JSON object in place of text.
    #[arg(long)]
    json: bool,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Qp,
    Cq,
    Mr,
    Mw,
    Srq,
    /// Ids of the connection manager: listeners and connections by address.
    CmId,
    /// Ways to peers: windows, rates and round trips.
    Path,
}

impl Kind {
    /// All that a device has of this kind.
    fn rows(self, client: &mut DaemonClient, device: &str) -> Result<Vec<Row>, Error> {
        let kind = match self {
            Kind::Qp => ResourceKind::Qp,
            Kind::Cq => ResourceKind::Cq,
            Kind::Mr => ResourceKind::Mr,
            Kind::Mw => ResourceKind::Mw,
            Kind::Srq => ResourceKind::Srq,
            Kind::CmId => ResourceKind::CmId,
            Kind::Path => {
                let paths = client.paths(device)?;
                return Ok(paths.iter().map(|path| Row::of_path(&path.into())).collect());
            }
        };
        Ok(client.resources(device, kind)?.iter().map(Row::new).collect())
    }

    const fn title(self) -> &'static str {
        match self {
            Kind::Qp => "queue pairs",
            Kind::Cq => "completion queues",
            Kind::Mr => "memory registrations",
            Kind::Mw => "memory windows",
            Kind::Srq => "shared receive queues",
            Kind::CmId => "connection manager ids",
            Kind::Path => "paths",
        }
    }
}

/// Queries the daemon and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut client = DaemonClient::connect(&arguments.daemon, "res")?;
    let mut devices = Vec::new();
    for device in client.devices_named(arguments.device.as_deref())? {
        let kinds = Kind::value_variants().iter().copied();
        let kinds = kinds.filter(|&kind| arguments.kind.is_none_or(|wanted| wanted == kind));
        let lists =
            kinds.map(|kind| Ok(List { kind, rows: kind.rows(&mut client, &device.name)? }));
        let lists = lists.collect::<Result<_, Error>>()?;
        devices.push(Device { device: device.name, address: device.address, lists });
    }
    output::print(arguments.json, &Devices { devices })
}

#[derive(Serialize)]
struct Devices {
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    device: String,
    address: IpAddr,
    #[serde(flatten, serialize_with = "by_kind")]
    lists: Vec<List>,
}

/// Objects of one kind.
struct List {
    kind: Kind,
    rows: Vec<Row>,
}

/// One object: names and values, in the order of a table's columns; an object in JSON.
struct Row(Vec<(&'static str, Value)>);

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn by_kind<S: Serializer>(lists: &[List], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(lists.iter().map(|list| (list.kind, &list.rows)))
}

impl Row {
    fn new(resource: &Resource) -> Row {
        let Resource { number, program, uid, pd, detail } = resource;
        let mut cells = match detail {
            ResourceDetail::Qp {
                qp_type,
                state,
                send_cq,
                recv_cq,
                srq,
                peer,
                path,
                sq_psn,
                rq_psn,
                cause,
            } => {
                vec![
                    ("qpn", hex(*number)),
                    ("type", json!(qp_type.name())),
                    ("state", json!(state_name(*state))),
                    ("send_cq", json!(send_cq)),
                    ("recv_cq", json!(recv_cq)),
                    ("srq", json!(srq)),
                    ("peer", json!(peer.map(|(gid, _)| gid.to_ip()))),
                    ("peer_qpn", peer.map_or(Value::Null, |(_, qpn)| hex(qpn))),
                    ("path", json!(path)),
                    ("sq_psn", json!(sq_psn)),
                    ("rq_psn", json!(rq_psn)),
                    ("cause", json!(cause.map(failure))),
                ]
            }
            ResourceDetail::Cq { cqe, unread, qps, failed } => vec![
                ("cq", json!(number)),
                ("state", json!(if *failed { "OVERRUN" } else { "OK" })),
                ("cqe", json!(cqe)),
                ("unread", json!(unread)),
                ("qps", json!(qps)),
            ],
            ResourceDetail::Srq { max_wr, posted, limit, qps } => vec![
                ("srq", json!(number)),
                ("max_wr", json!(max_wr)),
                ("posted", json!(posted)),
                ("limit", json!(limit)),
                ("qps", json!(qps)),
            ],
            ResourceDetail::Mr { iova, length, access, copied, has_mapped_pages } => vec![
                ("key", hex(*number)),
                ("addr", json!(format!("{iova:#x}"))),
                ("length", json!(length)),
                ("access", rights(*access)),
                (
                    "reached_by",
                    json!(match (copied, has_mapped_pages) {
                        (None, _) => "loads and stores",
                        (Some(_), true) => "both",
                        (Some(_), false) => "system calls",
                    }),
                ),
                ("because", json!(copied)),
            ],
            ResourceDetail::Mw { mw_type, bound } => vec![
                ("rkey", hex(*number)),
                ("type", json!(if *mw_type == MwType::One { "1" } else { "2B" })),
                ("state", json!(if bound.is_some() { "BOUND" } else { "FREE" })),
                ("mr", bound.map_or(Value::Null, |bound| hex(bound.mr))),
                ("addr", json!(bound.map(|bound| format!("{:#x}", bound.addr)))),
                ("length", json!(bound.map(|bound| bound.length))),
                ("access", bound.map_or(Value::Null, |bound| rights(bound.access))),
                ("qpn", bound.and_then(|bound| bound.qpn).map_or(Value::Null, hex)),
            ],
            ResourceDetail::CmId { space, qp_type, state, qpn, local, peer } => vec![
                ("cm_id", json!(number)),
                ("type", json!(qp_type.name())),
                ("state", json!(id_state(*state))),
                ("ports", json!(port_space(*space))),
                ("qpn", qpn.map_or(Value::Null, hex)),
                ("local", json!(local)),
                ("peer", json!(peer)),
            ],
        };
        if !matches!(detail, ResourceDetail::Cq { .. } | ResourceDetail::CmId { .. }) {
            cells.push(("pd", json!(pd)));
        }
        cells.extend([("program", json!(program)), ("uid", json!(uid))]);
        Row(cells)
    }

    fn of_path(path: &PathView) -> Row {
        let tenth = |us: Option<f64>| us.map(|us| (us * 10.0).round() / 10.0);
        let (out, back) = (&path.outward, &path.inward);
        Row(vec![
            ("path", json!(path.path)),
            ("local", json!(path.local)),
            ("peer", json!(path.peer)),
            ("class", json!(path.traffic_class)),
            ("qps", json!(path.qps)),
            ("rtt_us", json!(tenth(path.round_trip_us))),
            ("least_us", json!(tenth(path.least_round_trip_us))),
            ("out_in_flight", json!(out.in_flight)),
            ("out_window", json!(out.window)),
            ("out_gbit_s", json!(out.gbit_s)),
            ("out_waiting", json!(out.qps_waiting)),
            ("out_held_by", json!(out.held_by)),
            ("in_in_flight", json!(back.in_flight)),
            ("in_window", json!(back.window)),
            ("in_gbit_s", json!(back.gbit_s)),
            ("in_waiting", json!(back.qps_waiting)),
            ("in_held_by", json!(back.held_by)),
            ("recovery", json!(path.peer_does())),
        ])
    }
}

/// The number of a cause, as in `vendor_err`, and its name.
pub(crate) fn failure(cause: u32) -> String {
    let name = Cause::from_number(cause).map_or_else(String::new, |cause| format!(" {cause:?}"));
    format!("{cause:#x}{name}")
}

fn hex(number: u32) -> Value {
    json!(format!("{number:#08x}"))
}

/// The states of an id in the words of `rdma resource`, as far as they are the same.
const fn id_state(state: IdState) -> &'static str {
    match state {
        IdState::Bound => "ADDR_BOUND",
        IdState::AddrResolved => "ADDR_RESOLVED",
        IdState::RouteResolved => "ROUTE_RESOLVED",
        IdState::Listening => "LISTEN",
        IdState::Connected => "CONNECT",
        IdState::Over => "OVER",
    }
}

const fn port_space(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Ipoib => "IPOIB",
        PortSpace::Tcp => "TCP",
        PortSpace::Udp => "UDP",
        PortSpace::Ib => "IB",
    }
}

fn state_name(state: QpState) -> String {
    state.name().to_owned()
}

/// The names of access rights.
fn rights(access: Access) -> Value {
    let all = [
        (Access::LOCAL_WRITE, "local-write"),
        (Access::REMOTE_WRITE, "write"),
        (Access::REMOTE_READ, "read"),
        (Access::REMOTE_ATOMIC, "atomic"),
        (Access::MW_BIND, "bind"),
        (Access::ZERO_BASED, "zero-based"),
        (Access::FLUSH_GLOBAL, "flush-global"),
        (Access::FLUSH_PERSISTENT, "flush-persistent"),
    ];
    let names = all.iter().filter(|(right, _)| access.contains(*right)).map(|(_, name)| *name);
    json!(names.collect::<Vec<_>>().join(","))
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Device { device, address, lists } in &self.devices {
            writeln!(f, "{device} ({address})")?;
            for List { kind, rows } in lists {
                let Some(first) = rows.first() else {
                    writeln!(f, "  no {}", kind.title())?;
                    continue;
                };
                writeln!(f, "  {} {}", rows.len(), kind.title())?;
                let columns = first.0.iter().map(|(name, value)| {
                    (*name, if value.is_number() { Align::Right } else { Align::Left })
                });
                let mut table = Table::new(&columns.collect::<Vec<_>>());
                for row in rows {
                    table.row(row.0.iter().map(|(_, value)| text(value)).collect());
                }
                table.to_string().lines().try_for_each(|line| writeln!(f, "    {line}"))?;
            }
        }
        Ok(())
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_verbs::QpType;

    fn device(kind: Kind, detail: ResourceDetail) -> Devices {
        let resource =
            Resource { number: 0x11, program: "perf 7".into(), uid: 1000, pd: 3, detail };
        let lists = vec![List { kind, rows: vec![Row::new(&resource)] }];
        let address = IpAddr::from([127, 0, 0, 1]);
        Devices { devices: vec![Device { device: "urxe0".into(), address, lists }] }
    }

    #[test]
    fn text_and_json_say_the_same() {
        let srq = ResourceDetail::Srq { max_wr: 127, posted: 5, limit: 0, qps: 2 };
        let devices = device(Kind::Srq, srq);
        let json = serde_json::to_value(&devices).unwrap();
        let row = &json["devices"][0]["srq"][0];
        assert_eq!(
            (&row["max_wr"], &row["posted"], &row["pd"]),
            (&json!(127), &json!(5), &json!(3))
        );
        assert_eq!(row["program"], "perf 7");
        let text = devices.to_string();
        assert!(text.contains("1 shared receive queues") && text.contains("perf 7"), "{text}");
    }

    #[test]
    fn fields_that_an_object_lacks_are_null_and_a_dash() {
        let qp = ResourceDetail::Qp {
            qp_type: QpType::Ud,
            state: QpState::Rts,
            send_cq: 1,
            recv_cq: 1,
            srq: None,
            peer: None,
            path: None,
            sq_psn: 5,
            rq_psn: 0,
            cause: Some(2),
        };
        let devices = device(Kind::Qp, qp);
        let json = serde_json::to_value(&devices).unwrap();
        let row = &json["devices"][0]["qp"][0];
        assert_eq!(
            (&row["qpn"], &row["type"], &row["state"]),
            (&json!("0x000011"), &json!("UD"), &json!("RTS"))
        );
        assert!(row["peer"].is_null());
        assert_eq!(row["cause"], "0x2 AckTimeout");
        assert!(devices.to_string().contains(" - "), "{devices}");
    }

    #[test]
    fn listeners_are_shown_with_their_ports() {
        let id = ResourceDetail::CmId {
            space: PortSpace::Tcp,
            qp_type: QpType::Rc,
            state: IdState::Listening,
            qpn: None,
            local: Some("0.0.0.0:7471".parse().unwrap()),
            peer: None,
        };
        let devices = device(Kind::CmId, id);
        let json = serde_json::to_value(&devices).unwrap();
        let row = &json["devices"][0]["cm-id"][0];
        assert_eq!((&row["state"], &row["local"]), (&json!("LISTEN"), &json!("0.0.0.0:7471")));
        assert!(row["peer"].is_null() && row["pd"].is_null());
        assert!(devices.to_string().contains("0.0.0.0:7471"), "{devices}");
    }

    #[test]
    fn a_path_is_shown_with_both_directions() {
        let path = crate::path_view::tests::path();
        let lists = vec![List { kind: Kind::Path, rows: vec![Row::of_path(&(&path).into())] }];
        let address = IpAddr::from([127, 0, 0, 1]);
        let devices = Devices { devices: vec![Device { device: "urxe0".into(), address, lists }] };
        let json = serde_json::to_value(&devices).unwrap();
        let row = &json["devices"][0]["path"][0];
        assert_eq!((&row["rtt_us"], &row["out_gbit_s"]), (&json!(12.3), &json!(10.0)));
        assert_eq!((&row["out_held_by"], &row["in_gbit_s"]), (&json!("pace"), &Value::Null));
        assert!(devices.to_string().contains("1 paths"), "{devices}");
    }

    #[test]
    fn rights_are_named() {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND;
        assert_eq!(rights(access), json!("local-write,read,bind"));
    }
}
