//! `urxed`: see `urxed --help`, or the `urxe_daemon` library for a NIC inside another program.

fn main() -> std::process::ExitCode {
    urxe_daemon::run(clap::Parser::parse())
}
