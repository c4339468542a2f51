//! Init, devices and contexts, as a C program sees them.

use crate::common;

use common::World;
use partita_simcuda::shared::place::Place;
use partita_simcuda::shared::visible::{device_uuid, uuid_text};

#[test]
fn the_device_is_the_catalogues() {
    let world = World::new("identity");
    let printed = world.run("basics", "identity");
    let place = Place::new("h200", 0, Some(world.dir().into())).unwrap();
    assert_eq!(format!("GPU-{}", printed.trim()), uuid_text(device_uuid(&place)));
}

#[test]
fn visible_devices_hide_it() {
    let world = World::new("hidden");
    for list in ["", "-1", "1", "GPU-00000000-0000-0000-0000-000000000000", "x"] {
        world.run_with("basics", "hidden", &[("CUDA_VISIBLE_DEVICES", list)]);
    }
    let place = Place::new("h200", 0, Some(world.dir().into())).unwrap();
    let uuid = uuid_text(device_uuid(&place));
    for list in ["0", "0,1", uuid.as_str(), &uuid[..12]] {
        world.run_with("basics", "forked", &[("CUDA_VISIBLE_DEVICES", list)]);
    }
}

#[test]
fn contexts_stack_and_cost_memory() {
    World::new("contexts").run("basics", "contexts");
}

#[test]
fn a_contexts_objects_go_with_it() {
    World::new("leftovers").run("basics", "leftovers");
}

#[test]
fn errors_have_names() {
    World::new("names").run("basics", "names");
}

#[test]
fn entry_points_are_looked_up_by_version() {
    World::new("addresses").run("basics", "addresses");
}

#[test]
fn a_forked_child_has_no_cuda() {
    World::new("forked").run("basics", "forked");
}

#[test]
fn without_a_board_program_the_reason_is_reported() {
    let world = World::new("noboard");
    let output = world.output("basics", "hidden", &[("PARTITA_SIMGPU", "/nonexistent/simgpu")]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("/nonexistent/simgpu") && text.contains("PARTITA_SIMGPU"), "{text}");
    let _ = std::fs::remove_dir_all(world.dir());
    let output = world.output("basics", "hidden", &[("PARTITA_SIM_DEVICE", "h900")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("h900") && text.contains("sim:h200"), "{text}");
}

#[test]
fn the_shared_library_exports_what_the_real_one_does() {
    let path = std::ffi::CString::new(common::library().to_str().unwrap()).unwrap();
    // SAFETY: loading the library runs nothing of it.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null());
    for export in partita_abi::exports::EXPORTS {
        let name = std::ffi::CString::new(export.name).unwrap();
        // SAFETY: the handle is open and the name is a C string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!address.is_null(), "{} is missing", export.name);
    }
}
