//! The sharing experiment of the H200 measurements: a tenant with short requests beside one that
//! fills the GPU.

use std::collections::VecDeque;

use partita_core::TpcSet;
use partita_sim::{
    CopyDirection, CopyWork, DeviceSpec, Engine, EventKind, GroupKind, KernelWork, StreamId, Time, WorkId,
    catalogue,
};

/// The tenants of the GPU, and the way of sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// No other tenant, whole GPU.
    Solo,
    /// No other tenant, 33 of 66 TPCs.
    SoloHalf,
    /// A neighbour in another time-slice group.
    TimeSlicing,
    /// A neighbour under the same MPS server.
    Mps,
    /// As `Mps`, each on separate 33 TPCs.
    Disjoint,
    /// As `Disjoint`, the neighbour copying within device memory instead of computing.
    DisjointCopy,
}

impl Setting {
    /// All of them, in the order of the measured table.
    pub const ALL: [Self; 6] =
        [Self::Solo, Self::SoloHalf, Self::TimeSlicing, Self::Mps, Self::Disjoint, Self::DisjointCopy];

    /// Its name in the measured table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Solo => "solo, whole GPU",
            Self::SoloHalf => "solo, masked to 33 TPCs",
            Self::TimeSlicing => "time slicing, compute aggressor",
            Self::Mps => "MPS, compute aggressor",
            Self::Disjoint => "MPS + disjoint masks, compute aggressor",
            Self::DisjointCopy => "MPS + disjoint masks, copy aggressor",
        }
    }

    /// Measured on an H200: median and 99th percentile of the victim's latency, in microseconds.
    pub fn measured_us(self) -> (u32, u32) {
        match self {
            Self::Solo => (779, 799),
            Self::SoloHalf => (1526, 1547),
            Self::TimeSlicing => (1089, 2803),
            Self::Mps => (58_462, 60_553),
            Self::Disjoint => (1520, 1544),
            Self::DisjointCopy => (1543, 1562),
        }
    }
}

/// Kernels of one request.
const KERNELS: usize = 4;
/// Length of one kernel of a request on the whole GPU, in nanoseconds.
const KERNEL_NS: Time = 190_000;
/// Waves of one kernel of the neighbour: with waves of [`KERNEL_NS`] 14.6 ms, a quarter of the
/// requests' time under MPS.
const AGGRESSOR_WAVES: u64 = 77;

/// Latencies of `requests` requests, in nanoseconds, ascending.
pub fn run(setting: Setting, requests: usize) -> Vec<Time> {
    let spec = catalogue::device("h200").expect("a catalogued device");
    let all = spec.topology.all();
    let halves = [TpcSet::range(0..33), TpcSet::range(33..66)];
    let (victim_set, aggressor_set) = match setting {
        Setting::Solo | Setting::TimeSlicing | Setting::Mps => (all, all),
        Setting::SoloHalf | Setting::Disjoint | Setting::DisjointCopy => (halves[0], halves[1]),
    };
    let mut gpu = Engine::new(&spec, 0);
    let group = gpu.add_group(GroupKind::Mps);
    let victim = gpu.add_stream(group, 0).expect("the group is there");
    let mut neighbour = Neighbour::new(&mut gpu, setting, group, &spec, aggressor_set);
    // Two blocks of 1024 threads to each of 132 SMs.
    let kernel = KernelWork::new(264, 1024, KERNEL_NS, victim_set);

    let mut latencies = Vec::with_capacity(requests);
    let mut request: Option<(Time, WorkId)> = None;
    // The neighbour has been running for some time when the first request comes.
    let mut next_request: Time = 50_000_000;
    let mut events = Vec::new();
    while latencies.len() < requests {
        let until = if request.is_some() { Time::MAX } else { next_request };
        let until = gpu.next_event().unwrap_or(until).min(until);
        gpu.advance_into(until, &mut events);
        for event in events.drain(..) {
            let EventKind::WorkDone { work } = event.kind else { continue };
            if let Some((begin, last)) = request
                && last == work
            {
                latencies.push(event.time - begin);
                request = None;
                next_request = event.time + pause_ns(latencies.len() as u64);
            }
            neighbour.work_done(work, &mut gpu);
        }
        if request.is_none() && gpu.now() >= next_request {
            let mut last = None;
            for _ in 0..KERNELS {
                last = Some(gpu.submit(victim, kernel.clone()).expect("a well-formed launch"));
            }
            request = last.map(|last| (gpu.now(), last));
        }
    }
    latencies.sort_unstable();
    latencies
}

/// The value below which `percent` of the latencies lie.
pub fn percentile(sorted: &[Time], percent: usize) -> Time {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// From the end of a request to the next one: a sleep of 2 ms, which a host exceeds by 50 to 70 µs
/// and, once in fifty times, by 0.3 ms (assumption: the measurement did not record it).
fn pause_ns(request: u64) -> Time {
    let noise = request.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    2_050_000 + noise % 20_000 + if request % 50 == 49 { 300_000 } else { 0 }
}

/// The tenant that always has work queued.
struct Neighbour {
    stream: Option<StreamId>,
    queued: VecDeque<WorkId>,
    copies: bool,
    set: TpcSet,
}

impl Neighbour {
    fn new(
        gpu: &mut Engine,
        setting: Setting,
        group: partita_sim::GroupId,
        spec: &DeviceSpec,
        set: TpcSet,
    ) -> Self {
        let group = match setting {
            Setting::Solo | Setting::SoloHalf => None,
            Setting::TimeSlicing => Some(gpu.add_group(GroupKind::Own)),
            Setting::Mps | Setting::Disjoint | Setting::DisjointCopy => Some(group),
        };
        debug_assert_eq!(spec.sm_count(), 132);
        let stream = group.map(|group| gpu.add_stream(group, 0).expect("the group is there"));
        let mut neighbour =
            Self { stream, queued: VecDeque::new(), copies: setting == Setting::DisjointCopy, set };
        for _ in 0..8 {
            neighbour.queue_one(gpu);
        }
        neighbour
    }

    fn queue_one(&mut self, gpu: &mut Engine) {
        let Some(stream) = self.stream else { return };
        let work = if self.copies {
            gpu.submit(stream, CopyWork { bytes: 256 << 20, direction: CopyDirection::Within, client: 0 })
        } else {
            gpu.submit(stream, KernelWork::new(264 * AGGRESSOR_WAVES, 1024, KERNEL_NS, self.set))
        };
        self.queued.push_back(work.expect("a well-formed work"));
    }

    fn work_done(&mut self, work: WorkId, gpu: &mut Engine) {
        if self.queued.front() == Some(&work) {
            self.queued.pop_front();
            self.queue_one(gpu);
        }
    }
}
