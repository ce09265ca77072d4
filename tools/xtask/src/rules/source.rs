//! The tests that source files have.

use std::collections::HashMap;

/// The source files that were asked about, each read once.
pub(super) struct Sources<F> {
    read: F,
    files: HashMap<String, Option<Vec<Test>>>,
}

impl<F: Fn(&str) -> Option<String>> Sources<F> {
    /// `read` gives a file's text, if there is such a file.
    pub(super) fn new(read: F) -> Sources<F> {
        Sources { read, files: HashMap::new() }
    }

    /// Whether `test`, as `file::name`, is a test that runs.
    pub(super) fn check(&mut self, test: &str) -> Result<(), &'static str> {
        let (file, name) = test.split_once("::").ok_or("must be file::test")?;
        let read = || (self.read)(file).map(|text| tests(&text));
        let tests = self.files.entry(file.to_owned()).or_insert_with(read);
        let tests = tests.as_ref().ok_or("there is no such file")?;
        match tests.iter().find(|test| test.name == name) {
            None => Err("the file has no such test"),
            Some(Test { ignored: true, .. }) => Err("the test is ignored, so nothing breaks it"),
            Some(_) => Ok(()),
        }
    }
}

/// A test function.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    name: String,
    /// It does not run with the others.
    ignored: bool,
}

/// All tests of a file, those inside `proptest!` too. Attributes stand on lines of their own, as
/// rustfmt puts them.
fn tests(text: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut attributes: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        if line.is_empty() || line.starts_with("//") {
            continue;
        }
        if attributes.contains(&"#[test]")
            && let Some(name) = function_name(line)
        {
            let ignored = attributes.iter().any(|attribute| attribute.starts_with("#[ignore"));
            tests.push(Test { name: name.to_owned(), ignored });
        }
        attributes.clear();
    }
    tests
}

/// The name of the function that begins on this line.
fn function_name(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_a_function_with_the_attribute() {
        let text = "
            fn helper() {}
            #[test]
            fn plain() {}
            /// Says something.
            #[test]
            // Between the two.
            #[should_panic(expected = \"fn no()\")]
            fn panics() {}
            #[cfg(test)]
            fn no_test() {}
            // #[test]
            fn commented_out() {}
            proptest! {
                #[test]
                fn a_property(x in any::<u8>()) {}
            }
            #[test]
            #[ignore]
            fn rests() {}
        ";
        let names: Vec<_> = tests(text).into_iter().map(|t| (t.name, t.ignored)).collect();
        let expected =
            [("plain", false), ("panics", false), ("a_property", false), ("rests", true)];
        assert_eq!(names, expected.map(|(name, ignored)| (name.to_owned(), ignored)));
    }
}
