//! System mode alone: B's requests to the socket at which `partitad` serves the commands of all
//! users. B may fill B's own places there and delay no other user.

use super::scene::{Act, End, Step, Who};

const WORK: &[Step] = &[
    Step(Who::A, "p run --sm 2% --isolation own -- true", End::Well),
    Step(Who::A, "p ps", End::Well),
    Step(Who::Root, "p set rho --mem 64MiB", End::Well),
];

pub const ACTS: &[Act] = &[
    Act::new("500 connections that say nothing", r#"exec "$ATTACK" crowd "$RUN/.system.sock" 500"#)
        .then(WORK),
    Act::new(
        "500 connections that say half of a request",
        r#"exec "$ATTACK" crowd "$RUN/.system.sock" 500 '{"do":"command","arguments":["ps"'"#,
    )
    .then(WORK),
    Act::new(
        "500 requests for a list, whose answers nobody reads",
        r#"exec "$ATTACK" crowd "$RUN/.system.sock" 500 '{"do":"command","arguments":["ps","--json"]}' end"#,
    )
    .then(WORK),
    Act::new(
        "500 requests for one tenant, whose answers nobody reads",
        r#"exec "$ATTACK" crowd "$RUN/.system.sock" 500 \
            '{"do":"make","name":"beta","gpus":"sim:h200","request":{}}' end"#,
    )
    .then(WORK),
    Act::new("a request without an end", r#"yes '"x",' | "$ATTACK" pour "$RUN/.system.sock" & sleep 0.2"#)
        .then(WORK),
    Act::new(
        "a request of 200,000 brackets",
        r#"printf %200000s | tr ' ' '[' | "$ATTACK" pour "$RUN/.system.sock" & sleep 0.2"#,
    )
    .then(WORK),
    Act::new(
        "connections that come and go",
        r#"for n in 1 2 3 4; do
            (while :; do timeout 0.01 "$ATTACK" crowd "$RUN/.system.sock" 50; done) &
        done"#,
    )
    .then(WORK),
    Act::new(
        "500 connections to the daemon that serves everyone",
        r#"exec "$ATTACK" crowd "$RUN/.partitad-0.sock" 500 'GET /v1/events HTTP/1.1'"#,
    )
    .then(WORK),
    Act::new(
        "B's commands, stopped in the middle of a request",
        r#"for n in 1 2 3 4 5 6 7 8; do
            "$PARTITA" run --sm 1tpc --isolation own -- sleep 1000 & sleep 0.01; kill -STOP $!
        done"#,
    )
    .then(WORK),
];
