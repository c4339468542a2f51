//! The mask of a stream is found and proved on simulated drivers that keep it where nobody listed.
//!
//! Each search runs in a child process of its own, as on a real machine.

mod common;

use common::Sim;
use partita_driver::Gpu;
use partita_driver::stream_proof::{self, Board, Found};

/// In a child: what was found, and how often the simulated driver saw its own state changed.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_finds_and_verifies() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let (topology, layout) = common::board(&gpu);
    let board = Board { topology: &topology, layout };
    match stream_proof::search(&gpu, board) {
        Err(error) => common::say(format!("refused: {error}")),
        Ok(Found::Candidates(places)) => {
            panic!("a simulated driver's copy gets to its descriptor: {places:x?}")
        }
        Ok(Found::Shown { offset_bytes, .. } | Found::Listed(offset_bytes)) => {
            let proof = stream_proof::verify(&gpu, board, offset_bytes).unwrap();
            common::say(format!("proved {:#x} with {} sets", proof.field.offset_bytes(), proof.sets));
        }
    }
    common::say(format!("corruptions {:?}", common::corruptions(&cuda)));
}

#[test]
fn the_listed_offset_is_found_by_search() {
    let sim = Sim::new("listed", "h200");
    let said = sim.child_says("child_finds_and_verifies", &[]);
    assert!(said[0].starts_with("proved 0x51c"), "{said:?}");
}
