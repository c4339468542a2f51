//! A mechanism on a device, and helpers of the cases.

use partita_abi::kernels;
use partita_core::{Topology, Tpc, TpcSet};
use partita_driver::green::{Green, GreenPool};
use partita_driver::mechanism::{GreenMechanism, Lane, MaskMechanism, Mechanism, StreamMechanism};
use partita_driver::stream_proof::{self, Board, Found};
use partita_driver::{BlockRecord, Buffer, Census, Error, Gpu, Grid, ProcessMasks, StreamMasks, StreamRef};

use crate::common;

/// Spin of a census block: blocks cover every SM before the first ends.
const CENSUS_NS: u64 = 20_000;

/// A mechanism under test.
pub struct Bench<'b, 'g> {
    pub gpu: &'g Gpu<'g>,
    pub topology: &'b Topology,
    pub mechanism: &'b dyn Mechanism<'g>,
}

/// Sets the mechanism up on a device and runs `work` with it; or returns why the device does not
/// offer it.
pub fn with_mechanism<'g>(
    gpu: &'g Gpu<'g>,
    name: &str,
    work: impl FnOnce(&Bench<'_, 'g>),
) -> Result<(), String> {
    // Green contexts cannot be created after the probe's launch callback.
    if name == "green" {
        let topology = unprobed(gpu);
        let green = match Green::survey(gpu, topology.sms_per_tpc()) {
            Ok(green) => green,
            Err(Error::Disproved(reason)) => panic!("{reason}"),
            Err(refused) => return Err(refused.to_string()),
        };
        let mechanism = GreenMechanism::new(gpu, GreenPool::new(green), &topology);
        work(&Bench { gpu, topology: &topology, mechanism: &mechanism });
        return Ok(());
    }
    let (topology, layout) = common::board(gpu);
    match name {
        "mask" => {
            let masks =
                ProcessMasks::install(gpu.cuda(), &topology, layout).map_err(|error| error.to_string())?;
            work(&Bench { gpu, topology: &topology, mechanism: &MaskMechanism::new(gpu, masks) });
        }
        "stream" => {
            let board = Board { topology: &topology, layout };
            let offset_bytes = match stream_proof::search(gpu, board) {
                Ok(Found::Shown { offset_bytes, .. } | Found::Listed(offset_bytes)) => offset_bytes,
                // `partita-host` tries each in a separate process; here the hints come first.
                Ok(Found::Candidates(candidates)) => {
                    *candidates.first().ok_or("nothing looks like a mask")?
                }
                Err(refused) => return Err(refused.to_string()),
            };
            let field = stream_proof::verify(gpu, board, offset_bytes).unwrap().field;
            let masks = StreamMasks::new(gpu.cuda(), field, topology.tpc_count());
            let mechanism = StreamMechanism::new(gpu, masks, &topology);
            work(&Bench { gpu, topology: &topology, mechanism: &mechanism });
        }
        other => panic!("no mechanism {other}"),
    }
    Ok(())
}

/// The TPCs in logical order, without a probe. A simulated device's are those of the catalogue;
/// every real device with green contexts has two SMs in a TPC. GPCs are not needed.
fn unprobed(gpu: &Gpu<'_>) -> Topology {
    let simulated = std::env::var("PARTITA_SIM_DEVICE").ok();
    if let Some(spec) = simulated.and_then(|name| partita_sim::catalogue::device(&name).ok()) {
        return spec.topology;
    }
    let tpcs: Vec<Tpc> = (0..gpu.facts().sms / 2).map(|tpc| Tpc { gpc: 0, physical: tpc as u16 }).collect();
    Topology::new(2, tpcs).unwrap()
}

impl<'g> Bench<'_, 'g> {
    /// A lane on `wanted`, or on the nearest set around it that the mechanism offers.
    pub fn lane(&self, wanted: &TpcSet) -> Lane<'g> {
        match self.mechanism.lane(wanted) {
            Ok(lane) => lane,
            Err(Error::NotOffered { around, .. }) => {
                assert!(wanted.is_subset(&around), "{around} is not around {wanted}");
                self.mechanism.lane(&around).unwrap()
            }
            Err(error) => panic!("a lane on {wanted}: {error}"),
        }
    }

    /// The set of a lane on `wanted`, prepared for a switch.
    pub fn offered(&self, wanted: &TpcSet) -> TpcSet {
        self.lane(wanted).set()
    }

    /// Sets of every kind that the mechanism offers: halves, combs, runs, one TPC, all but one,
    /// everything.
    pub fn sets(&self) -> Vec<TpcSet> {
        let (all, count) = (self.topology.all(), self.topology.tpc_count());
        let comb = |step: u8, at: u8| all.iter().filter(move |tpc| tpc % step == at).collect::<TpcSet>();
        let wanted = [
            TpcSet::first(count / 2),
            all - TpcSet::first(count / 2),
            comb(2, 1),
            comb(3, 0),
            comb(5, 2) | TpcSet::single(0),
            TpcSet::single((count - 1) as u8),
            all - TpcSet::single(1),
            all,
        ];
        let mut sets: Vec<TpcSet> = wanted.iter().map(|set| self.offered(set)).collect();
        sets.dedup();
        sets
    }

    /// Two disjoint sets, each as large as the mechanism offers them, up to half of the device.
    pub fn disjoint(&self) -> [TpcSet; 2] {
        let all = self.topology.all();
        // The smallest set from the bottom, and one within the rest.
        let low = self.offered(&TpcSet::first(self.topology.tpc_count() / 3));
        let rest = all - low;
        let high = match self.mechanism.lane(&rest) {
            Ok(lane) => lane.set(),
            Err(Error::NotOffered { inside, .. }) => self.offered(&inside),
            Err(error) => panic!("{error}"),
        };
        assert!(!high.is_empty() && low.is_disjoint(&high), "{low} and {high}");
        [low, high]
    }

    /// Blocks of the largest cluster that certainly starts inside a set. If GPCs are unknown, or
    /// the SMs of a group are spread, this is what one TPC holds.
    pub fn cluster_room(&self, set: &TpcSet) -> u32 {
        let is_known = self.topology.gpcs().len() > 1 && self.mechanism.name() != "green";
        if is_known { self.topology.max_cluster_sms(set) } else { self.topology.sms_per_tpc() }
    }

    /// SMs of a set.
    pub fn sms(&self, set: &TpcSet) -> u32 {
        set.len() * self.topology.sms_per_tpc()
    }

    /// Room for the records of a census that fills the device four times over.
    pub fn census(&self) -> Records<'g> {
        // A multiple of every cluster size.
        self.records((self.topology.sm_count() * 4).next_multiple_of(16))
    }

    /// Room for the records of a census of so many blocks.
    pub fn records(&self, blocks: u32) -> Records<'g> {
        let buffer = self.gpu.alloc(blocks as usize * 32).unwrap();
        buffer.fill(0).unwrap();
        Records { buffer, blocks }
    }

    /// Launches a census on a lane, with blocks that spin for a time, without waiting.
    pub fn launch(&self, lane: &Lane<'_>, records: &Records<'_>, duration_ns: u64) {
        let grid = Grid { blocks: records.blocks, threads: 1024, cluster_blocks: 1 };
        self.launch_grid(lane, records, grid, duration_ns);
    }

    /// Launches a census in clusters, without waiting.
    ///
    /// # Errors
    /// The mechanism's refusal, or the driver's.
    pub fn launch_clusters(
        &self,
        lane: &Lane<'_>,
        records: &Records<'_>,
        cluster_blocks: u32,
    ) -> Result<(), Error> {
        let grid = Grid { blocks: records.blocks, threads: 32, cluster_blocks };
        let arguments = [records.buffer.address(), CENSUS_NS];
        // SAFETY: the kernel takes the address of a record for each block, and a duration; every
        // case waits before it drops the records.
        lane.within(|_| unsafe { lane.prepare(kernels::CENSUS, grid, &arguments)?.launch() })?
    }

    /// Launches a census of blocks so large that an SM certainly holds one, all resident at the
    /// same time, without waiting.
    ///
    /// # Errors
    /// The mechanism's refusal, or the driver's.
    pub fn launch_cooperative(&self, lane: &Lane<'_>, records: &Records<'_>) -> Result<(), Error> {
        let grid = Grid { blocks: records.blocks, threads: 1024, cluster_blocks: 1 };
        let arguments = [records.buffer.address(), CENSUS_NS];
        lane.within(|_| {
            // SAFETY: as above.
            unsafe { lane.prepare_cooperative(kernels::CENSUS, grid, 1, &arguments) }?.launch()
        })?
    }

    fn launch_grid(&self, lane: &Lane<'_>, records: &Records<'_>, grid: Grid, duration_ns: u64) {
        let arguments = [records.buffer.address(), duration_ns];
        // SAFETY: as above.
        let launched = lane.within(|_| unsafe { lane.prepare(kernels::CENSUS, grid, &arguments)?.launch() });
        launched.and_then(|launched| launched).unwrap();
    }

    /// Waits for everything launched on a lane.
    pub fn wait(&self, lane: &Lane<'_>) {
        self.gpu.wait_on(lane.stream(), "a census of the suite", 30_000).unwrap();
    }

    /// The TPCs that a launch on a lane runs on.
    pub fn seen(&self, lane: &Lane<'_>) -> TpcSet {
        let records = self.census();
        self.launch(lane, &records, CENSUS_NS);
        self.wait(lane);
        self.tpcs(&records.read())
    }

    /// The TPCs that a launch on a plain stream runs on.
    pub fn seen_on(&self, stream: StreamRef<'_>) -> TpcSet {
        let grid = Grid { blocks: self.topology.sm_count() * 4, threads: 1024, cluster_blocks: 1 };
        let census = Census::at(self.gpu, self.gpu.place(stream), grid, CENSUS_NS).unwrap();
        self.topology.logical_from_smids(census.sms().unwrap()).unwrap()
    }

    /// The TPCs of records.
    pub fn tpcs(&self, records: &[BlockRecord]) -> TpcSet {
        self.topology.logical_from_smids(records.iter().map(|record| record.sm)).unwrap()
    }
}

/// The records of a census.
pub struct Records<'g> {
    buffer: Buffer<'g>,
    blocks: u32,
}

impl Records<'_> {
    /// What they wrote, each of them.
    pub fn read(&self) -> Vec<BlockRecord> {
        let bytes = self.buffer.read().unwrap();
        let records = (0u32..).zip(bytes.chunks_exact(32)).map(|(block, record)| {
            let word = |at: usize| u64::from_le_bytes(record[8 * at..8 * at + 8].try_into().unwrap());
            assert_eq!(word(3), u64::from(block) + 1, "a block left no record");
            BlockRecord { block, sm: word(0) as u32, start_ns: word(1), stop_ns: word(2) }
        });
        records.collect()
    }
}
