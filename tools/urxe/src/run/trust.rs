//! Whether another user could put a file of theirs in the place of one that is to be loaded.

use rustix::process::geteuid;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What of a path, without links in it, another user could change, in a sentence.
///
/// Nobody can who is not root, this user, the owner of the root directory (who stands for root
/// where a user namespace does not know it) or the owner of this binary, which is trusted already.
/// A group that may write was let by one of those.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let owner_of = |path: &Path| fs::metadata(path).ok().map(|found| found.uid());
    let binary = std::env::current_exe().ok().and_then(|path| owner_of(&path));
    let trusted = [Some(0), Some(geteuid().as_raw()), owner_of(Path::new("/")), binary];
    for part in path.ancestors() {
        let found =
            fs::symlink_metadata(part).map_err(|error| format!("{}: {error}", part.display()))?;
        if !trusted.contains(&Some(found.uid())) {
            return Err(format!("{} belongs to user {}", part.display(), found.uid()));
        }
        // Where the sticky bit is set, what others have there is theirs alone; and a link is as it
        // was made.
        let is_fixed = found.is_symlink() || found.is_dir() && found.mode() & 0o1000 != 0;
        if found.mode() & 0o002 != 0 && !is_fixed {
            return Err(format!("anybody may write to {}", part.display()));
        }
    }
    Ok(())
}

/// A file, by a path without links, if it is there and another user can neither change it nor lead
/// to another.
pub(super) fn find_file(path: &Path) -> Result<PathBuf, String> {
    let says = |error: io::Error| error.to_string();
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err("it names no file".into());
    };
    // Perhaps a link, which may lead anywhere.
    let entry = directory.canonicalize().map_err(says)?.join(name);
    let found = entry.canonicalize().map_err(says)?;
    check(&entry)?;
    check(&found)?;
    match found.is_file() {
        true => Ok(found),
        false => Err("it is no file".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    use urxe_shell::testing::needs_root;

    #[test]
    fn a_place_where_everybody_may_write_is_trusted_only_with_the_sticky_bit() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("directory");
        fs::create_dir(&directory).unwrap();
        let file = directory.join("file");
        fs::write(&file, "").unwrap();
        let with = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            find_file(&file).map(|_| ())
        };
        assert_eq!(with(&directory, 0o755), Ok(()));
        assert_eq!(with(&directory, 0o775), Ok(()));
        assert_eq!(with(&directory, 0o1777), Ok(()));
        let refused = with(&directory, 0o777).unwrap_err();
        assert!(refused.contains("anybody may write to") && refused.contains("directory"));
        assert_eq!(with(&directory, 0o755), Ok(()));
        let refused = with(&file, 0o666).unwrap_err();
        assert!(refused.contains("file"), "{refused}");
        assert_eq!(find_file(&directory), Err("it is no file".into()));
    }

    #[test]
    fn files_directories_and_links_of_others_are_not_trusted() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::create_dir(path("directory")).unwrap();
        for name in ["file", "directory/file"] {
            fs::write(path(name), "").unwrap();
        }
        symlink(path("file"), path("link")).unwrap();
        for name in ["file", "directory/file", "link"] {
            find_file(&path(name)).unwrap();
        }
        for (given, found) in [("directory", "directory/file"), ("link", "link"), ("file", "file")]
        {
            if lchown(path(given), Some(54_321), None).is_err() {
                return needs_root("only root can give a file away");
            }
            let refused = find_file(&path(found)).unwrap_err();
            assert!(refused.contains("belongs to user 54321"), "{found}: {refused}");
            lchown(path(given), Some(0), None).unwrap();
        }
    }
}
