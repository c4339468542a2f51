//! A's MPS service and A's keeper of device memory: other users cannot reach their sockets.

use std::process::{Command, Stdio};

use partita_testing::{VICTIM, eventually, succeed};

use super::scene::{Act, End, Process, Scene, Step, Who};
use crate::common;

/// Both still serve A.
const SERVE: &[Step] = &[
    Step(Who::A, "p mps status", End::Well),
    Step(Who::A, "p mps clients", End::Well),
    Step(Who::A, r#"test -S "$KEEPER" && test -e "$PIPES/control""#, End::Well),
];

pub const ACTS: &[Act] = &[
    Act::new(
        "connections to A's keeper",
        r#""$ATTACK" reach "$KEEPER" > "$B/said" & until grep -q ready "$B/said"; do sleep 0.01; done; grep won "$B/said"; rm -f "$KEEPER" && echo won; true"#,
    )
    .then(SERVE),
    Act::new(
        "connections to A's service",
        r#""$ATTACK" reach "$PIPES/control" "$PIPES/control_privileged" > "$B/said" & until grep -q ready "$B/said"; do sleep 0.01; done; grep won "$B/said"; ls "$PIPES" && echo won; true"#,
    )
    .then(SERVE),
    Act::new(
        "commands to A's service",
        r#"eval "$("$PARTITA" sim env)"; echo quit | CUDA_MPS_PIPE_DIRECTORY="$PIPES" timeout 10 nvidia-cuda-mps-control && echo won; true"#,
    )
    .then(SERVE),
    Act::new("B's stop of every service", r#""$PARTITA" mps stop --force; true"#).then(SERVE),
    Act::new("B's own service, and limits for it", r#""$PARTITA" mps start && "$PARTITA" mps limits --percent 50; "$PARTITA" mps stop --force; true"#)
        .then(SERVE),
];

/// Plays the acts with a service and a keeper of A's.
pub fn play() {
    let Some(mut scene) = Scene::new() else { return };
    succeed(&mut scene.shell(VICTIM, r#"exec "$PARTITA" mps start"#));
    let keeper = scene.users.place(VICTIM).join("keeper.sock");
    let mut command = Command::new(partita_testing::build().join("partitad"));
    common::with_env_of(&mut command, &scene.world.partita([] as [&str; 0]));
    scene.users.enter(VICTIM, &mut command);
    command.args(["keeper", "--gpu", "sim:h200", "--idle-s", "3600", "--socket"]).arg(&keeper);
    let process = Process(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("the keeper serves", || keeper.exists());
    let of_a = |name: &str| scene.variables.iter().find(|(known, _)| *known == name).unwrap().1.clone();
    let pipes = format!("{}/{}/.mps-{VICTIM}/pipe", of_a("HOME_A"), of_a("KEY"));
    scene.variables.push(("KEEPER", keeper.display().to_string()));
    scene.variables.push(("PIPES", pipes));
    scene.play(ACTS);
    drop(process);
    succeed(&mut scene.shell(VICTIM, r#"exec "$PARTITA" mps stop --force"#));
}
