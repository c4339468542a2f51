# Common commands. `just --list` shows it; CI runs `.ci/run`, which needs no just.

# Builds every binary and shared library.
build:
    cargo build --release
    cargo build --profile unwinding -p partita-chain-so

# Every test, on the simulated GPU.
test:
    cargo build --workspace && cargo test --workspace

# CI's checks beside the tests.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The ledger's lock-free parts, every interleaving.
loom:
    RUSTFLAGS="--cfg loom" cargo test -p partita-ledger -p partita-frames --release --test loom --target-dir target/loom

# Tests of the ledger, of the chain file and of the driver's structures that need no kernel, under Miri (a nightly toolchain with that component).
miri:
    MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=2 cargo +nightly miri test -p partita-abi -p partita-ledger -p partita-frames --lib

# Two tenants on one GPU, with and without partitions.
demo:
    cargo run --release --bin partita -- demo

# The page of experiments, from the models and the measurements.
experiments:
    cargo run --release --bin partita -- bench all --gpu sim --out research/bench/results/experiments --page docs/experiments.md

# Fuzzes a parser for a while: `just fuzz words 60`; targets are words, environment, json, ledger, descriptor, mps_log and memory_frames. The coverage pass is
# the compiler's own, so no further tool is needed; cargo-fuzz runs the same targets.
fuzz target seconds="60":
    cd fuzz && RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" cargo run --release --target x86_64-unknown-linux-gnu --bin {{target}} -- -max_total_time={{seconds}} -max_len=1024
