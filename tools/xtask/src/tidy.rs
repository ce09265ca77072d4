//! House rules that no other tool checks.

use std::path::Path;
use urxe_shell::{Result, files_below, root};

/// Longest line of a source file, in characters; a line with a text may be longer.
const LINE_MAX: usize = 100;

/// Most lines of code in a file before its tests, blank lines and comments not counted.
const LINES_MAX: usize = 500;

/// Where `unsafe` may stand: memory shared with other processes, system calls, the functions of
/// libc that are interposed, and two places of the tools: one registers memory that the library
/// knows nothing of, and one leaves descriptors behind that somebody else gave us.
const UNSAFE_ROOMS: [&str; 6] = [
    "src/shm/src/",
    "src/port/src/sys/",
    "src/shim/src/",
    "src/verbs/",
    "tools/urxe/src/perf/bench.rs",
    "tools/urxe/src/detach.rs",
];

/// The crates that do no I/O and know no clock, those that are there: folders of `src`. Clippy
/// holds each of them to the same `clippy.toml`.
pub(crate) fn crates_without_io() -> impl Iterator<Item = &'static str> {
    let src = root().join("src");
    let is_there = move |name: &&str| src.join(name).join("Cargo.toml").exists();
    ["types", "wire", "engine", "cm"].into_iter().filter(is_there)
}

/// Checks every source file.
pub(crate) fn check() -> Result {
    let root = root();
    let mut files = Vec::new();
    for dir in ["src", "spec-tests", "tools", "interop"] {
        files_below(&root.join(dir), "rs", &mut files)
            .map_err(|error| format!("{dir}: {error}"))?;
    }
    files.sort();
    let mut problems = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
        check_file(&name, &text, &mut problems);
    }
    check_clippy(&root, &mut problems);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(format!("{} problems\n{}", problems.len(), problems.join("\n"))),
    }
}

/// Clippy reads the nearest `clippy.toml` and no other, so each crate has its own: a link.
fn check_clippy(root: &Path, problems: &mut Vec<String>) {
    let read = |name: &str| std::fs::read(root.join("src").join(name).join("clippy.toml")).ok();
    let wire = read("wire");
    for name in crates_without_io().filter(|name| read(name) != wire || wire.is_none()) {
        problems.push(format!("src/{name}/clippy.toml: must be a link to ../wire/clippy.toml"));
    }
}

fn check_file(name: &str, text: &str, problems: &mut Vec<String>) {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let before_tests = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let code = before_tests.filter(is_code).count();
    if code > LINES_MAX && !name.contains("/tests/") {
        problems
            .push(format!("{name}: {code} lines of code before its tests, at most {LINES_MAX}"));
    }
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if line.chars().count() > LINE_MAX && !line.contains('"') {
            problems.push(format!("{place}: longer than {LINE_MAX} characters"));
        }
        let code = line.split("//").next().unwrap_or(line);
        let is_unsafe = code.contains(concat!("uns", "afe {"))
            || code.contains(concat!("uns", "afe fn"))
            || code.contains(concat!("uns", "afe impl"));
        if is_unsafe && !UNSAFE_ROOMS.iter().any(|room| name.starts_with(room)) {
            problems.push(format!("{place}: unsafe outside of {}", UNSAFE_ROOMS.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, text: &str) -> usize {
        let mut problems = Vec::new();
        check_file(name, text, &mut problems);
        problems.len()
    }

    #[test]
    fn long_lines_and_misplaced_unsafe_are_found() {
        let block = concat!("uns", "afe { }\n");
        assert_eq!(problems("src/wire/src/a.rs", "fn a() {}\n"), 0);
        assert_eq!(problems("src/wire/src/a.rs", block), 1);
        assert_eq!(problems("src/shm/src/a.rs", block), 0);
        assert_eq!(problems("src/wire/src/a.rs", &"x".repeat(101)), 1);
        assert_eq!(problems("src/wire/src/a.rs", &"x\n".repeat(501)), 1);
    }
}
