# What people type here often. `just --list` shows it; CI runs `.ci/run`, which needs no just.

# Builds every binary and shared library.
build:
    cargo build --release

# Every test, on the simulated GPU.
test:
    cargo build --workspace && cargo test --workspace

# What CI checks beside the tests.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The ledger's lock-free parts, every interleaving.
loom:
    RUSTFLAGS="--cfg loom" cargo test -p partita-ledger --release --test loom --target-dir target/loom

# Two tenants on one GPU, with and without partitions.
demo:
    cargo run --release --bin partita -- demo

# The page of experiments, from the models and from what was measured.
experiments:
    cargo run --release --bin partita -- bench all --gpu sim --out bench/results/experiments --page docs/experiments.md
