//! Sets of named counters.

/// Makes the enum, its names and its meanings, and the set of them, from one table.
#[macro_export]
macro_rules! counters {
    (
        $(#[$what:meta])* $counter:ident,
        $(#[$set_of_what:meta])* $counters:ident;
        $($variant:ident = $name:literal, $meaning:literal;)*
    ) => {
        $(#[$what])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $counter {
            $(#[doc = $meaning] $variant,)*
        }

        impl $counter {
            /// All of them, in the order in which they are shown.
            pub const ALL: &[$counter] = &[$($counter::$variant),*];

            /// The name under which it is shown.
            pub const fn name(self) -> &'static str {
                match self { $($counter::$variant => $name),* }
            }

            /// What it means, in a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $($counter::$variant => $meaning),* }
            }
        }

        const COUNT: usize = [$($counter::$variant),*].len();

        $(#[$set_of_what])*
        #[derive(Clone, Debug)]
        pub struct $counters {
            values: [u64; COUNT],
        }

        impl Default for $counters {
            fn default() -> Self {
                $counters { values: [0; COUNT] }
            }
        }

        impl $counters {
            /// Adds to one counter.
            pub fn add(&mut self, counter: $counter, amount: u64) {
                self.values[counter as usize] += amount;
            }

            /// The value of one counter.
            pub fn get(&self, counter: $counter) -> u64 {
                self.values[counter as usize]
            }

            /// All counters: name, value, meaning.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> + '_ {
                $counter::ALL.iter().map(|&c| (c.name(), self.get(c), c.meaning()))
            }
        }

        #[cfg(test)]
        #[test]
        fn names_are_unique_and_meanings_are_sentences() {
            let mut names: Vec<_> = $counter::ALL.iter().map(|c| c.name()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), COUNT);
            assert!($counter::ALL.iter().all(|c| c.meaning().ends_with('.')));
        }
    };
}
