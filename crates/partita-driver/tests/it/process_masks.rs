//! The masks that a program sets for its own launches, and their precedence.

use crate::common;

use std::collections::BTreeSet;

use common::Sim;
use partita_core::{Topology, TpcSet};
use partita_driver::stream_proof::{self, Board, Found};
use partita_driver::{Census, Gpu, Grid, ProcessMasks, Scope, Stream, StreamField, StreamMasks, StreamRef};

fn set(text: &str) -> TpcSet {
    text.parse().unwrap()
}

/// The TPCs that a launch on a stream runs on.
fn seen(gpu: &Gpu<'_>, topology: &Topology, stream: StreamRef<'_>) -> TpcSet {
    let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
    let census = Census::at(gpu, gpu.place(stream), grid, 20_000).unwrap();
    let sms: BTreeSet<u32> = census.sms().unwrap();
    topology.logical_from_smids(sms).unwrap()
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_masks_itself() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let (topology, layout) = common::board(&gpu);
    let board = Board { topology: &topology, layout };
    let Ok(Found::Shown { offset_bytes, .. }) = stream_proof::search(&gpu, board) else {
        panic!("not found")
    };
    let field = StreamField::from_cache(&cuda, offset_bytes).unwrap();
    let streams = StreamMasks::new(&cuda, field, topology.tpc_count());
    let masks = ProcessMasks::install(&cuda, &topology, layout).unwrap();
    let stream = Stream::new(&cuda).unwrap();
    let other = Stream::new(&cuda).unwrap();
    let on = |stream: &Stream<'_>| seen(&gpu, &topology, stream.as_ref());
    let all = topology.all();

    // Nothing is masked at first.
    assert_eq!(on(&stream), all);
    // The process's set applies to every stream.
    assert_eq!(masks.set_process(Some(&set("0-9"))).unwrap(), None);
    assert_eq!((on(&stream), on(&other)), (set("0-9"), set("0-9")));
    // A stream's own mask is more specific.
    streams.set(stream.as_ref(), &set("20-29,40")).unwrap();
    assert_eq!((on(&stream), on(&other)), (set("20-29,40"), set("0-9")));
    // The mask of the next launch is the most specific one, and applies once.
    masks.set_next(Some(&set("50"))).unwrap();
    assert_eq!(masks.next(), Some(set("50")));
    assert_eq!(on(&stream), set("50"));
    assert_eq!(masks.next(), None);
    assert_eq!(on(&stream), set("20-29,40"));
    // It belongs to this thread.
    masks.set_next(Some(&set("51"))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(masks.next(), None)).join().unwrap();
    });
    assert_eq!(on(&other), set("51"));
    // A scope, and one inside it.
    {
        let _outer = Scope::enter(masks, &set("60-61")).unwrap();
        assert_eq!((on(&stream), on(&other)), (set("60-61"), set("60-61")));
        {
            let _inner = Scope::enter(masks, &set("62")).unwrap();
            assert_eq!(on(&stream), set("62"));
        }
        assert_eq!(on(&stream), set("60-61"));
    }
    // The previous mask returns.
    streams.clear(stream.as_ref()).unwrap();
    assert_eq!(masks.set_process(Some(&set("3"))).unwrap(), Some(set("0-9")));
    assert_eq!(on(&stream), set("3"));
    assert_eq!(masks.set_process(None).unwrap(), Some(set("3")));
    assert_eq!(on(&stream), all);
    // A set that no launch can run on is refused, and changes nothing.
    assert!(masks.set_next(Some(&TpcSet::EMPTY)).unwrap_err().to_string().contains("empty set"));
    assert!(masks.set_process(Some(&set("0,200"))).unwrap_err().to_string().contains("200"));
    assert_eq!((masks.process(), masks.next(), masks.unmasked()), (None, None, 0));
    // A second installation returns the same masks.
    assert!(ProcessMasks::install(&cuda, &topology, layout).is_ok());
    common::say("done");
    common::say(format!("corruptions {:?}", common::corruptions(&cuda)));
}

#[test]
fn the_most_specific_mask_counts() {
    let sim = Sim::new("wishes", "h200");
    assert_eq!(sim.child_says("child_masks_itself", &[])[0], "done");
}
