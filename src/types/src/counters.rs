//! Counters: each with the name under which it is shown and a sentence that says what it means.

/// Makes a set of counters, each a field:
///
/// ```
/// urxe_types::counters! {
///     /// What a window counts.
///     pub struct WindowCounters {
///         broken: "Times that it was broken.",
///     }
/// }
///
/// let counters = WindowCounters { broken: 2 };
/// assert_eq!(counters.iter().next(), Some(("broken", 2, "Times that it was broken.")));
/// assert_eq!((counters + counters).broken, 4);
/// ```
///
/// Or, where code is told which counter to add to, an enum of them with the set of their values:
///
/// ```
/// urxe_types::counters! {
///     /// What a door counts.
///     pub enum DoorCounter;
///     /// The counters of a door.
///     pub struct DoorCounters;
///     Opened = "opened", "Times that it was opened.";
///     Closed = "closed", "Times that it was closed.";
/// }
///
/// let mut counters = DoorCounters::default();
/// counters.add(DoorCounter::Closed, 2);
/// assert_eq!(counters.get(DoorCounter::Closed), 2);
/// assert_eq!(counters.iter().nth(1), Some(("closed", 2, "Times that it was closed.")));
/// assert_eq!((counters.clone() + &counters).get(DoorCounter::Closed), 4);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$what:meta])* $vis:vis struct $counters:ident { $($name:ident: $meaning:literal,)* }) => {
        $(#[$what])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $counters {
            $(#[doc = $meaning] $vis $name: u64,)*
        }

        impl $counters {
            /// Has one counter go on from a value, by its name. One of another name is left out.
            $vis fn go_on_from(&mut self, name: &str, value: u64) {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => {}
                }
            }

            /// All counters: name, value, meaning.
            $vis fn iter(self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($name), self.$name, $meaning),)*].into_iter()
            }
        }

        /// Counter by counter.
        impl ::std::ops::Add for $counters {
            type Output = $counters;

            fn add(self, other: $counters) -> $counters {
                $counters { $($name: self.$name + other.$name,)* }
            }
        }
    };
    (
        $(#[$what:meta])* $vis:vis enum $counter:ident;
        $(#[$set_of_what:meta])* $set_vis:vis struct $counters:ident;
        $($variant:ident = $name:literal, $meaning:literal;)*
    ) => {
        $(#[$what])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $counter {
            $(#[doc = $meaning] $variant,)*
        }

        impl $counter {
            /// All of them, in the order in which they are shown.
            $vis const ALL: &[$counter] = &[$($counter::$variant),*];

            /// The name under which it is shown.
            $vis const fn name(self) -> &'static str {
                match self { $($counter::$variant => $name),* }
            }

            /// What it means.
            $vis const fn meaning(self) -> &'static str {
                match self { $($counter::$variant => $meaning),* }
            }
        }

        $(#[$set_of_what])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $set_vis struct $counters {
            values: [u64; $counter::ALL.len()],
        }

        impl Default for $counters {
            fn default() -> Self {
                $counters { values: [0; $counter::ALL.len()] }
            }
        }

        #[allow(dead_code)] // not every set is read and added to in every way
        impl $counters {
            /// Adds to one counter.
            $set_vis fn add(&mut self, counter: $counter, amount: u64) {
                self.values[counter as usize] += amount;
            }

            /// Has one counter go on from a value, by its name. One of another name is left out.
            $set_vis fn go_on_from(&mut self, name: &str, value: u64) {
                if let Some(counter) = $counter::ALL.iter().find(|counter| counter.name() == name) {
                    self.values[*counter as usize] = value;
                }
            }

            /// The value of one counter.
            $set_vis fn get(&self, counter: $counter) -> u64 {
                self.values[counter as usize]
            }

            /// All counters: name, value, meaning.
            $set_vis fn iter(
                &self,
            ) -> impl Iterator<Item = (&'static str, u64, &'static str)> + '_ {
                $counter::ALL.iter().map(|&c| (c.name(), self.get(c), c.meaning()))
            }
        }

        /// Counter by counter.
        impl ::std::ops::Add<&$counters> for $counters {
            type Output = $counters;

            fn add(mut self, other: &$counters) -> $counters {
                for (value, other) in self.values.iter_mut().zip(other.values) {
                    *value += other;
                }
                self
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::counters! {
        /// Two of them.
        enum Counter;
        /// Both.
        struct Counters;
        First = "first", "The first.";
        Second = "second", "The second.";
    }

    #[test]
    fn each_counter_is_listed_with_its_own_value() {
        let mut counters = Counters::default();
        counters.add(Counter::Second, 7);
        let sum = counters.clone() + &counters;
        let expected = [("first", 0, "The first."), ("second", 14, "The second.")];
        assert_eq!(sum.iter().collect::<Vec<_>>(), expected);
    }
}
