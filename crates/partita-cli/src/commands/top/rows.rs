//! The tenants in the order of the frame: pure, from two looks.

use std::time::Duration;

use super::reading::{Reading, Tenant, burst_s_between, launches_between};

/// A tenant on one GPU, as a frame shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    pub tenant: Tenant,
    /// Kernel launches a second since the look before; `None` without one, or if they are not
    /// counted.
    pub launches_per_s: Option<f64>,
    /// The part of the time since the look before in which it was inside bursts, in percent, by
    /// those that ended since; `None` without a look before.
    pub duty_percent: Option<f64>,
}

/// Which tenant on which GPU.
pub type RowKey = (String, String, String);

impl Row {
    /// Its identity from look to look.
    pub fn key(&self) -> RowKey {
        let Tenant { name, user, gpu, .. } = &self.tenant;
        (name.clone(), user.clone(), gpu.clone())
    }
}

/// By what tenants are sorted. Numbers go from the largest down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Name,
    Sms,
    Time,
    Memory,
    Launches,
}

impl Sort {
    /// All of them, in the order of the columns.
    pub const ALL: [Self; 5] = [Self::Name, Self::Sms, Self::Time, Self::Memory, Self::Launches];

    /// The next one.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Its word in the frame.
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Sms => "SMs",
            Self::Time => "time",
            Self::Memory => "memory",
            Self::Launches => "launches",
        }
    }

    /// The number that it sorts by.
    fn number(self, row: &Row) -> f64 {
        let tenant = &row.tenant;
        let value = match self {
            Self::Name => None,
            Self::Sms => tenant.sms.map(f64::from),
            Self::Time => tenant.time.and_then(|time| time.used_percent),
            Self::Memory => tenant.memory_used_bytes.map(|bytes| bytes as f64),
            Self::Launches => row.launches_per_s,
        };
        value.unwrap_or(-1.0)
    }
}

/// The rows of a look, `since` after the one before.
pub fn rows(before: Option<(&Reading, Duration)>, now: &Reading, sort: Sort) -> Vec<Row> {
    let of = |tenant: &Tenant| {
        let before = before.filter(|(_, since)| !since.is_zero()).and_then(|(before, since)| {
            let same = |other: &&Tenant| {
                (&other.name, &other.user, &other.gpu) == (&tenant.name, &tenant.user, &tenant.gpu)
            };
            Some((before.tenants.iter().find(same)?, since.as_secs_f64()))
        });
        let rate = |between: fn(&Tenant, &Tenant) -> Option<f64>| {
            before.and_then(|(before, since_s)| Some(between(before, tenant)? / since_s))
        };
        Row {
            tenant: tenant.clone(),
            launches_per_s: rate(|before, now| Some(launches_between(before, now)? as f64)),
            duty_percent: rate(|before, now| Some(burst_s_between(before, now)? * 100.0)),
        }
    };
    let mut rows: Vec<Row> = now.tenants.iter().map(of).collect();
    rows.sort_by(|one, other| {
        sort.number(other).total_cmp(&sort.number(one)).then_with(|| one.key().cmp(&other.key()))
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::reading::{Process, Times};
    use proptest::prelude::*;

    #[test]
    fn rates_need_a_look_before() {
        let tenant = |launches| Tenant {
            name: "a".to_owned(),
            launches: Some(launches),
            processes: vec![Process { pid: 1, launches }],
            ..Tenant::default()
        };
        let reading = |launches| Reading { tenants: vec![tenant(launches)], ..Reading::default() };
        assert_eq!(rows(None, &reading(5), Sort::Name)[0].launches_per_s, None);
        let before = reading(100);
        let now = rows(Some((&before, Duration::from_millis(500))), &reading(150), Sort::Name);
        assert_eq!((now[0].launches_per_s, now[0].duty_percent), (Some(100.0), None));
        let with_bursts = |sum_s| {
            let bursts = Some(Times { count: 1, sum_s, ..Times::default() });
            Reading { tenants: vec![Tenant { bursts, ..tenant(5) }], ..Reading::default() }
        };
        let now = rows(Some((&with_bursts(1.0), Duration::from_secs(2))), &with_bursts(1.5), Sort::Name);
        assert_eq!(now[0].duty_percent, Some(25.0));
        let others = Reading { tenants: Vec::new(), ..Reading::default() };
        assert_eq!(
            rows(Some((&others, Duration::from_secs(1))), &reading(150), Sort::Name)[0].launches_per_s,
            None
        );
        assert_eq!(rows(Some((&before, Duration::ZERO)), &reading(150), Sort::Name)[0].launches_per_s, None);
    }

    proptest! {
        #[test]
        fn every_order_has_every_tenant_and_falls(
            tenants in prop::collection::vec(("[a-d]{1,2}", prop::option::of(0u32..200), prop::option::of(any::<u64>())), 0..20)
        ) {
            let tenants = tenants.into_iter().map(|(name, sms, memory_used_bytes)| Tenant {
                name, sms, memory_used_bytes, ..Tenant::default()
            });
            let now = Reading { tenants: tenants.collect(), ..Reading::default() };
            for sort in Sort::ALL {
                let rows = rows(None, &now, sort);
                prop_assert_eq!(rows.len(), now.tenants.len());
                for pair in rows.windows(2) {
                    let (one, other) = (sort.number(&pair[0]), sort.number(&pair[1]));
                    prop_assert!(one > other || (one == other && pair[0].key() <= pair[1].key()));
                }
                // The order is that of the tenants alone.
                let mut turned = now.clone();
                turned.tenants.reverse();
                let keys = |rows: &[Row]| rows.iter().map(Row::key).collect::<Vec<_>>();
                prop_assert_eq!(keys(&super::rows(None, &turned, sort)), keys(&rows));
            }
        }
    }
}
