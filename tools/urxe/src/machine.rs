//! The machine that figures were measured on.

use serde::Serialize;
use std::fs;

/// What must be known of a machine to judge figures measured on it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// Model of the processor.
    pub(crate) cpu: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// Release of the kernel.
    pub(crate) kernel: String,
}

impl Machine {
    /// This one. What cannot be found out is "unknown".
    pub(crate) fn this() -> Self {
        let unknown = || "unknown".to_owned();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let cpu = model.and_then(|line| line.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        Machine {
            cpu: cpu.map_or_else(unknown, |(_, model)| model.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.map_or_else(|_| unknown(), |text| text.trim().to_owned()),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { cpu, cores, kernel } = self;
        write!(f, "{cpu}, {cores} cores, Linux {kernel}")
    }
}
