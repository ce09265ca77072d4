//! Programs that were compiled with a sanitizer whose runtime is a shared library.
//!
//! Such a runtime (`-fsanitize=address`, `-fsanitize=thread` and their kin) interposes functions of
//! libc, as the shim does, and must be the first to do so: AddressSanitizer refuses to start
//! otherwise. So where the program asks for one, that is preloaded before the shim. (clang links
//! its runtimes into the program by default, where they are first anyway.)

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How the names of such libraries begin, as gcc and clang have them.
const RUNTIMES: [&str; 8] = [
    "libasan.so",
    "libtsan.so",
    "liblsan.so",
    "libhwasan.so",
    "libclang_rt.asan",
    "libclang_rt.tsan",
    "libclang_rt.lsan",
    "libclang_rt.hwasan",
];

/// The runtime that a program asks the loader for, by its name.
pub(super) fn runtime_of(program: &Path) -> Option<String> {
    let libraries = needed(&File::open(program).ok()?)?;
    libraries.into_iter().find(|name| RUNTIMES.iter().any(|runtime| name.starts_with(runtime)))
}

/// Bytes that are read of any one table: those of real programs are far shorter.
const TABLE_MAX: u64 = 1 << 20;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

/// A program header: what it is, and where in the file and in memory.
struct Segment {
    kind: u32,
    offset: u64,
    addr: u64,
    len: u64,
}

/// The libraries that a 64-bit ELF file of this machine's byte order names; `None` if it is none,
/// or is torn.
fn needed(file: &File) -> Option<Vec<String>> {
    let head = read(file, 0, 64)?;
    if head[..5] != *b"\x7fELF\x02" || (head[5] == 1) != cfg!(target_endian = "little") {
        return None;
    }
    let (table, entry_len, count) = (u64_at(&head, 32)?, u16_at(&head, 54)?, u16_at(&head, 56)?);
    let segments: Option<Vec<Segment>> = (0..u64::from(count))
        .map(|index| {
            let entry = read(file, table.checked_add(index * u64::from(entry_len))?, 56)?;
            let [offset, addr, len] = [8, 16, 32].map(|at| u64_at(&entry, at));
            let kind = u32::from_ne_bytes(*entry.first_chunk()?);
            Some(Segment { kind, offset: offset?, addr: addr?, len: len? })
        })
        .collect();
    let segments = segments?;
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let dynamic = read(file, dynamic.offset, dynamic.len)?;
    let (entries, _) = dynamic.as_chunks::<16>();
    let entries = entries.iter().filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)));
    let entries: Vec<(u64, u64)> = entries.collect();
    let value = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
    let (names, len) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    let holds = |segment: &&Segment| {
        segment.kind == PT_LOAD
            && names.checked_sub(segment.addr).is_some_and(|at| at < segment.len)
    };
    let segment = segments.iter().find(holds)?;
    let names = read(file, segment.offset.checked_add(names - segment.addr)?, len)?;
    let name = |at: u64| {
        let rest = names.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let needed = entries.iter().filter(|entry| entry.0 == DT_NEEDED);
    Some(needed.filter_map(|entry| name(entry.1)).collect())
}

fn read(file: &File, offset: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len.min(TABLE_MAX)).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_program_names_the_libraries_that_it_needs() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let libraries = needed(&file).unwrap();
        assert!(libraries.iter().any(|name| name.starts_with("libc.so")), "{libraries:?}");
        assert_eq!(runtime_of(&std::env::current_exe().unwrap()), None);
    }

    #[test]
    fn a_torn_file_names_none() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let path = std::env::temp_dir().join(format!("urxe-{}-torn-program", std::process::id()));
        let mut torn = whole[..4096].to_vec();
        for at in (0..torn.len()).step_by(7) {
            torn[at] ^= 0xff;
            std::fs::write(&path, &torn).unwrap();
            let _ = needed(&File::open(&path).unwrap());
            torn[at] ^= 0xff;
        }
        std::fs::write(&path, &torn).unwrap();
        assert_eq!(needed(&File::open(&path).unwrap()), None);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_runtime_of_a_sanitizer_is_found() {
        let path = std::env::temp_dir().join(format!("urxe-{}-sanitized", std::process::id()));
        for (option, name) in [("address", "libasan.so"), ("thread", "libtsan.so")] {
            let source = path.with_extension("c");
            std::fs::write(&source, "int main(void) { return 0; }").unwrap();
            let mut gcc = Command::new("gcc");
            gcc.arg(format!("-fsanitize={option}")).arg("-o").arg(&path).arg(&source);
            let built = gcc.output().is_ok_and(|output| output.status.success());
            std::fs::remove_file(source).unwrap();
            if !built {
                eprintln!("could not run: no gcc with -fsanitize={option}");
                return;
            }
            let found = runtime_of(&path);
            assert!(found.as_ref().is_some_and(|found| found.starts_with(name)), "{found:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
