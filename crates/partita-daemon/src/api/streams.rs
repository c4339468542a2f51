//! Open event streams, which are limited: each holds a connection for as long as its reader wants.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Shared;
use crate::caller::Caller;
use crate::problem::{Kind, Problem};

/// Streams at once.
const ALL_MAX: usize = 200;
/// Those of all users but root and the daemon's own: the rest is reserved for these two.
const OTHERS_MAX: usize = 150;
/// Those of one of these users.
const USER_MAX: usize = 50;

/// How many streams each user has open.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<u32, usize>>);

/// An open stream, counted until this is dropped.
pub(super) struct Open {
    app: Shared,
    user: u32,
}

impl Open {
    /// # Errors
    /// [`Kind::TooManyRequests`] if as many are open as may be.
    pub fn count(app: &Shared, caller: Caller) -> Result<Self, Problem> {
        let mut counts = app.streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        let privileged = [0, app.user()];
        if let Some((whose, most)) = limit_reached(&counts, caller.user, privileged) {
            let detail = format!(
                "{whose} {most} event streams are open, which is the maximum; close one, or use GET \
                 /v1/tenants"
            );
            return Err(Problem::new(Kind::TooManyRequests, detail));
        }
        *counts.entry(caller.user).or_default() += 1;
        Ok(Self { app: app.clone(), user: caller.user })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut counts = self.app.streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

/// The limit that one more stream of this user would pass, and whose it is.
fn limit_reached(
    counts: &HashMap<u32, usize>,
    user: u32,
    privileged: [u32; 2],
) -> Option<(&'static str, usize)> {
    let all: usize = counts.values().sum();
    let others: usize =
        counts.iter().filter(|(user, _)| !privileged.contains(user)).map(|(_, count)| count).sum();
    if all >= ALL_MAX {
        Some(("of all users", ALL_MAX))
    } else if privileged.contains(&user) {
        None
    } else if counts.get(&user).is_some_and(|count| *count >= USER_MAX) {
        Some(("of this user", USER_MAX))
    } else if others >= OTHERS_MAX {
        Some(("of users other than root", OTHERS_MAX))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_the_streams_of_all() {
        let reached = |counts: &[(u32, usize)], user| {
            limit_reached(&counts.iter().copied().collect(), user, [0, 7]).map(|(_, most)| most)
        };
        assert_eq!(reached(&[], 1), None);
        assert_eq!(reached(&[(1, 49)], 1), None);
        assert_eq!(reached(&[(1, 50)], 1), Some(USER_MAX));
        assert_eq!(reached(&[(1, 50)], 2), None);
        assert_eq!(reached(&[(1, 50), (2, 50), (3, 50)], 4), Some(OTHERS_MAX));
        assert_eq!(reached(&[(1, 50), (2, 50), (3, 50), (7, 49)], 0), None);
        assert_eq!(reached(&[(1, 50), (2, 50), (3, 50), (7, 50)], 0), Some(ALL_MAX));
        assert_eq!(reached(&[(0, 199)], 7), None);
        assert_eq!(reached(&[(0, 200)], 7), Some(ALL_MAX));
    }
}
