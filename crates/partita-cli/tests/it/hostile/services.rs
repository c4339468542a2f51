//! An MPS service of A's, or of root's in system mode, and A's keeper of device memory: other users
//! cannot reach the sockets of A's, and change nothing of root's.

use std::process::{Command, Stdio};

use partita_testing::{VICTIM, eventually, succeed};

use super::scene::{self, Act, End, Process, Scene, Step, Who};
use crate::common;

/// Both still serve A.
const SERVE: &[Step] = &[
    Step(Who::A, "p mps status", End::Well),
    Step(Who::A, "p mps clients", End::Well),
    Step(Who::A, r#"test -S "$KEEPER" && test -e "$PIPES/control""#, End::Well),
];

/// Why B may connect to the service.
const FOR_ALL: &str = "every user is a client of root's service";

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
    .only_in_user_mode(FOR_ALL)
    .then(SERVE),
    Act::new(
        "commands to A's service",
        r#"eval "$("$PARTITA" sim env)"; export CUDA_MPS_PIPE_DIRECTORY="$PIPES"
        say() { echo "$@" | timeout 10 nvidia-cuda-mps-control; }
        server=$(say get_server_list)
        for client in $(say get_client_list "$server"); do say terminate_client "$server" "$client"; done
        say shutdown_server "$server"; say start_server -uid 0; say quit -t 1; say quit; true"#,
    )
    .then(SERVE),
    Act::new(
        "new limits of A's service",
        r#"eval "$("$PARTITA" sim env)"; export CUDA_MPS_PIPE_DIRECTORY="$PIPES"
        echo "set_default_active_thread_percentage 7" | timeout 10 nvidia-cuda-mps-control
        echo "set_default_device_pinned_mem_limit 0 1M" | timeout 10 nvidia-cuda-mps-control
        echo "set_default_client_priority 1" | timeout 10 nvidia-cuda-mps-control; true"#,
    )
    .then(&[Step(
        Who::A,
        r#"eval "$(p sim env)"; export CUDA_MPS_PIPE_DIRECTORY="$PIPES"
        test "$(echo get_default_active_thread_percentage | nvidia-cuda-mps-control)" = 100.0"#,
        End::Well,
    )]),
    Act::new("B's stop of every service", r#""$PARTITA" mps stop --force; true"#).then(SERVE),
    Act::new("B's own service, and limits for it", r#""$PARTITA" mps start && "$PARTITA" mps limits --percent 50; "$PARTITA" mps stop --force; true"#)
        .then(SERVE),
];

/// Plays the acts with a service, which is root's in system mode, and a keeper of A's.
pub fn play() {
    let Some(mut scene) = Scene::new() else { return };
    let owner = if scene.world.system.is_some() { 0 } else { VICTIM };
    succeed(&mut scene.shell(owner, r#"exec "$PARTITA" mps start"#));
    let keeper = scene.users.place(VICTIM).join("keeper.sock");
    let mut command = Command::new(partita_testing::build().join("partitad"));
    common::with_env_of(&mut command, &scene.world.partita([] as [&str; 0]));
    scene::enter(&scene.world, &scene.users, VICTIM, &mut command);
    command.args(["keeper", "--gpu", "sim:h200", "--idle-s", "3600", "--socket"]).arg(&keeper);
    let process = Process(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("the keeper serves", || keeper.exists());
    let of_a = |name: &str| scene.variables.iter().find(|(known, _)| *known == name).unwrap().1.clone();
    let gpu = match owner {
        0 => format!("{}/{}", of_a("RUN"), of_a("KEY_ROOT")),
        _ => format!("{}/{}", of_a("HOME_A"), of_a("KEY")),
    };
    let pipes = format!("{gpu}/.mps-{owner}/pipe");
    scene.variables.push(("KEEPER", keeper.display().to_string()));
    scene.variables.push(("PIPES", pipes));
    scene.play(ACTS);
    drop(process);
    succeed(&mut scene.shell(owner, r#"exec "$PARTITA" mps stop --force"#));
}
