//! What CI runs, and what the README tells everybody to run.

use crate::packages::{self, SCAPY};
use crate::report::Report;
use crate::{interop, ordinary_user, programs, rules, tidy, wire};
use std::process::{Command, ExitCode, Stdio};
use urxe_shell::{
    Result, build_release, cargo, files_below, is_root, release_binary, root, run, target_directory,
};

pub(crate) fn run_all() -> ExitCode {
    let mut report = Report::default();
    report.stage("format", lacks_component("fmt"), || run_cargo(&["fmt", "--all", "--check"], &[]));
    report.stage("house rules", None, tidy::check);
    report.stage("rules and their tests", None, || rules::run(&rules::Options::default()));
    report.stage("lints", lacks_component("clippy"), || {
        let lints = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        run_cargo(&lints, &[])
    });
    report.stage("documentation", None, || {
        let doc = ["doc", "--workspace", "--no-deps", "--locked"];
        run_cargo(&doc, &[("RUSTDOCFLAGS", "-D warnings")])
    });
    report.stage("release build", None, build_release);
    report.stage("tests", None, || run_cargo(&["test", "--workspace", "--locked"], &[]));
    let lacks = ordinary_user::lacks();
    report.stage("tests as an ordinary user", lacks, || {
        ordinary_user::tests(&ordinary_user::Options::default())
    });
    let lacks = ordinary_user::lacks_perftest();
    report.stage("ib_write_bw as an ordinary user", lacks, ordinary_user::perftest);
    report.stage("ring protocols under loom", None, loom);
    report.stage("demo", None, || demo(&[]));
    report.stage("demo with 1% loss", None, || demo(&["--fault", "drop=1%"]));
    report.stage("demo over IPv6", lacks_ipv6(), || demo(&["--ipv6"]));
    report.stage("demo as an ordinary user", lacks_ordinary_user(), demo_as_nobody);
    report.stage("stock verbs programs", programs::lacks(), || {
        programs::check(&programs::Options::default())
    });
    report.stage("ICRC of captures by Scapy", packages::lacking(&[SCAPY]), captures_by_scapy);
    report.stage("the wire between two namespaces", wire::lacks(), wire::check);
    let lacks = interop::lacks_python_tests();
    report.stage("rdma-core's Python tests", lacks, interop::python_tests);
    let lacks = interop::lacks_generations();
    report.stage("two generations of rdma-core", lacks, interop::generations);
    let lacks = interop::lacks_kernel_rxe();
    report.stage("kernel rxe", lacks, interop::kernel_rxe);
    match report.finish() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn run_cargo(args: &[&str], env: &[(&str, &str)]) -> Result {
    let mut command = cargo();
    command.args(args).envs(env.iter().copied());
    run(&mut command)
}

/// Why a cargo component cannot be used.
fn lacks_component(component: &str) -> Option<String> {
    let found = cargo()
        .args([component, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    (!found)
        .then(|| format!("cargo {component} is not installed: rustup component add {component}"))
}

fn loom() -> Result {
    // Its own target folder: the flag changes every crate, and would evict the others' builds.
    let target = target_directory().join("loom");
    let target = target.to_string_lossy();
    run_cargo(
        &["test", "--package", "urxe-shm", "--release", "--lib", "--locked", "loom"],
        &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", &target)],
    )
}

fn demo(args: &[&str]) -> Result {
    run(Command::new(release_binary("urxe")).arg("demo").args(args))
}

fn lacks_ipv6() -> Option<String> {
    let found = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let loopback = "00000000000000000000000000000001";
    (!found.contains(loopback)).then(|| "this machine has no ::1".to_owned())
}

fn lacks_ordinary_user() -> Option<String> {
    (!is_root()).then(|| "this run is one: see the demo above".to_owned())
}

/// Everything again without root: the same binary, copied to where anybody can read it.
fn demo_as_nobody() -> Result {
    let dir = std::env::temp_dir().join(format!("urxe-ci-{}", std::process::id()));
    let copy = dir.join("urxe");
    let prepare = || -> std::io::Result<()> {
        std::fs::create_dir_all(&dir)?;
        std::fs::copy(release_binary("urxe"), &copy)?;
        Ok(())
    };
    prepare().map_err(|error| format!("{}: {error}", dir.display()))?;
    let result = run(Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
        .arg(&copy)
        .arg("demo")
        .env_remove("XDG_RUNTIME_DIR"));
    let _ = std::fs::remove_dir_all(&dir);
    result
}

fn captures_by_scapy() -> Result {
    let captures = root().join("interop/captures");
    let mut files = Vec::new();
    files_below(&captures, "pcap", &mut files)
        .map_err(|error| format!("{}: {error}", captures.display()))?;
    files.sort();
    run(Command::new(root().join("interop/independent-icrc")).args(files))
}
