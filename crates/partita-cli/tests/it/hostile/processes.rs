//! Processes of A and root: signals, tracing, and false claims that they are B's.

use super::scene::{Act, End, Step, Who};

/// Root ends B's tenant, and no process of another user.
const KILL: &[Step] = &[
    Step(Who::Root, "p ps --audit", End::Well),
    Step(Who::Root, "p kill beta --grace 0", End::RefusedOfB("holds it")),
];

pub const ACTS: &[Act] = &[
    Act::new("signals, tracing, descriptors, priorities of A's and root's processes", r#""$ATTACK" meddle $PIDS > "$B/said" & until grep ready "$B/said"; do sleep 0.01; done; grep won "$B/said""#),
    Act::new("a tenant whose program is A's", r#"fake beta "s/\"pid\": [0-9]*/\"pid\": $ALPHA_PID/;s/\"start_ticks\": [0-9]*/\"start_ticks\": $ALPHA_TICKS/""#)
        .then(KILL),
    Act::new("a tenant whose program is init", r#"fake beta "s/\"pid\": [0-9]*/\"pid\": 1/;s/\"start_ticks\": [0-9]*/\"start_ticks\": $(cut -d' ' -f22 /proc/1/stat)/""#)
        .then(KILL),
    Act::new("a slot that names A's process", r#"fake beta; exec "$ATTACK" hold "$D/usage" "$ALPHA_PID" "$ALPHA_TICKS""#)
        .then(&[
            Step(Who::Root, "p ps --audit", End::Well),
            Step(Who::Root, r#"p ps --pid "$ALPHA_PID" | grep -q "tenant alpha""#, End::Well),
            Step(Who::A, r#"p set --pid "$ALPHA_PID" --mem 64MiB"#, End::Well),
            // The process that holds it is not found, and survives.
            Step(Who::Root, "p kill beta --grace 0", End::Refused("holds it")),
        ]),
    Act::new("a process of B's that says it is in A's tenant", r#"PARTITA_LEDGER="$ALPHA" sleep 1000 &"#)
        .then(&[Step(Who::Root, "p ps --audit", End::Well), Step(Who::A, "p set alpha --mem 64MiB", End::Well)]),
    Act::new("a tenant of B's by the name of A's", r#"fake alpha"#).then(&[
        Step(Who::A, "p set alpha --sm 25%", End::Well),
        Step(Who::A, "p ps --audit", End::Well),
        Step(Who::Root, r#"p ps --pid "$ALPHA_PID" | grep -q "tenant alpha""#, End::Well),
    ]),
    Act::new("a tenant of B's by the name of root's", r#"fake rho"#)
        .then(&[Step(Who::Root, "p set rho --sm 25%", End::Well), Step(Who::Root, "p ps --audit", End::Well)]),
    Act::new("B's kill of A's and root's tenants", r#"for t in alpha rho; do "$PARTITA" kill $t && echo "won $t"; done; true"#),
    Act::new("B's set of A's and root's tenants", r#"for t in alpha rho; do "$PARTITA" set $t --mem 1MiB && echo "won $t"; "$PARTITA" set $t --sm 1% && echo "won $t"; done; true"#),
    Act::new("B's set of A's and root's processes", r#"for p in $PIDS; do "$PARTITA" set --pid $p --mem 1MiB && echo "won $p"; done; true"#),
    Act::new("B's run by the names of A's and root's tenants", r#"for t in alpha rho; do "$PARTITA" run --name $t --sm 2% --isolation own -- true && echo "won $t"; done; true"#),
    Act::new("B's compaction of everybody", r#""$PARTITA" set --compact; true"#),
    Act::new("a gate that a process of B's has open", r#"fake beta; mkdir "$HOME_B/$KEY/.turns"
        touch "$HOME_B/$KEY/.turns/gate"; exec "$ATTACK" call x "$HOME_B/$KEY/.turns/gate""#)
        .then(KILL),
];
