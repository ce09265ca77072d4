//! The oldest glibc that a program runs with.

use std::path::Path;
use std::process::Command;
use urxe_shell::{Result, output};

/// The newest version of glibc's that any of these asks the loader for: the oldest that will do.
pub(super) fn floor<'a>(binaries: impl IntoIterator<Item = &'a Path>) -> Result<String> {
    let mut newest = Version::default();
    for binary in binaries {
        let symbols = output(Command::new("objdump").arg("-p").arg(binary))?;
        newest = newest.max(newest_in(&symbols));
    }
    match newest {
        Version(0, 0) => Err("no program asks for any version of glibc".to_owned()),
        Version(major, minor) => Ok(format!("{major}.{minor}")),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

fn newest_in(symbols: &str) -> Version {
    let words = symbols.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let version = |word: &str| {
        let mut parts = word.split('.').map(|part| part.parse().ok());
        Some(Version(parts.next()??, parts.next()??))
    };
    words.filter_map(version).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts_and_not_the_longest_or_the_last() {
        let symbols = "  required from libc.so.6:\n    0x06969189 0x00 05 GLIBC_2.9\n
            0x0 0x00 04 GLIBC_2.34\n 0x0 0x00 03 GLIBC_2.2.5\n 0x0 0x00 02 GLIBC_PRIVATE\n";
        assert_eq!(newest_in(symbols), Version(2, 34));
        assert_eq!(newest_in(""), Version(0, 0));
    }
}
