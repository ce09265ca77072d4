//! `cargo xtask`: what developers and CI run.

mod attack;
mod bench;
mod ci;
mod conform;
mod deny;
mod descendants;
mod fuzz;
mod install_test;
mod instructions;
mod interop;
mod libtest;
mod msrv;
mod netns;
mod ordinary_user;
mod package;
mod packages;
mod programs;
mod release;
mod report;
mod rules;
mod scale;
mod seeded;
mod semver;
mod setup;
mod soak;
mod tidy;
mod wire;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Developers' tasks of urxe.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check that CI runs: format, lints, documentation, house rules, the list of
    /// protocol rules, tests, the tests as an ordinary user, the ring protocols under loom, the
    /// demo, what goes over a real wire between two namespaces, and kernel rxe in a virtual
    /// machine.
    ///
    /// First it installs what is missing, as `cargo xtask setup` does. What cannot run on this
    /// machine says so and why.
    Ci(ci::Options),
    /// Install what the other commands need: Debian packages (as root) and the oldest Rust that is
    /// promised. Nothing else of `cargo xtask` installs anything, but `ci`, which calls this.
    Setup(setup::Options),
    /// Make a package for people who build nothing: programs without symbols (which lie beside it),
    /// shim, manual pages, completions, services. Says the oldest glibc that it runs with.
    Package(package::Options),
    /// Make a release of this version: version, list of changes, crates, packages, tag; all but
    /// publish it.
    Release(release::Options),
    /// Compare the public API of the crates with that of the last release: whether the version says
    /// what has changed.
    Semver,
    /// Install urxe in the ways that people have, from nothing, in a minimal Debian of its own,
    /// and run programs there as ordinary users; on Alpine if it is named. Needs root, and the
    /// network where apt is used.
    InstallTest(install_test::Options),
    /// Check the house rules that no other tool checks: lengths of lines and files, `unsafe` only
    /// where it may be, documentation of public items, words, names of tests, and whether paths in
    /// documents and links in clippy.toml lead somewhere.
    Tidy,
    /// Count the rules of `src/conform/rules` and check that each has a test that breaks with it.
    Rules(rules::Options),
    /// Run the tests that make system calls, and `ib_write_bw`, as an ordinary user: no privilege,
    /// an empty home, 1,024 descriptors. Needs root, to become that user.
    OrdinaryUser(ordinary_user::Options),
    /// Run stock verbs programs on urxe, as an ordinary user: ibverbs-utils, rdmacm-utils,
    /// perftest, UCX, qperf, fio and rdma, and programs that fork, are killed, or close what is not
    /// theirs.
    Programs(programs::Options),
    /// Look at the wire: two namespaces, a veth pair, a urxed in each, every packet judged by
    /// tshark and by Scapy's ICRC. Needs root.
    Wire,
    /// Make runs of the simulation for minutes or days, on seeds that no test has: programs with
    /// random work on random networks, every result checked. Each failure is printed with the
    /// command that repeats it.
    Soak(soak::Options),
    /// Measure beside kernel TCP and bare offloaded UDP over the same veth pair, in one run.
    /// Needs root and iperf3 (`cargo xtask setup`).
    Bench(bench::Options),
    /// Count the instructions that a message costs a data path, by valgrind, and show them beside
    /// those that are known: a loss shows that the noise of a clock would hide.
    Instructions(instructions::Options),
    /// Run the engine in the simulated network: losses, long paths, many QPs, shared lines. Shows a
    /// table of figures and which of them missed their bound.
    Scale(scale::Options),
    /// Run the conformance checks on engines with one of many faults each: each fault must be found
    /// by the check that is named for it, and an engine without a fault pass all checks a hundred
    /// times, also where packets are lost. Shows which checks found which fault.
    Seeded,
    /// Ask urxe and, in a virtual machine, a kernel's rxe by `urxe conform` what they do, through
    /// stock servers and through the agent, from plain and from raw sockets. Nothing else may be
    /// wrong than what `src/conform/known` lists. Short, and of one kernel, unless `--full` is
    /// given.
    Conform(conform::Options),
    /// Look for bytes that break something, guided by coverage and under the address sanitizer:
    /// packets, messages, rings, requests, management datagrams, captures. Needs a nightly Rust.
    Fuzz(fuzz::Options),
    /// Attack a daemon as hostile programs and strangers do, each time with victims beside: whether
    /// it stays up, serves newcomers and frees what it gave, and what victims notice. As root, of
    /// several users.
    Attack(attack::Options),
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Ci(options) => return ci::run_all(&options),
        Task::Setup(options) => setup::run_all(&options),
        Task::Package(options) => package::run_one(&options),
        Task::Release(options) => release::make(&options),
        Task::Semver => semver::check(),
        Task::InstallTest(options) => install_test::check(&options),
        Task::Tidy => tidy::check(),
        Task::Rules(options) => rules::run(&options),
        Task::OrdinaryUser(options) => ordinary_user::run(&options),
        Task::Programs(options) => programs::check(&options),
        Task::Wire => wire::check(),
        Task::Soak(options) => soak::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Instructions(options) => instructions::count(&options),
        Task::Scale(options) => scale::show(&options),
        Task::Seeded => seeded::check(),
        Task::Conform(options) => conform::show(&options),
        Task::Fuzz(options) => fuzz::fuzz(&options),
        Task::Attack(options) => attack::attack(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}
