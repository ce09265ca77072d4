//! The machine that figures were measured on.

use procfs::{CpuInfo, Current};
use rustix::system::uname;
use serde::Serialize;

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
    /// This one. A processor that has no name is "unknown".
    pub(crate) fn this() -> Self {
        let cpus = CpuInfo::current().ok();
        let model = cpus.as_ref().and_then(|cpus| cpus.model_name(0));
        Machine {
            cpu: model.unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: uname().release().to_string_lossy().into_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { cpu, cores, kernel } = self;
        write!(f, "{cpu}, {cores} cores, Linux {kernel}")
    }
}
