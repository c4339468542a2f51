//! Variables that name files of other users.

use super::scene::{Act, End, Step, Who};

pub const ACTS: &[Act] = &[
    Act::new(
        "B's program with A's ledger",
        r#"eval "$("$PARTITA" sim env)"; for d in "$ALPHA" "$RHO"; do echo look | LD_PRELOAD="$LIBS/libpartita.so" PARTITA_LEDGER="$d" "$STEADY" "$KERNELS" && echo "won $d"; done; true"#,
    ),
    Act::new("B's run directory is A's part of root's", r#"for d in "$HOME_A" "$HOME_A/$KEY" "$ALPHA"; do PARTITA_RUN_DIR="$d" "$PARTITA" run --sm 2% --isolation own -- true && echo "won $d"; done; true"#),
    Act::new("B's board is A's", r#"PARTITA_SIM_DIR="$PLACE_A/sim" "$PARTITA" run --sm 2% --isolation own -- true && echo won; true"#),
    Act::new("B's cache is A's", r#"PARTITA_CACHE_DIR="$PLACE_A/cache" HOME="$PLACE_A" "$PARTITA" run --sm 2% --isolation own -- true; touch "$PLACE_A/cache/x" && echo won; true"#),
    Act::new("root's ledger is B's", r#"fake beta; touch "$B/marked""#).then(&[
        Step(
            Who::Root,
            r#"PARTITA_LEDGER="$HOME_B/$KEY/beta" p run --sm 2% --isolation own -- true"#,
            End::Refused("inside a tenant"),
        ),
        Step(Who::Root, r#"PARTITA_LEDGER="$HOME_B/$KEY/beta" p ps --audit"#, End::Well),
    ]),
    Act::new("root's run directory is B's part of root's", r#"fake beta"#).then(&[
        Step(Who::Root, r#"PARTITA_RUN_DIR="$HOME_B" p ps"#, End::Refused("belongs to")),
        Step(Who::Root, r#"PARTITA_RUN_DIR="$HOME_B" p run --sm 2% --isolation own -- true"#, End::Refused("belongs to")),
        Step(Who::A, r#"PARTITA_RUN_DIR="$HOME_B" p ps"#, End::Refused("belongs to")),
    ])
    .only_in_user_mode("B's part of the run directory is root's"),
    Act::new(
        "root's run directory is a link of B's",
        r#"ln -s "$SECRET" "$B/run"; mkdir -m 1777 "$B/open""#,
    )
    .then(&[
        Step(Who::Root, r#"PARTITA_RUN_DIR="$B/run" p ps"#, End::Refused("no directory")),
        Step(Who::Root, r#"PARTITA_RUN_DIR="$B/open" p ps"#, End::Refused("belongs to")),
    ]),
    Act::new(
        "root's cache is B's, with links to root's secrets",
        r#"mkdir -p "$B/c"; "$PARTITA" run --sm 2% --isolation own -- true; cp -r "$B/cache/." "$B/c"; for f in "$B"/c/*; do ln -sf "$SECRET/important/file" "$f"; done; chmod 777 "$B/c""#,
    )
    .then(&[Step(Who::Root, r#"PARTITA_CACHE_DIR="$B/c" p run --sm 2% --isolation own -- true"#, End::Well)]),
    Act::new(
        "A's and root's boards",
        r#""$ATTACK" reach "$PLACE_A/sim/h200.sock" "${PLACE_A%/*}/sim/h200.sock" > "$B/said" &
        until grep -q ready "$B/said"; do sleep 0.01; done; grep won "$B/said""#,
    )
    .only_in_user_mode("all users share the GPU"),
];
