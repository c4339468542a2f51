//! The arguments of `partita topology`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use partita_console::GpuOption;

/// Arguments of `topology`.
#[derive(Debug, Args)]
#[command(after_help = "\
Sources, each read separately and compared with the others:
  control   the driver's control interface: GPC, CPC and TPC of every SM (no root)
  probe     each bit of a launch mask disabled alone: which SMs stay empty
  clusters  clusters of blocks, which run only where their SMs share a GPC
  nvdebug   the files of the nvdebug kernel module, /proc/gpuN, if present

JSON (`schema` changes when a field goes or changes its meaning; TPC numbers are logical):
  schema, gpu, name, uuid, driver_version, compute_capability, qmd_version
  sms, tpcs, sms_per_tpc, holes, places_per_gpc, places_known
  confirmed_sms    SMs that two or more sources place, without contradiction
  agree            whether no two sources contradict each other
  gpcs_proved_by   \"clusters\", \"control\", or null: then shares by GPC are refused
  sources[]        source, state (agrees, contradicted, silent), sms, reason
  disagreements[]  tpc (or null), text
  tenants[]        letter, name, tpcs, sms
  gpcs[]           gpc (as in --sm gpc:N), chip_gpc, ugpu, singletons[],
                   cpcs[]: cpc, places[]: a TPC, or null where it is fused off
  units[]          tpc, sms[], bit, gpc, tenant, confirmed, clusters (a group's number),
                   control: gpc, cpc, tpc_in_gpc, global_tpc, virtual_gpc, migratable_tpc,
                   virtual_tpc, ugpu, predicted_bit; nvdebug: gpc, tpc_in_gpc
  fresh, took_s

Examples:
  partita topology
  partita topology --fresh --svg gpu.svg
  partita topology --json | jq '.units[] | select(.gpc == 0) | .tpc'

Exit code: 0 if the sources agree, 1 if two contradict each other.")]
pub struct Topology {
    /// The GPU
    #[command(flatten)]
    pub gpu: GpuOption,
    /// Measure again, even if a calibration is cached
    #[arg(long)]
    pub fresh: bool,
    /// Also write a picture to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
