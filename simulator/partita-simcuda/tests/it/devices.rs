//! Every device of the catalogue: its launch descriptors and its streams' masks.

use crate::common;

use common::World;
use partita_sim::{StreamMaskLayout, catalogue};

#[test]
fn every_device_runs_and_obeys_stream_masks() {
    for name in catalogue::NAMES {
        let spec = catalogue::device(name).unwrap();
        let world = World::with(name, name);
        let mask = spec.driver.stream_mask;
        let words = match mask.layout {
            StreamMaskLayout::UpperLower => "2",
            StreamMaskLayout::EnabledWords4 => "5",
        };
        let offset = mask.offset_bytes.to_string();
        let printed = world.run_with("devices", "masks", &[("MASK_OFFSET", &offset), ("MASK_WORDS", words)]);
        let per_tpc = spec.topology.sms_per_tpc();
        let expected = format!("{0} {0} {per_tpc} {per_tpc}", spec.sm_count());
        assert_eq!(printed.trim(), expected, "{name}");
    }
}
