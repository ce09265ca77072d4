//! A reliable connection between each two nodes.

use crate::cluster::Node;
use crate::error::Error;
use urxe_verbs::{Access, Cq, Pd, Qp, QpEndpoint, QpInit, RemoteBuf};

/// A node as seen from another: a queue pair to it, and its memory.
#[derive(Debug)]
pub struct Peer {
    /// Connected to it.
    pub qp: Qp,
    /// What it opens to others.
    pub memory: RemoteBuf,
}

/// Connects this node to all others, each of which does the same. Returns them by rank; none for
/// this node. They may reach `memory`, by what `access` says.
///
/// # Errors
/// As the verbs that it calls; [`Error::Meeting`] if a node has left.
pub fn connect_all(
    node: &mut Node,
    pd: &Pd,
    cq: &Cq,
    memory: RemoteBuf,
    access: Access,
) -> Result<Vec<Option<Peer>>, Error> {
    let qps: Vec<Option<Qp>> = (0..node.nodes)
        .map(|peer| (peer != node.rank).then(|| pd.create_qp(&QpInit::new(cq))).transpose())
        .collect::<Result<_, _>>()?;
    let endpoint = |qp: &Option<Qp>| qp.as_ref().map(Qp::endpoint).transpose();
    let endpoints = qps.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
    let all = node.exchange::<(Vec<Option<QpEndpoint>>, RemoteBuf)>(&(endpoints, memory))?;
    let mut peers = Vec::new();
    for (qp, (endpoints, memory)) in qps.into_iter().zip(all) {
        peers.push(match (qp, endpoints.get(node.rank).copied().flatten()) {
            (Some(qp), Some(endpoint)) => {
                qp.connect(&endpoint, access)?;
                Some(Peer { qp, memory })
            }
            _ => None,
        });
    }
    // Nobody sends to a queue pair that is not ready.
    node.exchange(&())?;
    Ok(peers)
}
