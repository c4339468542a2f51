//! From the decisions that controllers write down to events: values in, values out.

use partita::slo::{Decided, StepRow};

/// A tenant on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// Its name.
    pub tenant: String,
    /// Its user's name.
    pub user: String,
    /// The UUID of its GPU.
    pub gpu_uuid: String,
}

/// What is stored as one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The tenant.
    pub whose: Whose,
    /// The GPU's short name.
    pub gpu: String,
    /// When it was, in milliseconds since 1970.
    pub at_unix_ms: i64,
    /// Whether it says that a target cannot be met.
    pub is_bad: bool,
    /// In words.
    pub detail: String,
}

impl Whose {
    /// Of a tenant with decisions.
    pub fn of(decided: &Decided) -> Self {
        let Decided { tenant, user, gpu, .. } = decided;
        Self { tenant: tenant.clone(), user: user.clone(), gpu_uuid: gpu.uuid.clone() }
    }
}

/// The decisions on a tenant after a time. Moves that follow each other become one, so that a
/// tenant whose TPCs go to and fro has few events.
pub fn news(decided: &Decided, after_unix_ms: Option<i64>) -> Vec<Decision> {
    let time = |step: &StepRow| i64::try_from(step.at_unix_ms).unwrap_or(i64::MAX);
    let is_new = |step: &&StepRow| after_unix_ms.is_none_or(|after| time(step) > after);
    let steps: Vec<&StepRow> = decided.steps.iter().filter(is_new).collect();
    let groups = steps.chunk_by(|one, next| !one.is_about_target() && !next.is_about_target());
    let decision = |group: &[&StepRow]| {
        let (first, last) = (group.first()?, group.last()?);
        let name = &decided.tenant;
        let detail = match group.len() {
            _ if last.is_about_target() => format!("{name}: {}", last.why),
            _ if first.from_tpcs == last.tpcs && group.len() == 1 => {
                format!("{name} has {} TPCs: {}", last.tpcs, last.why)
            }
            1 => format!("{name} went from {} to {} TPCs: {}", first.from_tpcs, last.tpcs, last.why),
            moves => format!(
                "{name} went from {} to {} TPCs in {moves} decisions, the last one: {}",
                first.from_tpcs, last.tpcs, last.why
            ),
        };
        let (whose, gpu) = (Whose::of(decided), decided.gpu.label.clone());
        Some(Decision { whose, gpu, at_unix_ms: time(last), is_bad: last.what == "unmet", detail })
    };
    groups.filter_map(decision).collect()
}

#[cfg(test)]
mod tests {
    use partita::registry::GpuMeta;
    use proptest::prelude::*;

    use super::*;

    fn decided(steps: &[(u64, &str, u32, u32)]) -> Decided {
        let gpu = GpuMeta {
            key: "k".to_owned(),
            uuid: "GPU-1".to_owned(),
            index: Some(0),
            label: "GPU 0".to_owned(),
            sim: None,
        };
        let step = |&(at_unix_ms, what, from_tpcs, tpcs): &(u64, &str, u32, u32)| StepRow {
            at_unix_ms,
            what: what.to_owned(),
            from_tpcs,
            tpcs,
            why: format!("why {at_unix_ms}"),
        };
        let steps = steps.iter().map(step).collect();
        Decided { tenant: "a".to_owned(), user: "ann".to_owned(), gpu, steps }
    }

    #[test]
    fn moves_are_joined_and_the_rest_is_told_one_by_one() {
        let all = decided(&[
            (1, "late", 8, 16),
            (2, "late", 16, 60),
            (3, "unmet", 60, 60),
            (4, "met", 60, 60),
            (5, "trial", 60, 40),
            (6, "kept", 40, 40),
        ]);
        let told: Vec<(i64, bool, String)> =
            news(&all, None).into_iter().map(|one| (one.at_unix_ms, one.is_bad, one.detail)).collect();
        let expected = [
            (2, false, "a went from 8 to 60 TPCs in 2 decisions, the last one: why 2"),
            (3, true, "a: why 3"),
            (4, false, "a: why 4"),
            (6, false, "a went from 60 to 40 TPCs in 2 decisions, the last one: why 6"),
        ];
        assert_eq!(told, expected.map(|(at, is_bad, detail)| (at, is_bad, detail.to_owned())));
        let later = news(&all, Some(4));
        assert_eq!(later.len(), 1);
        assert_eq!(news(&all, Some(5))[0].detail, "a has 40 TPCs: why 6");
        assert!(news(&all, Some(6)).is_empty());
    }

    proptest! {
        #[test]
        fn whenever_a_daemon_looks_each_step_is_told_once(
            kinds in prop::collection::vec(0usize..5, 0..64), looks in prop::collection::vec(0usize..64, 0..10),
        ) {
            let names = ["late", "trial", "unmet", "met", "learnt"];
            let steps: Vec<_> = kinds.iter().zip(1u64..).map(|(kind, at)| (at, names[*kind], 1, 2)).collect();
            let mut looks: Vec<usize> = looks.into_iter().map(|at| at.min(steps.len())).collect();
            looks.push(steps.len());
            looks.sort_unstable();
            let (mut last, mut told) = (None, Vec::new());
            for until in looks {
                let new = news(&decided(&steps[..until]), last);
                last = new.last().map(|one| one.at_unix_ms).or(last);
                told.extend(new);
            }
            prop_assert!(told.windows(2).all(|pair| pair[0].at_unix_ms < pair[1].at_unix_ms));
            prop_assert_eq!(told.last().map(|one| one.at_unix_ms), steps.last().map(|step| step.0 as i64));
            let bad = told.iter().filter(|one| one.is_bad).count();
            prop_assert_eq!(bad, kinds.iter().filter(|kind| **kind == 2).count());
        }
    }
}
