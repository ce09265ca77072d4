//! A Debian package, put together by dpkg-deb.

use super::{Folders, Tree, VERSION, glibc, says, source_date};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use urxe_shell::{Result, has, output, root, run};

const FOLDERS: Folders = Folders {
    zsh: "share/zsh/vendor-completions",
    system_units: "lib/systemd/system",
    user_units: "lib/systemd/user",
};

/// Texts of the repository, and where they go.
const FILES: [(&str, &str); 5] = [
    ("packaging/sysusers.conf", "usr/lib/sysusers.d/urxe.conf"),
    ("packaging/tmpfiles.conf", "usr/lib/tmpfiles.d/urxe.conf"),
    ("packaging/default", "etc/default/urxed"),
    ("packaging/urxed.toml", "etc/urxe/urxed.toml"),
    ("packaging/debian/copyright", "usr/share/doc/urxe/copyright"),
];

/// What dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes it in a folder, and returns its path.
pub(super) fn make(folder: &Path, maintainer: Option<&str>) -> Result<PathBuf> {
    let tree = Tree::new(folder.join("deb"))?;
    let date = source_date()?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let maintainer = maintainer.map_or_else(default_maintainer, |given| Ok(given.to_owned()))?;
    tree.fill("usr/", &FOLDERS, &folder.join("symbols"))?;
    for (from, name) in FILES {
        tree.copy(from, name)?;
    }
    let changes = tree.copy("CHANGELOG.md", "usr/share/doc/urxe/CHANGELOG.md")?;
    tree.compress(&changes)?;
    let changelog = tree.write("usr/share/doc/urxe/changelog", &changelog(&maintainer, &date)?)?;
    tree.compress(&changelog)?;

    let size = size_of(tree.root())?.div_ceil(1024).to_string();
    for script in SCRIPTS {
        tree.copy(&format!("packaging/debian/{script}"), &format!("DEBIAN/{script}"))?;
    }
    tree.write("DEBIAN/conffiles", "/etc/default/urxed\n/etc/urxe/urxed.toml\n")?;
    tree.write("DEBIAN/md5sums", &sums(tree.root())?)?;
    let binaries = ["bin/urxe", "bin/urxed", "lib/urxe/liburxe_shim.so"];
    let binaries = binaries.map(|name| tree.root().join("usr").join(name));
    let floor = glibc::floor(binaries.iter().map(PathBuf::as_path))?;
    eprintln!("needs glibc {floor} or newer");
    let template = root().join("packaging/debian/control");
    let control = fs::read_to_string(&template).map_err(says(&template))?;
    let control = control
        .replace("@VERSION@", VERSION)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@MAINTAINER@", &maintainer)
        .replace("@SIZE@", &size)
        .replace("@DEPENDS@", &format!("libc6 (>= {floor}), libgcc-s1 (>= 4.2)"));
    tree.write("DEBIAN/control", &control)?;
    open_to_all(tree.root())?;

    let path = folder.join(format!("urxe_{VERSION}_{architecture}.deb"));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"]).arg(tree.root()).arg(&path);
    output(pack.env("SOURCE_DATE_EPOCH", date))?;
    match has("lintian") {
        true => run(Command::new("lintian")
            .args(["--fail-on=error,warning", "--tag-display-limit=0", "--allow-root"])
            .arg(&path))?,
        false => eprintln!("not checked, because lintian is not installed"),
    }
    Ok(path)
}

/// As Debian's own tools have it, or else who made the newest commit.
fn default_maintainer() -> Result<String> {
    if let (Ok(name), Ok(address)) = (std::env::var("DEBFULLNAME"), std::env::var("DEBEMAIL")) {
        return Ok(format!("{name} <{address}>"));
    }
    let mut author = Command::new("git");
    let author = output(author.current_dir(root()).args(["log", "-1", "--format=%an <%ae>"]))?;
    Ok(author.trim().to_owned())
}

/// What Debian wants to be told of this version. What is new in it stands in CHANGELOG.md.
fn changelog(maintainer: &str, date: &str) -> Result<String> {
    let date = output(Command::new("date").args(["--utc", "-R", "-d"]).arg(format!("@{date}")))?;
    Ok(format!(
        "urxe ({VERSION}) unstable; urgency=medium\n\n  * Version {VERSION}: CHANGELOG.md says what \
         is new.\n\n -- {maintainer}  {}\n",
        date.trim()
    ))
}

/// The files below a folder, by their names seen from there, in order.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut find = Command::new("find");
    let names = output(find.current_dir(folder).args([".", "-type", "f", "-printf", "%P\\n"]))?;
    let mut names: Vec<String> =
        names.lines().filter(|name| !name.starts_with("DEBIAN/")).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

fn sums(folder: &Path) -> Result<String> {
    output(Command::new("md5sum").current_dir(folder).args(files(folder)?))
}

/// Bytes of all files.
fn size_of(folder: &Path) -> Result<u64> {
    let size = |name: &String| {
        let path = folder.join(name);
        fs::metadata(&path).map(|found| found.len()).map_err(says(&path))
    };
    files(folder)?.iter().map(size).sum()
}

/// Whatever our umask is, everybody may read what is installed.
fn open_to_all(folder: &Path) -> Result {
    run(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(folder))?;
    let library = folder.join("usr/lib/urxe/liburxe_shim.so");
    fs::set_permissions(&library, Permissions::from_mode(0o644)).map_err(says(&library))
}
