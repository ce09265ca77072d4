//! What a figure costs: the time that the cores of the machine were busy meanwhile.

use urxe_shell::Result;

/// The file that the kernel counts it in, since it started.
const STAT: &str = "/proc/stat";

/// Does something, and says how many seconds the cores of the machine were busy with that and
/// whatever else ran: two cores that do nothing else for a second are two.
pub(super) fn with_busy_seconds<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let before = busy_seconds()?;
    let done = work()?;
    Ok((done, busy_seconds()? - before))
}

fn busy_seconds() -> Result<f64> {
    let text = std::fs::read_to_string(STAT).map_err(|error| format!("{STAT}: {error}"))?;
    let ticks = busy_ticks(&text).ok_or_else(|| format!("{STAT}: no line of all processors"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Of the line of all processors: user, nice, system, idle, iowait, irq, softirq; not what is
/// stolen by other machines, and not what guests had, which is in user (proc(5)).
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks = line.split_whitespace().map(|word| word.parse().ok());
    let ticks: Option<Vec<u64>> = ticks.collect();
    match ticks?[..] {
        [user, nice, system, _, _, irq, softirq, ..] => Some(user + nice + system + irq + softirq),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        let stat = "cpu  1 2 4 1000 2000 8 16 4000 1 2\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(31));
    }

    #[test]
    fn a_file_without_the_line_has_no_answer() {
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7\n"), None);
        assert_eq!(busy_ticks("cpu  1 2 3\n"), None);
        assert_eq!(busy_ticks("cpu  1 2 3 4 5 six 7\n"), None);
    }
}
