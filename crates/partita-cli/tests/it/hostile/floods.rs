//! Large amounts: directories, names, bytes.

use super::scene::{Act, End, Step, Who};

const LOOK: &[Step] = &[
    Step(Who::Root, "p ps --audit", End::Well),
    Step(Who::A, "p run --sm 2% --isolation own -- true", End::Well),
];

pub const ACTS: &[Act] = &[
    Act::new("2000 GPUs in the run directory", r#"cd "$RUN"; seq -f GPU-0bad%04g 2000 | xargs mkdir"#).then(LOOK),
    Act::new("2000 users in the run directory", r#"cd "$RUN"; seq -f user-%.0f 70001 72000 | xargs mkdir"#).then(LOOK),
    Act::new("2000 GPUs of B's", r#"mkdir "$HOME_B"; cd "$HOME_B"; seq -f GPU-0bad%04g 2000 | xargs mkdir"#).then(LOOK),
    Act::new("2000 dead tenants", r#"mkdir -p "$HOME_B/$KEY"; cd "$HOME_B/$KEY"; seq -f beta%g 2000 | xargs mkdir"#).then(LOOK),
    Act::new("2000 tenants half made", r#"mkdir -p "$HOME_B/$KEY"; cd "$HOME_B/$KEY"; seq -f .new-beta-%g 2000 | xargs mkdir"#).then(LOOK),
    Act::new("names of 255 bytes", r#"mkdir -p "$HOME_B/$KEY"; n=$(printf %255s | tr ' ' x); mkdir "$RUN/$n" "$HOME_B/$n" "$HOME_B/$KEY/$n""#).then(LOOK),
    Act::new("a thousand directories deep", r#"mkdir -p "$HOME_B/$KEY/beta/$(printf %1000s | sed 's: :d/:g')""#)
        .then(LOOK),
    Act::new("a meta.json of 3 MB in one text", r#"fake beta; { printf '{"version":1,"name":"'; printf %3000000s; printf '"}'; } > "$D/meta.json""#).then(LOOK),
    Act::new("a meta.json of 100 MB", r#"fake beta; truncate -s 100M "$D/meta.json""#).then(LOOK),
    Act::new("a meta.json of 200,000 brackets", r#"fake beta; printf %200000s | tr ' ' '[' > "$D/meta.json""#).then(LOOK),
    Act::new("a meta.json with 10,000 GPUs", r#"fake beta; gpu=$(sed -n '/"gpu": {/,/^  },/p' "$D/meta.json" | sed 's/"gpu"://;$d'; echo '}'); { echo '{"gpus":['; yes "$gpu," | head -c 3000000 | sed '$d'; } > "$D/meta.json""#)
        .then(LOOK),
    Act::new("a command of 100,000 words", r#"fake beta; sed -i "/\"command\"/s/\[/[$(yes '"x",' | head -n 100000 | tr -d '\n')/" "$D/meta.json" || { w=$(yes '"x",' | head -n 20000 | tr -d '\n'); sed -i "/\"command\"/s/\[/[$w/" "$D/meta.json"; }"#)
        .then(LOOK),
    Act::new("limits of 1 TiB", r#"fake beta; truncate -s 1T "$D/limits""#).then(LOOK),
    Act::new("an account of 1 TiB", r#"fake beta; truncate -s 1T "$D/usage""#).then(LOOK),
    Act::new("an owner's file of 1 TiB", r#"fake beta; truncate -s 1T "$D/owner""#).then(LOOK),
    Act::new(
        "25 tenants that live",
        r#"n=0; while [ $n -lt 25 ]; do fake beta$n; n=$((n+1)); done"#,
    )
    .then(LOOK),
];
