use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// A tenant that always has work, of units of the given lengths, with looks when the law demands
/// them and at most `late_ns` too late. Returns the busy time and the longest unit that ran.
fn saturate(law: Law, units_ns: &[u64], late_ns: u64, until_ns: u64) -> (u64, u64) {
    let mut budget = Budget::new(law, 0);
    let (mut now, mut busy, mut longest) = (0, 0, 0);
    let mut units = units_ns.iter().copied().cycle();
    let mut open = true;
    let mut wake = budget.look_in(0);
    while now < until_ns {
        let before = now;
        let mut ran = 0;
        if open {
            // Units begin as long as the gate is open, and end in their own time.
            let closes = now + wake + late_ns;
            while now < closes {
                let unit = units.next().unwrap();
                longest = longest.max(unit);
                now += unit;
                ran += unit;
            }
        } else {
            now += wake + late_ns;
        }
        busy += ran;
        assert!(now > before);
        let decision = budget.look(now, Situation { busy_ns: ran, wants: true, others_want: true });
        open = decision.open;
        wake = decision.look_in_ns.unwrap_or(MS);
    }
    (busy * 1000 / now.max(1), longest)
}

impl Budget {
    fn look_in(&mut self, now: u64) -> u64 {
        self.look(now, Situation { busy_ns: 0, wants: true, others_want: true }).look_in_ns.unwrap_or(MS)
    }
}

proptest! {
    #[test]
    fn the_share_is_met_whatever_the_kernels(
        share in 20u32..990,
        units in prop::collection::vec(10_000u64..50 * MS, 1..20),
        late in 0u64..200_000,
    ) {
        let until = 60_000 * MS;
        let (achieved, longest) = saturate(Law::new(share, Policy::Hard), &units, late, until);
        // The bound of the module's documentation, with what a late look adds, in thousandths of
        // the time.
        let bound = (longest + 2 * MS + 2 * late + 100 * MS) * 1000 / until + 2;
        prop_assert!(achieved.abs_diff(u64::from(share)) <= bound, "{achieved} for {share}, within {bound}");
    }

    #[test]
    fn a_balance_stays_within_savings_and_overrun(
        share in 1u32..1000,
        steps in prop::collection::vec((0u64..20 * MS, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let law = Law::new(share, Policy::Hard);
        let mut budget = Budget::new(law, 0);
        let (mut now, mut open, mut overrun) = (0, true, 0);
        for (passed, wants, others_want) in steps {
            now += passed;
            let busy_ns = if open && wants { passed } else { 0 };
            overrun = overrun.max(busy_ns);
            open = budget.look(now, Situation { busy_ns, wants, others_want }).open;
            prop_assert!(budget.balance_ns() <= law.period_share_ns() as i64);
            prop_assert!(budget.balance_ns() >= -(overrun as i64));
        }
    }

    #[test]
    fn soft_debt_is_paid_within_a_period(share in 10u32..1000, alone in 0u64..100_000 * MS) {
        let law = Law::new(share, Policy::Soft);
        let mut budget = Budget::new(law, 0);
        let borrowing = budget.look(alone, Situation { busy_ns: alone, wants: true, others_want: false });
        prop_assert!(borrowing.open);
        let mut now = alone;
        let mut decision = budget.look(now, Situation { busy_ns: 0, wants: true, others_want: true });
        while !decision.open {
            now += decision.look_in_ns.unwrap();
            decision = budget.look(now, Situation { busy_ns: 0, wants: true, others_want: true });
        }
        // One period for the debt, and what it takes to earn a slice.
        let slice_ns = law.slice_ns.min(law.period_share_ns()) * 1000 / u64::from(share);
        prop_assert!(now - alone <= law.period_ns + slice_ns + 1000);
    }

    #[test]
    fn a_look_that_is_awaited_changes_something(share in 1u32..1000, debt in 0u64..1000 * MS) {
        let mut budget = Budget::new(Law::new(share, Policy::Hard), 0);
        let wanted = Situation { busy_ns: debt, wants: true, others_want: true };
        let decision = budget.look(0, wanted);
        let later = decision.look_in_ns.unwrap();
        let busy_ns = if decision.open { later } else { 0 };
        let next = budget.look(later, Situation { busy_ns, wants: true, others_want: true });
        prop_assert_ne!(next.open, decision.open);
    }

    #[test]
    fn units_are_no_longer_than_wanted_or_one_launch(lengths in prop::collection::vec(1u64..10 * MS, 1..50)) {
        let mut pacer = Pacer::default();
        for &length in &lengths {
            pacer.observe(length);
            let launches = pacer.launches();
            prop_assert!((1..=pacer.launches_max).contains(&launches));
            prop_assert!(launches == 1 || u64::from(launches) * length <= pacer.unit_ns);
        }
    }
}

#[test]
fn a_whole_share_is_never_closed_and_none_never_opens() {
    let busy = Situation { busy_ns: 1000 * MS, wants: true, others_want: true };
    let mut whole = Budget::new(Law::new(1000, Policy::Hard), 0);
    assert_eq!(whole.look(MS, busy), Decision { open: true, look_in_ns: None });
    let mut none = Budget::new(Law::new(0, Policy::Hard), 0);
    assert_eq!(
        none.look(1000 * MS, Situation { busy_ns: 0, ..busy }),
        Decision { open: false, look_in_ns: None }
    );
}

#[test]
fn a_clock_that_goes_back_earns_nothing() {
    let mut budget = Budget::new(Law::new(500, Policy::Hard), 1000 * MS);
    let before = budget.balance_ns();
    budget.look(10 * MS, Situation::default());
    assert_eq!(budget.balance_ns(), before);
    budget.look(1001 * MS, Situation::default());
    assert_eq!(budget.balance_ns(), before + 500_000);
}

#[test]
fn those_who_are_held_pass_in_the_end() {
    let hold = Hold::default();
    assert_eq!(hold.passes_until(100, 100), None);
    assert_eq!(hold.passes_until(100, 99), None);
    let late = 100 + hold.hold_ns_max;
    assert_eq!(hold.passes_until(100, late), Some(late + hold.pass_ns));
    // A time in the future does not make others wait for ever.
    assert_eq!(hold.passes_until(late - 1, 100), None);
    assert_eq!(hold.passes_until(late, 100), Some(100 + hold.pass_ns));
    assert_eq!(hold.passes_until(u64::MAX, 100), Some(100 + hold.pass_ns));
}

#[test]
fn only_low_waits_and_only_for_high() {
    use Priority::{High, Low, Normal};
    assert!(Low.is_held_by(High));
    for (free, by) in [(Low, Low), (Low, Normal), (Normal, High), (High, High), (High, Low), (Normal, Normal)]
    {
        assert!(!free.is_held_by(by));
    }
    for priority in [High, Normal, Low] {
        assert_eq!(priority.name().parse(), Ok(priority));
        assert_eq!(Priority::from_number(priority as u32), priority);
    }
    assert!("urgent".parse::<Priority>().is_err());
}

/// The length of a union of intervals, by counting microseconds.
fn union_us(intervals: &[(u64, u64)]) -> u64 {
    let end = intervals.iter().map(|&(_, to)| to).max().unwrap_or(0);
    (0..end).filter(|us| intervals.iter().any(|(from, to)| (from..to).contains(&us))).count() as u64
}

proptest! {
    #[test]
    fn what_overlaps_is_charged_once(
        intervals in prop::collection::vec((0u64..400, 1u64..60), 1..24),
    ) {
        // On the borders of ticks, and within what the timeline remembers, the answer is exact.
        let ticks: Vec<(u64, u64)> = intervals.iter().map(|&(from, long)| (from, from + long)).collect();
        let mut timeline = Timeline::default();
        let reported: u64 =
            ticks.iter().map(|&(from, to)| timeline.report(from * 50_000, to * 50_000)).sum();
        prop_assert_eq!(reported, union_us(&ticks) * 50_000);
    }

    #[test]
    fn what_does_not_overlap_is_charged_to_the_nanosecond(
        steps in prop::collection::vec((0u64..2 * MS, 0u64..3 * MS), 1..200),
    ) {
        let (mut timeline, mut now, mut busy, mut reported) = (Timeline::default(), 7 * MS, 0, 0);
        for (idle, long) in steps {
            // Two of less than a tick may share one.
            now += idle + 50_000;
            reported += timeline.report(now, now + long);
            now += long;
            busy += long;
        }
        prop_assert_eq!(reported, busy);
    }

    #[test]
    fn late_reports_of_many_processes_never_charge_more_than_the_time_that_passed(
        reports in prop::collection::vec((0u64..300 * MS, 0u64..6000 * MS, 0u64..6000 * MS), 1..200),
    ) {
        let (mut timeline, mut now, mut charged) = (Timeline::default(), 60_000 * MS, 0);
        for (passed, late, long) in reports {
            now += passed;
            let end = now - late;
            charged += timeline.report(end.saturating_sub(long), end);
            // Amounts of spans are rounded by less than 1 ms each.
            prop_assert!(charged <= now + now / 200, "{charged} in {now}");
        }
    }

    #[test]
    fn what_is_forgotten_is_not_charged(begin in 0u64..1000 * MS, hours in 1u64..10_000) {
        let (mut timeline, end) = (Timeline::default(), hours * 3_600_000 * MS);
        let charged = timeline.report(begin, end);
        prop_assert!((13_000 * MS..13_500 * MS).contains(&charged), "{charged}");
        prop_assert!(timeline.report(begin, end) < 205 * MS);
    }

    #[test]
    fn what_many_report_late_is_charged_once(
        processes in 2u64..40, late in 0u64..3000 * MS, long in 500 * MS..9000 * MS,
    ) {
        let (mut timeline, now) = (Timeline::default(), 100_000 * MS);
        timeline.report(now - 10, now);
        let end = now - late;
        let charged: u64 = (0..processes).map(|_| timeline.report(end - long, end)).sum();
        // The first pays, and the others pay for what it leaves of the spans at both ends.
        prop_assert!(charged >= long);
        prop_assert!(charged <= long + 2 * 205 * MS, "{charged} for {long}");
    }

    #[test]
    fn a_late_report_of_what_others_reported_in_time_costs_next_to_nothing(
        long in 60 * MS..5000 * MS,
    ) {
        let mut timeline = Timeline::default();
        let (begin, end) = (10_000 * MS, 10_000 * MS + long);
        let mut charged = 0;
        for from in (begin..end).step_by(5 * MS as usize) {
            charged += timeline.report(from, end.min(from + 5 * MS));
        }
        prop_assert_eq!(charged, long);
        let again: u64 = (0..40).map(|_| timeline.report(begin, end)).sum();
        // What was idle of the spans at both ends.
        prop_assert!(again <= 2 * 205 * MS + long / 200, "{again}");
    }

    #[test]
    fn an_account_survives_the_way_through_words(
        share in 0u32..=1000,
        looks in prop::collection::vec((0u64..20 * MS, 0u64..20 * MS, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let law = Law::new(share, Policy::Hard);
        let (mut now, mut account) = (5 * MS, TimeAccount::new(law, 5 * MS));
        let mut copied = account;
        for (passed, long, wants, others) in looks {
            now += passed;
            let busy = [(now.saturating_sub(long), now)];
            copied = TimeAccount::from_words(law, now, &copied.to_words());
            prop_assert_eq!(copied.look(now, busy, None, wants, others), account.look(now, busy, None, wants, others));
            prop_assert_eq!(copied, account);
        }
    }

    #[test]
    fn whatever_stands_in_the_words_is_an_account(
        words in prop::collection::vec(prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)], ACCOUNT_WORDS),
        share in 0u32..=1200,
        now in any::<u64>(),
        busy in prop::collection::vec((any::<u64>(), any::<u64>()), 0..4),
    ) {
        for policy in [Policy::Hard, Policy::Soft] {
            let law = Law::new(share, policy);
            let mut account = TimeAccount::from_words(law, now, &words.as_slice().try_into().unwrap());
            account.look(now, busy.iter().copied(), busy.iter().copied().rev(), true, true);
            prop_assert!(account.used_permille(now) <= 1000);
            prop_assert!(account.budget().balance_ns() <= law.period_share_ns() as i64);
        }
    }
}

#[test]
fn the_share_used_is_that_of_the_last_second() {
    let law = Law::new(500, Policy::Hard);
    let mut account = TimeAccount::new(law, 0);
    for step in 1..=3000 {
        let now = step * MS;
        account.look(now, [(now - MS / 4, now)], None, true, true);
    }
    assert_eq!(account.used_permille(3000 * MS), 250);
    assert_eq!(account.used_ns(), 750 * MS);
    // Long after, it has been idle.
    assert!(account.used_permille(30_000 * MS) < 10);
}

#[test]
fn who_borrows_looks_often_enough_to_give_back() {
    let law = Law::new(100, Policy::Soft);
    let mut budget = Budget::new(law, 0);
    let borrowing = budget.look(MS, Situation { busy_ns: 50 * MS, wants: true, others_want: false });
    assert!(borrowing.open);
    assert!(borrowing.look_in_ns.is_some_and(|look_in| look_in < law.period_ns / 4 && look_in > MS));
}

#[test]
fn what_was_not_busy_after_all_is_given_back() {
    let law = Law::new(500, Policy::Hard);
    let mut accounts = [TimeAccount::new(law, 0); 2];
    let [told, other] = &mut accounts;
    // Taken to run up to the look, it had ended at 7; what came next began before the look.
    told.look(10 * MS, [(2 * MS, 10 * MS)], None, true, true);
    told.look(20 * MS, [(9 * MS, 12 * MS)], [(7 * MS, 10 * MS)], true, true);
    other.look(10 * MS, [(2 * MS, 7 * MS)], None, true, true);
    other.look(20 * MS, [(9 * MS, 12 * MS)], None, true, true);
    assert_eq!(told.budget().balance_ns(), other.budget().balance_ns());
    assert_eq!((told.used_ns(), other.used_ns()), (8 * MS, 8 * MS));
}
