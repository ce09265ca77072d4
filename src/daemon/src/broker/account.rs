//! Who has how much of what there is only so much of, by user.
//!
//! Whoever comes finds something, whatever others have: for each of the first [`USERS`] users a
//! minimum is kept. Of the rest one user may have at most [`SHARE`] times what all leave free. So
//! one alone has most of it and never all, and makes room as others come by what it gives back.

use rustix::io::Errno;
use std::collections::BTreeMap;
use urxe_shm::control::ControlError;
use urxe_slot::refusal::refuse;

/// Users for whom a minimum is kept.
const USERS: usize = 32;

/// How many times what is left free one user may have beyond its minimum.
const SHARE: usize = 8;

/// What there is of one kind, and which user has how much of it.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// What several are called in a sentence.
    plural: &'static str,
    total: usize,
    /// What one user may have at most, and the option that says so.
    most: Option<(&'static str, usize)>,
    /// By user; none has nothing.
    held: BTreeMap<u32, usize>,
    /// Of all users.
    sum: usize,
}

impl Account {
    pub(crate) fn new(plural: &'static str, total: usize) -> Account {
        Account { plural, total, most: None, held: BTreeMap::new(), sum: 0 }
    }

    /// From now on one user may have so many at most, whatever there is, as an option says. Who has
    /// more keeps them, and gets no further one until fewer are left.
    pub(crate) fn limit(&mut self, option: &'static str, most: Option<usize>) {
        self.most = most.map(|most| (option, most));
    }

    /// What each user can have, whatever others have: a quarter of all is kept for these minimums,
    /// or half where there is little. Where there is less than that, nobody is sure of anything.
    fn minimum(&self) -> usize {
        let least = usize::from(self.total >= 2 * USERS);
        least.max(self.total / (4 * USERS))
    }

    /// What nobody has and no minimum needs.
    fn spare(&self) -> usize {
        let minimum = self.minimum();
        let newcomers = USERS.saturating_sub(self.held.len()) * minimum;
        let others: usize = self.held.values().map(|held| minimum.saturating_sub(*held)).sum();
        self.total.saturating_sub(self.sum + newcomers + others)
    }

    /// Whether a user may have one more.
    ///
    /// # Errors
    /// That it may not, in a sentence that names the user and what it has.
    pub(crate) fn check(&self, user: u32) -> Result<(), ControlError> {
        let held = self.held.get(&user).copied().unwrap_or(0);
        // SHARE-106
        if let Some((option, most)) = self.most.filter(|(_, most)| held >= *most) {
            let sentence = format!(
                "{}: user {user} has {held}, and one user may have {most} at most (urxed: {option})",
                self.plural
            );
            return Err(refuse(Errno::NOMEM, sentence));
        }
        let may = match held.checked_sub(self.minimum()) {
            // SHARE-101
            None => self.sum < self.total,
            // SHARE-102
            Some(beyond) => beyond < self.spare().saturating_mul(SHARE),
        };
        if may {
            return Ok(());
        }
        let (plural, total) = (self.plural, self.total);
        let sentence = format!(
            "{plural}: user {user} has {held} of the {total} that all users can have, and may have \
             no more now: the rest is for other users"
        );
        Err(refuse(Errno::NOMEM, sentence))
    }

    /// A user has one more.
    pub(crate) fn take(&mut self, user: u32) {
        *self.held.entry(user).or_default() += 1;
        self.sum += 1;
    }

    /// A user gives one back.
    pub(crate) fn give_back(&mut self, user: u32) {
        let Some(held) = self.held.get_mut(&user) else { return };
        *held -= 1;
        self.sum -= 1;
        if *held == 0 {
            self.held.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take_all(account: &mut Account, user: u32) -> usize {
        let taken = (0..).take_while(|_| {
            let may = account.check(user).is_ok();
            if may {
                account.take(user);
            }
            may
        });
        taken.count()
    }

    #[test]
    fn one_user_alone_has_most_and_leaves_the_rest() {
        let mut account = Account::new("sessions", 2048);
        let taken = take_all(&mut account, 7);
        assert!((1300..1400).contains(&taken), "{taken}");
        let refusal = account.check(7).unwrap_err();
        let expected = format!("sessions: user 7 has {taken} of the 2048");
        assert!(refusal.message.starts_with(&expected), "{}", refusal.message);
        // A second one finds more than its minimum.
        assert!(take_all(&mut account, 8) > 2 * account.minimum());
    }

    #[test]
    fn others_can_have_what_a_user_gives_back() {
        let mut account = Account::new("ids", 640);
        let taken = take_all(&mut account, 7);
        for _ in 0..taken {
            account.give_back(7);
        }
        assert_eq!(account.spare(), 480);
        assert_eq!(take_all(&mut account, 8), taken);
    }

    #[test]
    fn a_limit_takes_nothing_away_and_gives_nothing_until_fewer_are_left() {
        let mut account = Account::new("sessions", 640);
        for _ in 0..5 {
            account.take(7);
        }
        account.limit("sessions-per-user", Some(3));
        for left in [4, 3, 2] {
            let refusal = account.check(7).unwrap_err();
            let expected = "one user may have 3 at most (urxed: sessions-per-user)";
            assert!(refusal.message.contains(expected), "{}", refusal.message);
            account.give_back(7);
            assert_eq!(account.held[&7], left);
        }
        account.check(7).unwrap();
        assert_eq!(take_all(&mut account, 8), 3);
        account.limit("sessions-per-user", None);
        assert!(take_all(&mut account, 8) > 3);
    }

    proptest! {
        /// SHARE-101: whatever all have done, a user that has less than the minimum gets one more.
        #[test]
        fn a_newcomer_finds_room_among_as_many_users_as_have_a_minimum(
            total in 2 * USERS..2000,
            steps in prop::collection::vec((0..USERS as u32, any::<bool>(), 1usize..500), 0..200),
        ) {
            let mut account = Account::new("sessions", total);
            for (user, takes, count) in steps {
                for _ in 0..count {
                    match takes {
                        true if account.check(user).is_ok() => account.take(user),
                        true => break,
                        false => account.give_back(user),
                    }
                }
                prop_assert!(account.sum <= total);
                prop_assert_eq!(account.held.values().sum::<usize>(), account.sum);
                for user in 0..USERS as u32 {
                    let held = account.held.get(&user).copied().unwrap_or(0);
                    prop_assert!(held >= account.minimum() || account.check(user).is_ok());
                }
            }
        }
    }
}
