//! Links, symbolic and hard, at each level of the run directory.

use super::scene::{Act, End, Step, Who};

const AUDIT: &[Step] = &[Step(Who::Root, "p ps --audit", End::Well)];

pub const ACTS: &[Act] = &[
    Act::new("B's directory is a link to A's", r#"ln -s "$HOME_A" "$HOME_B""#),
    Act::new("B's directory is a link to root's secrets", r#"ln -s "$SECRET" "$HOME_B""#),
    Act::new("a third user's directory is a link to A's", r#"ln -s "$HOME_A" "$RUN/user-70001""#),
    Act::new("a GPU of the run directory is a link to root's secrets", r#"ln -s "$SECRET" "$RUN/GPU-0bad0bad""#),
    Act::new("a GPU of B's is a link to A's", r#"mkdir "$HOME_B"; ln -s "$HOME_A/$KEY" "$HOME_B/$KEY""#),
    Act::new("a GPU of B's is a link to root's", r#"mkdir "$HOME_B"; ln -s "$RUN/$KEY_ROOT" "$HOME_B/$KEY_ROOT""#),
    Act::new("a GPU of B's is a link to root's secrets", r#"mkdir "$HOME_B"; ln -s "$SECRET" "$HOME_B/GPU-0bad0bad""#),
    Act::new("a tenant of B's is a link to A's", r#"mkdir -p "$HOME_B/$KEY"; ln -s "$ALPHA" "$HOME_B/$KEY/beta""#)
        .then(&[Step(Who::Root, "p kill beta", End::Refused("beta"))]),
    Act::new("a tenant of B's is a link to root's", r#"mkdir -p "$HOME_B/$KEY"; ln -s "$RHO" "$HOME_B/$KEY/beta""#)
        .then(&[Step(Who::Root, "p set beta --sm 1%", End::Refused("beta"))]),
    Act::new(
        "what a dead tenant left is a link to root's secrets",
        r#"mkdir -p "$HOME_B/$KEY"; for name in .dead-x-1 .new-x-1 gone; do ln -s "$SECRET" "$HOME_B/$KEY/$name"; done"#,
    ),
    Act::new("limits are a link to A's", r#"fake beta; ln -sf "$ALPHA/limits" "$D/limits""#),
    Act::new("the account is a link to A's", r#"fake beta; ln -sf "$ALPHA/usage" "$D/usage""#).then(AUDIT),
    Act::new("the account is a link to root's", r#"fake beta; ln -sf "$RHO/usage" "$D/usage""#).then(AUDIT),
    Act::new("meta.json is a link to root's secret", r#"fake beta; ln -sf "$SECRET/important/file" "$D/meta.json""#)
        .then(AUDIT),
    Act::new("meta.json is a link to A's", r#"fake alpha; ln -sf "$ALPHA/meta.json" "$D/meta.json""#).then(AUDIT),
    Act::new("the owner's file is a link to A's", r#"fake beta; ln -sf "$ALPHA/owner" "$D/owner""#),
    Act::new("hard links to A's files", r#"fake beta; for f in limits usage owner meta.json; do ln -f "$ALPHA/$f" "$D/$f"; done"#),
    Act::new("the next GPU is a link to root's secrets", r#"fake beta; ln -s "$SECRET" "$D/gpu-1"; ln -s "$RHO" "$D/gpu-2""#)
        .then(&[Step(Who::Root, "p kill beta --grace 0", End::RefusedOfB("holds it"))]),
    Act::new(
        "the lock, the gate and the service are links to A's and root's",
        r#"fake beta; ln -s "$SECRET/important/file" "$HOME_B/.lock"; ln -s "$HOME_A/.lock" "$HOME_B/$KEY/.lock"
        mkdir "$HOME_B/$KEY/.turns"; ln -s "$RUN/.lock" "$HOME_B/$KEY/.turns/gate"
        ln -s "$SECRET" "$HOME_B/$KEY/.mps-65534""#,
    )
    .then(&[
        Step(Who::Root, "p mps status", End::Well),
        Step(Who::Root, "p kill beta --grace 0", End::RefusedOfB("holds it")),
    ]),
];
