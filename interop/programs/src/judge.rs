//! Checks the output of programs.

use crate::list::{Prints, Program};
use crate::testbed::Ended;
use urxe_shell::Result;

/// The output of a program without a peer.
pub(crate) fn alone(program: &Program, output: &str) -> Result<String> {
    let wanted: &[&str] = match program.prints {
        Prints::Device => &["urxe0"],
        _ => &["urxe0", "PORT_ACTIVE", "Ethernet", "GID[  0]", "RoCE v2"],
    };
    match wanted.iter().find(|part| !output.contains(**part)) {
        None => Ok(String::new()),
        Some(part) => Err(format!("printed no {part:?}: {}", last_line(output))),
    }
}

/// Server and client: both succeeded and printed what is expected. Returns the client's figure.
pub(crate) fn pair(program: &Program, server: &Ended, client: &Ended) -> Result<String> {
    // The client first: its error says more.
    let client = client.success().map_err(|reason| format!("the client {reason}"))?;
    let server = server.success().map_err(|reason| format!("the server {reason}"))?;
    match program.prints {
        Prints::Rows(rows) => row(&client, rows),
        Prints::Final => final_row(&client),
        _ => iterations(&server).and_then(|_| iterations(&client)),
    }
}

/// The time of an iteration of a ping-pong, which also prints how many bytes it sent.
fn iterations(output: &str) -> Result<String> {
    let ends_in = |end: &str, middle: &str| {
        let line = output.lines().find(|line| line.ends_with(end) && line.contains(middle))?;
        line.rsplit(' ').nth(1)?.parse::<f64>().ok()
    };
    let speed = ends_in("Mbit/sec", " bytes in ").filter(|speed| *speed > 0.0);
    let time = ends_in("usec/iter", " iters in ").filter(|time| *time > 0.0);
    match (speed, time) {
        (Some(_), Some(time)) => Ok(format!("{time} usec")),
        _ => Err(format!("printed no time: {}", last_line(output))),
    }
}

/// The figure of the last row of a table of perftest, which has at least so many rows.
pub(crate) fn row(output: &str, rows_min: usize) -> Result<String> {
    let (head, rows) = table(output);
    if rows.len() < rows_min {
        let count = rows.len();
        return Err(format!("printed {count} rows, expected {rows_min}: {}", last_line(output)));
    }
    let (column, unit) = match head.split_once("BW average[") {
        Some((_, rest)) => (3, rest.split(']').next().unwrap_or_default()),
        None => (4, "usec"),
    };
    // A row per size, each of a greater one than the row before.
    let is_rising = rows.windows(2).all(|pair| pair[0][0] < pair[1][0]);
    let figures = rows.iter().map(|row| row.get(column).copied().filter(|figure| *figure > 0.0));
    match figures.collect::<Option<Vec<f64>>>().as_deref() {
        Some([.., last]) if is_rising => Ok(format!("{last} {unit}")),
        _ => Err(format!("printed a row without a figure under {:?}", head.trim())),
    }
}

/// The overall average of a test of UCX: of its latency, or of the time between messages.
fn final_row(output: &str) -> Result<String> {
    let row = output.lines().find_map(|line| line.strip_prefix("Final:"));
    // Iterations, median, average of the last second, overall average, and bandwidths.
    let overall = row.and_then(|row| row.split_whitespace().nth(3)?.parse::<f64>().ok());
    match overall.filter(|time| *time > 0.0) {
        Some(time) => Ok(format!("{time} usec")),
        None => Err(format!("printed no result: {}", last_line(output))),
    }
}

/// The table that a program of perftest prints: its head, and the numbers of its rows.
pub fn table(output: &str) -> (&str, Vec<Vec<f64>>) {
    let mut lines = output.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let head = lines.next().unwrap_or_default();
    let numbers = |line: &str| -> Option<Vec<f64>> {
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    // Between them may stand remarks.
    (head, lines.filter_map(numbers).filter(|row| !row.is_empty()).collect())
}

/// The last line of an output, for the message of a failure.
pub(crate) fn last_line(output: &str) -> &str {
    output.lines().rfind(|line| line.contains(char::is_alphanumeric)).unwrap_or("nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = "\
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x4a1bd8
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 32768      1000             9.10               8.10                0.031
 65536      1000             9.50               8.77                0.016
---------------------------------------------------------------------------------------
";

    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
Conflicting CPU frequency values detected: 2000 != 2100. CPU Frequency is not max.
 2       1000          9.43           77.25        10.65              10.90          1.50
";

    #[test]
    fn a_ping_pong_prints_bytes_and_iterations() {
        let output = "  local address:  LID 0x0000, QPN 0x000011\n\
            8192000 bytes in 0.02 seconds = 3276.80 Mbit/sec\n\
            1000 iters in 0.02 seconds = 20.00 usec/iter\n";
        assert_eq!(iterations(output).unwrap(), "20 usec");
        let half: String = output.lines().take(2).collect::<Vec<_>>().join("\n");
        assert!(iterations(&half).unwrap_err().contains("Mbit/sec"));
        assert!(iterations("Failed status 12\n").unwrap_err().contains("Failed status 12"));
    }

    #[test]
    fn ucx_ends_with_a_row_of_figures() {
        let output = "Final:   5000   16.707   30.319   31.5   0.25   0.25   32983   32983\n";
        assert_eq!(final_row(output).unwrap(), "31.5 usec");
        assert!(final_row("ud_ep.c:276  Fatal\n").unwrap_err().contains("Fatal"));
    }

    #[test]
    fn a_table_has_as_many_rows_as_sizes_and_a_figure_in_each() {
        assert_eq!(row(BANDWIDTH, 2).unwrap(), "8.77 Gb/sec");
        assert!(row(BANDWIDTH, 3).unwrap_err().contains("printed 2 rows, expected 3"));
        assert!(row(&BANDWIDTH.replace("8.10", "0.00"), 1).is_err());
        assert!(row(&BANDWIDTH.replace("32768", "65536"), 2).is_err());
        assert!(row("", 1).is_err());
    }

    #[test]
    fn remarks_between_head_and_rows_are_no_rows() {
        assert_eq!(row(LATENCY, 1).unwrap(), "10.65 usec");
    }
}
