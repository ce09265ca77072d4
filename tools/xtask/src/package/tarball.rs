//! A tarball with an install script.

use super::{Folders, Tree, VERSION, glibc, source_date};
use std::path::{Path, PathBuf};
use std::process::Command;
use urxe_shell::{Result, run};

const FOLDERS: Folders = Folders {
    zsh: "share/zsh/site-functions",
    system_units: "share/urxe/service",
    user_units: "share/urxe/service/user",
};

const FILES: [(&str, &str); 9] = [
    ("packaging/tarball/install", "install"),
    ("packaging/tarball/service.md", "share/urxe/service/README.md"),
    ("packaging/sysusers.conf", "share/urxe/service/sysusers.conf"),
    ("packaging/tmpfiles.conf", "share/urxe/service/tmpfiles.conf"),
    ("packaging/default", "share/urxe/service/default"),
    ("packaging/urxed.toml", "share/urxe/service/urxed.toml"),
    ("CHANGELOG.md", "share/doc/urxe/CHANGELOG.md"),
    ("LICENSE-APACHE", "share/doc/urxe/LICENSE-APACHE"),
    ("LICENSE-MIT", "share/doc/urxe/LICENSE-MIT"),
];

/// Makes it in a folder, and returns its path.
pub(super) fn make(folder: &Path) -> Result<PathBuf> {
    let name = format!("urxe-{VERSION}-{}-linux-gnu", std::env::consts::ARCH);
    let tree = Tree::new(folder.join("tarball").join(&name))?;
    tree.fill("", &FOLDERS, &folder.join("symbols"))?;
    for (from, name) in FILES {
        tree.copy(from, name)?;
    }
    let binaries = ["bin/urxe", "bin/urxed", "lib/urxe/liburxe_shim.so"];
    let binaries = binaries.map(|name| tree.root().join(name));
    let floor = glibc::floor(binaries.iter().map(PathBuf::as_path))?;
    eprintln!("needs glibc {floor} or newer");
    let path = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{}", source_date()?)).arg("--use-compress-program=gzip -9n");
    tar.arg("-C").arg(folder.join("tarball")).arg("-cf").arg(&path).arg(name);
    run(&mut tar)?;
    Ok(path)
}
