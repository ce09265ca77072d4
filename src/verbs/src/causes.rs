//! What the daemon's numbers for the causes of failures mean.

use parking_lot::Mutex;

/// A daemon's table of causes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Causes(&'static [(u32, String)]);

impl Causes {
    /// Keeps a table for as long as the program runs, so that completions can point into it. Each
    /// table is kept once, and there is one for each version of the daemon, which is to say one.
    pub(crate) fn intern(table: Vec<(u32, String)>) -> Causes {
        static TABLES: Mutex<Vec<Causes>> = Mutex::new(Vec::new());

        let mut tables = TABLES.lock();
        if let Some(&known) = tables.iter().find(|known| known.0 == table) {
            return known;
        }
        let causes = Causes(table.leak());
        tables.push(causes);
        causes
    }

    /// The sentence for a number; empty if there is none.
    pub(crate) fn text(self, number: u32) -> &'static str {
        let found = self.0.iter().find(|(cause, _)| *cause == number);
        found.map_or("", |(_, text)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tables_are_kept_once() {
        let table = || vec![(1, "one".to_owned()), (7, "seven".to_owned())];
        let (one, two) = (Causes::intern(table()), Causes::intern(table()));
        assert!(std::ptr::eq(one.0, two.0));
        assert_eq!([one.text(1), one.text(7), one.text(2)], ["one", "seven", ""]);
    }
}
