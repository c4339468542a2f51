//! What a user gets of what was asked for.

use partita_core::time::Priority;
use partita_core::{ByteSize, Placement, Quota, Share, Topology};

use super::{Moment, Policy, Rule, User};

/// A GPU, as far as a policy knows it.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    /// Its TPCs.
    pub topology: &'a Topology,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// What the driver may take for itself in the tenant, in bytes.
    pub driver_bytes: u64,
}

/// What the user's other tenants on the GPU were promised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// TPCs, of tenants with a share.
    pub tpcs: u32,
    /// Bytes, of tenants with a quota.
    pub memory_bytes: u64,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// `--sm`.
    pub share: Option<Share>,
    /// How far it borrows: the second figure of `--sm`.
    pub up_to: Option<Share>,
    /// `--mem`.
    pub memory: Option<Quota>,
    /// `--place`.
    pub place: Option<Placement>,
    /// `--priority`; `None` where it is not asked for.
    pub priority: Option<Priority>,
    /// The only priority by which it holds its target or its goal in turns; `None` without one.
    pub steered: Option<Priority>,
    /// Whether others who take turns by a priority leave it nothing but turns.
    pub is_joining: bool,
    /// Whether it is for compute units in turns, and not for some of its own.
    pub takes_turns: bool,
    /// Whether the tenant runs: it then keeps what is not asked for.
    pub is_change: bool,
}

/// What the tenant gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decided {
    /// Its share; `None` for an even part, or as it is.
    pub share: Option<Share>,
    /// Its quota; `None` for none, or as it is.
    pub memory: Option<Quota>,
    /// Its placement.
    pub place: Option<Placement>,
}

/// Applies a policy to a request on one GPU: adds the defaults, and checks the maxima of every rule
/// that is for the user now.
///
/// A request without a share gets half of what the user's maximum has left, so that the next one
/// finds some too.
///
/// # Errors
/// The option that is refused, and why, with the rule's line and the remedy.
pub fn decide(
    policy: &Policy,
    user: &User,
    device: &Device<'_>,
    held: Held,
    wish: &Wish,
    now: Moment,
) -> Result<Decided, (String, String)> {
    let mut decided = Decided { share: wish.share, memory: wish.memory, place: wish.place };
    if !wish.is_change {
        decided.share = wish.share.or(policy.default_share.filter(|_| !wish.takes_turns));
        decided.memory = wish.memory.or(policy.default_memory);
        // Named TPCs leave nothing to place.
        let is_named = matches!(decided.share, Some(Share::Gpcs(_) | Share::Exact(_)));
        decided.place = wish.place.or(policy.default_place.filter(|_| !is_named && !wish.takes_turns));
    }
    let rules = policy.rules.iter().filter(|rule| {
        !user.is_root && rule.who.includes(user) && rule.hours.is_none_or(|hours| hours.has(now))
    });
    let rules: Vec<&Rule> = rules.collect();
    for rule in &rules {
        check_priority(rule, user, wish)?;
    }
    let least_tpcs = rules.iter().filter_map(|rule| Some((rule, tpcs(rule.share_max?, device.topology))));
    if let Some((rule, most)) = least_tpcs.min_by_key(|(_, most)| *most) {
        decided.share = share_within(rule, user, device, held, wish, decided.share, most)?;
    }
    let bytes = |quota: Quota| quota.bytes(device.memory_bytes, device.driver_bytes).0;
    let least_bytes = rules.iter().filter_map(|rule| Some((rule, bytes(rule.memory_max?))));
    if let Some((rule, most)) = least_bytes.min_by_key(|(_, most)| *most) {
        decided.memory = memory_within(rule, user, held, wish, decided.memory, most, bytes)?;
    }
    Ok(decided)
}

/// The most TPCs that a user's tenants may have together on one GPU now; `None` without a maximum.
pub fn most_tpcs(policy: &Policy, user: &User, topology: &Topology, now: Moment) -> Option<u32> {
    let rules = policy.rules.iter().filter(|rule| {
        !user.is_root && rule.who.includes(user) && rule.hours.is_none_or(|hours| hours.has(now))
    });
    rules.filter_map(|rule| Some(tpcs(rule.share_max?, topology))).min()
}

/// How many TPCs a share by number is; a maximum may be above the device, or below a TPC.
pub(crate) fn tpcs(share: Share, topology: &Topology) -> u32 {
    match share {
        Share::Percent(_) => share.tpcs_wanted(topology).unwrap_or(0),
        Share::Sms(sms) => sms / topology.sms_per_tpc(),
        Share::Tpcs(tpcs) => tpcs,
        Share::Gpcs(_) | Share::Exact(_) => share.tpcs_wanted(topology).unwrap_or(u32::MAX),
    }
}

/// The option with which a user's tenant joins those who take turns by a priority, as far as the
/// rules that are for the user now allow.
pub fn turns(policy: &Policy, user: &User, now: Moment) -> String {
    let rules = policy.rules.iter().filter(|rule| {
        !user.is_root && rule.who.includes(user) && rule.hours.is_none_or(|hours| hours.has(now))
    });
    let mut allowed = vec![Priority::Low, Priority::High, Priority::Normal];
    for priorities in rules.filter_map(|rule| rule.priorities.as_ref()) {
        allowed.retain(|priority| priorities.contains(priority));
    }
    turns_within(&allowed)
}

fn turns_within(allowed: &[Priority]) -> String {
    let ranked = [Priority::Low, Priority::High].into_iter().find(|priority| allowed.contains(priority));
    match ranked {
        Some(priority) => format!("--priority {priority}"),
        // Which needs no other priority than the normal one.
        None => "--time 50%".to_owned(),
    }
}

fn check_priority(rule: &Rule, user: &User, wish: &Wish) -> Result<(), (String, String)> {
    let Some(allowed) = &rule.priorities else { return Ok(()) };
    let steered = wish.steered.filter(|_| wish.takes_turns && !wish.is_change);
    let priority = match steered.or(wish.priority) {
        None if wish.is_change => return Ok(()),
        priority => priority.unwrap_or_default(),
    };
    if allowed.contains(&priority) {
        return Ok(());
    }
    let words: Vec<&str> = allowed.iter().map(|priority| priority.name()).collect();
    let first = words.first().copied().unwrap_or_default();
    let remedy = match wish.takes_turns && !wish.is_change {
        // Masks need no priority.
        true if steered.is_some() => {
            let word = if allowed.contains(&Priority::Normal) { "normal" } else { first };
            format!(
                "in turns its target or goal needs {priority} priority; use --via mask --priority {word} \
                 instead"
            )
        }
        // With normal priority alone it would join the others with low priority again.
        true if wish.is_joining => format!("use {}", turns_within(allowed)),
        _ => format!("use --priority {first}"),
    };
    Err((
        format!("--priority {priority}"),
        format!(
            "the site's policy (line {}) allows {} only {}; {remedy}",
            rule.line,
            user.name,
            words.join(" and "),
        ),
    ))
}

fn share_within(
    rule: &Rule,
    user: &User,
    device: &Device<'_>,
    held: Held,
    wish: &Wish,
    share: Option<Share>,
    most: u32,
) -> Result<Option<Share>, (String, String)> {
    let left = most.saturating_sub(held.tpcs);
    let why = || {
        format!(
            "the site's policy (line {}) allows {} at most {} of the {} TPCs of this GPU, and tenants of that user \
             hold {}",
            rule.line,
            user.name,
            most.min(device.topology.tpc_count()),
            device.topology.tpc_count(),
            held.tpcs
        )
    };
    const NO_ROOM: &str = "end one of them with `partita kill`, or shrink it with `partita set`";
    if wish.takes_turns && share.is_none() && !wish.is_change {
        let remedy = match left {
            0 => NO_ROOM.to_owned(),
            left => format!("in turns a tenant has more, so add --sm {left}tpc or less"),
        };
        return Err(("turns without --sm".to_owned(), format!("{}; {remedy}", why())));
    }
    if let Some(up_to) = wish.up_to.filter(|up_to| tpcs(*up_to, device.topology) > left) {
        return Err((format!("--sm ..{up_to}"), format!("{}; borrow up to {left}tpc or less", why())));
    }
    match share {
        None if wish.is_change => Ok(None),
        None if left > 0 => Ok(Some(Share::Tpcs(left.div_ceil(2)))),
        Some(share) if tpcs(share, device.topology) <= left => Ok(Some(share)),
        share => {
            let option = share.map_or_else(|| "one more tenant".to_owned(), |share| format!("--sm {share}"));
            let remedy = match left {
                0 => NO_ROOM.to_owned(),
                left => format!("ask for --sm {left}tpc or less"),
            };
            Err((option, format!("{}; {remedy}", why())))
        }
    }
}

fn memory_within(
    rule: &Rule,
    user: &User,
    held: Held,
    wish: &Wish,
    memory: Option<Quota>,
    most: u64,
    bytes: impl Fn(Quota) -> u64,
) -> Result<Option<Quota>, (String, String)> {
    // In whole MiB, which can be typed.
    let left = most.saturating_sub(held.memory_bytes) >> 20 << 20;
    match memory {
        None if wish.is_change => Ok(None),
        // Without a quota a tenant may use more than the maximum.
        None if left > 0 => Ok(Some(Quota::Bytes(ByteSize((left / 2).max(1 << 20) >> 20 << 20)))),
        Some(quota) if bytes(quota) <= most.saturating_sub(held.memory_bytes) => Ok(Some(quota)),
        memory => {
            let option =
                memory.map_or_else(|| "one more tenant".to_owned(), |quota| format!("--mem {quota}"));
            let remedy = match left {
                0 => "end one of them with `partita kill`, or lower its --mem with `partita set`".to_owned(),
                left => format!("ask for --mem {} or less", ByteSize(left).rounded_down()),
            };
            Err((
                option,
                format!(
                    "the site's policy (line {}) allows {} at most {} of this GPU, and tenants of {} were \
                     promised {}; {remedy}",
                    rule.line,
                    user.name,
                    ByteSize(most),
                    user.name,
                    ByteSize(held.memory_bytes)
                ),
            ))
        }
    }
}
