#!/bin/sh
# Runs the sequences on the machine's first GPU, without cargo.
#
#   on_gpu.sh DIR OUT [COUNT [TRACED]]
#
# DIR holds `partita`, `libpartita.so`, `sequences` (the program of this test) and `questions.txt`; OUT gets the traces and logs. COUNT
# sequences (10000) are compared without the hook and as tenants, for at most SECONDS_TO_COMPARE (40) seconds. Of TRACED (1000) and of the questions
# the driver's own trace is kept, for a comparison with the simulator's.
set -u
mkdir -p "$2"
dir=$(realpath "$1")
out=$(realpath "$2")
export PARTITA_TEST_GPU=real PARTITA_TEST_LIB_DIR="$dir" PARTITA_SEQUENCES_SHRINK=0 RUST_BACKTRACE=0
run() { timeout "$1" "$dir/sequences" --exact --nocapture "$2" $3; }

PARTITA_SEQUENCES_INPUT="$dir/questions.txt" PARTITA_SEQUENCES_OUTPUT="$out/questions.trace" \
    run 20 writes_a_trace --ignored >"$out/questions.log" 2>&1
questions=$?
PARTITA_SEQUENCES="${4:-1000}" PARTITA_SEQUENCES_OUTPUT="$out/bare.trace" \
    run 30 writes_a_trace --ignored >"$out/bare.log" 2>&1
bare=$?
PARTITA_SEQUENCES="${3:-10000}" PARTITA_SEQUENCES_SECONDS="${SECONDS_TO_COMPARE:-40}" \
    run $((${SECONDS_TO_COMPARE:-40} + 30)) a_tenant_sees_what_a_program_without_the_hook_sees "" >"$out/compare.log" 2>&1
compare=$?

echo "exit status: questions $questions, bare $bare, comparison $compare"
echo "sequences that ended their process:"
grep -h '^the process ended' "$out"/*.trace | sort | uniq -c
grep -E '^(DIFFERENT|the same|[0-9]+ sequences|    +[0-9]+ like)' "$out/compare.log" || tail -5 "$out/compare.log"
