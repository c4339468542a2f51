//! Parsing and printing: of what compilers emit, and of damaged text.

use partita_ptx::{Module, Position, persistent};
use proptest::prelude::*;

const SAMPLES: &str = include_str!("kernels/samples.ptx");
const OWN: [&str; 3] = [
    include_str!("../../../partita-abi/src/kernels.ptx"),
    include_str!("../../../partita-abi/src/workloads.ptx"),
    include_str!("../../../../research/bench/src/bin/neighbours/floods.ptx"),
];

/// The forms that the samples lack.
const FORMS: &str = r#"
    .version 8.7
    .target sm_90a, debug
    .address_size 64
    .file 1 "a.cu", 1700000000, 123
    .extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
    .visible .global .attribute(.managed) .align 8 .u64 here = generic(there)+8;
    .global .align 4 .b8 there[2][4] = {{1, 2, 3, 4}, {-5, 6, 0x7, 010}};
    .const .f32 ratio = 0f3F800000;
    .global .f64 wide = -1.5e3;
    .extern .shared .align 16 .b8 dynamic[];
    .global .u64 table[] = {there, there+4, 0};
    .weak .func (.reg .u32 %out) plus(.reg .u32 %a, .reg .u32 %b) .noreturn { add.u32 %out, %a, %b; ret; }
    .visible .entry forms(.param .u64 .ptr .global .align 16 a, .param .align 8 .b8 s[24])
        .maxntid 128, 2, 1 .minnctapersm 2 .pragma "nounroll";
    {
        .loc 1 10 3, function_name $name+4, inlined_at 1 5 2
        .reg .pred %p<3>, %q;
        .reg .v4 .f32 %v;
        .reg .b64 %rd<4>;
        .local .align 16 .b8 depot[32];
        $start:
        @!%p1 bra $start;
        setp.lt.and.f32 %p1|%q, %v.x, 1.5, !%p2;
        ld.global.L1::evict_last.v2.b64 {%rd1, _}, [%rd2+-16];
        { .reg .b32 %r; mov.u32 %r, %tid.x; st.shared.u8 [dynamic+4], %r; }
        table: .branchtargets $start, $end;
        brx.idx %rd1, table;
        proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .align 8 .b8 _[24]) .noreturn;
        call.uni (here), %rd1, (a, s), proto;
        tex.2d.v4.f32.f32 {%v.x, %v.y, %v.z, %v.w}, [here, {%v.x, %v.y}];
        ; $end: ret;
    }
    .section .debug_str { info: .b8 65, 0 }
"#;

fn all() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain([SAMPLES, FORMS])
}

/// The module without the places of its parts.
fn placeless(module: &Module) -> String {
    let text = format!("{module:?}");
    let mut parts = text.split("at: Position {");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('}').map_or("", |(_, rest)| rest))
}

#[test]
fn what_is_printed_parses_to_the_same_module() {
    for text in all() {
        let module = Module::parse(text).unwrap();
        let printed = module.to_string();
        let again = Module::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(placeless(&again), placeless(&module));
        assert_eq!(again.to_string(), printed);
        assert!(module.functions().count() > 0);
    }
}

#[test]
fn an_error_names_place_word_and_reason() {
    let cases = [
        ("", (1, 1), "", "a module begins with .version"),
        (
            ".version 8.0\n.target sm_90\n.what 3;",
            (3, 1),
            ".what",
            "a state space like .global is expected here",
        ),
        (
            ".version 8.0\n.target sm_90\n.entry a() { add.u32 %r1 %r2; }",
            (3, 26),
            "%r2",
            "';' is expected here",
        ),
        (".version 8.0 .target sm_90 .entry a() {", (1, 40), "", "the function's body has no end"),
        (".version 8.0 .target sm_90\n/* ä */ \u{b7}", (2, 9), "\u{b7}", "PTX has no such character"),
        (".version 8 .target sm_90", (1, 10), "8", "a version is a number like 8.0"),
        (
            ".version 8.0 .target sm_90 .global .u32 a = 0f12;",
            (1, 45),
            "0f12",
            "0f takes eight hexadecimal digits",
        ),
    ];
    for (text, (line, column), subject, reason) in cases {
        let error = Module::parse(text).unwrap_err();
        assert_eq!(error.at, Position { line, column }, "{text}");
        assert_eq!((error.subject.as_str(), error.reason.as_str()), (subject, reason), "{text}");
    }
    let deep = format!(".version 8.0 .target sm_90 .entry a() {}", "{".repeat(100_000));
    assert!(Module::parse(&deep).unwrap_err().reason.contains("levels of brackets"));
    let deep = format!(".version 8.0 .target sm_90 .entry a() {{ x {}", "[".repeat(100_000));
    assert!(Module::parse(&deep).unwrap_err().reason.contains("levels of brackets"));
}

/// `PARTITA_PTXAS` is the path of `ptxas`; without it, this checks nothing and says so.
#[test]
fn the_assembler_makes_the_same_of_what_is_printed() {
    let Some(ptxas) = std::env::var_os("PARTITA_PTXAS") else {
        println!("skipped: PARTITA_PTXAS does not name a ptxas");
        return;
    };
    let printed = Module::parse(SAMPLES).unwrap().to_string();
    let directory = std::env::temp_dir().join(format!("partita-ptx-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let [written, again] = [("written", SAMPLES), ("printed", &printed)].map(|(name, text)| {
        // One name for both: the cubin names its source.
        let source = directory.join("samples.ptx");
        std::fs::write(&source, text).unwrap();
        let object = directory.join(name);
        let command = std::process::Command::new(&ptxas)
            .args(["--gpu-name=sm_90", "-o"])
            .args([&object, &source])
            .output()
            .unwrap();
        assert!(command.status.success(), "{}", String::from_utf8_lossy(&command.stderr));
        std::fs::read(object).unwrap()
    });
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(written == again, "the assembler makes other code of the printed text");
}

/// As above: without `ptxas`, this checks nothing and says so.
#[test]
fn the_assembler_takes_what_is_rewritten() {
    let Some(ptxas) = std::env::var_os("PARTITA_PTXAS") else {
        println!("skipped: PARTITA_PTXAS does not name a ptxas");
        return;
    };
    let directory = std::env::temp_dir().join(format!("partita-ptx-rewritten-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (name, text) in [("samples", SAMPLES), ("workloads", OWN[1]), ("floods", OWN[2])] {
        let mut module = Module::parse(text).unwrap();
        if module.architecture() > 80 {
            // It uses nothing of newer devices.
            module.target = vec!["sm_80".to_owned()];
        }
        let rewritten = persistent::rewrite(&module);
        rewritten.refused.iter().for_each(|refusal| println!("{refusal}"));
        assert!(!rewritten.entries.is_empty(), "{name}");
        for target in ["sm_80", "sm_90"] {
            let source = directory.join(name).with_extension("ptx");
            std::fs::write(&source, rewritten.module.to_string()).unwrap();
            let command = std::process::Command::new(&ptxas)
                .arg(format!("--gpu-name={target}"))
                .arg("-o")
                .args([&directory.join("out.cubin"), &source])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&command.stderr);
            assert!(command.status.success(), "{name} for {target}: {said}");
            println!("{name} for {target}: {} kernels", rewritten.entries.len());
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A text with bytes cut out, replaced or repeated.
fn damaged() -> impl Strategy<Value = String> {
    let texts: Vec<&str> = all().collect();
    let cut = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..40usize, "[ -~]{0,3}");
    (prop::sample::select(texts), prop::collection::vec(cut, 1..4)).prop_map(|(text, cuts)| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, from, length, put) in cuts {
            let at = at.index(bytes.len() + 1);
            let end = (at + length).min(bytes.len());
            let from = from.index(bytes.len() + 1);
            let moved = bytes[from..(from + length / 2).min(bytes.len())].to_vec();
            bytes.splice(at..end, moved.into_iter().chain(put.bytes()));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn damaged_text_is_refused_or_prints_as_it_parses(text in damaged()) {
        if let Ok(module) = Module::parse(&text) {
            let printed = module.to_string();
            let again = Module::parse(&printed);
            prop_assert!(again.is_ok(), "{:?}\n{printed}", again.err());
            prop_assert_eq!(placeless(&again.unwrap()), placeless(&module));
        }
    }

    #[test]
    fn text_cut_anywhere_is_refused_or_parses(at in any::<prop::sample::Index>()) {
        for text in all() {
            let _ = Module::parse(&text[..at.index(text.len() + 1)]);
        }
    }
}

/// `PARTITA_PTX_CASES` sets how many texts are damaged.
fn cases() -> u32 {
    std::env::var("PARTITA_PTX_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
}
