//! The shim that this binary carries, for machines that have nothing else of urxe.
//!
//! It is unpacked to a directory of this user's own, where the loader finds it by its path, in
//! children of the program too, whatever descriptors those close. (An anonymous file, named by the
//! descriptor of a process, would be lost with that.) Its name says what is in it, so that programs
//! of two versions of urxe do not take it from each other.

use super::{library, trust};
use rustix::fs::StatVfsMountFlags;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The library. A developer's build has none.
static SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liburxe_shim.so"));

/// A directory in which the library cannot be, and why.
pub(super) type Refused = (PathBuf, String);

/// The path of the library that we carry, which is there then; `None` if we carry none.
pub(super) fn unpack() -> Option<Result<PathBuf, Vec<Refused>>> {
    let places = || places(|name| std::env::var_os(name), geteuid().is_root());
    (!SHIM.is_empty()).then(|| unpack_to(SHIM, places()))
}

/// Directories of this user's own, in the order in which they are tried: first those that are empty
/// again when the user has gone or the machine has been started. Root may have the runtime
/// directory of the user that it was before (su, sudo).
fn places(var: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Vec<PathBuf> {
    let var = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = var("XDG_RUNTIME_DIR").filter(|_| !is_root);
    let runtime = runtime.map(|directory| directory.join("urxe"));
    // Where everybody may write, the name says whose it is.
    let own = format!("urxe-{}", geteuid().as_raw());
    let shared = [var("TMPDIR"), Some("/tmp".into()), Some("/dev/shm".into())];
    let shared = shared.into_iter().flatten().map(|directory| directory.join(&own));
    let cache = var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")));
    let cache = cache.map(|directory| directory.join("urxe"));
    let mut places: Vec<PathBuf> = runtime.into_iter().chain(shared).chain(cache).collect();
    places.dedup();
    places
}

fn unpack_to(library: &[u8], places: Vec<PathBuf>) -> Result<PathBuf, Vec<Refused>> {
    let mut hash = DefaultHasher::new();
    hash.write(library);
    let name = format!("liburxe_shim-{:016x}.so", hash.finish());
    let mut refused = Vec::new();
    for place in places {
        match unpack_in(library, &name, &place) {
            Ok(path) => return Ok(path),
            Err(reason) => refused.push((place, reason)),
        }
    }
    Err(refused)
}

/// The file of this name in a directory, which is the library then.
fn unpack_in(library: &[u8], name: &str, place: &Path) -> Result<PathBuf, String> {
    let place = own_directory(place)?;
    let path = place.join(name);
    if !library::can_be_preloaded(&path) {
        return Err("the loader takes no path with a space or colon in it".into());
    }
    // Only this user can have written it, but perhaps only half of it.
    if fs::read(&path).is_ok_and(|found| found == library) {
        return Ok(path);
    }
    let write = || -> io::Result<()> {
        let mut file = NamedTempFile::new_in(&place)?;
        file.write_all(library)?;
        // At once: a program that is being started has the old file or the new one.
        file.persist(&path)?;
        Ok(())
    };
    write().map_err(|error| error.to_string())?;
    Ok(path)
}

/// The directory without links in its path, if it is this user's alone and libraries can be loaded
/// from it. Makes it if there is none.
fn own_directory(place: &Path) -> Result<PathBuf, String> {
    let says = |error: io::Error| error.to_string();
    check_above(place)?;
    DirBuilder::new().mode(0o700).recursive(true).create(place).map_err(says)?;
    let place = place.canonicalize().map_err(says)?;
    let found = fs::metadata(&place).map_err(says)?;
    let (owner, uid) = (found.uid(), geteuid().as_raw());
    if owner != uid {
        return Err(format!("it belongs to user {owner}, expected {uid}"));
    }
    if found.mode() & 0o022 != 0 {
        let mode = found.mode() & 0o7777;
        return Err(format!("others may write there (mode {mode:o}, expected 700)"));
    }
    trust::check(&place)?;
    let mount = rustix::fs::statvfs(&place).map_err(|errno| says(errno.into()))?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err("nothing can be executed from there (mounted with noexec)".into());
    }
    Ok(place)
}

/// Refuses a place before anything is made there that another user would find in the way: what is
/// there of its path has to be safe, and no other user's than root.
fn check_above(place: &Path) -> Result<(), String> {
    let mut above = place.ancestors().skip_while(|part| fs::symlink_metadata(part).is_err());
    let Some(above) = above.next().filter(|above| *above != place) else { return Ok(()) };
    let above = above.canonicalize().map_err(|error| error.to_string())?;
    trust::check(&above)?;
    let owner_of = |path: &Path| fs::metadata(path).map(|found| found.uid());
    let owner = owner_of(&above).map_err(|error| error.to_string())?;
    let may_be = [0, geteuid().as_raw(), owner_of(Path::new("/")).unwrap_or(0)];
    match may_be.contains(&owner) {
        true => Ok(()),
        false => Err(format!("{} belongs to user {owner}", above.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use urxe_shell::testing::needs_root;

    const LIBRARY: &[u8] = b"a library";

    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn the_library_is_in_the_first_directory_that_can_hold_it() {
        let scratch = scratch();
        let (file, good) = (scratch.path().join("file"), scratch.path().join("a/good"));
        fs::write(&file, "").unwrap();
        // A file is in the way; not even root can make one there; a path that would be cut.
        let bad = [file.join("x"), "/proc/x".into(), scratch.path().join("b c")];
        let refused = unpack_to(LIBRARY, bad.to_vec()).unwrap_err();
        assert_eq!(
            refused.iter().map(|(place, _)| place).collect::<Vec<_>>(),
            [&bad[0], &bad[1], &bad[2]]
        );
        let places = [bad.as_slice(), std::slice::from_ref(&good)].concat();
        let path = unpack_to(LIBRARY, places).unwrap();
        assert_eq!(path.parent(), Some(good.canonicalize().unwrap().as_path()));
        assert_eq!(fs::read(&path).unwrap(), LIBRARY);
        assert_eq!(fs::metadata(good).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn another_version_is_another_file_and_a_torn_file_is_written_again() {
        let scratch = scratch();
        let unpack = |library| unpack_to(library, vec![scratch.path().into()]).unwrap();
        let path = unpack(LIBRARY);
        let inode = || fs::metadata(&path).unwrap().ino();
        let before = inode();
        assert_eq!((unpack(LIBRARY), inode()), (path.clone(), before), "it is left as it is");
        assert_ne!(unpack(b"another"), path);
        fs::write(&path, &LIBRARY[..4]).unwrap();
        assert_eq!(unpack(LIBRARY), path);
        assert_eq!(fs::read(&path).unwrap(), LIBRARY);
        let left = fs::read_dir(&scratch).unwrap().count();
        assert_eq!(left, 2, "nothing else is left there");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let scratch = scratch();
        let place = scratch.path().join("open");
        fs::create_dir(&place).unwrap();
        for mode in [0o777, 0o1777, 0o770] {
            fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
            let refused = unpack_to(LIBRARY, vec![place.clone()]).unwrap_err();
            assert!(refused[0].1.contains("others may write"), "{refused:?}");
        }
        // Nor one that somebody else could put another in the place of.
        let below = place.join("below");
        fs::create_dir(&below).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o777)).unwrap();
        let refused = unpack_to(LIBRARY, vec![below.clone()]).unwrap_err();
        assert!(refused[0].1.contains("anybody may write"), "{refused:?}");
        fs::set_permissions(&place, Permissions::from_mode(0o1777)).unwrap();
        unpack_to(LIBRARY, vec![below]).unwrap();
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused_behind_a_link_too() {
        let scratch = scratch();
        let (theirs, link) = (scratch.path().join("theirs"), scratch.path().join("link"));
        fs::create_dir(&theirs).unwrap();
        symlink(&theirs, &link).unwrap();
        if std::os::unix::fs::chown(&theirs, Some(54_321), None).is_err() {
            return needs_root("only root can give a directory away");
        }
        for place in [theirs, link] {
            let refused = unpack_to(LIBRARY, vec![place]).unwrap_err();
            assert!(refused[0].1.contains("belongs to user 54321"), "{refused:?}");
        }
    }

    #[test]
    fn nothing_is_made_in_a_directory_of_somebody_else() {
        let scratch = scratch();
        let theirs = scratch.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        if std::os::unix::fs::chown(&theirs, Some(54_321), None).is_err() {
            return needs_root("only root can give a directory away");
        }
        let refused = unpack_to(LIBRARY, vec![theirs.join("urxe/below")]).unwrap_err();
        assert!(refused[0].1.contains("belongs to user 54321"), "{refused:?}");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
    }

    #[test]
    fn places_are_the_users_own_and_those_that_do_not_stay_come_first() {
        let uid = geteuid().as_raw();
        let of = |set: &[(&str, &str)]| {
            let var = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            };
            places(var, false)
                .iter()
                .map(|path| path.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let shared = ["/tmp", "/dev/shm"].map(|place| format!("{place}/urxe-{uid}"));
        assert_eq!(of(&[]), shared);
        assert_eq!(of(&[("TMPDIR", ""), ("XDG_RUNTIME_DIR", "relative")]), shared);
        let set =
            [("XDG_RUNTIME_DIR", "/run/user/7"), ("TMPDIR", "/scratch"), ("HOME", "/home/me")];
        let all = of(&set);
        assert_eq!(all[0], "/run/user/7/urxe");
        assert_eq!(all[1], format!("/scratch/urxe-{uid}"));
        assert_eq!(all[2..4], shared);
        assert_eq!(all[4..], ["/home/me/.cache/urxe"]);
        let of_root = places(|_| Some("/run/user/7".into()), true);
        assert_eq!(of_root[0], Path::new(&format!("/run/user/7/urxe-{uid}")), "that of TMPDIR");
    }
}
