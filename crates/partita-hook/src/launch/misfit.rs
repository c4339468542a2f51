//! Whether a launch can ever run inside the partition, and what happens if not.
//!
//! The hardware waits forever for SMs that a mask has disabled: a cluster runs on as many SMs of
//! one GPC as it has blocks, and a cooperative grid needs all its blocks resident at once. The
//! driver's own checks ignore the mask, so the hook checks against the tenant's set. A kernel that
//! launches others fits only the whole GPU, because the mask does not apply to those.

use core::ffi::{c_uint, c_void};
use core::fmt;

use partita_abi::CuResult;
use partita_ledger::{FLAG_GPCS_UNPROVED, Limits, OnMisfit, SmCount};

use crate::account::gpu::Gpu;
use crate::account::locate;
use crate::account::tenant::Tenant;
use crate::launch::{functions, green};
use crate::sys::report::{self, Once};

/// The shape of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The `CUfunction` or `CUkernel`.
    pub function: *mut c_void,
    /// Blocks of the grid.
    pub grid_blocks: u64,
    /// Threads of a block.
    pub block_threads: u64,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster given at the launch, 0 without one.
    pub cluster_blocks: u64,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
}

// SAFETY: the function is a handle, never read through by the hook.
unsafe impl Send for Shape {}

impl Shape {
    /// A launch about which only its function can say anything.
    pub fn plain(function: *mut c_void) -> Self {
        Self {
            function,
            grid_blocks: 0,
            block_threads: 0,
            shared_bytes: 0,
            cluster_blocks: 0,
            cooperative: false,
        }
    }

    /// The launch's needs beyond free SMs, queried in the current context.
    pub fn needs(&self, tenant: &Tenant) -> Needs {
        let traits = functions::traits(tenant, self.function);
        let cluster_blocks = match self.cluster_blocks {
            0 => u64::from(traits.cluster_blocks),
            blocks => blocks,
        };
        Needs { cluster_blocks, launches: traits.launches, cooperative: self.cooperative }
    }
}

/// What a launch needs that a partition may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Blocks of its cluster, 1 without one.
    pub cluster_blocks: u64,
    /// Whether its kernel may launch others, which no mask holds.
    pub launches: bool,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
}

impl Needs {
    /// Whether every partition can run it.
    pub fn nothing(&self) -> bool {
        self.cluster_blocks <= 1 && !self.launches && !self.cooperative
    }
}

/// x × y × z without overflow.
pub fn volume([x, y, z]: [c_uint; 3]) -> u64 {
    u64::from(x).saturating_mul(u64::from(y)).saturating_mul(u64::from(z))
}

/// The decision about a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Inside the partition.
    Fits,
    /// On the whole GPU: it does not fit, and the tenant is allowed that.
    Widen,
    /// Not at all.
    Refuse(CuResult),
}

/// Judges a launch in `stream` by the tenant's limits of this moment.
pub fn judge(tenant: &Tenant, gpu: &Gpu, stream: *mut c_void, shape: &Shape) -> Verdict {
    if gpu.mask.is_none() {
        return Verdict::Fits;
    }
    // The driver reports the traits and the occupancy of functions of the current context.
    let needs = match locate::in_context_of(tenant, stream, || shape.needs(tenant)) {
        Ok(needs) if needs.nothing() => return Verdict::Fits,
        Ok(needs) => needs,
        Err(code) => return Verdict::Refuse(code),
    };
    if let Some(limits) = green::limits_in(tenant, gpu, stream) {
        return judge_by(tenant, &limits, &needs, shape);
    }
    // A cluster alone is checked by two words, which cost a launch no more than its mask.
    if !needs.cooperative
        && !needs.launches
        && let Ok((cluster_sms_max, _)) = gpu.limits.misfit_words()
        && needs.cluster_blocks <= u64::from(cluster_sms_max)
    {
        return Verdict::Fits;
    }
    let Some(limits) = gpu.limits_now() else {
        return Verdict::Refuse(CuResult::LAUNCH_OUT_OF_RESOURCES);
    };
    locate::in_context_of(tenant, stream, || judge_by(tenant, &limits, &needs, shape))
        .unwrap_or_else(Verdict::Refuse)
}

/// Judges a launch with its needs by given limits.
pub fn judge_by(tenant: &Tenant, limits: &Limits, needs: &Needs, shape: &Shape) -> Verdict {
    let cluster_blocks = needs.cluster_blocks;
    let widens = OnMisfit::of(limits) == OnMisfit::Widen;
    let misfit = if cluster_blocks > 1 && cluster_blocks > u64::from(limits.max_cluster_sms) {
        Misfit::Cluster { blocks: cluster_blocks }
    } else if let Some(misfit) = too_large(tenant, limits, cluster_blocks, shape) {
        misfit
    } else if needs.launches && sms(limits) < device_sms(limits) {
        Misfit::Launches
    } else {
        return Verdict::Fits;
    };
    if widens {
        return Verdict::Widen;
    }
    misfit.say(limits);
    Verdict::Refuse(misfit.code())
}

/// Why a launch cannot run inside the partition.
enum Misfit {
    /// A cluster of so many blocks.
    Cluster { blocks: u64 },
    /// A cooperative grid, and how many of its blocks run at once in the partition and on the
    /// device.
    Grid { blocks: u64, threads: u64, cluster_blocks: u64, resident: u64, resident_on_device: u64 },
    /// A kernel that launches kernels.
    Launches,
}

impl Misfit {
    fn code(&self) -> CuResult {
        match self {
            Self::Cluster { .. } => CuResult::INVALID_CLUSTER_SIZE,
            Self::Grid { .. } => CuResult::COOPERATIVE_LAUNCH_TOO_LARGE,
            Self::Launches => CuResult::LAUNCH_OUT_OF_RESOURCES,
        }
    }

    /// Reports what would fit and which option helps, once for each kind of launch, because the
    /// error code alone does not. No option helps if the device itself cannot run it.
    #[cold]
    fn say(&self, limits: &Limits) {
        static CLUSTER: Once = Once::new();
        static GRID: Once = Once::new();
        let (sms, of) = (sms(limits), device_sms(limits));
        match *self {
            Self::Cluster { blocks }
                if CLUSTER.is_due() && blocks <= u64::from(whole(limits).max_cluster_sms) =>
            {
                CLUSTER.say(format_args!(
                    "{}: a launch with clusters of {blocks} blocks was refused: the largest cluster that fits this partition ({sms} of \
                     {of} SMs) has {} blocks; use --on-misfit widen to run such launches on the whole GPU, or a larger --sm",
                    report::program(),
                    limits.max_cluster_sms
                ));
            }
            Self::Grid { blocks, threads, cluster_blocks, resident, resident_on_device }
                if GRID.is_due() && blocks <= resident_on_device =>
            {
                let by_count = match SmCount::of(limits) {
                    SmCount::Device => {
                        "--sm-count partition if the program sizes its grid by the number of SMs, "
                    }
                    SmCount::Partition => "",
                };
                GRID.say(format_args!(
                    "{}: a cooperative launch of {blocks} blocks of {threads} threads{} was refused: this partition ({sms} of {of} SMs) \
                     runs at most {resident} of them at once; use {by_count}--on-misfit widen to run such launches on the whole GPU, or \
                     a larger --sm",
                    report::program(),
                    InClusters(cluster_blocks)
                ));
            }
            Self::Launches => report::once!(
                "{}: a kernel that can launch kernels itself (dynamic parallelism) was refused: what it launches would run outside of \
                 this partition ({sms} of {of} SMs); use --on-misfit widen to run such kernels on the whole GPU, or --sm 100%",
                report::program()
            ),
            Self::Cluster { .. } | Self::Grid { .. } => {}
        }
    }
}

/// The limits of a tenant with the whole device.
fn whole(limits: &Limits) -> Limits {
    let mut whole = limits.clone();
    for (word, tpcs) in whole.set.iter_mut().zip([0, 64, 128, 192]) {
        *word = match limits.tpc_count.saturating_sub(tpcs) {
            left @ 0..64 => (1 << left) - 1,
            _ => !0,
        };
    }
    if limits.flags & FLAG_GPCS_UNPROVED == 0 {
        whole.max_cluster_sms = enabled_sms(&whole).into_iter().max().unwrap_or(0);
    }
    whole
}

/// The driver itself refuses kernels that launch kernels in clients of MPS, with a tenant and
/// without.
#[cold]
pub fn say_not_under_mps() {
    report::once!(
        "{}: the driver refused a kernel that can launch kernels itself (dynamic parallelism), as it does in every client of MPS; use \
         --isolation own, and with a partition --on-misfit widen",
        report::program()
    );
}

/// ` in clusters of N`, or nothing.
struct InClusters(u64);

impl fmt::Display for InClusters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 1 { write!(f, " in clusters of {}", self.0) } else { Ok(()) }
    }
}

/// A cooperative grid that does not fit.
fn too_large(tenant: &Tenant, limits: &Limits, cluster_blocks: u64, shape: &Shape) -> Option<Misfit> {
    if !shape.cooperative {
        return None;
    }
    let threads = u32::try_from(shape.block_threads).unwrap_or(u32::MAX);
    // A launch that the driver cannot judge, it refuses itself.
    let per_sm = tenant.driver().blocks_per_sm(shape.function, threads, shape.shared_bytes)?;
    let resident = |limits: &Limits| match u32::try_from(cluster_blocks) {
        Ok(size) if size > 1 => u64::from(active_clusters(limits, size, per_sm)) * cluster_blocks,
        _ => u64::from(sms(limits)) * u64::from(per_sm),
    };
    let blocks = shape.grid_blocks;
    (blocks > resident(limits)).then(|| Misfit::Grid {
        blocks,
        threads: shape.block_threads,
        cluster_blocks,
        resident: resident(limits),
        resident_on_device: resident(&whole(limits)),
    })
}

/// SMs of the tenant's set.
pub fn sms(limits: &Limits) -> u32 {
    let tpcs: u32 = limits.set.iter().map(|word| word.count_ones()).sum();
    tpcs * limits.sms_per_tpc
}

/// SMs of the device.
pub fn device_sms(limits: &Limits) -> u32 {
    limits.tpc_count * limits.sms_per_tpc
}

/// Clusters of `cluster_blocks` blocks that the set can run at once, when an SM
/// holds `blocks_per_sm` blocks.
///
/// A cluster takes as many different SMs of one GPC as it has blocks (measured,
/// `docs/hardware.md`), so a GPC with fewer enabled SMs runs none.
pub fn active_clusters(limits: &Limits, cluster_blocks: u32, blocks_per_sm: u32) -> u32 {
    if cluster_blocks == 0 || cluster_blocks > limits.max_cluster_sms {
        return 0;
    }
    let of_gpc = |&sms: &u32| if sms < cluster_blocks { 0 } else { sms * blocks_per_sm / cluster_blocks };
    enabled_sms(limits).iter().map(of_gpc).sum()
}

/// SMs of the set in each GPC.
fn enabled_sms(limits: &Limits) -> [u32; 256] {
    let mut enabled_sms = [0u32; 256];
    for tpc in 0..limits.tpc_count as usize {
        let enabled = limits.set.get(tpc / 64).is_some_and(|word| word >> (tpc % 64) & 1 != 0);
        if enabled && let Some(&gpc) = limits.gpc_of_logical.get(tpc) {
            enabled_sms[usize::from(gpc)] += limits.sms_per_tpc;
        }
    }
    enabled_sms
}
