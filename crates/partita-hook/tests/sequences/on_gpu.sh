#!/bin/sh
# Runs the sequences on the machine's first GPU, without cargo.
#
#   on_gpu.sh DIR OUT [COUNT [TRACED]]
#
# DIR holds `partita`, `libpartita.so`, `sequences` (the program of this test) and `questions.txt`; OUT gets the traces. COUNT sequences (10000) are
# compared without the hook and as tenants; of TRACED (1000) and of the questions the driver's own trace is kept, for a comparison with the simulator's.
set -u
dir=$(realpath "$1")
out=$(realpath "$2")
export PARTITA_TEST_GPU=real PARTITA_TEST_LIB_DIR="$dir" RUST_BACKTRACE=0
run() { timeout "${limit:-300}" "$dir/sequences" --exact --nocapture "$@"; }

PARTITA_SEQUENCES_INPUT="$dir/questions.txt" PARTITA_SEQUENCES_OUTPUT="$out/questions.trace" \
    run writes_a_trace --ignored >"$out/questions.log" 2>&1
questions=$?
PARTITA_SEQUENCES="${4:-1000}" PARTITA_SEQUENCES_OUTPUT="$out/bare.trace" \
    run writes_a_trace --ignored >"$out/bare.log" 2>&1
bare=$?
PARTITA_SEQUENCES="${3:-10000}" run a_tenant_sees_what_a_program_without_the_hook_sees >"$out/compare.log" 2>&1
compare=$?

echo "exit status: questions $questions, bare $bare, comparison $compare"
echo "sequences that ended their process:"
grep -h '^the process ended' "$out"/*.trace | sort | uniq -c
grep -E '^(DIFFERENT|the same|[0-9]+ sequences)' "$out/compare.log" || tail -5 "$out/compare.log"
