//! House rules that no other tool checks.

use std::path::Path;
use urxe_shell::{Result, files_below, root};

/// Longest line of a source file, in characters; a line with a text may be longer.
const LINE_MAX: usize = 100;

/// Most lines of code in a file before its tests, blank lines and comments not counted.
const LINES_MAX: usize = 500;

/// Where `unsafe` may stand: memory shared with other processes, system calls, the functions of
/// libc that are interposed, instructions that not every processor has, and two places of the
/// tools: one registers memory that the library knows nothing of, and one leaves descriptors behind
/// that somebody else gave us.
const UNSAFE_FOLDERS: [&str; 7] = [
    "src/shm/src/",
    "src/port/src/sys/",
    "src/shim/src/",
    "src/verbs/",
    "src/wire/src/icrc/clmul.rs",
    "tools/urxe/src/perf/bench.rs",
    "tools/urxe/src/detach.rs",
];

/// Words of ours that were in names once, and that nobody else has for these things.
const PRIVATE_WORDS: [&str; 14] = [
    "belongings",
    "burial",
    "burials",
    "courtesy",
    "doomed",
    "habits",
    "herald",
    "household",
    "manners",
    "messenger",
    "patience",
    "politely",
    "surroundings",
    "weather",
];

/// What no type is called: a word that says nothing of what it holds.
const PRIVATE_TYPES: [&str; 11] = [
    "Books", "Face", "Fate", "Freedom", "Holder", "Life", "Party", "Place", "Shown", "Told", "Way",
];

/// What no name of a test begins with: it states the rule.
const TEST_PREFIXES: [&str; 3] = ["fn who_", "fn what_", "fn nobody_"];

/// The texts whose paths in backticks are looked for.
const DOCUMENTS: [&str; 2] = ["ARCHITECTURE.md", "CONTRIBUTING.md"];

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
    for dir in ["src", "apps", "spec-tests", "tools", "interop"] {
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
    for name in DOCUMENTS {
        let text = std::fs::read_to_string(root.join(name));
        let text = text.map_err(|error| format!("{name}: {error}"))?;
        check_paths(name, &text, |path| root.join(path).exists(), &mut problems);
    }
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

/// Each path in backticks, from the root of the repository, must exist.
fn check_paths(name: &str, text: &str, exists: impl Fn(&str) -> bool, problems: &mut Vec<String>) {
    for (number, line) in text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2) {
            // Folders of crates are seen at once.
            let is_path = quoted.matches('/').count() > 1
                && ["src/", "spec-tests/", "tools/", "interop/"]
                    .iter()
                    .any(|d| quoted.starts_with(d))
                && !quoted.contains(' ');
            if is_path && !exists(quoted) {
                problems.push(format!("{name}:{}: {quoted} does not exist", number + 1));
            }
        }
    }
}

/// The words of a line, those that names are made of too, in lower case.
fn words(line: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in line.chars() {
        if !c.is_ascii_alphabetic() || (after_lower && c.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphabetic()) {
            word.push(c.to_ascii_lowercase());
        }
        after_lower = c.is_ascii_lowercase();
    }
    words.into_iter()
}

/// Whether a line makes something public that needs a sentence. Fields and variants need one only
/// where their names do not say it all, which no tool can tell.
fn needs_doc(line: &str) -> bool {
    let Some(rest) = line.trim_start().strip_prefix("pub ") else { return false };
    let mut words = rest.split(' ').skip_while(|word| ["async", "unsafe"].contains(word));
    ["fn", "struct", "enum", "trait", "type", "const", "static"]
        .contains(&words.next().unwrap_or(""))
}

/// The name of the type that a line defines.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.find(|word| ["struct", "enum", "trait", "type"].contains(word))?;
    words.next()
}

fn check_file(name: &str, text: &str, problems: &mut Vec<String>) {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let before_tests = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let code = before_tests.filter(is_code).count();
    if code > LINES_MAX && !name.contains("/tests/") {
        problems
            .push(format!("{name}: {code} lines of code before its tests, at most {LINES_MAX}"));
    }
    let (mut has_doc, mut is_in_attribute) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if name.starts_with("src/") && !name.contains("/tests/") && needs_doc(line) && !has_doc {
            problems.push(format!("{place}: public, but no doc comment says what it is"));
        }
        // Attributes may stand between the comment and what it is about; those that a macro was
        // given have it among them.
        let code = line.trim();
        is_in_attribute = (is_in_attribute || code.starts_with("#[")) && !code.ends_with(']');
        let goes_on = is_in_attribute || code.ends_with(']') || code.starts_with("//");
        has_doc =
            ["///", "#[doc", "$(#["].iter().any(|doc| code.starts_with(doc)) || has_doc && goes_on;
        if line.chars().count() > LINE_MAX && !line.contains('"') {
            problems.push(format!("{place}: longer than {LINE_MAX} characters"));
        }
        let private = words(line).find(|word| PRIVATE_WORDS.contains(&word.as_str()));
        if let Some(word) = private.filter(|_| !name.ends_with("xtask/src/tidy.rs")) {
            problems
                .push(format!("{place}: {word:?} is a word of ours; an engineer's is asked for"));
        }
        if TEST_PREFIXES.iter().any(|prefix| line.trim_start().starts_with(prefix)) {
            problems.push(format!("{place}: a test's name states the rule"));
        }
        let code = line.split("//").next().unwrap_or(line);
        if let Some(name) = type_name(code).filter(|name| PRIVATE_TYPES.contains(name)) {
            problems.push(format!("{place}: {name:?} does not say what the type is"));
        }
        let is_unsafe = code.contains(concat!("uns", "afe {"))
            || code.contains(concat!("uns", "afe fn"))
            || code.contains(concat!("uns", "afe impl"));
        if is_unsafe && !UNSAFE_FOLDERS.iter().any(|folder| name.starts_with(folder)) {
            problems.push(format!("{place}: unsafe outside of {}", UNSAFE_FOLDERS.join(", ")));
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
    fn private_words_are_found_inside_of_names() {
        assert_eq!(problems("src/wire/src/a.rs", "struct HeraldOfCq; // no heraldry\n"), 1);
        assert_eq!(problems("src/wire/src/a.rs", "const COURTESY_TIME: u8 = 1;\n"), 1);
        assert_eq!(problems("src/wire/src/a.rs", "    fn nobody_has_it() {}\n"), 1);
        assert_eq!(problems("src/wire/src/a.rs", concat!("pub(super) en", "um Fate<'a> {\n")), 1);
        assert_eq!(problems("src/wire/src/a.rs", "struct Lifetime { fate: u8 }\n"), 0);
    }

    #[test]
    fn public_items_need_a_doc_comment_and_fields_do_not() {
        let documented = "/// A.\n#[derive(Debug)]\npub struct A {\n    pub b: u8,\n}\n";
        assert_eq!(problems("src/wire/src/a.rs", documented), 0);
        assert_eq!(problems("src/wire/src/a.rs", "pub struct A;\n    pub const fn b() {}\n"), 2);
        assert_eq!(problems("src/wire/src/a.rs", "pub(crate) fn a() {}\npub use b::C;\n"), 0);
        assert_eq!(problems("tools/urxe/src/a.rs", "pub fn a() {}\n"), 0);
    }

    #[test]
    fn paths_in_documents_exist() {
        let mut problems = Vec::new();
        let text = "`src/a/a.rs`, `src/a/b.rs`, `cargo src/a/b.rs`, src/a/b.rs, `b.rs`";
        check_paths("A.md", text, |path| path == "src/a/a.rs", &mut problems);
        assert_eq!(problems, ["A.md:1: src/a/b.rs does not exist"]);
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
