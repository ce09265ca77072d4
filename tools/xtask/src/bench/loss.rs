//! Goodput on a link that loses packets, of urxe and of kernel TCP.
//!
//! The receiving ends drop packets at random before anything else sees them. For that each has to
//! be a packet of its own: all offloads that let one buffer carry many are off, for both, and so is
//! the comparison with a link that loses nothing.

use super::{Figure, Options, Server, measure_tcp, number, perf};
use crate::netns::{Pair, Side};
use urxe_shell::{Result, run};

/// Tests of `urxe perf`: name and message size.
const TESTS: [(&str, u32); 2] = [("write-bw", 65_536), ("read-bw", 65_536)];

/// Makes the link carry each packet by itself.
pub(super) fn prepare(pair: &Pair) -> Result {
    for side in [Side::A, Side::B] {
        for offload in ["gro", "tso", "gso", "tx-udp-segmentation"] {
            run(pair.command(side, "ethtool").args(["-K", "veth0", offload, "off"]))?;
        }
    }
    Ok(())
}

/// From now on both ends lose so many of 100 packets that arrive.
fn lose(pair: &Pair, percent: f64) -> Result {
    for side in [Side::A, Side::B] {
        let nft = |script: &str| run(pair.command(side, "nft").arg(script));
        nft("add table inet bench; delete table inet bench")?;
        if percent > 0.0 {
            let of_100000 = (percent * 1000.0).round();
            nft(&format!(
                "add table inet bench; \
                 add chain inet bench arrived {{ type filter hook prerouting priority -300; }}; \
                 add rule inet bench arrived iifname veth0 \
                 numgen random mod 100000 < {of_100000} drop"
            ))?;
        }
    }
    Ok(())
}

/// One round on a link that was [prepared](prepare): without loss first, then with each of
/// [`Options::loss`].
pub(super) fn measure(
    options: &Options,
    pair: &Pair,
    server: &Server,
    mtu: u32,
) -> Result<Vec<Figure>> {
    let mut figures: Vec<Figure> = Vec::new();
    for percent in std::iter::once(0.0).chain(options.loss.iter().copied()) {
        lose(pair, percent)?;
        let figure = |test: &str, size, gbit_s: f64, tcp: f64, lossless: Option<&Figure>| Figure {
            link_mtu: mtu,
            test: format!("{test}, {percent} % lost"),
            size,
            gbit_s: Some(gbit_s),
            by_tcp: Some(gbit_s / tcp),
            by_lossless: lossless.and_then(|lossless| lossless.gbit_s).map(|all| gbit_s / all),
            ..Figure::default()
        };
        let mut of_round = Vec::new();
        let tcp = measure_tcp(options, pair, server)?;
        of_round.push(figure("TCP (iperf3)", None, tcp, tcp, figures.first()));
        for (index, (test, size)) in (1..).zip(TESTS) {
            let report = &perf(options, pair, server, test, size, &[])?["results"][0];
            let gbit_s = number(report, "bandwidth_gbit_s")?;
            of_round.push(figure(test, Some(size), gbit_s, tcp, figures.get(index)));
        }
        figures.extend(of_round);
    }
    lose(pair, 0.0)?;
    Ok(figures)
}
