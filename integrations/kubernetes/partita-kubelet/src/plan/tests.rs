//! Claims that are understood and that are not, and: whatever the scheduler's rules admit, the
//! planner can place.

use k8s_openapi::api::resource::v1::{
    AllocationResult, Device, DeviceAllocationConfiguration, DeviceAllocationResult, ResourceClaimStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use partita_core::memory::{Claim, To, divide};
use partita_core::{Present, Share, Topology, Tpc};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use super::*;
use crate::device::slices;
use crate::device::tests::h200;
use crate::parameters::tests::config;

const UID: &str = "5c1d9a70-1111-4222-8333-444455556666";

fn result(device: &str, consumed: &[(&str, &str)]) -> DeviceRequestAllocationResult {
    DeviceRequestAllocationResult {
        driver: DRIVER.to_owned(),
        pool: "node-a".to_owned(),
        request: "gpu".to_owned(),
        device: device.to_owned(),
        share_id: Some(format!("share-{device}")),
        consumed_capacity: Some(
            consumed.iter().map(|&(name, value)| (name.to_owned(), Quantity(value.to_owned()))).collect(),
        ),
        ..DeviceRequestAllocationResult::default()
    }
}

fn claim(
    results: Vec<DeviceRequestAllocationResult>,
    config: Vec<DeviceAllocationConfiguration>,
) -> ResourceClaim {
    let mut claim = ResourceClaim::default();
    claim.metadata.uid = Some(UID.to_owned());
    claim.status = Some(ResourceClaimStatus {
        allocation: Some(AllocationResult {
            devices: Some(DeviceAllocationResult { config: Some(config), results: Some(results) }),
            ..AllocationResult::default()
        }),
        ..ResourceClaimStatus::default()
    });
    claim
}

const HALF: [(&str, &str); 3] = [("multiprocessors", "66"), ("memory", "40Gi"), ("clients", "1")];

fn planned(claim: &ResourceClaim) -> Result<Definition, String> {
    plan(claim, UID, "node-a", &[h200(0), h200(1)])
}

#[test]
fn a_share_becomes_a_tenant() {
    let shared = h200(1).shared_device();
    let parameters = config("FromClaim", &[], json!({"place": "spread", "isolation": "own"}));
    let definition = planned(&claim(vec![result(&shared, &HALF)], vec![parameters])).unwrap();
    assert_eq!(definition.size, Some(Size { sms: 66, memory_bytes: 40 << 30 }));
    assert_eq!(definition.selectors, ["1"]);
    assert_eq!(definition.limits["place"], "spread");
    assert_eq!(definition.limits.len(), 2);
    assert!(definition.tenant.starts_with(UID) && definition.tenant.len() <= 63, "{}", definition.tenant);
    // Another share of the same claim is another name.
    let mut other = result(&shared, &HALF);
    other.share_id = Some("another".to_owned());
    assert_ne!(planned(&claim(vec![other], vec![])).unwrap().tenant, definition.tenant);
}

#[test]
fn whole_gpus_and_equal_shares_are_one_tenant() {
    let whole = planned(&claim(vec![result(&h200(0).device(), &[])], vec![])).unwrap();
    assert_eq!((whole.size, whole.limits.len()), (None, 0));
    let both = [0, 1].map(|which| result(&h200(which).shared_device(), &HALF));
    assert_eq!(planned(&claim(both.to_vec(), vec![])).unwrap().selectors, ["0", "1"]);
}

#[test]
fn what_cannot_be_one_tenant_is_refused_with_the_reason() {
    let shared = h200(0).shared_device();
    let sized = |sms: &str, memory: &str| {
        result(&shared, &[("multiprocessors", sms), ("memory", memory), ("clients", "1")])
    };
    let half = || result(&shared, &HALF);
    let mut second = result(&h200(1).shared_device(), &HALF);
    let unequal = claim(vec![sized("34", "40Gi"), second.clone()], vec![]);
    second.request = "other".to_owned();
    let mut admin = half();
    admin.admin_access = Some(true);
    let mut foreign = half();
    foreign.pool = "node-b".to_owned();
    for (claim, reason) in [
        (claim(vec![sized("33", "40Gi")], vec![]), "multiprocessors of gpu-"),
        (claim(vec![sized("0", "40Gi")], vec![]), "from 2 to 132 in steps of 2"),
        (claim(vec![sized("134", "40Gi")], vec![]), "from 2 to 132"),
        (claim(vec![sized("34", "1500000001")], vec![]), "in steps of 1048576"),
        (claim(vec![sized("34", "1Mi")], vec![]), "memory of gpu-"),
        (claim(vec![sized("34", "1.5")], vec![]), "whole number"),
        (claim(vec![result(&shared, &HALF[..2])], vec![]), "no clients"),
        (claim(vec![result(&shared, &[("cores", "50")])], vec![]), "\"cores\""),
        (claim(vec![result("gpu-gone", &HALF)], vec![]), "not on this node any more"),
        (claim(vec![half(), half()], vec![]), "two shares of GPU-"),
        (claim(vec![half(), second], vec![]), "requests gpu and other"),
        (unequal, "unequal sizes"),
        (claim(vec![admin], vec![]), "admin access"),
        (claim(vec![foreign], vec![]), "pool node-a"),
        (ResourceClaim { status: None, ..claim(vec![], vec![]) }, "allocated nothing"),
        (claim(vec![half()], vec![config("FromClaim", &[], json!({"speed": "1"}))]), "\"speed\""),
    ] {
        let said = planned(&claim).unwrap_err();
        assert!(said.contains(reason), "{reason}: {said}");
    }
    let again = plan(&claim(vec![half()], vec![]), "another-uid", "node-a", &[h200(0)]).unwrap_err();
    assert!(again.contains("made again"), "{again}");
    let ill = Board { fault: Some("it fell off the bus".to_owned()), ..h200(0) };
    let said = plan(&claim(vec![half()], vec![]), UID, "node-a", &[ill]).unwrap_err();
    assert!(said.contains("fell off the bus"), "{said}");
}

/// The scheduler's rules for one GPU: what a request consumes, and whether it is admitted. From
/// `consumable_capacity.go` of Kubernetes 1.36: below the least it is the least, otherwise the next
/// whole step; without an entry the default; each capacity is added up by itself.
struct Scheduler {
    shared: Device,
    used: BTreeMap<String, u64>,
    shares: usize,
    whole_taken: bool,
}

type Consumed = BTreeMap<String, Quantity>;

impl Scheduler {
    fn of(board: &Board) -> Self {
        let slices = slices("node-a", std::slice::from_ref(board), 1);
        let shared = slices[1].devices.as_ref().unwrap()[0].clone();
        Self { shared, used: BTreeMap::new(), shares: 0, whole_taken: false }
    }

    fn admit(&mut self, requests: &BTreeMap<&str, u64>) -> Option<Consumed> {
        if self.whole_taken {
            return None;
        }
        let mut consumed = BTreeMap::new();
        for (name, capacity) in self.shared.capacity.as_ref().unwrap() {
            let policy = capacity.request_policy.as_ref().unwrap();
            let range = policy.valid_range.as_ref().unwrap();
            let min = whole(&range.min).unwrap();
            let step = whole(range.step.as_ref().unwrap()).unwrap();
            let value = match requests.get(name.as_str()) {
                None => whole(policy.default.as_ref().unwrap()).unwrap(),
                Some(&asked) if asked <= min => min,
                Some(&asked) => min + (asked - min).div_ceil(step) * step,
            };
            if value > whole(range.max.as_ref().unwrap()).unwrap() {
                return None;
            }
            let used = self.used.get(name).copied().unwrap_or(0);
            if used + value > whole(&capacity.value).unwrap() {
                return None;
            }
            consumed.insert(name.clone(), value);
        }
        for (name, value) in &consumed {
            *self.used.entry(name.clone()).or_default() += value;
        }
        self.shares += 1;
        Some(consumed.into_iter().map(|(name, value)| (name, Quantity(value.to_string()))).collect())
    }

    fn release(&mut self, consumed: &Consumed) {
        for (name, value) in consumed {
            *self.used.get_mut(name).unwrap() -= whole(value).unwrap();
        }
        self.shares -= 1;
    }
}

#[derive(Debug, Clone)]
enum Step {
    Claim { sms: Option<u64>, memory: Option<u64>, clients: Option<u64>, spread: bool },
    Whole,
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    // Small parts mostly: many tenants, and a set of TPCs with holes.
    let sms = prop_oneof![3 => (0u64..24).prop_map(Some), 2 => (0u64..150).prop_map(Some), 1 => Just(None)];
    let memory = prop_oneof![
        3 => (0u64..(20 << 30)).prop_map(Some),
        1 => (0u64..(160 << 30)).prop_map(Some),
        1 => Just(None)
    ];
    let clients = prop_oneof![2 => Just(None), 1 => (0u64..50).prop_map(Some)];
    let claim = (sms, memory, clients, any::<bool>())
        .prop_map(|(sms, memory, clients, spread)| Step::Claim { sms, memory, clients, spread });
    prop_oneof![6 => claim, 1 => Just(Step::Whole), 4 => any::<usize>().prop_map(Step::End)]
}

fn board() -> impl Strategy<Value = (Board, Topology)> {
    // TPCs of each GPC, SMs of a TPC, and memory that is no whole number of MiB.
    (prop::collection::vec(1u32..10, 1..9), 1u32..3, (4u64 << 30)..(200 << 30), 2u32..60).prop_map(
        |(gpcs, sms_per_tpc, memory_bytes, clients)| {
            let each = gpcs.iter().zip(0u8..).flat_map(|(&tpcs, gpc)| (0..tpcs).map(move |_| gpc));
            let tpcs: Vec<Tpc> = each.zip(0..).map(|(gpc, physical)| Tpc { gpc, physical }).collect();
            let count = tpcs.len() as u32;
            let topology = Topology::new(sms_per_tpc, tpcs).unwrap();
            (Board { sms_per_tpc, tpcs: count, memory_bytes, clients, ..h200(0) }, topology)
        },
    )
}

/// The planner's side: TPCs by `partita_core::plan`, memory by `divide`, a place in the service.
fn place(
    board: &Board,
    topology: &Topology,
    present: &[(Consumed, Present, Size)],
    definition: &Definition,
) -> Result<Present, String> {
    let tenants: Vec<Present> = present.iter().map(|(_, tenant, _)| tenant.clone()).collect();
    let size = definition.size.unwrap();
    let spread = definition.limits.get("place").is_some_and(|place| place == "spread");
    let placement = if spread { partita_core::Placement::Spread } else { partita_core::Placement::Packed };
    let ask = partita_core::Ask { share: Share::Sms(size.sms), placement };
    let planned = partita_core::plan(topology, &tenants, ask).map_err(|error| error.to_string())?;
    let sizes = present.iter().map(|(_, _, size)| *size).chain([size]);
    let claims: Vec<Claim> =
        sizes.map(|size| Claim { to: To::Promise(size.memory_bytes), driver: 0, user: 0 }).collect();
    divide(board.memory_bytes, &claims, &[]).map_err(|missing| format!("{missing} bytes are missing"))?;
    if claims.len() > board.clients as usize {
        return Err(format!("{} clients", claims.len()));
    }
    Ok(Present { name: format!("t{}", present.len()), set: planned.set })
}

fn run(board: &Board, topology: &Topology, steps: &[Step]) -> Result<usize, TestCaseError> {
    let mut scheduler = Scheduler::of(board);
    let mut present: Vec<(Consumed, Present, Size)> = Vec::new();
    let mut admitted = 0;
    for step in steps {
        match step {
            Step::Claim { sms, memory, clients, spread } => {
                let asked = [(MULTIPROCESSORS, sms), (MEMORY, memory), (CLIENTS, clients)];
                let asked = asked.into_iter().filter_map(|(name, value)| Some((name, (*value)?))).collect();
                let Some(consumed) = scheduler.admit(&asked) else { continue };
                admitted += 1;
                let mut result = result(&board.shared_device(), &[]);
                result.consumed_capacity = Some(consumed.clone());
                let place_word = if *spread { "spread" } else { "packed" };
                let parameters = config("FromClaim", &[], json!({"place": place_word}));
                let claim = claim(vec![result], vec![parameters]);
                let definition = plan(&claim, UID, "node-a", std::slice::from_ref(board));
                let definition = definition.map_err(TestCaseError::fail)?;
                let tenant = place(board, topology, &present, &definition).map_err(TestCaseError::fail)?;
                prop_assert!(present.iter().all(|(_, other, _)| (other.set & tenant.set).is_empty()));
                present.push((consumed, tenant, definition.size.unwrap()));
            }
            Step::Whole if scheduler.shares == 0 && !scheduler.whole_taken => {
                let claim = claim(vec![result(&board.device(), &[])], vec![]);
                let definition = plan(&claim, UID, "node-a", std::slice::from_ref(board));
                prop_assert_eq!(definition.map_err(TestCaseError::fail)?.size, None);
                scheduler.whole_taken = true;
            }
            Step::Whole => {}
            Step::End(_) if scheduler.whole_taken => scheduler.whole_taken = false,
            Step::End(_) if present.is_empty() => {}
            Step::End(which) => {
                let (consumed, ..) = present.swap_remove(which % present.len());
                scheduler.release(&consumed);
            }
        }
    }
    Ok(admitted)
}

/// `PARTITA_TEST_LONG=1` runs a million sequences.
#[test]
fn what_the_scheduler_admits_the_planner_places() {
    let is_long = std::env::var_os("PARTITA_TEST_LONG").is_some_and(|value| value == "1");
    let cases = if is_long { 1_000_000 } else { 3_000 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let admitted = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&(board(), prop::collection::vec(step(), 1..24)), |((board, topology), steps)| {
            admitted.set(admitted.get() + run(&board, &topology, &steps)?);
            Ok(())
        })
        .unwrap();
    // A model that admits nothing would show nothing.
    assert!(admitted.get() > cases as usize, "{} claims were admitted", admitted.get());
    println!("{cases} sequences, {} claims admitted and placed", admitted.get());
}

/// The scheduler makes one claim for the extended resources of a pod, with a request for each
/// container. The user cannot divide that claim, so the error says what else works.
#[test]
fn extended_resources_of_several_containers_are_refused_with_the_remedy() {
    let whole = |which: u32| DeviceRequestAllocationResult {
        request: format!("container-{which}-request-0"),
        ..result(&h200(which).device(), &[])
    };
    let said = planned(&claim(vec![whole(0), whole(1)], Vec::new())).unwrap_err();
    for words in ["container-1-request-0", "extended resource", "webhook", "claim for each container"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
