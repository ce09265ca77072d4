//! The figures as a table.

use super::{Figure, Results};

/// The median of each figure over all rounds, which have the same figures in the same order.
pub(super) fn medians(rounds: &[Vec<Figure>]) -> Vec<Figure> {
    let count = rounds.first().map_or(0, Vec::len);
    (0..count)
        .map(|index| {
            let all = || rounds.iter().map(move |round| &round[index]);
            let middle = |figure: fn(&Figure) -> Option<f64>| median(all().filter_map(figure));
            let percentile = |which: usize| {
                median(all().filter_map(|figure| figure.latency_us.map(|all| all[which])))
            };
            let latency_us = match (percentile(0), percentile(1), percentile(2)) {
                (Some(p50), Some(p99), Some(p999)) => Some([p50, p99, p999]),
                _ => None,
            };
            Figure {
                link_mtu: rounds[0][index].link_mtu,
                test: rounds[0][index].test.clone(),
                size: rounds[0][index].size,
                gbit_s: middle(|figure| figure.gbit_s),
                by_tcp: middle(|figure| figure.by_tcp),
                by_udp: middle(|figure| figure.by_udp),
                gbit_core_s: middle(|figure| figure.gbit_core_s),
                by_tcp_core: middle(|figure| figure.by_tcp_core),
                by_lossless: middle(|figure| figure.by_lossless),
                by_alone: middle(|figure| figure.by_alone),
                by_untapped: middle(|figure| figure.by_untapped),
                messages_s: middle(|figure| figure.messages_s),
                by_one_qp: middle(|figure| figure.by_one_qp),
                lost_percent: middle(|figure| figure.lost_percent),
                connections_s: middle(|figure| figure.connections_s),
                bytes_per_qp: middle(|figure| figure.bytes_per_qp),
                latency_us,
                by_floor: middle(|figure| figure.by_floor),
            }
        })
        .collect()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Prints the table.
#[allow(clippy::print_stdout)] // the table is what the benchmark is for
pub(super) fn print(results: &Results) {
    println!("\n{}", results.machine);
    println!(
        "{}, median of {} rounds of {} s each\n",
        results.family, results.rounds, results.seconds
    );
    println!(
        "{:>5}  {:<30} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>8} {:>7} {:>8} {:>11} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8} {:>7}",
        "MTU",
        "test",
        "bytes",
        "Gbit/s",
        "x TCP",
        "x UDP",
        "Gb/cs",
        "x TCP",
        "x 0 loss",
        "x alone",
        "x no tap",
        "messages/s",
        "x 1 QP",
        "lost %",
        "conn/s",
        "B / QP",
        "p50 us",
        "p99",
        "p99.9",
        "x floor"
    );
    for figure in &results.figures {
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or(String::new(), |value| format!("{value:.digits$}"))
        };
        let latency = |which: usize| optional(figure.latency_us.map(|all| all[which]), 1);
        println!(
            "{:>5}  {:<30} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>8} {:>7} {:>8} {:>11} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8} {:>7}",
            figure.link_mtu,
            figure.test,
            figure.size.map_or(String::new(), |size| size.to_string()),
            optional(figure.gbit_s, 2),
            optional(figure.by_tcp, 2),
            optional(figure.by_udp, 2),
            optional(figure.gbit_core_s, 1),
            optional(figure.by_tcp_core, 2),
            optional(figure.by_lossless, 2),
            optional(figure.by_alone, 2),
            optional(figure.by_untapped, 3),
            optional(figure.messages_s, 0),
            optional(figure.by_one_qp, 2),
            optional(figure.lost_percent, 1),
            optional(figure.connections_s, 0),
            optional(figure.bytes_per_qp, 0),
            latency(0),
            latency(1),
            latency(2),
            optional(figure.by_floor, 1),
        );
    }
    println!(
        "\n\"Gb/cs\" is Gbit for each second that a core of the machine was busy, and \"x TCP\" beside it that \
         by TCP's. \"x floor\" is the median by that of two sockets that are asked again and again. \
         Where messages can be lost, Gbit/s and messages/s are of what arrived. \"B / QP\" is the \
         daemon's own memory for each idle QP, without its rings. \"In all\" connections are opened, \
         used with one message each when all are open, and closed. \"x 0 loss\" is by the same test on \
         the link that loses nothing; with loss and for these all segmentation offloads are off. \
         \"x alone\" is by one pair of programs with nothing beside it: bandwidth, or median latency. \
         \"x no tap\" is by the same test without a capture that takes no packet on either side."
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_value_and_none_of_nothing() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median(std::iter::empty()), None);
    }
}
