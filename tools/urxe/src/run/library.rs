//! Where `liburxe_shim.so` is, and how the loader is told to load it.

use super::{carried, trust};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its file name.
const NAME: &str = "liburxe_shim.so";

/// Says where the library is, if it is nowhere else.
const VARIABLE: &str = "URXE_SHIM";

/// Where it may be, seen from the directory of this binary: as cargo builds it, and as packages
/// install it.
const PLACES: [&str; 3] = ["", "../lib/urxe", "../lib"];

/// Why there is no library to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is not there, or not to be trusted.
    Nowhere { looked: Vec<(PathBuf, String)> },
    /// This binary carries it, and there is no directory for it.
    NoPlace { tried: Vec<(PathBuf, String)> },
    /// The loader takes a list of paths, and this one would be read as several.
    Unspeakable { path: PathBuf },
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |paths: &[(PathBuf, String)]| {
            let each = paths.iter().map(|(path, why)| format!("{} ({why})", path.display()));
            each.collect::<Vec<_>>().join(", ")
        };
        match self {
            Missing::Nowhere { looked } => write!(
                f,
                "{NAME} is not there; looked for {}. Build it with `cargo build --release \
                 --package urxe-shim`, or name it in {VARIABLE}",
                list(looked)
            ),
            Missing::NoPlace { tried } => write!(
                f,
                "this program carries {NAME}, and there is no place for it: {}. Make a directory \
                 that is yours alone, from which programs can be executed, and name it in TMPDIR",
                list(tried)
            ),
            Missing::Unspeakable { path } => {
                let path = path.display();
                write!(
                    f,
                    "{path}: the loader cannot be told of a path with a space or colon in it; \
                     copy the library elsewhere and name it in {VARIABLE}"
                )
            }
        }
    }
}

/// The library to load: the one that is named, the one that was installed or built with this
/// binary, the one that it carries.
pub(crate) fn find() -> Result<PathBuf, Missing> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return find_named(named.into());
    }
    let binary = std::env::current_exe().unwrap_or_default();
    let beside = find_beside(binary.parent().unwrap_or(Path::new("/")));
    beside.or_else(|missing| match carried::unpack() {
        Some(unpacked) => unpacked.map_err(|tried| Missing::NoPlace { tried }),
        None => Err(missing),
    })
}

/// The user's word is enough.
fn find_named(path: PathBuf) -> Result<PathBuf, Missing> {
    match path.canonicalize() {
        Ok(found) if found.is_file() => speakable(found),
        Ok(_) => Err(Missing::Nowhere { looked: vec![(path, "it is no file".into())] }),
        Err(error) => Err(Missing::Nowhere { looked: vec![(path, error.to_string())] }),
    }
}

fn find_beside(directory: &Path) -> Result<PathBuf, Missing> {
    let mut looked = Vec::new();
    for place in PLACES {
        let path = directory.join(place).join(NAME);
        match trust::find_file(&path) {
            Ok(found) => return speakable(found),
            Err(why) => looked.push((path, why)),
        }
    }
    Err(Missing::Nowhere { looked })
}

fn speakable(path: PathBuf) -> Result<PathBuf, Missing> {
    if can_be_preloaded(&path) { Ok(path) } else { Err(Missing::Unspeakable { path }) }
}

/// Whether the loader, which takes a list of paths, reads this one as one.
pub(super) fn can_be_preloaded(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte))
}

/// The value of `LD_PRELOAD` with the library as its first entry, whatever it was before; only a
/// sanitizer's runtime is still before it.
pub(super) fn preload(runtime: Option<&str>, library: &Path, before: Option<OsString>) -> OsString {
    let mut value = OsString::new();
    if let Some(runtime) = runtime {
        value.push(runtime);
        value.push(":");
    }
    value.push(library);
    if let Some(others) = before.and_then(|before| without(library, &before)) {
        value.push(":");
        value.push(others);
    }
    value
}

/// Keeps our library out of a program of our own.
pub(crate) fn forget(command: &mut Command) {
    let (Ok(library), Some(value)) = (find(), std::env::var_os("LD_PRELOAD")) else { return };
    match without(&library, &value) {
        Some(others) => command.env("LD_PRELOAD", others),
        None => command.env_remove("LD_PRELOAD"),
    };
}

/// The value of `LD_PRELOAD` without the library; `None` if that leaves nothing.
fn without(library: &Path, value: &OsStr) -> Option<OsString> {
    let entries = value.as_bytes().split(|byte| b" :".contains(byte));
    let others =
        entries.filter(|entry| !entry.is_empty() && *entry != library.as_os_str().as_bytes());
    let others: Vec<&[u8]> = others.collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory that goes with the test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("urxe-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("bin")).unwrap();
            Directory(path.canonicalize().unwrap())
        }

        fn with(&self, file: &str) -> PathBuf {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_nearest_place_is_taken_and_what_is_missing_is_named() {
        let directory = Directory::new("library");
        let bin = directory.0.join("bin");
        let missing = find_beside(&bin).unwrap_err().to_string();
        for part in ["bin/liburxe_shim.so", "lib/urxe/liburxe_shim.so", "cargo build", "URXE_SHIM"]
        {
            assert!(missing.contains(part), "{missing}");
        }
        for file in ["lib/liburxe_shim.so", "lib/urxe/liburxe_shim.so", "bin/liburxe_shim.so"] {
            let path = directory.with(file);
            assert_eq!(find_beside(&bin), Ok(path));
        }
        let other = directory.with("other.so");
        assert_eq!(find_named(other.clone()), Ok(other));
        let gone = find_named("/nonexistent/x.so".into()).unwrap_err().to_string();
        assert!(gone.contains("/nonexistent/x.so (No such file"), "{gone}");
    }

    #[test]
    fn a_path_that_the_loader_would_cut_is_refused() {
        let directory = Directory::new("library two");
        let path = directory.with("liburxe_shim.so");
        assert_eq!(find_beside(&directory.0), Err(Missing::Unspeakable { path }));
    }

    #[test]
    fn other_libraries_stay_and_ours_comes_once_and_first() {
        let preloaded = |runtime, before: Option<&str>| {
            let value = preload(runtime, Path::new("/x/us.so"), before.map(OsString::from));
            value.into_string().unwrap()
        };
        let value = |before| preloaded(None, before);
        assert_eq!(preloaded(Some("libasan.so.8"), Some("a.so")), "libasan.so.8:/x/us.so:a.so");
        assert_eq!(value(None), "/x/us.so");
        assert_eq!(value(Some("")), "/x/us.so");
        assert_eq!(value(Some("/x/us.so")), "/x/us.so");
        assert_eq!(value(Some("a.so b.so")), "/x/us.so:a.so:b.so");
        assert_eq!(value(Some("a.so:/x/us.so:b.so")), "/x/us.so:a.so:b.so");
    }
}
