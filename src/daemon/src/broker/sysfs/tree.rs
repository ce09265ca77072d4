//! A directory of small files that change one at a time, each at once.

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file is written here, and then moved to where it belongs: no reader sees half of it, and the
/// directory that it is in never has another name in it.
const UNFINISHED: &str = ".new";

/// All that a tree has at its top. What else stands there, no daemon has put there.
const TOP: [&str; 3] = ["class", "dev", UNFINISHED];

/// A directory tree, removed when it is dropped.
///
/// It is held open and everything in it is reached from there, so that whatever is put in its
/// place by others is not touched.
#[derive(Debug)]
pub(super) struct Tree {
    top: OwnedFd,
    path: PathBuf,
    /// Device and inode of the top.
    identity: (u64, u64),
}

impl Tree {
    /// Makes a tree that `fill` fills, and puts it at `path` when it is complete. One that a
    /// killed daemon left there is replaced; `mode` is that of the top directory.
    pub(super) fn create(
        path: &Path,
        mode: u32,
        fill: impl FnOnce(&Tree) -> io::Result<()>,
    ) -> io::Result<Tree> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(UNFINISHED);
        let unfinished = PathBuf::from(unfinished);
        remove_stale(&unfinished)?;
        DirBuilder::new().mode(0o700).create(&unfinished)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = rustix::fs::open(&unfinished, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&top)?;
        let mut tree = Tree { top, path: unfinished, identity: (stat.st_dev, stat.st_ino) };
        fill(&tree)?;
        // Only now: until then no other process looks into it.
        rustix::fs::fchmod(&tree.top, Mode::from_raw_mode(mode))?;
        let unfinished = std::mem::replace(&mut tree.path, path.to_path_buf());
        // At no moment is there none: after an upgrade programs may be looking.
        let (from, flags) = (rustix::fs::CWD, RenameFlags::EXCHANGE);
        if is_stale(path)? && renameat_with(from, &unfinished, from, path, flags).is_ok() {
            std::fs::remove_dir_all(unfinished)?;
        } else {
            remove_stale(path)?;
            std::fs::rename(unfinished, path)?;
        }
        Ok(tree)
    }

    /// Gives a file this content, or, if the name ends in `/`, makes a directory.
    pub(super) fn put(&self, name: &str, content: &str) -> io::Result<()> {
        match self.try_put(name, content) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_parents(name)?;
                self.try_put(name, content)
            }
            result => result,
        }
    }

    /// Removes a file, or, if the name ends in `/`, an empty directory.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let flags = if name.ends_with('/') { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(rustix::fs::unlinkat(&self.top, name, flags)?)
    }

    /// By this another thread overwrites files.
    pub(super) fn overwriter(&self) -> io::Result<Overwriter> {
        Ok(Overwriter { top: self.top.try_clone()? })
    }

    fn try_put(&self, name: &str, content: &str) -> io::Result<()> {
        if name.ends_with('/') {
            return self.make_directory(name);
        }
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC;
        // One that could not be moved may be there still; its writer may write to it again.
        let file = rustix::fs::openat(&self.top, UNFINISHED, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        file.write_all(content.as_bytes())?;
        // Whatever our umask is: the top directory says who may come in.
        file.set_permissions(PermissionsExt::from_mode(0o644))?;
        Ok(rustix::fs::renameat(&self.top, UNFINISHED, &self.top, name)?)
    }

    fn make_parents(&self, name: &str) -> io::Result<()> {
        let mut ends = name.match_indices('/').map(|(at, _)| at).filter(|at| at + 1 < name.len());
        ends.try_for_each(|end| self.make_directory(&name[..end]))
    }

    fn make_directory(&self, name: &str) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.top, name, Mode::RWXU) {
            Err(Errno::EXIST) => return Ok(()),
            result => result?,
        }
        let mode = Mode::from_raw_mode(0o755);
        Ok(rustix::fs::chmodat(self.top.as_fd(), name, mode, AtFlags::empty())?)
    }
}

/// Overwrites files of a tree.
#[derive(Debug)]
pub(super) struct Overwriter {
    top: OwnedFd,
}

impl Overwriter {
    /// Gives a file that is there a content that is no shorter than the one it has. It stays the
    /// same file, so that who has it open and reads it again finds the new content, as in the
    /// kernel's trees.
    pub(super) fn overwrite(&self, name: &str, content: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.top, name, flags, Mode::empty())?;
        // By one call, for those who read meanwhile.
        match rustix::io::write(&file, content.as_bytes())? {
            len if len == content.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Only tidiness: the next daemon replaces what stays.
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes the tree of a daemon that is gone. Anything else at that place is an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    if is_stale(path)? { std::fs::remove_dir_all(path) } else { Ok(()) }
}

/// Whether the tree of a daemon that is gone is there. Anything else at that place is an error.
fn is_stale(path: &Path) -> io::Result<bool> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    let mut names = if is_ours { Some(std::fs::read_dir(path)?) } else { None };
    let is_known = |entry: io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| TOP.iter().any(|known| entry.file_name() == *known))
    };
    if names.as_mut().is_some_and(|names| names.all(is_known)) {
        return Ok(true);
    }
    let message = "exists and was not made by a urxed of this user";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A place for a tree that no other process uses.
    fn fresh_path() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        std::env::temp_dir().join(format!("urxed-tree-{}-{number}.sysfs", std::process::id()))
    }

    fn create(path: &Path) -> io::Result<Tree> {
        Tree::create(path, 0o750, |tree| tree.put("class/a/b", "1\n"))
    }

    fn mode_of(path: PathBuf) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn it_is_there_as_long_as_it_lives() {
        let path = fresh_path();
        let tree = create(&path).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("class/a/b")).unwrap(), "1\n");
        tree.put("class/a/b", "2\n").unwrap();
        tree.put("class/a/net/eth0/", "").unwrap();
        assert_eq!(std::fs::read_to_string(path.join("class/a/b")).unwrap(), "2\n");
        assert!(path.join("class/a/net/eth0").is_dir());
        tree.remove("class/a/net/eth0/").unwrap();
        tree.remove("class/a/b").unwrap();
        assert_eq!(std::fs::read_dir(path.join("class/a")).unwrap().count(), 1, "net is left");
        drop(tree);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_open_can_be_read_again_after_it_was_overwritten() {
        let path = fresh_path();
        let tree = create(&path).unwrap();
        let open = File::open(path.join("class/a/b")).unwrap();
        let overwriter = tree.overwriter().unwrap();
        for content in ["2\n", "30\n"] {
            overwriter.overwrite("class/a/b", content).unwrap();
            let mut bytes = [0; 8];
            let len = open.read_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes[..len], content.as_bytes());
        }
        assert!(overwriter.overwrite("class/a/c", "").is_err(), "it makes none");
    }

    #[test]
    fn its_top_says_who_may_read_it() {
        let path = fresh_path();
        let _tree = create(&path).unwrap();
        assert_eq!(mode_of(path.clone()), 0o750);
        assert_eq!(mode_of(path.join("class/a")), 0o755);
        assert_eq!(mode_of(path.join("class/a/b")), 0o644);
    }

    #[test]
    fn files_of_a_killed_daemon_are_replaced() {
        let path = fresh_path();
        std::mem::forget(create(&path).unwrap());
        std::fs::write(path.join("class/a/stale"), "").unwrap();
        let _tree = create(&path).unwrap();
        assert!(path.join("class/a/b").exists());
        assert!(!path.join("class/a/stale").exists());
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let path = fresh_path();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("thesis.tex"), "precious").unwrap();
        let error = create(&path).unwrap_err();
        assert!(error.to_string().contains("not made by a urxed"), "{error}");
        assert!(path.join("thesis.tex").exists());
        let link = fresh_path();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(create(&link).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(path.join("thesis.tex").exists());
        std::fs::remove_file(link).unwrap();
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn one_that_took_its_place_is_not_touched() {
        let path = fresh_path();
        let old = create(&path).unwrap();
        let new = create(&path).unwrap();
        assert!(old.put("class/a/c", "").is_err(), "it is gone");
        drop(old);
        assert!(path.join("class/a/b").exists());
        drop(new);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_is_left_of_one_that_could_not_be_made() {
        let path = fresh_path();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let result = Tree::create(&path, 0o755, |tree| {
            tree.put("class/a", "")?;
            Err(full())
        });
        assert_eq!(result.unwrap_err().kind(), full().kind());
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(UNFINISHED);
        assert!(!path.exists() && !Path::new(&unfinished).exists());
    }
}
