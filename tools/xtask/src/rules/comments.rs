//! The places in the code that decide a rule: lines with a comment that begins with its ID.
//!
//! ```text
//! // RC-RESP-010: a request of no bytes names no memory, whatever its key.
//! // UC-014, UC-015
//! ```

/// Where a rule is decided, or an ID stands that names none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) id: String,
    /// The line, from 1.
    pub(super) line: usize,
}

/// The places of a file, and the lines on which IDs do not stand in the form that is asked for.
pub(super) fn mentions(text: &str, is_prefix: impl Fn(&str) -> bool) -> (Vec<Mention>, Vec<usize>) {
    let (mut found, mut malformed) = (Vec::new(), Vec::new());
    for (index, line) in without_tests(text).enumerate() {
        let Some((_, comment)) = line.split_once("//") else { continue };
        let is_id = |word: &str| is_id(word, &is_prefix);
        let words = || comment.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        if !words().any(is_id) {
            continue;
        }
        let ids = comment.trim_start().split(':').next().unwrap_or_default().trim_end();
        match ids.split(", ").all(is_id) {
            true => found
                .extend(ids.split(", ").map(|id| Mention { id: id.to_owned(), line: index + 1 })),
            false => malformed.push(index + 1),
        }
    }
    (found, malformed)
}

/// Whether a word is an ID of one of the lists.
fn is_id(word: &str, is_prefix: impl Fn(&str) -> bool) -> bool {
    word.rsplit_once('-').is_some_and(|(prefix, digits)| {
        is_prefix(prefix) && digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The lines before the tests of a file.
fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        if line != "#[cfg(test)]" {
            return Some(line);
        }
        // A module of its own file does not end this one.
        match lines.peek().is_some_and(|next| next.ends_with(';')) {
            true => Some(line),
            false => None,
        }
    })
}

/// Whether a source file is code of the product.
pub(super) fn is_product(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let is_test = ["tests.rs", "testing.rs"].contains(&file) || file.ends_with("_tests.rs");
    !is_test && !name.contains("/tests/") && !name.contains("/examples/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> (Vec<(String, usize)>, Vec<usize>) {
        let (places, malformed) = mentions(text, |prefix| prefix == "RC-A");
        (places.into_iter().map(|place| (place.id, place.line)).collect(), malformed)
    }

    #[test]
    fn a_comment_that_begins_with_ids_is_their_place() {
        let text = "// RC-A-001: because.\nlet a = 1; // RC-A-002, RC-A-003\n// RC-B-001, C9-88";
        let ids = [("RC-A-001", 1), ("RC-A-002", 2), ("RC-A-003", 2)];
        let ids = ids.map(|(id, line)| (id.to_owned(), line)).to_vec();
        assert_eq!(found(text), (ids, vec![]));
    }

    #[test]
    fn an_id_inside_of_a_sentence_or_of_documentation_is_malformed() {
        assert_eq!(
            found("// See RC-A-001.\n/// RC-A-001: x\n// RC-A-001 x"),
            (vec![], vec![1, 2, 3])
        );
    }

    #[test]
    fn tests_are_no_places() {
        let module = "#[cfg(test)]\nmod tests {\n// RC-A-001\n";
        assert_eq!(found(module), (vec![], vec![]));
        let file = "#[cfg(test)]\nmod tests;\n// RC-A-001\n";
        assert_eq!(found(file).0.len(), 1);
        assert!(is_product("src/wire/src/bth.rs") && !is_product("src/wire/src/mad/tests.rs"));
        assert!(!is_product("src/engine/tests/uc.rs") && !is_product("src/shm/src/loom_tests.rs"));
    }
}
