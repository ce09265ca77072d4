//! `urxe devinfo`: the devices and their limits, in the manner of `ibv_devinfo`.

use crate::asking::{ANSWER_TIMEOUT, Asked};
use crate::cli::DaemonArguments;
use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::output;
use crate::units;
use clap::Args;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use urxe_shm::control::DeviceInfo;
use urxe_verbs::{Context, DeviceAttr, Gid, OpenOptions, PortAttr};

const EXAMPLES: &str = "\
Examples:
  urxe devinfo
      All devices of the daemon.
  urxe devinfo --device urxe1 --json
      One device, for a script.
  urxe devinfo --socket /tmp/lab/urxed.sock
      The devices of another daemon.";

/// Show the devices of a daemon: addresses, state and limits.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Only this device [default: all].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Print one JSON object in place of text.
    #[arg(long)]
    json: bool,
}

/// Queries the daemon and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut client = DaemonClient::connect(&arguments.daemon, "devinfo")?;
    let devices = client.devices_named(arguments.device.as_deref())?;
    let query = |device: DeviceInfo| {
        let socket = client.socket();
        let options = OpenOptions::new().socket(socket).device(device.name);
        let asked = Asked::begin(move || Device::query(&options)).within(ANSWER_TIMEOUT);
        asked.unwrap_or_else(|_| Err(Error::Silent(socket.display().to_string())))
    };
    let devices = devices.into_iter().map(query).collect::<Result<_, _>>()?;
    output::print(arguments.json, &Devices { devices })
}

#[derive(Serialize)]
struct Devices {
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    transport: &'static str,
    node_guid: String,
    limits: DeviceAttr,
    ports: Vec<Port>,
}

#[derive(Serialize)]
struct Port {
    port: u8,
    state: &'static str,
    /// Entries of the GID table that are in use.
    gids: Vec<GidEntry>,
    #[serde(flatten)]
    attr: PortAttr,
}

#[derive(Serialize)]
struct GidEntry {
    index: u8,
    address: IpAddr,
}

impl Device {
    fn query(options: &OpenOptions) -> Result<Self, Error> {
        let context = Context::open(options)?;
        let limits = context.query_device()?;
        let ports = (1..=limits.phys_port_cnt).map(|port| Port::query(&context, port));
        Ok(Device {
            name: context.device().name.clone(),
            transport: "RoCEv2",
            node_guid: guid(limits.node_guid),
            ports: ports.collect::<Result<_, _>>()?,
            limits,
        })
    }
}

impl Port {
    fn query(context: &Context, port: u8) -> Result<Self, Error> {
        let attr = context.query_port(port)?;
        let gids = context.gids(port)?.into_iter();
        let gids = gids.map(|(index, address)| GidEntry { index, address });
        let state = if attr.active { "ACTIVE" } else { "DOWN" };
        Ok(Port { port, state, gids: gids.collect(), attr })
    }
}

/// A GUID as `ibv_devinfo` writes it: four groups of four digits.
fn guid(bytes: [u8; 8]) -> String {
    let groups = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, device) in self.devices.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            device.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device: {}", self.name)?;
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(f, "    {name:<22}{value}");
        let limits = &self.limits;
        line("transport:", &format_args!("{} (UDP port 4791)", self.transport))?;
        line("fw_ver:", &limits.fw_ver)?;
        line("node_guid:", &self.node_guid)?;
        line("max_mr_size:", &format_args!("{:#x}", limits.max_mr_size))?;
        line("max_mr:", &limits.max_mr)?;
        line("max_pd:", &limits.max_pd)?;
        line("max_qp:", &limits.max_qp)?;
        line("max_qp_wr:", &limits.max_qp_wr)?;
        line("max_sge:", &limits.max_sge)?;
        line("max_inline_data:", &limits.max_inline_data)?;
        line("max_qp_rd_atom:", &limits.max_qp_rd_atom)?;
        line("max_qp_init_rd_atom:", &limits.max_qp_init_rd_atom)?;
        line("max_cq:", &limits.max_cq)?;
        line("max_cqe:", &limits.max_cqe)?;
        line("max_srq:", &limits.max_srq)?;
        line("max_srq_wr:", &limits.max_srq_wr)?;
        line("max_srq_sge:", &limits.max_srq_sge)?;
        line("max_mw:", &limits.max_mw)?;
        line("max_ah:", &limits.max_ah)?;
        line("max_mcast_grp:", &limits.max_mcast_grp)?;
        line("max_mcast_qp_attach:", &limits.max_mcast_qp_attach)?;
        line("num_comp_vectors:", &limits.num_comp_vectors)?;
        line("phys_port_cnt:", &limits.phys_port_cnt)?;
        self.ports.iter().try_for_each(|port| port.fmt(f))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "    port: {}", self.port)?;
        let mut line =
            |name: &str, value: &dyn fmt::Display| writeln!(f, "        {name:<18}{value}");
        let attr = &self.attr;
        line("state:", &format_args!("PORT_{}", self.state))?;
        line("max_mtu:", &attr.max_mtu)?;
        line("active_mtu:", &attr.active_mtu)?;
        line("max_msg_sz:", &units::size(attr.max_msg_sz.into()))?;
        line("link_layer:", &"Ethernet")?;
        line("interface:", &attr.interface.as_deref().unwrap_or("none"))?;
        match attr.speed_mbps {
            Some(speed) => line("speed:", &format_args!("{speed} Mbit/s"))?,
            None => line("speed:", &"unknown")?,
        }
        line("gid_tbl_len:", &attr.gid_tbl_len)?;
        for GidEntry { index, address } in &self.gids {
            let gid = Gid::from(*address);
            line(&format!("GID[{index:3}]:"), &format_args!("{gid}, RoCE v2, {address}"))?;
        }
        Ok(())
    }
}
