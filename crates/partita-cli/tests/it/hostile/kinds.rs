//! Pipes, sockets, devices and directories in place of files or directories.

use super::scene::{Act, End, Step, Who};

const LOOK: &[Step] = &[Step(Who::Root, "p ps --audit", End::Well)];

pub const ACTS: &[Act] = &[
    Act::new("a pipe as B's directory", r#"mkfifo "$HOME_B""#).then(LOOK),
    Act::new("a pipe as a GPU's directory", r#"mkdir "$HOME_B"; mkfifo "$HOME_B/$KEY" "$RUN/GPU-0bad0bad""#).then(LOOK),
    Act::new("a pipe as a tenant", r#"mkdir -p "$HOME_B/$KEY"; mkfifo "$HOME_B/$KEY/beta""#).then(LOOK),
    Act::new("a pipe as limits", r#"fake beta; rm "$D/limits"; mkfifo "$D/limits""#).then(LOOK),
    Act::new("a pipe as account", r#"fake beta; rm "$D/usage"; mkfifo "$D/usage""#).then(LOOK),
    Act::new("a pipe as meta.json", r#"fake beta; rm "$D/meta.json"; mkfifo "$D/meta.json""#).then(LOOK),
    Act::new("a pipe as the owner's file", r#"fake beta; rm "$D/owner"; mkfifo "$D/owner""#).then(LOOK),
    Act::new("pipes as lock and gate", r#"fake beta; mkdir "$HOME_B/$KEY/.turns"
        mkfifo "$HOME_B/.lock" "$HOME_B/$KEY/.turns/gate" "$D/time" "$D/chain" "$D/ended""#).then(LOOK),
    Act::new("pipes with a process at the other \
        end", r#"fake beta; for f in limits usage meta.json owner; do rm "$D/$f"; mkfifo "$D/$f"; (exec cat /dev/zero > "$D/$f") & done"#)
        .then(LOOK),
    Act::new("sockets as files", r#"fake beta; for f in limits usage meta.json; do rm "$D/$f"; "$ATTACK" board "$D/$f" > "$B/said" & sleep 0.05; done"#)
        .then(LOOK),
    Act::new("directories as files", r#"fake beta; for f in limits usage meta.json owner; do rm "$D/$f"; mkdir "$D/$f"; done"#).then(LOOK),
    Act::new("devices as files", r#"fake beta; for f in limits usage meta.json; do ln -sf /dev/zero "$D/$f"; done; mknod "$B/null" c 1 3 && echo won a device"#)
        .then(LOOK),
    Act::new("links to themselves as files", r#"fake beta; for f in limits usage meta.json owner; do ln -sf "$f" "$D/$f"; done"#).then(LOOK),
    Act::new("terminals as files", r#"fake beta; for f in limits usage meta.json; do ln -sf /dev/tty "$D/$f"; done; ln -sf /dev/ptmx "$D/owner""#)
        .then(LOOK),
    Act::new("a service's directory of pipes", r#"fake beta; mkdir -p "$HOME_B/$KEY/.mps-65534/pipe" "$HOME_B/$KEY/.mps-65534/log"
        cd "$HOME_B/$KEY/.mps-65534"; mkfifo pipe/control pipe/log log/control.log; echo 1 > pipe/nvidia-cuda-mps-control.pid; touch all-users"#)
        .then(&[
            Step(Who::Root, "p mps status", End::Well),
            Step(Who::Root, "p ps --audit", End::Well),
            Step(Who::Root, "p kill beta --grace 0", End::RefusedOfB("holds it")),
        ]),
];
