//! Programs that were compiled with a sanitizer whose runtime is a shared library.
//!
//! Such a runtime (`-fsanitize=address`, `-fsanitize=thread` and their kin) interposes functions of
//! libc, as the shim does, and must be the first to do so: AddressSanitizer refuses to start
//! otherwise. So where the program asks for one, that is preloaded before the shim. (clang links
//! its runtimes into the program by default, where they are first anyway.)

use super::elf::Elf;
use std::fs::File;
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
    let elf = Elf::read(&File::open(program).ok()?)?;
    elf.needed.into_iter().find(|name| RUNTIMES.iter().any(|runtime| name.starts_with(runtime)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use urxe_shell::testing::could_not_run;

    #[test]
    fn the_runtime_of_a_sanitizer_is_found() {
        assert_eq!(runtime_of(&std::env::current_exe().unwrap()), None);
        let path = std::env::temp_dir().join(format!("urxe-{}-sanitized", std::process::id()));
        for (option, name) in [("address", "libasan.so"), ("thread", "libtsan.so")] {
            let source = path.with_extension("c");
            std::fs::write(&source, "int main(void) { return 0; }").unwrap();
            let mut gcc = Command::new("gcc");
            gcc.arg(format!("-fsanitize={option}")).arg("-o").arg(&path).arg(&source);
            let built = gcc.output().is_ok_and(|output| output.status.success());
            std::fs::remove_file(source).unwrap();
            if !built {
                return could_not_run(&format!("no gcc with -fsanitize={option}"));
            }
            let found = runtime_of(&path);
            assert!(found.as_ref().is_some_and(|found| found.starts_with(name)), "{found:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
