//! Dates of days, for logs and reports.

/// Year, month and day of the month of a day since 1970-01-01, in the Gregorian calendar.
///
/// Years begin in March here, so that the leap day is their last, and eras of 400 years are all
/// alike (H. Hinnant, «chrono-compatible low-level date algorithms»).
pub fn date_of(day: u64) -> (u64, u64, u64) {
    let shifted = day.saturating_add(719_468);
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (day, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_015, (2000, 2, 28)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(date_of(day), date);
        }
    }

    #[test]
    fn four_hundred_years_have_each_date_once_and_in_order() {
        let mut before = date_of(0);
        for day in 1..146_097 {
            let date = date_of(day);
            let next_day = (before.0, before.1, before.2 + 1);
            let next_month = if before.1 == 12 { (before.0 + 1, 1, 1) } else { (before.0, before.1 + 1, 1) };
            assert!(date == next_day || date == next_month && before.2 >= 28, "{before:?} {date:?}");
            before = date;
        }
        assert_eq!(date_of(146_097), (2370, 1, 1));
    }
}
