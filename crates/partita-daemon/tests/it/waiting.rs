//! `GET /v1/waiting`: the programs of `partita run --wait`.

use crate::common;

use std::process::{Child, Stdio};

use common::World;
use partita_testing::eventually;
use rustix::process::{Pid, Signal};

/// A `partita run`, which ends with this.
struct Run(Child);

impl Run {
    fn start(world: &World, options: &str) -> Self {
        let mut command = world.partita(["run"].into_iter().chain(options.split(' ')));
        let command = command.args(["--", "sleep", "1000"]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

#[test]
fn programs_that_wait_are_listed_in_their_order() {
    let world = World::new();
    let daemon = world.start();
    let waiting = || daemon.get("/v1/waiting").as_array().unwrap().clone();
    assert!(waiting().is_empty());
    let held = Run::start(&world, "--name held --sm 60%");
    eventually("the tenant is there", || daemon.get("/v1/tenants").as_array().unwrap().len() == 1);
    let first = Run::start(&world, "--wait --name first --sm 80%");
    eventually("it waits", || waiting().len() == 1);
    let second = Run::start(&world, "--wait --name second --sm 10%");
    eventually("both wait", || waiting().len() == 2);
    let rows = waiting();
    let gpu = &daemon.get("/v1/gpus")[0]["uuid"];
    for (row, (name, ahead, run)) in rows.iter().zip([("first", 0, &first), ("second", 1, &second)]) {
        assert_eq!(
            (&row["name"], &row["ahead"], &row["pid"]),
            (&name.into(), &ahead.into(), &run.0.id().into())
        );
        assert_eq!(&row["gpu_uuids"][0], gpu, "{row}");
    }
    drop(first);
    eventually("the next one starts", || waiting().is_empty());
    assert_eq!(daemon.get("/v1/tenants/second")["name"], "second");
    drop((second, held));
}
