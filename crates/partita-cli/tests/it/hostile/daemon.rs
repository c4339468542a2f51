//! Root's `partitad`, which serves every user: B's requests, and B's files in directories that it
//! reads.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use partita_testing::eventually;

use super::scene::{Act, End, Process, Scene, Step, Who};
use crate::common;

/// The daemon answers root, with root's and A's tenants in it.
const ASK: &[Step] = &[Step(
    Who::Root,
    r#"test "$("$ATTACK" ask "$SOCKET" GET /v1/tenants/alpha)$("$ATTACK" ask "$SOCKET" GET /v1/tenants)$("$ATTACK" ask "$SOCKET" GET /metrics)" = 200200200"#,
    End::Well,
)];

pub const ACTS: &[Act] = &[
    Act::new("B's change of A's tenant", r#"s=$("$ATTACK" ask "$SOCKET" PATCH /v1/tenants/alpha '{"memory_quota_bytes":4096}'); test "$s" = 403 || echo "won $s""#)
        .then(ASK),
    Act::new("B's change of root's tenant", r#"s=$("$ATTACK" ask "$SOCKET" PATCH /v1/tenants/rho '{"memory_quota_bytes":4096}'); test "$s" = 403 || echo "won $s""#)
        .then(ASK),
    Act::new("B's end of A's tenant", r#"s=$("$ATTACK" ask "$SOCKET" DELETE /v1/tenants/alpha); test "$s" = 403 || echo "won $s""#).then(ASK),
    Act::new("B's end of root's tenant", r#"s=$("$ATTACK" ask "$SOCKET" DELETE /v1/tenants/rho); test "$s" = 403 || echo "won $s""#).then(ASK),
    Act::new("B's end of a tenant of B's whose program is A's", r#"fake beta "s/\"pid\": [0-9]*/\"pid\": $ALPHA_PID/;s/\"start_ticks\": [0-9]*/\"start_ticks\": $ALPHA_TICKS/"; "$ATTACK" ask "$SOCKET" DELETE /v1/tenants/beta"#)
        .then(ASK),
    Act::new("B's change of a tenant of B's by the name of A's", r#"fake alpha; s=$("$ATTACK" ask "$SOCKET" PATCH /v1/tenants/alpha '{"memory_quota_bytes":4096}'); test "$s" = 403 || echo "won $s""#)
        .then(ASK),
    Act::new("paths and bodies with escapes and new lines", r#"for p in '/v1/tenants/%1b[2J%0arow' '/v1/tenants/..%2f..%2falpha' "$(printf '/v1/\033[2J')"; do "$ATTACK" ask "$SOCKET" PATCH "$p" "$(printf '{"\033[2J\nrow":1}')"; done"#)
        .then(ASK),
    Act::new("a body of 100,000 brackets", r#""$ATTACK" ask "$SOCKET" PATCH /v1/tenants/alpha "$(printf %100000s | tr ' ' '[')""#).then(ASK),
    Act::new("a tenant whose texts are escapes", r#"fake beta 's/"\(key\|uuid\|label\|device\)": "[^"]*"/"\1": "\\u001b]0;x\\u0007\\nrow"/'"#).then(ASK),
    Act::new("a tenant whose files are pipes", r#"fake beta; for f in limits usage meta.json owner; do rm "$D/$f"; mkfifo "$D/$f"; done"#).then(ASK),
    Act::new("limits and an account that are cut short under the daemon", r#"fake beta; "$ATTACK" cut "$D/limits" > "$B/x" & exec "$ATTACK" cut "$D/usage""#)
        .then(ASK),
    Act::new("a keeper of B's that says nothing", r#"mkdir -p "$HOME_B/$KEY"; "$ATTACK" board "$HOME_B/$KEY/.keeper.sock" > "$B/x" & "$ATTACK" board "$RUN/.keeper.sock" > "$B/y" & sleep 0.1"#)
        .then(ASK),
    Act::new("the daemon's files in the run directory", r#"for f in "$SOCKET" "$SOCKET.lock"; do rm -f "$f" && echo "won $f"; mv "$f" "$B/x" && echo "won $f"; done; cat "$SOCKET.lock" && echo "won the lock"; true"#)
        .then(ASK),
];

/// Plays the acts with root's daemon, which must still serve afterwards and has printed no control
/// character.
pub fn play() {
    let Some(mut scene) = Scene::new() else { return };
    if scene.world.system.is_some() {
        let socket = scene.world.run_dir().join(".partitad-0.sock");
        scene.variables.push(("SOCKET", socket.display().to_string()));
        return scene.play(ACTS);
    }
    let (socket, log): (PathBuf, PathBuf) =
        (scene.world.run_dir().join(".d.sock"), scene.world.dir().join("log"));
    let mut command = Command::new(partita_testing::build().join("partitad"));
    common::with_env_of(&mut command, &scene.world.partita([] as [&str; 0]));
    command.arg("--socket").arg(&socket).arg("--state").arg(scene.world.dir().join("state"));
    command.args(["--audit-every", "1"]).stdin(Stdio::null());
    let mut daemon = Process(command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap());
    let said = || fs::read_to_string(&log).unwrap();
    eventually("the daemon serves", || said().contains("serving"));
    scene.variables.push(("SOCKET", socket.display().to_string()));
    scene.play(ACTS);
    assert!(daemon.0.try_wait().unwrap().is_none(), "{}", said());
    let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!said().contains(steers), "{:?}", said());
    assert!(!said().lines().any(|line| line.starts_with("row")), "{}", said());
    drop(daemon);
}
