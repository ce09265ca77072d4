//! What CI runs once more as an ordinary user: one without privilege, with an empty home and the
//! usual limit of open descriptors.

use crate::ci::WORKSPACE;
use crate::packages::{self, PERFTEST, PRLIMIT, RXE_PROVIDER, SETPRIV};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_shell::{
    Result, build_release, cargo, is_root, output, release_binary, root, target_directory,
};

/// Whom everything runs as: nobody.
const USER: u32 = 65_534;

/// Open descriptors of a process, soft and hard limit.
const DESCRIPTORS: &str = "--nofile=1024:1024";

/// Packages whose tests make no system calls, and so cannot tell one user from another.
const PURE: [&str; 4] = ["urxe-wire", "urxe-engine", "urxe-cm", "urxe-spec-tests"];

/// How long two programs may take.
const WAIT: Duration = Duration::from_secs(60);

/// Options of the task.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Only the tests whose package and name have this text.
    #[arg(long, default_value = "")]
    only: String,
}

/// What keeps anything from being run as another user.
pub(crate) fn lacks() -> Option<String> {
    match is_root() {
        true => packages::lacking(&[SETPRIV, PRLIMIT]),
        false => Some("this run is one: see the tests above".to_owned()),
    }
}

/// What keeps `ib_write_bw` from being run so.
pub(crate) fn lacks_perftest() -> Option<String> {
    lacks().or_else(|| packages::lacking(&[PERFTEST, RXE_PROVIDER]))
}

/// Everything, one after the other.
pub(crate) fn run(options: &Options) -> Result {
    if let Some(reason) = lacks_perftest() {
        return Err(reason);
    }
    tests(options)?;
    build_release()?;
    perftest()
}

/// Runs the tests that are built already.
pub(crate) fn tests(options: &Options) -> Result {
    let home = Home::new()?;
    let mounts = SourceMounts::new(&home)?;
    let (mut count, mut failed) = (0, Vec::new());
    for test in built_tests()? {
        let name = format!("{} {}", test.package, test.name);
        if PURE.contains(&test.package.as_str()) || !name.contains(&options.only) {
            continue;
        }
        count += 1;
        let command = home.command(&mounts, &test.executable, &test.directory);
        let (passed, said) = captured(command)?;
        let of_interest =
            |line: &&str| line.starts_with("test result:") || line.contains("could not run:");
        match passed {
            true => {
                said.lines().filter(of_interest).for_each(|line| eprintln!("{name}: {line}"));
            }
            false => {
                eprintln!("{said}\n{name}: FAILED");
                failed.push(name);
            }
        }
    }
    eprintln!("not run: documentation tests, and those of {}", PURE.join(", "));
    match (count, &failed[..]) {
        (0, _) => Err("no tests were found".to_owned()),
        (_, []) => Ok(()),
        (_, failed) => Err(format!("{} of {count} failed: {}", failed.len(), failed.join(", "))),
    }
}

/// `urxe run ib_write_bw`, twice.
pub(crate) fn perftest() -> Result {
    let home = Home::new()?;
    let bin = home.directory.join("bin");
    let copy = || {
        fs::create_dir(&bin)?;
        let names = ["urxe", "liburxe_shim.so"];
        names.iter().try_for_each(|name| fs::copy(release_binary(name), bin.join(name)).map(drop))
    };
    copy().map_err(said_of(&bin))?;
    let mounts = SourceMounts::none();
    let urxe = bin.join("urxe");
    // Others on this machine may use perftest's own port.
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
    let port = port.map_err(|error| format!("a free TCP port: {error}"))?.port().to_string();
    let command = |args: &[&str]| {
        let mut command = home.command(&mounts, &urxe, &home.directory);
        command.args(["run", "ib_write_bw", "-n", "1000", "-p", &port]).args(args);
        command.stdout(Stdio::null());
        command
    };
    let start = command(&[]).spawn().map_err(|error| format!("urxe run: {error}"))?;
    let mut server = Killed(start);
    let deadline = Instant::now() + WAIT;
    // It says nowhere that it waits for a client.
    while output(&mut command(&["localhost"])).is_err() {
        let has_ended = server.0.try_wait().map_err(|error| error.to_string())?;
        if let Some(status) = has_ended {
            return Err(format!("urxe run ib_write_bw ended with {status}"));
        }
        if Instant::now() > deadline {
            return output(&mut command(&["localhost"])).map(drop);
        }
        sleep(Duration::from_millis(200));
    }
    let status = server.0.wait().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("urxe run ib_write_bw, the server, ended with {status}")),
    }
}

/// A process that does not outlive its stage.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An empty home of the user, below a directory of ours. Gone when dropped.
struct Home {
    directory: PathBuf,
}

impl Home {
    fn new() -> Result<Home> {
        let name = format!("urxe-ordinary-user-{}", std::process::id());
        let home = Home { directory: std::env::temp_dir().join(name) };
        let make = || {
            fs::create_dir(&home.directory)?;
            fs::set_permissions(&home.directory, Permissions::from_mode(0o755))?;
            fs::create_dir(home.path())?;
            chown(home.path(), Some(USER), Some(USER))
        };
        make().map_err(said_of(&home.directory))?;
        Ok(home)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// A program that the user runs in a directory.
    fn command(&self, mounts: &SourceMounts, program: &Path, directory: &Path) -> Command {
        let mut command = mounts.command();
        command.args(["prlimit", DESCRIPTORS, "setpriv"]);
        command.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
        command.args(["--clear-groups", "--inh-caps=-all", "--"]).arg(program);
        command.current_dir(directory).stdin(Stdio::null()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.path()).env("TMPDIR", self.path());
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// How the user comes to see the sources and what was built from them, whose paths are in the
/// tests: often that is below `/root`.
struct SourceMounts {
    /// Shell commands that show them, in a mount namespace; empty if nothing hides them.
    script: String,
}

impl SourceMounts {
    /// Nothing has to be done.
    fn none() -> SourceMounts {
        SourceMounts { script: String::new() }
    }

    fn new(home: &Home) -> Result<SourceMounts> {
        let folders = [root(), target_directory().to_path_buf()];
        let hidden: Vec<_> =
            folders.iter().filter_map(|folder| Some((folder, hidden_at(folder)?))).collect();
        let mut script = String::new();
        for (number, (folder, _)) in hidden.iter().enumerate() {
            let aside = home.directory.join(format!("aside-{number}"));
            fs::create_dir(&aside).map_err(said_of(&aside))?;
            script += &format!("mount --bind '{}' '{}'\n", folder.display(), aside.display());
        }
        let mut covers: Vec<_> = hidden.iter().map(|(_, cover)| cover).collect();
        covers.dedup();
        for cover in covers {
            script += &format!("mount -t tmpfs -o mode=755 urxe-ci '{}'\n", cover.display());
        }
        for (number, (folder, _)) in hidden.iter().enumerate() {
            let (folder, aside) = (folder.display(), home.directory.display());
            script += &format!("mkdir -p '{folder}'\nmount --bind '{aside}/aside-{number}' ");
            script += &format!("'{folder}'\n");
        }
        let mounts = SourceMounts { script };
        let manifest = root().join("Cargo.toml");
        let mut probe = home.command(&mounts, Path::new("test"), Path::new("/"));
        output(probe.arg("-r").arg(&manifest))
            .map_err(|error| format!("the user cannot read {}: {error}", manifest.display()))?;
        Ok(mounts)
    }

    /// What the words of a command are given to.
    fn command(&self) -> Command {
        let mut command;
        if self.script.is_empty() {
            command = Command::new("env");
        } else {
            command = Command::new("unshare");
            // The working directory is entered anew: it may be below what is covered.
            let script = format!("here=$PWD\n{}cd \"$here\"\nexec \"$@\"", self.script);
            command.args(["--mount", "sh", "-ec", &script, "sh"]);
        }
        command
    }
}

/// The first folder on the way to another that others may not pass.
fn hidden_at(folder: &Path) -> Option<PathBuf> {
    let mut ancestors: Vec<&Path> = folder.ancestors().collect();
    ancestors.reverse();
    let is_closed = |path: &&Path| {
        fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o001 == 0)
    };
    ancestors.into_iter().find(is_closed).map(Path::to_path_buf)
}

/// A test binary.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    package: String,
    name: String,
    executable: PathBuf,
    /// Where cargo would run it.
    directory: PathBuf,
}

/// All test binaries of the workspace; what is not built yet is.
fn built_tests() -> Result<Vec<Test>> {
    let mut command = cargo();
    command.arg("test").args(WORKSPACE).args(["--no-run", "--message-format=json"]);
    Ok(output(&mut command)?.lines().filter_map(test_of).collect())
}

/// The test binary that a message of cargo tells of, if it does.
fn test_of(message: &str) -> Option<Test> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = message["package_id"].as_str()?.rsplit('#').next()?;
    let directory = manifest.parent()?.to_path_buf();
    // Where the folder has the same name, cargo does not repeat it.
    let package = match package.split_once('@') {
        Some((name, _)) => name,
        None => directory.file_name().and_then(OsStr::to_str)?,
    };
    is_test.then_some(Test {
        package: package.to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        executable: message["executable"].as_str()?.into(),
        directory: directory.clone(),
    })
}

/// Runs to the end; whether it succeeded, and all that it said.
fn captured(mut command: Command) -> Result<(bool, String)> {
    let output = command.output().map_err(|error| format!("a test cannot be started: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// For `map_err`: something about a file.
fn said_of(path: &Path) -> impl FnOnce(io::Error) -> String + use<> {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_found_in_what_cargo_says() {
        let message = |id: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///r/src/daemon#{id}",
                "manifest_path":"/r/src/daemon/Cargo.toml","target":{{"name":"end_to_end"}},
                "profile":{{"test":{test}}},"executable":"/r/target/debug/deps/end_to_end-1"}}"#
            )
        };
        let test = test_of(&message("urxe-daemon@0.1.0", true)).unwrap();
        assert_eq!((test.package.as_str(), test.name.as_str()), ("urxe-daemon", "end_to_end"));
        assert_eq!(test.directory, Path::new("/r/src/daemon"));
        assert_eq!(test_of(&message("0.1.0", true)).unwrap().package, "daemon");
        assert_eq!(test_of(&message("urxe-daemon@0.1.0", false)), None);
        assert_eq!(test_of(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn a_folder_that_others_cannot_pass_is_found() {
        let directory = std::env::temp_dir().join(format!("urxe-xtask-{}", std::process::id()));
        let below = directory.join("closed/below");
        fs::create_dir_all(&below).unwrap();
        let open = Permissions::from_mode(0o755);
        fs::set_permissions(&directory, open).unwrap();
        let before = hidden_at(&below);
        let closed = directory.join("closed");
        fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
        let after = hidden_at(&below);
        fs::remove_dir_all(&directory).unwrap();
        // The directory for temporary files may itself be closed.
        assert!(before.is_some() || after == Some(closed), "{before:?} {after:?}");
    }
}
