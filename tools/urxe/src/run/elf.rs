//! What an executable file says of itself: its machine, its loader, the libraries that it needs.

use object::NativeEndian;
use object::elf::{DT_NEEDED, DT_STRSZ, DT_STRTAB, FileHeader32, FileHeader64, Machine, PT_LOAD};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{FileKind, ReadCache, ReadRef, StringTable};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An executable file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elf {
    /// Whether it is of the 64-bit kind, and its instruction set.
    pub(super) machine: (bool, Machine),
    /// The loader that it asks for.
    pub(super) loader: Option<PathBuf>,
    /// The names of the libraries that it asks the loader for; none if they cannot be read.
    pub(super) needed: Vec<String>,
}

impl Elf {
    /// `None` if it is no ELF file of this machine's byte order, or is torn. Of a large file only
    /// what is asked for is read.
    pub(super) fn read(file: &File) -> Option<Elf> {
        let data = ReadCache::new(file);
        match FileKind::parse(&data).ok()? {
            FileKind::Elf32 => Elf::parse::<FileHeader32<NativeEndian>, _>(&data),
            FileKind::Elf64 => Elf::parse::<FileHeader64<NativeEndian>, _>(&data),
            _ => None,
        }
    }

    fn parse<'data, H, R>(data: R) -> Option<Elf>
    where
        H: FileHeader<Endian = NativeEndian>,
        R: ReadRef<'data>,
    {
        let header = H::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        let mut loader = None;
        for segment in segments {
            if let Some(path) = segment.interpreter(endian, data).ok()? {
                loader = Some(OsStr::from_bytes(path).into());
            }
        }
        let machine = (header.is_class_64(), header.e_machine(endian));
        let needed = needed::<H, R>(endian, segments, data).unwrap_or_default();
        Some(Elf { machine, loader, needed })
    }
}

/// The libraries that the dynamic segment names.
fn needed<'data, H, R>(
    endian: H::Endian,
    segments: &'data [H::ProgramHeader],
    data: R,
) -> Option<Vec<String>>
where
    H: FileHeader,
    R: ReadRef<'data>,
{
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, data).ok()?)?;
    let value = |tag| dynamic.iter().find(|entry| entry.tag(endian) == tag);
    let names = value(DT_STRTAB)?.val(endian);
    let names_len = value(DT_STRSZ)?.val(endian);
    // The table is known by its address in memory.
    let start = segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD).find_map(
        |segment| {
            let (offset, len) = segment.file_range(endian);
            let at = names.checked_sub(segment.p_vaddr(endian).into()).filter(|&at| at < len)?;
            offset.checked_add(at)
        },
    )?;
    let names = StringTable::new(data, start, start.checked_add(names_len)?);
    let entries = dynamic.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    let name = |entry: &H::Dyn| entry.string(endian, names).ok();
    Some(entries.filter_map(name).map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_loader_and_the_libraries_that_it_needs() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::read(&file).unwrap();
        assert!(elf.loader.as_ref().is_some_and(|loader| loader.exists()), "{elf:?}");
        assert!(elf.needed.iter().any(|name| name.starts_with("libc.")), "{elf:?}");
    }

    #[test]
    fn a_torn_file_names_none() {
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let path = std::env::temp_dir().join(format!("urxe-{}-torn-program", std::process::id()));
        let mut torn = whole[..4096].to_vec();
        for at in (0..torn.len()).step_by(7) {
            torn[at] ^= 0xff;
            std::fs::write(&path, &torn).unwrap();
            let _ = Elf::read(&File::open(&path).unwrap());
            torn[at] ^= 0xff;
        }
        std::fs::write(&path, &torn).unwrap();
        let elf = Elf::read(&File::open(&path).unwrap());
        assert!(elf.is_none_or(|elf| elf.needed.is_empty()));
        std::fs::remove_file(path).unwrap();
    }
}
