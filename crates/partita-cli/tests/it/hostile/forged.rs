//! Files with false content.

use super::scene::{Act, End, Step, Who};

const LOOK: &[Step] = &[
    Step(Who::A, "p run --sm 2% --isolation own -- true", End::Well),
    Step(Who::A, "p set alpha --sm 25%", End::Well),
];
/// What the audit reads.
const AUDIT: &[Step] = &[Step(Who::Root, "p ps --audit", End::Well), LOOK[0]];

pub const ACTS: &[Act] = &[
    Act::new("limits of noise", r#"fake beta; head -c 4096 /dev/urandom > "$D/limits""#).then(LOOK),
    Act::new("limits of ones", r#"fake beta; printf %4096s | tr ' ' '\377' > "$D/limits""#).then(LOOK),
    Act::new("limits of zeros", r#"fake beta; head -c 4096 /dev/zero > "$D/limits""#).then(LOOK),
    Act::new("limits whose words are all ones behind a true head", r#"fake beta; printf %3000s | tr ' ' '\377' | dd of="$D/limits" bs=1 seek=64 conv=notrunc"#)
        .then(LOOK),
    Act::new("limits that change all the time", r#"fake beta; (while :; do head -c 64 /dev/urandom | dd of="$D/limits" bs=1 seek=128 conv=notrunc; done) &"#)
        .then(LOOK),
    Act::new("an account of noise", r#"fake beta; head -c 528384 /dev/urandom > "$D/usage""#).then(AUDIT),
    Act::new("an account of ones", r#"fake beta; printf %524288s | tr ' ' '\377' | dd of="$D/usage" bs=4096 seek=1 conv=notrunc"#).then(AUDIT),
    Act::new("time and gate of noise", r#"fake beta; head -c 8192 /dev/urandom > "$D/time"
        mkdir "$HOME_B/$KEY/.turns"; head -c 8192 /dev/urandom > "$HOME_B/$KEY/.turns/gate""#)
        .then(LOOK),
    Act::new("a meta.json of noise", r#"fake beta; head -c 1000 /dev/urandom > "$D/meta.json""#).then(LOOK),
    Act::new("a meta.json of other types", r#"fake beta; echo '{"version":[],"name":7,"gpu":null,"run":"1","child":{}}' > "$D/meta.json""#).then(LOOK),
    Act::new("a meta.json of a later version", r#"fake beta 's/"version": 1/"version": 4294967295/'"#).then(LOOK),
    Act::new("process numbers that do not exist", r#"fake beta 's/"pid": [0-9]*/"pid": 4294967295/;
s/"start_ticks": [0-9]*/"start_ticks": 18446744073709551615/'"#)
        .then(AUDIT),
    Act::new("numbers of processes that are too large", r#"fake beta 's/"pid": [0-9]*/"pid": 99999999999999999999/'"#).then(AUDIT),
    Act::new("the name of another tenant in meta.json", r#"fake beta; sed -i 's/"beta"/"alpha"/' "$D/meta.json""#).then(LOOK),
    Act::new("a path as name in meta.json", r#"fake beta; sed -i 's/"beta"/"..\/..\/rho"/' "$D/meta.json""#).then(LOOK),
    Act::new("the GPU's name is a path", r#"fake beta 's/"key": "[^"]*"/"key": "..\/..\/..\/secret"/'"#).then(LOOK),
    Act::new("the GPU is root's", r#"fake beta "s/\"key\": \"[^\"]*\"/\"key\": \"$KEY_ROOT\"/""#).then(AUDIT),
    Act::new("a GPU that does not exist", r#"KEY=GPU-0bad0bad-0000-0000-0000-000000000000; fake beta "s/\"key\": \"[^\"]*\"/\"key\": \"$KEY\"/;s/\"uuid\": \"[^\"]*\"/\"uuid\": \"$KEY\"/""#)
        .then(AUDIT),
    Act::new("a board that is a directory of root's", r#"fake beta "s:\"dir\"\: \"[^\"]*\":\"dir\"\: \"$SECRET\":""#).then(AUDIT),
    Act::new("the mark of a tenant that was ended", r#"fake beta; touch "$D/ended" "$HOME_B/ended""#).then(LOOK),
    Act::new("a lock and a list of chains of noise", r#"fake beta; head -c 9999 /dev/urandom > "$HOME_B/.lock"; head -c 9999 /dev/urandom > "$D/chain"; echo x > "$D/chain.json""#)
        .then(LOOK),
    Act::new("a tenant in root's GPU by another name", r#"KEY=$KEY_ROOT; fake rho2"#).then(LOOK),
];
