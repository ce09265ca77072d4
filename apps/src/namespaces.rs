//! A network on this machine: a namespace for each node, and a bridge that connects them.
//!
//! Between addresses of one machine packets of 64 KiB go without a link; here each has to fit into
//! the 1,500 bytes of one.

use crate::error::Error;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

/// The namespaces and the bridge, which go with this value.
#[derive(Debug)]
pub struct Namespaces {
    /// What all names begin with, and the third number of all addresses.
    name: String,
    net: u8,
    nodes: usize,
}

impl Namespaces {
    /// Makes them, for so many nodes, of whom there may be 64.
    ///
    /// # Errors
    /// [`Error::Network`] with what `ip` says, for instance that only root may.
    pub fn new(nodes: usize) -> Result<Namespaces, Error> {
        let process = std::process::id();
        let network = Namespaces { name: format!("ua{process}"), net: process as u8, nodes };
        let bridge = &network.name;
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("address add {}/24 dev {bridge}", network.here()))?;
        ip(&format!("link set {bridge} up"))?;
        for rank in 0..nodes {
            let (name, address) = (network.namespace(rank), network.address(rank));
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add {name} type veth peer name eth0 netns {name}"))?;
            ip(&format!("link set {name} master {bridge} up"))?;
            ip(&format!("-n {name} address add {address}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(network)
    }

    /// The address of the bridge, which is in the namespace of the caller.
    pub fn here(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.net, 254)
    }

    /// The address of a node.
    pub fn address(&self, rank: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.net, rank as u8 + 1)
    }

    /// Starts a program where a node is.
    pub fn command(&self, rank: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(rank)]).arg(program);
        command
    }

    fn namespace(&self, rank: usize) -> String {
        format!("{}n{rank}", self.name)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Whatever of it there is: what failed may have been the making of it.
        for rank in 0..self.nodes {
            let name = self.namespace(rank);
            // Its link would go too, but only some time after it.
            let _ = ip(&format!("link delete {name}"));
            let _ = ip(&format!("netns delete {name}"));
        }
        let _ = ip(&format!("link delete {}", self.name));
    }
}

fn ip(arguments: &str) -> Result<(), Error> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(Error::io("running `ip`, of the package iproute2"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Network(format!("`ip {arguments}`: {said}")))
}
