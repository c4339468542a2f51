//! User B's attacks on user A and on root, in the run directory that they share.
//!
//! Each family of acts is a list (name, B's shell script, the victims' steps). After each act the
//! victims' commands must end within their bound with the right answer, and the state of A and root
//! must be unchanged (`scene.rs`). More acts, with their former effects, are in `boundary.rs` here
//! and in `partita-daemon`. Two users need root; without it the tests report that they are skipped.

mod daemon;
mod environment;
mod floods;
mod forged;
mod kinds;
mod links;
mod locks;
mod modes;
mod page;
mod processes;
mod races;
mod requests;
mod scene;
mod services;
mod terminal;

use std::collections::BTreeSet;

use scene::{Act, Scene};

use crate::common;

fn play(acts: &[Act]) {
    if let Some(mut scene) = Scene::new() {
        scene.play(acts);
    }
}

#[test]
fn links_mislead_no_command() {
    play(links::ACTS);
}

#[test]
fn exchanges_of_names_mislead_no_command() {
    play(races::ACTS);
}

#[test]
fn locks_and_leases_delay_no_other() {
    play(locks::ACTS);
}

#[test]
fn pipes_sockets_and_directories_in_place_of_files_delay_no_command() {
    play(kinds::ACTS);
}

#[test]
fn floods_starve_no_other_user() {
    play(floods::ACTS);
}

#[test]
fn no_command_believes_forged_files() {
    play(forged::ACTS);
}

#[test]
fn what_belongs_to_others_cannot_be_written_or_moved() {
    play(modes::ACTS);
}

#[test]
fn processes_of_others_are_out_of_reach() {
    play(processes::ACTS);
}

#[test]
fn environments_that_name_files_of_others_get_nothing() {
    play(environment::ACTS);
}

#[test]
fn what_is_shown_steers_no_terminal() {
    play(terminal::ACTS);
}

#[test]
fn the_daemon_of_root_serves_no_attacker() {
    daemon::play();
}

#[test]
fn services_of_others_are_out_of_reach() {
    services::play();
}

#[test]
fn requests_of_one_user_delay_no_other() {
    match common::is_system() {
        true => play(requests::ACTS),
        false => eprintln!("skipped: in user mode no command asks a daemon"),
    }
}

/// Every act has a unique name, and there are at least 60.
#[test]
fn the_list_is_long_enough() {
    let families = [
        links::ACTS,
        races::ACTS,
        locks::ACTS,
        kinds::ACTS,
        floods::ACTS,
        forged::ACTS,
        modes::ACTS,
        processes::ACTS,
        environment::ACTS,
        terminal::ACTS,
        daemon::ACTS,
        services::ACTS,
        requests::ACTS,
    ];
    let acts = families.iter().map(|acts| acts.len()).sum::<usize>();
    let names: BTreeSet<&str> = families.iter().flat_map(|acts| acts.iter()).map(|act| act.name).collect();
    assert!(names.len() == acts && acts >= 60, "{} names of {acts} acts", names.len());
}
