use std::cell::RefCell;
use std::collections::BTreeMap;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use partita_abi::control::{
    CARD_BYTES, CARD_INFO, CARDS_MAX, CLASS_DEVICE, CLASS_ROOT, CLASS_SUBDEVICE, GPU_GET_ID_INFO_V2,
    GR_GET_GLOBAL_SM_ORDER, GR_GET_NUM_TPCS_FOR_GPC, NV_ERR_INVALID_ARGUMENT, NV_OK, REGISTER_FD, RM_ALLOC,
    RM_CONTROL, RM_FREE, RM_OBJECT_AT, RM_STATUS_AT, SM_ORDER_ENTRIES, SmOrderLayout,
};
use partita_core::survey::{ControlClaims, SmPlace};
use proptest::prelude::*;

use super::wire::{put_u32, u32_at};
use super::*;

#[path = "../../../partita-core/src/topology/survey/tests/boards.rs"]
#[allow(dead_code)]
mod boards;

const NEWEST: SmOrderLayout = SmOrderLayout::ALL[0];

/// An answer as a driver of this layout gives it.
fn encode(places: &[SmPlace], layout: SmOrderLayout) -> Vec<u8> {
    let mut bytes = vec![0; layout.bytes()];
    let mut tpcs: Vec<u16> = places.iter().map(|place| place.tpc).collect();
    tpcs.sort_unstable();
    tpcs.dedup();
    let mut put = |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    for (index, p) in places.iter().enumerate() {
        let newer = [p.ugpu, p.cpc, p.virtual_tpc].map(Option::unwrap_or_default);
        let fields = [p.gpc, p.tpc_in_gpc, p.sm_in_tpc, p.tpc, p.virtual_gpc, p.migratable_tpc];
        for (field, value) in fields.into_iter().chain(newer).take(layout.fields).enumerate() {
            put(index * layout.entry_bytes() + 2 * field, value);
        }
    }
    put(layout.counts_at(), places.len() as u16);
    put(layout.counts_at() + 2, tpcs.len() as u16);
    bytes
}

/// The places as far as this layout can represent them.
fn representable(places: &[SmPlace], layout: SmOrderLayout) -> Vec<SmPlace> {
    let representable = |place: &SmPlace| SmPlace {
        ugpu: place.ugpu.filter(|_| layout.fields > 6),
        cpc: place.cpc.filter(|_| layout.fields > 7),
        virtual_tpc: place.virtual_tpc.filter(|_| layout.fields > 8),
        ..*place
    };
    places.iter().map(representable).collect()
}

struct FakeGpu {
    card: Card,
    places: Vec<SmPlace>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<i32, std::string::String>,
    /// Objects by handle: class and parent.
    objects: BTreeMap<u32, (u32, u32)>,
    registered: bool,
    device: Option<u32>,
    calls: usize,
}

/// A kernel driver of one layout, which can fail at any call.
struct Fake {
    gpus: Vec<FakeGpu>,
    layout: SmOrderLayout,
    counts: bool,
    /// From this call on every call fails: with an error of the system, or with a status.
    fails_at: Option<(usize, bool)>,
    state: RefCell<State>,
}

impl Fake {
    fn new(gpus: Vec<FakeGpu>, layout: SmOrderLayout) -> Self {
        Self { gpus, layout, counts: true, fails_at: None, state: RefCell::default() }
    }

    fn h200() -> Self {
        let card = Card { address: address(6), gpu_id: 6, minor: 0 };
        Self::new(vec![FakeGpu { card, places: boards::h200() }], NEWEST)
    }

    /// Whether and how this call fails.
    fn failure(&self) -> Option<bool> {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        self.fails_at.filter(|(at, _)| state.calls > *at).map(|(_, by_status)| by_status)
    }

    fn assert_clean(&self) {
        let state = self.state.borrow();
        assert!(state.nodes.is_empty() && state.objects.is_empty(), "{:?} {:?}", state.nodes, state.objects);
    }

    fn control(&self, object: u32, command: u32, parameters: &mut [u8]) -> u32 {
        let state = self.state.borrow();
        let gpu = |device: Option<u32>| device.and_then(|device| self.gpus.get(device as usize));
        match (state.objects.get(&object).map(|(class, _)| *class), command) {
            (Some(CLASS_ROOT), GPU_GET_ID_INFO_V2) => {
                let id = u32_at(parameters, 0);
                let Some(device) = self.gpus.iter().position(|gpu| gpu.card.gpu_id == id) else {
                    return NV_ERR_INVALID_ARGUMENT;
                };
                put_u32(parameters, 8, device as u32);
                NV_OK
            }
            (Some(CLASS_SUBDEVICE), GR_GET_GLOBAL_SM_ORDER) if parameters.len() == self.layout.bytes() => {
                parameters.copy_from_slice(&encode(&gpu(state.device).unwrap().places, self.layout));
                NV_OK
            }
            (Some(CLASS_SUBDEVICE), GR_GET_NUM_TPCS_FOR_GPC) if self.counts => {
                let gpc = u32_at(parameters, 0) as u16;
                let places = &gpu(state.device).unwrap().places;
                let tpcs = places.iter().filter(|place| place.gpc == gpc && place.sm_in_tpc == 0).count();
                put_u32(parameters, 4, tpcs as u32);
                NV_OK
            }
            _ => NV_ERR_INVALID_ARGUMENT,
        }
    }
}

impl KernelDriver for Fake {
    fn open(&self, node: &str) -> Result<i32, i32> {
        if self.failure().is_some() {
            return Err(libc::EACCES);
        }
        let known = node == "nvidiactl"
            || self.gpus.iter().any(|gpu| node == std::format!("nvidia{}", gpu.card.minor));
        if !known {
            return Err(libc::ENOENT);
        }
        let mut state = self.state.borrow_mut();
        let descriptor = 100 + state.nodes.len() as i32;
        state.nodes.insert(descriptor, node.to_string());
        Ok(descriptor)
    }

    fn send(&self, node: i32, escape: u8, argument: &mut [u8]) -> Result<(), i32> {
        if escape == RM_FREE {
            // A release always works.
            let (parent, object) = (u32_at(argument, 4), u32_at(argument, RM_OBJECT_AT));
            let mut state = self.state.borrow_mut();
            assert_eq!(state.objects.remove(&object).map(|(_, parent)| parent), Some(parent));
            assert!(state.objects.values().all(|(_, parent)| *parent != object), "children go first");
            return Ok(());
        }
        if escape == RM_ALLOC {
            return self.send_with(node, escape, argument, &mut []);
        }
        if self.failure().is_some() {
            return Err(libc::EIO);
        }
        let mut state = self.state.borrow_mut();
        match (escape, state.nodes.get(&node).map(std::string::String::as_str)) {
            (CARD_INFO, Some("nvidiactl")) => {
                for (entry, gpu) in argument.chunks_exact_mut(CARD_BYTES).skip(1).zip(&self.gpus) {
                    let Card { address, gpu_id, minor } = gpu.card;
                    entry[0] = 1;
                    put_u32(entry, 4, address.domain);
                    (entry[8], entry[9]) = (address.bus, address.slot);
                    put_u32(entry, 16, gpu_id);
                    put_u32(entry, 56, minor);
                }
            }
            (REGISTER_FD, Some(node)) if node != "nvidiactl" => state.registered = true,
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn send_with(
        &self,
        node: i32,
        escape: u8,
        argument: &mut [u8],
        parameters: &mut [u8],
    ) -> Result<(), i32> {
        let failure = self.failure();
        if failure == Some(false) {
            return Err(libc::EIO);
        }
        assert_eq!(self.state.borrow().nodes[&node], "nvidiactl");
        if failure == Some(true) {
            put_u32(argument, RM_STATUS_AT, 0x1b);
            return Ok(());
        }
        let (client, second) = (u32_at(argument, 0), u32_at(argument, 4));
        if escape == RM_CONTROL {
            let status = self.control(second, u32_at(argument, 8), parameters);
            put_u32(argument, RM_STATUS_AT, status);
            return Ok(());
        }
        let class = u32_at(argument, 12);
        let mut state = self.state.borrow_mut();
        let mut handle = u32_at(argument, RM_OBJECT_AT);
        if class == CLASS_ROOT {
            handle = 0xc1d0_0019;
        } else {
            assert!(state.registered && state.objects.contains_key(&client));
            let above = if class == CLASS_DEVICE { CLASS_ROOT } else { CLASS_DEVICE };
            assert_eq!(state.objects[&second].0, above);
        }
        if class == CLASS_DEVICE {
            state.device = Some(u32_at(parameters, 0));
        }
        state.objects.insert(handle, (class, second));
        put_u32(argument, RM_OBJECT_AT, handle);
        Ok(())
    }

    fn close(&self, node: i32) {
        assert!(self.state.borrow_mut().nodes.remove(&node).is_some());
    }
}

fn address(slot: u8) -> PciAddress {
    PciAddress { domain: 0, bus: 0, slot }
}

#[test]
fn an_h200_reports_where_its_sms_are() {
    let fake = Fake::h200();
    let claims = read(&fake, address(6), Some(0)).unwrap();
    assert_eq!(claims.sms, boards::h200());
    assert_eq!(claims.tpc_counts, [(0, 9), (1, 8), (2, 8), (3, 8), (4, 8), (5, 8), (6, 8), (7, 9)]);
    fake.assert_clean();
}

#[test]
fn the_cards_of_an_h200_s_machine_are_read() {
    // As the driver 580.159.04 of that machine answered, the first entry of 32.
    let entry = [
        0x01, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x06, 0, 0, 0xde, 0x10, 0x35, 0x23, 0x06, 0, 0, 0, 0x29, 0, 0, 0, 0,
        0, 0, 0, 0, 0x02, 0x40, 0x01, 0, 0, 0, 0, 0, 0, 0, 0x01,
    ];
    let mut answer = vec![0; CARDS_MAX * CARD_BYTES];
    answer[..entry.len()].copy_from_slice(&entry);
    assert_eq!(cards(&answer), [Card { address: address(6), gpu_id: 6, minor: 0 }]);
    assert_eq!(cards(&[]), []);
    assert_eq!(address(6).to_string(), "0000:00:06.0");
}

#[test]
fn every_size_of_every_driver_is_read_and_others_are_named() {
    for layout in SmOrderLayout::ALL {
        let mut fake = Fake::h200();
        (fake.layout, fake.counts) = (layout, false);
        let claims = read(&fake, address(6), None).unwrap();
        assert_eq!(
            claims,
            ControlClaims { sms: representable(&boards::h200(), layout), tpc_counts: Vec::new() }
        );
        fake.assert_clean();
    }
    let mut fake = Fake::h200();
    fake.layout = SmOrderLayout { fields: 10 };
    let error = read(&fake, address(6), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the global SM order has no known form: 9240 bytes: NV_ERR_INVALID_ARGUMENT, 7192 bytes: \
         NV_ERR_INVALID_ARGUMENT, 6168 bytes: NV_ERR_INVALID_ARGUMENT"
    );
    fake.assert_clean();
}

#[test]
fn of_several_gpus_the_right_one_is_queried() {
    let place = |tpc: u16, gpc: u16| SmPlace {
        gpc,
        tpc_in_gpc: tpc,
        sm_in_tpc: 0,
        tpc,
        virtual_gpc: gpc,
        migratable_tpc: tpc,
        ugpu: Some(0),
        cpc: Some(0),
        virtual_tpc: Some(tpc),
    };
    let gpu = |slot: u8, minor: u32, sms: u16| FakeGpu {
        card: Card { address: address(slot), gpu_id: 0x100 + u32::from(slot), minor },
        places: (0..sms).map(|tpc| place(tpc, 3)).collect(),
    };
    // Nodes are not numbered in the order of addresses.
    let fake = Fake::new(vec![gpu(9, 1, 4), gpu(3, 2, 5), gpu(7, 0, 6)], NEWEST);
    for (slot, minor, sms) in [(9, 1, 4), (3, 2, 5), (7, 0, 6)] {
        assert_eq!(read(&fake, address(slot), Some(minor)).unwrap().sms.len(), sms);
        fake.assert_clean();
    }
    let error = read(&fake, address(4), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the driver lists no card at 0000:00:04.0; it lists 0000:00:09.0, 0000:00:03.0, 0000:00:07.0"
    );
    let error = read(&fake, address(9), Some(2)).unwrap_err();
    assert_eq!(error, ControlError::Minor { address: address(9), card: 1, proc: 2 });
    fake.assert_clean();
}

#[test]
fn after_any_failure_everything_is_released() {
    let fake = Fake::h200();
    read(&fake, address(6), None).unwrap();
    let calls = fake.state.borrow().calls;
    assert!(calls > 10);
    for by_status in [false, true] {
        for at in 0..calls {
            let mut fake = Fake::h200();
            fake.fails_at = Some((at, by_status));
            // Only the last calls, the counts, are optional, and only if the driver answers that it
            // has no counts.
            match read(&fake, address(6), None) {
                Ok(claims) => assert!(by_status && claims.tpc_counts.is_empty()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            fake.assert_clean();
        }
    }
    let mut fake = Fake::h200();
    fake.fails_at = Some((0, false));
    assert_eq!(read(&fake, address(6), None).unwrap_err().to_string(), "/dev/nvidiactl: permission denied");
}

#[test]
fn the_driver_s_proc_files_name_a_gpu_s_node() {
    let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t GPU-12ab\nBus Location: \t 0000:00:06.0\nDevice Minor: \t 3\n";
    assert_eq!(node_minor(text, "GPU-12AB"), Some(3));
    assert_eq!(node_minor(text, "GPU-12ac"), None);
    assert_eq!(node_minor("Device Minor: 3\n", "GPU-12ab"), None);
    assert_eq!(node_minor("GPU UUID: GPU-12ab\nDevice Minor: x", "GPU-12ab"), None);
}

/// Devices as drivers list them: each TPC in a separate place, SMs of a TPC adjacent or far apart.
fn devices() -> impl Strategy<Value = Vec<SmPlace>> {
    let gpcs = prop::collection::vec(1..10u16, 1..12);
    (gpcs, 1..3u16, any::<bool>(), 0..20u16).prop_map(|(sizes, sms_per_tpc, apart, shift)| {
        let spots: Vec<(u16, u16)> =
            (0u16..).zip(&sizes).flat_map(|(gpc, &size)| (0..size).map(move |tpc| (gpc, tpc))).collect();
        let mut places: Vec<SmPlace> = (0u16..)
            .zip(&spots)
            .flat_map(|(tpc, &(gpc, tpc_in_gpc))| {
                (0..sms_per_tpc).map(move |sm_in_tpc| SmPlace {
                    gpc,
                    tpc_in_gpc,
                    sm_in_tpc,
                    tpc,
                    virtual_gpc: gpc + shift,
                    migratable_tpc: tpc_in_gpc,
                    ugpu: Some(gpc % 2),
                    cpc: Some(tpc_in_gpc / 3),
                    virtual_tpc: Some(tpc_in_gpc),
                })
            })
            .collect();
        if apart {
            places.sort_by_key(|place| (place.sm_in_tpc, place.tpc));
        }
        places
    })
}

proptest! {
    #[test]
    fn a_drivers_answer_is_read_back(places in devices()) {
        for layout in SmOrderLayout::ALL {
            prop_assert_eq!(sm_order(&encode(&places, layout), layout), Ok(representable(&places, layout)));
        }
    }

    #[test]
    fn an_answer_in_another_layout_is_refused(places in devices()) {
        for ours in SmOrderLayout::ALL {
            for theirs in SmOrderLayout::ALL.into_iter().filter(|theirs| theirs.bytes() < ours.bytes()) {
                // As if a driver ignored the size and filled the front.
                let mut answer = encode(&places, theirs);
                answer.resize(ours.bytes(), 0);
                prop_assert!(sm_order(&answer, ours).is_err());
            }
        }
    }

    #[test]
    fn hostile_answers_are_refused_or_possible(
        places in devices(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        length in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        for layout in SmOrderLayout::ALL {
            let mut answer = encode(&places, layout);
            let used = places.len() * layout.entry_bytes();
            for (index, byte) in &damage {
                answer[index.index(used)] = *byte;
            }
            if let Ok(places) = sm_order(&answer, layout) {
                let mut spots: Vec<_> = places.iter().map(|p| (p.gpc, p.tpc_in_gpc, p.sm_in_tpc)).collect();
                spots.sort_unstable();
                spots.dedup();
                prop_assert_eq!(spots.len(), places.len());
                prop_assert!(places.len() <= SM_ORDER_ENTRIES);
            }
            answer.truncate(length.index(answer.len()));
            prop_assert!(sm_order(&answer, layout).is_err());
            answer.resize(layout.bytes(), 0xff);
            let _ = sm_order(&answer, layout);
        }
        let _ = cards(&noise);
        let _ = node_minor(&std::string::String::from_utf8_lossy(&noise), "GPU-1");
    }
}
