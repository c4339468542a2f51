//! Modes and owners: B cannot write, move or remove files of A or root, and directories that B
//! closes stop no other user.

use super::scene::{Act, End, Step, Who};

const LOOK: &[Step] = &[
    Step(Who::Root, "p ps --audit", End::Well),
    Step(Who::A, "p run --sm 2% --isolation own -- true", End::Well),
];

pub const ACTS: &[Act] = &[
    Act::new(
        "writes to files of others",
        r#"for f in "$ALPHA"/* "$RHO"/* "$RUN/.lock" "$HOME_A/.lock"; do (: >> "$f") && echo "won $f"; done; true"#,
    ),
    Act::new(
        "removal of files of others",
        r#"for f in "$ALPHA"/* "$RHO"/* "$RUN/.lock" "$HOME_A/.lock"; do rm -f "$f" && echo "won $f"; done; true"#,
    ),
    Act::new(
        "new names for directories of others",
        r#"for d in "$HOME_A" "$HOME_A/$KEY" "$ALPHA" "$RUN/$KEY_ROOT" "$RHO" "$RUN"; do mv -T "$d" "$d.moved" && echo "won $d"; done; true"#,
    ),
    Act::new(
        "other modes and owners",
        r#"for f in "$RUN" "$HOME_A" "$ALPHA" "$ALPHA"/* "$RHO" "$RHO"/*; do chmod 777 "$f" && echo "won mode $f"; chown 65534 "$f" && echo "won $f"; done; true"#,
    ),
    Act::new(
        "new files in directories of others",
        r#"for d in "$HOME_A" "$HOME_A/$KEY" "$ALPHA" "$RUN/$KEY_ROOT" "$RHO"; do touch "$d/new" && echo "won $d"; mkdir "$d/.new-x-1" && echo "won $d"; done; true"#,
    ),
    Act::new(
        "truncation of files of others",
        r#"for f in "$ALPHA"/* "$RHO"/*; do truncate -s 0 "$f" && echo "won $f"; done; true"#,
    ),
    Act::new("a directory without permissions", r#"fake beta; chmod 0 "$HOME_B""#).then(LOOK),
    Act::new("a GPU without permissions", r#"fake beta; chmod 0 "$HOME_B/$KEY""#).then(LOOK),
    Act::new("a tenant without permissions", r#"fake beta; chmod 0 "$D"; mkdir -m 0 "$HOME_B/$KEY/gamma""#)
        .then(LOOK),
    Act::new("files without permissions", r#"fake beta; chmod 0 "$D"/*"#).then(LOOK),
    Act::new(
        "directories that everybody may write, with strange bits",
        r#"fake beta; chmod 6777 "$HOME_B" "$HOME_B/$KEY" "$D"; chmod 6777 "$D"/*"#,
    )
    .then(LOOK),
    Act::new(
        "the directory of a user who has not come yet",
        r#"mkdir -m 777 "$RUN/user-70001" "$RUN/user-0""#,
    )
    .then(LOOK),
    Act::new(
        "the directory of a GPU that root has not used yet",
        r#"mkdir -m 777 "$RUN/sim-a100-0bad0bad"; mkdir "$RUN/sim-a100-0bad0bad/rho""#,
    )
    .then(LOOK),
    Act::new("a run directory that B has removed as far as B may", r#"rm -rf "$RUN"; true"#).then(LOOK),
];
