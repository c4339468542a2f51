//! Locks of every kind, leases and notices, on all files that B can open.

use super::scene::{Act, End, Step, Who};

const ALL: &[Step] = &[
    Step(Who::A, "p set alpha --sm 25%", End::Well),
    Step(Who::A, "p run --name other --sm 5% --isolation own -- true", End::Well),
    Step(Who::Root, "p set rho --mem 64MiB", End::Well),
];

pub const ACTS: &[Act] = &[
    Act::new("locks on the files of A's tenant", r#"exec "$ATTACK" lock "$ALPHA" "$ALPHA"/* "$ALPHA"/.[a-z]*"#).then(ALL),
    Act::new("locks on the files of root's tenant", r#"exec "$ATTACK" lock "$RHO" "$RHO"/* "$RHO"/.[a-z]*"#).then(ALL),
    Act::new("locks on directories of A's", r#"exec "$ATTACK" lock "$HOME_A" "$HOME_A/.lock" "$HOME_A/$KEY" "$HOME_A/$KEY"/.[a-z]*"#)
        .then(ALL),
    Act::new("locks on the run directory", r#"exec "$ATTACK" lock "$RUN" "$RUN"/.[a-z]* "$RUN/$KEY_ROOT" "$RUN/$KEY_ROOT"/.[a-z]*"#)
        .then(ALL),
    Act::new("locks on what is installed", r#"exec "$ATTACK" lock "$PARTITA" "$LIBS/libpartita.so" "$LIBS/libpartita_simcuda.so" "$LIBS/partita-simgpu""#)
        .then(ALL),
    Act::new("locks on all files of a tenant of B's", r#"fake beta; exec "$ATTACK" lock "$D" "$D"/* "$HOME_B" "$HOME_B/$KEY""#).then(ALL),
    Act::new("a free slot of a tenant of B's", r#"fake beta; exec "$ATTACK" hold "$D/usage""#)
        .then(&[Step(Who::Root, "p kill beta --grace 0", End::Refused("holds it"))]),
    Act::new(
        "files that only others can open",
        r#"for f in "$RUN/.lock" "$HOME_A/.lock" "$ALPHA/usage" "$RHO/usage" "$ALPHA/limits.lock" "$RHO/limits.lock"; do cat "$f" && echo "won $f"; done"#,
    ),
];
