//! Text of B in output for others: escapes, new lines, text from right to left.

use super::scene::{Act, End, Step, Who};

/// `scene.rs` checks each output for control characters.
const SHOW: &[Step] = &[
    Step(Who::Root, "p ps", End::Well),
    Step(Who::Root, "p ps --json", End::Well),
    Step(Who::Root, "p ps --audit", End::Well),
    Step(Who::Root, "p run --name beta --sm 2% --isolation own -- true", End::Refused("in use")),
    Step(Who::Root, "p set beta --sm 2%", End::RefusedOfB("belongs to")),
    Step(Who::Root, "p kill nobody", End::Refused("nobody")),
    Step(Who::A, "p ps", End::Well),
    Step(Who::A, "p kill beta", End::Refused("beta")),
];
/// If the tenant's own name is invalid.
const LIST: &[Step] =
    &[Step(Who::Root, "p ps --audit", End::Well), Step(Who::Root, "p kill nobody", End::Refused("nobody"))];

pub const ACTS: &[Act] = &[
    Act::new("the device's name", r#"fake beta 's/"device": "[^"]*"/"device": "\\u001b[2J\\nrow\\u202e\\u009b31m"/'"#).then(SHOW),
    Act::new("the board's directory", r#"fake beta 's/"dir": "[^"]*"/"dir": "\/\\u001b[2J\\nrow\\u202e"/'"#).then(SHOW),
    Act::new("the GPU's key, UUID and label", r#"fake beta 's/"\(key\|uuid\|label\)": "[^"]*"/"\1": "\\u001b]0;x\\u0007\\nrow"/'"#).then(SHOW),
    Act::new("the placement", r#"fake beta 's/"place": "[^"]*"/"place": "\\u001b[2J\\nrow"/'"#).then(SHOW),
    Act::new("the isolation", r#"fake beta 's/"isolation": "[^"]*"/"isolation": "\\u001b[2J\\nrow"/'"#).then(SHOW),
    Act::new("an unknown key", r#"fake beta 's/"version"/"\\u001b[2J\\nrow": 1, "version"/'"#).then(SHOW),
    Act::new("the service's partition", r#"fake beta 's/"version"/"mps_partition": "\\u001b[2J\\nrow", "version"/'"#).then(SHOW),
    Act::new("a version of its own", r#"fake beta 's/"version": 1/"version": "\\u001b[2J\\nrow"/'"#).then(SHOW),
    Act::new("the name in limits", r#"fake beta; e=$(printf '\033[2J\nrow'); for at in 0 8 16 32 64 128 256 512 1024; do printf %s "$e" | dd of="$D/limits" bs=1 seek=$at conv=notrunc; done"#)
        .then(LIST),
    Act::new("bytes that are not text", r#"fake beta; printf '{"version":1,"name":"\377\033[2J\n"}' > "$D/meta.json""#).then(SHOW),
    Act::new("names of directories", r#"e=$(printf '\033[2J\nrow'); mkdir -p "$HOME_B/$KEY/$e" "$HOME_B/$e/x" "$RUN/$e" "$RUN/GPU-$e" "$RUN/user-$e" "$HOME_B/$KEY/.new-$e" "$(printf '%s/\377' "$RUN")""#)
        .then(LIST),
    Act::new("the name of a process", r#"fake beta; mkdir "$HOME_B/$KEY/.turns"
        touch "$HOME_B/$KEY/.turns/gate"
        exec "$ATTACK" call "$(printf '\033[2J\nrow')" "$HOME_B/$KEY/.turns/gate""#)
        .then(&[Step(Who::Root, "p ps --audit", End::Well), Step(Who::Root, "p mps status", End::Well)]),
    Act::new("a tenant's command line", r#""$PARTITA" run --name gamma --sm 2% --isolation own -- sh -c 'sleep 1000' "$(printf '\033[2J\nrow')" & until "$PARTITA" ps | grep -q gamma; do sleep 0.05; done"#)
        .then(LIST),
];
