//! The files of a package, below a folder.

use super::says;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use urxe_shell::{Result, cargo, output, release_binary, root, run};

/// The programs and the library: built as, installed as.
const BINARIES: [(&str, &str); 3] =
    [("urxe", "bin/urxe"), ("urxed", "bin/urxed"), ("liburxe_shim.so", "lib/urxe/liburxe_shim.so")];

/// Shells, and where each looks for completions; zsh's place is the distribution's.
const COMPLETIONS: [(&str, &str, &str, &str); 2] = [
    ("bash", "share/bash-completion/completions", "", ""),
    ("fish", "share/fish/vendor_completions.d", "", ".fish"),
];

/// Files that are copied as they are.
const SOURCES: [(&str, &str); 9] = [
    ("interop/agent/README.md", "share/urxe/agent/README.md"),
    ("interop/agent/agent.c", "share/urxe/agent/agent.c"),
    ("interop/agent/cm.c", "share/urxe/agent/cm.c"),
    ("interop/agent/cm.h", "share/urxe/agent/cm.h"),
    ("interop/agent/json.c", "share/urxe/agent/json.c"),
    ("interop/agent/json.h", "share/urxe/agent/json.h"),
    ("src/conform/known/rxe-6.1.txt", "share/urxe/known/rxe-6.1.txt"),
    ("src/conform/known/rxe-6.12.txt", "share/urxe/known/rxe-6.12.txt"),
    ("src/verbs/examples/ping_pong.rs", "share/doc/urxe/examples/ping_pong.rs"),
];

/// What one distribution has elsewhere than another, seen from the prefix.
pub(super) struct Folders {
    pub(super) zsh: &'static str,
    pub(super) system_units: &'static str,
    pub(super) user_units: &'static str,
}

/// A folder that becomes a package.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// An empty one, whatever was there before.
    pub(super) fn new(root: PathBuf) -> Result<Tree> {
        match fs::remove_dir_all(&root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(says(&root)(error)),
            _ => fs::create_dir_all(&root).map_err(says(&root)).map(|()| Tree { root }),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where a file is to be; its folder is there then.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf> {
        let path = self.root.join(name);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(says(folder))?;
        Ok(path)
    }

    /// Writes a text.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name)?;
        fs::write(&path, text).map_err(says(&path))?;
        Ok(path)
    }

    /// Copies a file of the repository.
    pub(super) fn copy(&self, from: &str, name: &str) -> Result<PathBuf> {
        let (from, path) = (root().join(from), self.path(name)?);
        fs::copy(&from, &path).map_err(says(&from))?;
        let mode = if is_script(&path) { 0o755 } else { 0o644 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(says(&path))?;
        Ok(path)
    }

    /// Compresses a file, without its name and time.
    pub(super) fn compress(&self, path: &Path) -> Result {
        run(Command::new("gzip").args(["-9", "--no-name", "--force"]).arg(path))
    }

    /// All that every package has, below a prefix; the symbols of the programs go into a folder
    /// beside it.
    pub(super) fn fill(&self, prefix: &str, folders: &Folders, symbols: &Path) -> Result {
        let at = |name: &str| format!("{prefix}{name}");
        fs::create_dir_all(symbols).map_err(says(symbols))?;
        for (built, name) in BINARIES {
            strip(&release_binary(built), &self.path(&at(name))?, &symbols.join(built))?;
        }
        let urxe = self.path(&at("bin/urxe"))?;
        let pages = self.path(&at("share/man/man1/x"))?.with_file_name("");
        run(Command::new(&urxe).arg("man").arg(&pages))?;
        let mut names: Vec<PathBuf> = fs::read_dir(&pages)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(says(&pages))?;
        names.sort();
        names.iter().try_for_each(|page| self.compress(page))?;
        let zsh = ("zsh", folders.zsh, "_", "");
        for (shell, folder, before, after) in COMPLETIONS.into_iter().chain([zsh]) {
            for program in ["urxe", "urxed"] {
                let mut script = Command::new(&urxe);
                let script = output(script.args(["completion", shell, "--program", program]))?;
                self.write(&at(&format!("{folder}/{before}{program}{after}")), &script)?;
            }
        }
        for name in ["urxed.service", "urxed.socket"] {
            let unit = format!("{}/{name}", folders.system_units);
            self.copy(&format!("packaging/systemd/system/{name}"), &at(&unit))?;
        }
        let unit = format!("{}/urxed.service", folders.user_units);
        self.copy("packaging/systemd/user/urxed.service", &at(&unit))?;
        for (from, name) in SOURCES {
            self.copy(from, &at(name))?;
        }
        self.write(&at("share/doc/urxe/crates.txt"), &crates()?)?;
        Ok(())
    }
}

fn is_script(path: &Path) -> bool {
    fs::read(path).is_ok_and(|text| text.starts_with(b"#!"))
}

/// Copies a program without its symbols, which go into another file that the first one names.
fn strip(built: &Path, program: &Path, symbols: &Path) -> Result {
    let symbols = symbols.with_extension("debug");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(built).arg(&symbols))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&symbols);
    let mut strip = Command::new("objcopy");
    strip.args(["--strip-all", "--remove-section=.comment"]).arg(link);
    run(strip.arg(built).arg(program))
}

/// The crates that are linked into the programs, with their licences.
fn crates() -> Result<String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--edges=normal", "--prefix=none", "--format={p} {l}"]);
    let lines = output(tree.args(["--package=urxe-tools", "--package=urxe-shim"]))?;
    let is_other = |line: &&str| !line.is_empty() && !line.starts_with("urxe-");
    let mut lines: Vec<&str> =
        lines.lines().map(|line| line.trim_end_matches(" (*)")).filter(is_other).collect();
    lines.sort_unstable();
    lines.dedup();
    Ok(format!("Crates that urxe is linked with, and their licences:\n\n{}\n", lines.join("\n")))
}
