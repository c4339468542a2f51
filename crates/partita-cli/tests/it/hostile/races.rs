//! Names that are exchanged without pause while root and A use them, and files that are truncated
//! while they are read.

use super::scene::{Act, End, Step, Who};

/// Long enough for the exchange to occur in between.
const AGAIN: &[Step] = &[
    Step(Who::Root, "for n in 1 2 3 4; do p ps >/dev/null || exit; done", End::Well),
    Step(Who::A, "p ps; p run --sm 2% --isolation own -- true", End::Well),
];

/// B's tenant exists or not at the moment of the look-up.
const KILL: &[Step] =
    &[Step(Who::Root, "p kill beta --grace 0; p set beta --sm 1%; p kill beta --grace 0; true", End::Well)];

pub const ACTS: &[Act] = &[
    Act::new(
        "B's directory and a link to A's",
        r#"mkdir "$HOME_B"; ln -s "$HOME_A" "$RUN/x"; exec "$ATTACK" flip "$HOME_B" "$RUN/x""#,
    )
    .then(AGAIN),
    Act::new(
        "a GPU of B's and a link to A's",
        r#"fake beta; ln -s "$HOME_A/$KEY" "$HOME_B/x"; exec "$ATTACK" flip "$HOME_B/$KEY" "$HOME_B/x""#,
    )
    .then(AGAIN),
    Act::new(
        "a GPU of B's and a link to root's",
        r#"fake beta; ln -s "$RUN/$KEY_ROOT" "$HOME_B/x"; exec "$ATTACK" flip "$HOME_B/$KEY" "$HOME_B/x""#,
    )
    .then(AGAIN),
    Act::new(
        "a tenant of B's and a link to A's",
        r#"fake beta; ln -s "$ALPHA" "$HOME_B/x"; exec "$ATTACK" flip "$D" "$HOME_B/x""#,
    )
    .then(AGAIN),
    Act::new(
        "a tenant of B's and a link to root's secrets",
        r#"fake beta; ln -s "$SECRET" "$HOME_B/x"; exec "$ATTACK" flip "$D" "$HOME_B/x""#,
    )
    .then(AGAIN),
    Act::new(
        "a tenant of B's that is to be ended, and a link to A's",
        r#"fake beta; ln -s "$ALPHA" "$HOME_B/x"; exec "$ATTACK" flip "$D" "$HOME_B/x""#,
    )
    .then(KILL),
    Act::new("limits and a pipe", r#"fake beta; mkfifo "$B/x"; exec "$ATTACK" flip "$D/limits" "$B/x""#)
        .then(AGAIN),
    Act::new(
        "meta.json and a link to root's secret",
        r#"fake beta; ln -s "$SECRET/important/file" "$B/x"; exec "$ATTACK" flip "$D/meta.json" "$B/x""#,
    )
    .then(AGAIN),
    Act::new(
        "the account and a link to A's",
        r#"fake beta; ln -s "$ALPHA/usage" "$B/x"; exec "$ATTACK" flip "$D/usage" "$B/x""#,
    )
    .then(AGAIN),
    Act::new(
        "the owner's file and a directory",
        r#"fake beta; mkdir "$B/x"; exec "$ATTACK" flip "$D/owner" "$B/x""#,
    )
    .then(AGAIN),
    Act::new(
        "directories that come and go",
        r#"mkdir "$HOME_B"; (while :; do mkdir -p "$HOME_B/$KEY/beta"; rm -rf "$HOME_B/$KEY"; done) &"#,
    )
    .then(AGAIN),
    Act::new("limits that are cut short", r#"fake beta; exec "$ATTACK" cut "$D/limits""#).then(AGAIN),
    Act::new("an account that is cut short", r#"fake beta; exec "$ATTACK" cut "$D/usage""#).then(AGAIN),
    Act::new("a meta.json that is cut short", r#"fake beta; exec "$ATTACK" cut "$D/meta.json""#).then(AGAIN),
];
