//! What CI runs, and what the README tells everybody to run.

use crate::packages::{self, IBVERBS_UTILS, PYTEST, RXE_PROVIDER, SCAPY};
use crate::report::Report;
use crate::{
    attack, deny, descendants, fuzz, install_test, instructions, interop, libtest, msrv,
    ordinary_user, programs, rules, seeded, semver, setup, tidy, wire,
};
use std::process::{Command, ExitCode, Stdio};
use urxe_shell::testing::REQUIRE_ROOT;
use urxe_shell::{
    Result, build_release, cargo, files_below, is_root, output, release_binary, root, run,
    target_directory,
};

/// All crates, with all features but one for tests alone. What checks, builds or runs them takes
/// these words, so that each crate is built once: with other features it would be another.
pub(crate) const WORKSPACE: [&str; 4] =
    ["--workspace", "--features", "urxe-verbs/tokio", "--locked"];

/// How much is run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The inner loop, less than two minutes once all is built: format, house rules, rules, lints,
    /// the unit tests of all crates, and all tests of the crates that do no I/O.
    ///
    /// It leaves out: what needs a daemon, other programs, root or the release build (end-to-end
    /// tests, shim, demo, wire, stock programs, kernel rxe), the simulation, loom, documentation,
    /// the oldest Rust, and dependencies. It installs nothing.
    #[arg(long)]
    fast: bool,
    /// Install nothing: what is missing keeps its stages from running, and they say so.
    #[arg(long)]
    no_setup: bool,
}

pub(crate) fn run_all(options: &Options) -> ExitCode {
    if let Some(ended) = descendants::supervise() {
        return ended;
    }
    let mut report = Report::default();
    if !options.fast {
        let install = !options.no_setup;
        report.stage("release build", None, || release_build_beside_setup(install));
    }
    sources(&mut report);
    match options.fast {
        true => fast_tests(&mut report),
        false => everything_else(&mut report),
    }
    match report.finish() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Builds what users run, and meanwhile installs what is missing, most of which is to wait for the
/// network.
fn release_build_beside_setup(install: bool) -> Result {
    std::thread::scope(|scope| {
        if install {
            // Its failure is none of this stage: what is still missing shows at the stages that
            // need it.
            scope.spawn(|| {
                if let Err(problem) = setup::run_all(&setup::Options::default()) {
                    eprintln!("setup: {problem}");
                }
            });
        }
        build_release()
    })
}

/// What is seen without running anything of ours.
fn sources(report: &mut Report) {
    report.stage("format", lacks_component("fmt"), || run_cargo(&["fmt", "--all", "--check"], &[]));
    report.stage("house rules", None, tidy::check);
    report.stage("rules and their tests", None, || rules::run(&rules::Options::default()));
    report.stage("lints", lacks_component("clippy"), || {
        let lints = ["--all-targets", "--", "-D", "warnings"];
        run_cargo(&[&["clippy"], &WORKSPACE[..], &lints].concat(), &[])
    });
}

/// Tests that need nothing but themselves.
fn fast_tests(report: &mut Report) {
    report.stage("unit tests", None, || {
        run_cargo(&[&["test"], &WORKSPACE[..], &["--lib", "--bins"]].concat(), required_rights())
    });
    report.stage("tests of the crates without I/O", None, || {
        let packages = tidy::crates_without_io().map(|name| format!("--package=urxe-{name}"));
        let packages: Vec<_> = packages.collect();
        let mut args = vec!["test", "--test=*", "--locked"];
        args.extend(packages.iter().map(String::as_str));
        run_cargo(&args, &[])
    });
}

fn everything_else(report: &mut Report) {
    report.stage("documentation", None, || {
        let doc = [&["doc"], &WORKSPACE[..], &["--no-deps"]].concat();
        run_cargo(&doc, &[("RUSTDOCFLAGS", "-D warnings")])
    });
    report.stage("the oldest Rust", msrv::lacks(), msrv::check);
    let lacks = deny::lacks();
    report.stage("licences, bans, sources of crates", lacks, deny::licences_bans_sources);
    report.stage("advisories", deny::lacks_advisories(), deny::advisories);
    report.stage("crates as they are published", None, published_crates);
    report.stage("public API since the last release", semver::lacks(), semver::check);
    report.stage("tests", None, || {
        run_cargo(&[&["test"], &WORKSPACE[..], &["--no-fail-fast"]].concat(), required_rights())
    });
    let lacks = lacks_component("clippy");
    report.stage("the client without its features", lacks, client_without_features);
    report.stage("seeded faults", None, seeded::check);
    report.stage("bytes from outside", None, fuzz::short);
    report.stage("attacks on a daemon", None, attack::short);
    let lacks = ordinary_user::lacks();
    report.stage("tests as an ordinary user", lacks, || {
        ordinary_user::tests(&ordinary_user::Options::default())
    });
    let lacks = ordinary_user::lacks_perftest();
    report.stage("ib_write_bw as an ordinary user", lacks, ordinary_user::perftest);
    report.stage("instructions of a message", instructions::lacks(), || {
        instructions::count(&instructions::Options::default())
    });
    report.stage("ring protocols under loom", None, loom);
    report.stage("demo", None, || demo(&[]));
    report.stage("demo with 1% loss", None, || demo(&["--fault", "drop=1%"]));
    report.stage("demo over IPv6", lacks_ipv6(), || demo(&["--ipv6"]));
    report.stage("demo as an ordinary user", lacks_ordinary_user(), demo_as_nobody);
    report.stage("stock verbs programs", programs::lacks(), || {
        programs::check(&programs::Options::default())
    });
    report.stage("installing it", install_test::lacks(), || {
        install_test::check(&install_test::Options::default())
    });
    let lacks = packages::lacking(&[PYTEST, IBVERBS_UTILS, RXE_PROVIDER]);
    report.stage("a project's own tests, by pytest", lacks, pytest_example);
    report.stage("ICRC of captures by Scapy", packages::lacking(&[SCAPY]), captures_by_scapy);
    report.stage("the wire between two namespaces", wire::lacks(), wire::check);
    let lacks = interop::lacks_python_tests();
    report.stage("rdma-core's Python tests", lacks, interop::python_tests);
    let lacks = interop::lacks_generations();
    report.stage("two generations of rdma-core", lacks, interop::generations);
    let lacks = interop::lacks_kernel_rxe();
    report.stage("kernel rxe", lacks.clone(), interop::kernel_rxe);
    let lacks = interop::lacks_conform().or(lacks);
    report.stage("conformance of urxe and kernel rxe", lacks, || interop::conform(&[]));
}

/// What has tests fail that need root and cannot run, where they can: as root, outside of a
/// container that may not make namespaces.
fn required_rights() -> &'static [(&'static str, &'static str)] {
    let mut namespaces = Command::new("unshare");
    namespaces.args(["--net", "--mount", "true"]);
    match is_root() && output(&mut namespaces).is_ok() {
        true => &[(REQUIRE_ROOT, "1")],
        false => &[],
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

/// The client with none of its features: nothing else here has it so.
fn client_without_features() -> Result {
    let client = ["clippy", "--package", "urxe-verbs", "--no-default-features", "--locked"];
    run_cargo(&[&client[..], &["--", "-D", "warnings"]].concat(), &[])
}

/// Whether the crates of `src` can be packed, each with those that it needs. Nothing is built.
pub(crate) fn published_crates() -> Result {
    let src = root().join("src");
    let entries = std::fs::read_dir(&src).map_err(|error| format!("{}: {error}", src.display()))?;
    let mut package = cargo();
    package.args(["package", "--no-verify", "--allow-dirty", "--locked", "--quiet"]);
    for entry in entries.filter_map(|entry| entry.ok()) {
        package.arg(format!("--package=urxe-{}", entry.file_name().to_string_lossy()));
    }
    run(&mut package)
}

fn loom() -> Result {
    // Its own target folder: the flag changes every crate, and would evict the others' builds.
    let target = target_directory().join("loom");
    let mut command = cargo();
    command.args(["test", "--package", "urxe-shm", "--release", "--lib", "--locked", "loom"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target);
    libtest::run(&mut command)
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

/// Debian's, whatever other Python there is.
fn pytest_example() -> Result {
    let folder = root().join("packaging/ci/pytest");
    let mut pytest = Command::new("/usr/bin/python3");
    pytest.args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(folder);
    run(pytest.env("URXE", release_binary("urxe")))
}

fn captures_by_scapy() -> Result {
    let captures = root().join("interop/captures");
    let mut files = Vec::new();
    files_below(&captures, "pcap", &mut files)
        .map_err(|error| format!("{}: {error}", captures.display()))?;
    files.sort();
    run(Command::new(root().join("interop/independent-icrc")).args(files))
}
