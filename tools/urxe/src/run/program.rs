//! Whether the loader will load our library into a program.

use super::elf::Elf;
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a program cannot be run on urxe.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error(
        "{} is statically linked, and the shim comes in through the loader, which such a program \
         does without; use a dynamically linked one", .0.display()
    )]
    Static(PathBuf),
    #[error(
        "{} is linked with {theirs} ({}), and the shim of this urxe with {ours}, so that the loader \
         cannot have both; use a program that is linked with {ours}, or a urxe of {theirs}, {}",
        .program.display(), .loader.display(), OTHER_URXE,
        theirs = libc(!OURS_IS_MUSL), ours = libc(OURS_IS_MUSL)
    )]
    OtherLibc { program: PathBuf, loader: PathBuf },
    #[error("{} is a directory", .0.display())]
    Directory(PathBuf),
    #[error(
        "{} cannot be executed: its interpreter {} is not there", .program.display(),
        .interpreter.display()
    )]
    NoInterpreter { program: PathBuf, interpreter: PathBuf },
    #[error(
        "{} is for another kind of machine than {}; both must be for the same", .program.display(),
        .library.display()
    )]
    OtherMachine { program: PathBuf, library: PathBuf },
}

/// Whether the shim is linked with musl, as this program is.
const OURS_IS_MUSL: bool = cfg!(target_env = "musl");

/// Where there is a urxe for programs of the other one.
const OTHER_URXE: &str = match OURS_IS_MUSL {
    true => "as the packages have it; it may use the same daemon",
    false => {
        "which packaging/container/README.md of the sources says how to build; it may use the same \
         daemon"
    }
};

/// What people call it.
fn libc(is_musl: bool) -> &'static str {
    if is_musl { "musl" } else { "glibc" }
}

/// Where the program of a name is, as `execvp` looks for it.
pub(super) fn search(name: &OsStr) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| {
        let found = path.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if Path::new(name).components().nth(1).is_some() || name.as_encoded_bytes().contains(&b'/') {
        // The system will say what is wrong with it, if something is.
        return Some(name.into()).filter(|path: &PathBuf| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or("/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(is_executable)
}

/// Whether the library will be loaded into the program: an error if certainly not, a sentence if
/// perhaps not.
pub(super) fn check(program: &Path, library: &Path) -> Result<Option<String>, Unfit> {
    // What cannot be read can perhaps be executed.
    let Ok(file) = File::open(program) else { return Ok(None) };
    if file.metadata().is_ok_and(|found| found.is_dir()) {
        return Err(Unfit::Directory(program.into()));
    }
    // A script's interpreter need only be there: what it starts may well be fit.
    if let Ok(Some(interpreter)) = script_interpreter(&file) {
        must_exist(program, interpreter)?;
    }
    if let Some(elf) = Elf::read(&file) {
        let is_loader = is_loader(program);
        let loader = elf.loader.as_deref().or(is_loader.then_some(program));
        let Some(loader) = loader else { return Err(Unfit::Static(program.into())) };
        if is_of_musl(loader) != OURS_IS_MUSL {
            return Err(Unfit::OtherLibc { program: program.into(), loader: loader.into() });
        }
        must_exist(program, loader.into())?;
        let ours = File::open(library).ok().and_then(|file| Elf::read(&file));
        if ours.is_some_and(|ours| ours.machine != elf.machine) {
            let (program, library) = (program.into(), library.into());
            return Err(Unfit::OtherMachine { program, library });
        }
    }
    let gains = file.metadata().ok().and_then(|found| {
        let has_capabilities = has_capabilities(&file);
        gained_rights(&found, has_capabilities, geteuid().as_raw(), getegid().as_raw())
    });
    Ok(gains.map(|gains| {
        format!(
            "{} is {gains}: the loader ignores LD_PRELOAD for programs that gain rights, so it \
             will find no urxe device; run a copy without that, or become that user first",
            program.display()
        )
    }))
}

/// Whatever executes a program must be there.
fn must_exist(program: &Path, interpreter: PathBuf) -> Result<(), Unfit> {
    match interpreter.exists() {
        true => Ok(()),
        false => Err(Unfit::NoInterpreter { program: program.into(), interpreter }),
    }
}

/// What the first line of a script says that it is executed by.
fn script_interpreter(file: &File) -> io::Result<Option<PathBuf>> {
    let mut head = [0; 256];
    let len = file.read_at(&mut head, 0)?;
    let line = head[..len].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = line.strip_prefix(b"#!").map(|rest| rest.split(|byte| b" \t".contains(byte)));
    let word = words.and_then(|mut words| words.find(|word| !word.is_empty()));
    Ok(word.map(|word| OsStr::from_bytes(word).into()))
}

/// Whether a loader is that of musl (`/lib/ld-musl-x86_64.so.1`).
fn is_of_musl(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"ld-musl")
}

/// Whether this is the loader itself, given a program as its argument.
fn is_loader(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(b"ld") && name.windows(3).any(|part| part == b".so")
}

/// Rights that a program of this file has and its caller has not.
fn gained_rights(
    file: &Metadata,
    has_capabilities: bool,
    uid: u32,
    gid: u32,
) -> Option<&'static str> {
    let mode = file.mode();
    if mode & 0o4000 != 0 && file.uid() != uid {
        Some("setuid")
    } else if mode & 0o2010 == 0o2010 && file.gid() != gid {
        Some("setgid")
    } else if has_capabilities && uid != 0 {
        Some("given capabilities by its file")
    } else {
        None
    }
}

fn has_capabilities(file: &File) -> bool {
    let mut no_room: [u8; 0] = [];
    // Without room for it, only its length is told.
    rustix::fs::fgetxattr(file, "security.capability", &mut no_room[..]).is_ok_and(|len| len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A file that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, contents: &[u8]) -> Scratch {
            let path =
                std::env::temp_dir().join(format!("urxe-{}-file-{name}", std::process::id()));
            std::fs::write(&path, contents).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Type of the program header that names the loader.
    const PT_INTERP: u32 = 3;

    /// A 64-bit file of nothing but headers, of these types, and the name of a loader.
    fn elf_with_loader(machine: u8, kinds: &[u32], loader: &str) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[18] = machine;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = kinds.len() as u8;
        let end = (64 + 56 * kinds.len()) as u64;
        for kind in kinds {
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(end.to_le_bytes());
            bytes.extend([0; 16]);
            bytes.extend((loader.len() as u64 + 1).to_le_bytes());
            bytes.extend([0; 16]);
        }
        bytes.extend(loader.as_bytes());
        bytes.push(0);
        bytes
    }

    /// A program without a loader, or a library.
    fn elf(machine: u8, kinds: &[u32]) -> Vec<u8> {
        elf_with_loader(machine, kinds, "")
    }

    /// The loader of this test, which is there and of the same libc.
    fn own_loader() -> PathBuf {
        let own = File::open("/proc/self/exe").ok().and_then(|file| Elf::read(&file));
        own.and_then(|own| own.loader).expect("this test is dynamically linked")
    }

    /// A program with a loader.
    fn program(machine: u8, loader: &str) -> Vec<u8> {
        elf_with_loader(machine, &[6, PT_INTERP, 1], loader)
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn static_and_foreign_programs_are_refused() {
        let library = Scratch::new("library", &elf(62, &[1]));
        let loader = own_loader();
        let loader = loader.to_str().unwrap();
        let fit = Scratch::new("fit", &program(62, loader));
        assert!(check(&fit.0, &library.0).unwrap().is_none());
        let fixed = Scratch::new("static", &elf(62, &[1, 2]));
        assert!(matches!(check(&fixed.0, &library.0), Err(Unfit::Static(_))));
        assert!(is_loader(Path::new("/lib64/ld-linux-x86-64.so.2")));
        assert!(!is_loader(Path::new("/usr/bin/ldconfig")));
        let foreign = Scratch::new("foreign", &program(183, loader));
        let refused = check(&foreign.0, &library.0).unwrap_err();
        assert!(matches!(refused, Unfit::OtherMachine { .. }), "{refused}");
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn programs_of_another_libc_or_without_their_interpreter_are_refused() {
        let library = Scratch::new("library3", &elf(62, &[1]));
        let refused = |contents: &[u8]| {
            let program = Scratch::new("unfit", contents);
            check(&program.0, &library.0).unwrap_err().to_string()
        };
        let (loader, theirs, ours) = match OURS_IS_MUSL {
            false => ("/lib/ld-musl-x86_64.so.1", "musl", "glibc"),
            true => ("/lib64/ld-linux-x86-64.so.2", "glibc", "musl"),
        };
        let other = refused(&program(62, loader));
        let expected = format!(
            "is linked with {theirs} ({loader}), and the shim of this urxe with {ours}, so that the \
             loader cannot have both; use a program that is linked with {ours}, or a urxe of \
             {theirs}, "
        );
        assert!(other.contains(&expected), "{other}");
        // A static one has no loader that could say so.
        let fixed = refused(&elf(62, &[1]));
        assert!(fixed.contains("is statically linked, and the shim comes in"), "{fixed}");
        let interpreter = Path::new("/nonexistent").join(own_loader().file_name().unwrap());
        let interpreter = interpreter.to_str().unwrap();
        let script = format!("#! {interpreter} -x\n").into_bytes();
        for contents in [program(62, interpreter), script] {
            let gone = refused(&contents);
            assert!(gone.contains(&format!("interpreter {interpreter} is not there")), "{gone}");
        }
        let directory = check(Path::new("/bin"), &library.0).unwrap_err();
        assert_eq!(directory.to_string(), "/bin is a directory");
    }

    #[test]
    fn files_other_than_elf_are_left_to_the_system() {
        let library = Scratch::new("library2", &elf(62, &[1]));
        for contents in ["#!/bin/sh\n", "", "\x7fELF"] {
            let file = Scratch::new("script", contents.as_bytes());
            assert!(check(&file.0, &library.0).unwrap().is_none(), "{contents:?}");
        }
        // Headers that point beyond the end.
        let mut torn = elf(62, &[PT_INTERP]);
        torn[39] = 0xff;
        let torn = Scratch::new("torn", &torn);
        assert!(check(&torn.0, &library.0).unwrap().is_none());
    }

    #[test]
    fn only_rights_that_the_caller_lacks_are_gained() {
        let file = Scratch::new("setuid", b"");
        let with_mode = |mode| {
            std::fs::set_permissions(&file.0, PermissionsExt::from_mode(mode)).unwrap();
            std::fs::metadata(&file.0).unwrap()
        };
        let plain = with_mode(0o755);
        let (uid, gid) = (plain.uid(), plain.gid());
        assert_eq!(gained_rights(&plain, false, uid + 1, gid + 1), None);
        assert_eq!(gained_rights(&plain, true, 1000, gid), Some("given capabilities by its file"));
        assert_eq!(gained_rights(&plain, true, 0, gid), None);
        let setuid = with_mode(0o4755);
        assert_eq!(gained_rights(&setuid, false, uid, gid), None);
        assert_eq!(gained_rights(&setuid, false, uid + 1, gid), Some("setuid"));
        let setgid = with_mode(0o2755);
        assert_eq!(gained_rights(&setgid, false, uid, gid + 1), Some("setgid"));
    }

    #[test]
    fn programs_are_searched_as_the_system_does() {
        assert!(search(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(search(OsStr::new("/bin/sh")), Some("/bin/sh".into()));
        assert_eq!(search(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(search(OsStr::new("./no-such-program")), None);
    }
}
