"""Tests of selection, judgement, execution and output, without a GPU: `python3 -m unittest discover -s research/bench/compat`."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import run  # noqa: E402
import compat_record  # noqa: E402
import jobs  # noqa: E402
import judge  # noqa: E402
import modes  # noqa: E402
import page  # noqa: E402
import suites  # noqa: E402
from judge import Outcome  # noqa: E402

PASSED, FAILED, SKIPPED, DIED = (Outcome(state) for state in ("passed", "failed", "skipped", "died"))
TESTS = [f"a/test_one.py::test[{number}]" for number in range(50)] + [f"a/test_two.py::Class::test_{number}" for number in range(5)]


def plan(*entries: tuple, leave_out: tuple = (), seed: str = "1", only: list | None = None) -> dict:
    return {"entries": [{"path": path, "limit": limit} for path, limit in entries], "leave_out": list(leave_out), "seed": seed,
            "only": only}


class Choice(unittest.TestCase):
    def test_a_sample_has_the_size_asked_for_and_is_the_same_again(self) -> None:
        chosen = compat_record.select(TESTS, plan(("a/test_one.py", 7), ("a/test_two.py", None)))
        self.assertEqual(len([test for test in chosen if "test_one" in test]), 7)
        self.assertEqual(len([test for test in chosen if "test_two" in test]), 5)
        self.assertEqual(chosen, compat_record.select(TESTS[::-1], plan(("a/test_one.py", 7), ("a/test_two.py", None))))
        self.assertNotEqual(chosen, compat_record.select(TESTS, plan(("a/test_one.py", 7), ("a/test_two.py", None), seed="2")))

    def test_a_smaller_sample_is_part_of_a_larger_one(self) -> None:
        small, large = (compat_record.select(TESTS, plan(("a", limit))) for limit in (3, 20))
        self.assertLess(small, large)

    def test_a_line_names_a_directory_a_file_or_a_class_and_the_first_line_counts(self) -> None:
        self.assertEqual(compat_record.select(TESTS, plan(("a/test_two.py::Class", 2), ("a", 0))).__len__(), 2)
        self.assertEqual(compat_record.select(TESTS, plan(("a/test", None))), set(), "no part of a name")

    def test_what_is_left_out_is_not_chosen_and_what_is_repeated_is_chosen_by_name(self) -> None:
        chosen = compat_record.select(TESTS, plan(("a/test_two.py", None), leave_out=("*test_3*",)))
        self.assertEqual(len(chosen), 4)
        self.assertEqual(compat_record.select(TESTS, plan(("a", None), only=[TESTS[3], "gone"])), {TESTS[3]})

    def test_every_committed_list_is_read_and_every_suite_has_one(self) -> None:
        for suite in suites.SUITES:
            chosen = suites.read_list(suites.LISTS / f"{suite.key}.txt", suite.programs)
            self.assertTrue(chosen.entries, suite.key)
            if suite.home:
                for entry in chosen.entries:
                    self.assertTrue((suite.home / entry["path"]).is_file(), entry)

    def test_bad_lists_are_refused_by_line(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "x.txt")
            for text, words in (("# nothing\n", "names no test"), ("a.py many\n", ":1:"), ("a.py\n! *x*\n", ":2:")):
                path.write_text(text)
                with self.assertRaisesRegex(suites.BadList, words):
                    suites.read_list(path, False)
            path.write_text("one -n 5 'two words'\n! x : why : because\n")
            chosen = suites.read_list(path, True)
            self.assertEqual(chosen.entries, [{"path": "one", "arguments": ["-n", "5", "two words"]}])
            self.assertEqual(chosen.left_out, [("x", "why : because")])


class Record(unittest.TestCase):
    def read(self, *lines: dict, torn: bytes = b"", was_stopped: bool = False) -> dict[str, Outcome]:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "record")
            path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + torn)
            return judge.read(path, was_stopped)

    @staticmethod
    def phases(test: str, call: str = "passed", teardown: str = "passed", **more: object) -> list[dict]:
        return [{"test": test, "phase": "start"}, {"test": test, "phase": "setup", "outcome": "passed"},
                {"test": test, "phase": "call", "outcome": call, **more}, {"test": test, "phase": "teardown", "outcome": teardown}]

    def test_the_worst_phase_counts(self) -> None:
        read = self.read(*self.phases("a"), *self.phases("b", call="failed", detail="why", said=["partita: x"]),
                         *self.phases("c", teardown="failed"))
        self.assertEqual([read[test].state for test in "abc"], ["passed", "failed", "failed"])
        self.assertEqual((read["b"].detail, read["b"].said), ("why", ("partita: x",)))

    def test_a_test_without_an_end_died_or_was_stopped(self) -> None:
        lines = [*self.phases("a"), {"test": "b", "phase": "start"}]
        self.assertEqual(self.read(*lines, torn=b'{"test": "a", "pha')["b"].state, "died")
        self.assertEqual(self.read(*lines, was_stopped=True)["b"].state, "unfinished")
        crash = {"test": "b", "phase": "???", "outcome": "failed", "detail": "worker 'gw0' crashed while running 'b'"}
        self.assertEqual(self.read(*lines, crash)["b"].state, "died")

    def test_a_test_that_is_started_again_is_judged_by_its_last_run(self) -> None:
        self.assertEqual(self.read({"test": "a", "phase": "start"}, *self.phases("a"))["a"].state, "passed")

    def test_no_record_is_no_outcome(self) -> None:
        self.assertEqual(judge.read(pathlib.Path("/nonexistent/record")), {})

    def test_verdicts_have_no_numbers_and_no_lines_of_partita(self) -> None:
        one = judge.verdict("GPU 0x7f12 took 1.25e-3 ms\nTest passed in 12.5 ms\npartita: failed\n\n  Result =   PASS\n")
        self.assertEqual(one, judge.verdict("Test passed in 9 ms\nResult = PASS\n"))
        self.assertEqual(len(one), 2)
        self.assertNotEqual(one, judge.verdict("Test failed in 9 ms\nResult = PASS\n"))

    def test_codes_of_errors_stay_and_measured_errors_do_not(self) -> None:
        self.assertEqual(judge.verdict("CUDA error 720 after 3 ms"), ["CUDA error 720 after # ms"])
        self.assertEqual(judge.verdict("error at x.cu:12 code=719(\"x\")"), ["error at x.cu:# code=719(\"x\")"])
        self.assertEqual(judge.verdict("L1 error: 1.5e-05\nmax error = 0.25"), ["L# error: #", "max error = #"])


class Judgement(unittest.TestCase):
    def difference(self, bare: list, tenant: list, mps: Outcome | None = None, test: str = "t", suite: str = "s") -> judge.Difference:
        return judge.Difference(suite, "mask", test, bare, tenant, mps)

    def test_what_differs(self) -> None:
        bare = {"same": PASSED, "worse": PASSED, "better": FAILED, "gone": PASSED, "late": PASSED, "words": Outcome("passed", verdict=("x",))}
        tenant = {"same": PASSED, "worse": FAILED, "better": PASSED, "late": Outcome("unfinished"), "words": Outcome("passed", verdict=("y",)),
                  "new": FAILED}
        self.assertEqual(judge.differing(bare, tenant, True, True), ["worse", "better", "gone", "words", "new"])
        self.assertEqual(judge.differing(bare, tenant, True, False), ["worse", "better", "words", "new"], "the tenant was stopped")
        self.assertEqual(judge.differing(bare, tenant, False, True), ["worse", "better", "gone", "words"], "the other was stopped")

    def test_kinds(self) -> None:
        for bare, tenant, kind in (([PASSED, PASSED], [FAILED, FAILED], "differs"), ([PASSED, FAILED], [FAILED, FAILED], "flaky"),
                                   ([PASSED, PASSED], [FAILED, PASSED], "once"), ([PASSED], [FAILED], "not repeated"),
                                   ([PASSED, PASSED], [FAILED], "not repeated"), ([PASSED, PASSED], [DIED, FAILED], "differs")):
            one = self.difference(bare, tenant)
            one.settle([])
            self.assertEqual(one.kind, kind)
            self.assertEqual(one.reason, "")

    def test_a_reason_explains_the_failure_that_it_names_and_no_other(self) -> None:
        known = [judge.Reason("s", "coop*", "720", "too many blocks", "partita: it does not fit")]
        wanted = self.difference([PASSED, PASSED], [FAILED, Outcome("failed", "error 720")], test="coopX")
        other = self.difference([PASSED, PASSED], [FAILED, Outcome("failed", "error 719")], test="coopX")
        for one in (wanted, other):
            one.settle(known)
        self.assertEqual((wanted.reason, wanted.line), ("too many blocks", "partita: it does not fit"))
        self.assertEqual(other.reason, "")

    def test_what_was_said_is_shown_before_what_the_table_says(self) -> None:
        one = self.difference([PASSED, PASSED], [FAILED, Outcome("failed", "720", said=("partita: really",))])
        one.settle([judge.Reason("*", "*", "720", "r", "partita: by the table")])
        self.assertEqual(one.line, "partita: really")

    def test_a_plain_client_of_mps_that_ends_in_the_same_way_is_a_reason(self) -> None:
        for mps, explained in ((FAILED, True), (PASSED, False), (DIED, False)):
            one = self.difference([PASSED, PASSED], [FAILED, FAILED], mps)
            one.settle([])
            self.assertEqual(bool(one.reason), explained, mps)

    def test_a_row_counts_each_test_once(self) -> None:
        bare = {"a": PASSED, "b": PASSED, "c": SKIPPED, "d": FAILED, "e": PASSED, "f": PASSED, "g": PASSED}
        tenant = {"a": PASSED, "b": FAILED, "c": SKIPPED, "d": FAILED, "e": FAILED}
        found = [self.difference([PASSED, PASSED], [FAILED, FAILED], test="b"), self.difference([PASSED, FAILED], [FAILED], test="e"),
                 self.difference([PASSED, PASSED], [judge.MISSING, judge.MISSING], test="f")]
        for one in found:
            one.settle([])
        row = judge.row("s", "mask", bare, tenant, found)
        wanted = {"run": 6, "pass_bare": 4, "pass_tenant": 1, "skip_both": 1, "fail_both": 1, "differ": 2, "unexplained": 2, "flaky": 1,
                  "not_run": 1}
        self.assertEqual({key: row[key] for key in wanted}, wanted)

    def test_the_committed_table_of_reasons_can_be_read(self) -> None:
        known = judge.reasons(HERE / "reasons.toml")
        self.assertTrue(known)
        one = self.difference([PASSED, PASSED], [FAILED, Outcome("failed", "code=720(cudaErrorCooperativeLaunchTooLarge)")], suite="cuda-samples")
        one.settle(known)
        self.assertIn("cooperative", one.reason)

    def test_a_test_that_skips_itself_in_tenants_is_explained_and_its_failure_is_not(self) -> None:
        known = judge.reasons(HERE / "reasons.toml")
        test = "cupy_tests/fft_tests/test_callback.py::TestNdCallbacks::test_rfftn_store[_param_8_{axes=None, cb_ver='legacy', norm=None}]"
        passed = self.difference([FAILED, FAILED], [PASSED, PASSED], test=test, suite="cupy")
        failed = self.difference([PASSED, PASSED], [FAILED, Outcome("failed", "wrong values")], test=test, suite="cupy")
        for one in (passed, failed):
            one.settle(known)
        self.assertIn("LD_PRELOAD", passed.reason)
        self.assertEqual(failed.reason, "")


class Modes(unittest.TestCase):
    PLACE = modes.Place("/p/partita", pathlib.Path("/p/libpartita.so"), pathlib.Path("/w"), 1000, {"CUDA_MPS_PIPE_DIRECTORY": "/m"})

    def test_seats_of_a_mode_fit_one_gpu(self) -> None:
        for mode in modes.TENANTS:
            shares = [int(seat[seat.index("--sm") + 1].rstrip("%")) for seat in mode.seats if "--sm" in seat]
            self.assertLessEqual(sum(shares), 100, mode.key)

    def test_programs_without_partita_are_no_clients_of_mps(self) -> None:
        command, environment, kill = self.PLACE.start(modes.bare(2), 0, 1, "x", ["prog"])
        self.assertEqual((command, kill, environment["CUDA_MPS_PIPE_DIRECTORY"]), (["prog"], None, "/nonexistent"))
        self.assertNotIn("LD_PRELOAD", environment)

    def test_tenants_are_started_and_ended_by_name_on_the_gpus_that_they_need(self) -> None:
        mask = next(mode for mode in modes.TENANTS if mode.key == "mask")
        command, _, kill = self.PLACE.start(mask, 1, 2, "x", ["prog", "a"])
        self.assertEqual(command, ["/p/partita", "run", "--name", "x", "--gpu", "0,1", "--sm", "50%", "--", "prog", "a"])
        self.assertEqual(kill, ["/p/partita", "kill", "x"])

    def test_hamis_variables_replace_the_command(self) -> None:
        hami = next(mode for mode in modes.TENANTS if mode.key == modes.HAMI)
        command, environment, kill = self.PLACE.start(hami, 0, 1, "x", ["prog"])
        self.assertEqual((command, kill), (["prog"], None))
        self.assertEqual(environment["LD_PRELOAD"], "/p/libpartita.so")
        self.assertEqual((environment["CUDA_DEVICE_SM_LIMIT"], environment["CUDA_DEVICE_MEMORY_LIMIT"]), ("50", "450m"))


class Jobs(unittest.TestCase):
    def run_shell(self, text: str, limit_s: float) -> tuple[jobs.Ended, pathlib.Path]:
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        job = jobs.Job("s", [], {}, directory, directory / "record", directory / "log", limit_s)
        return jobs.run(job, ["sh", "-c", text], dict(os.environ), None, limit_s, jobs.Living()), directory

    def lives(self, pid: int) -> bool:
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def test_when_its_time_is_over_the_whole_group_is_ended(self) -> None:
        self.enterContext(unittest.mock.patch.object(jobs, "LEAVE_LIMIT_S", 0.2))
        begin = time.monotonic()
        ended, directory = self.run_shell("trap '' TERM; sleep 600 & echo $! > child; wait; sleep 600", 1.0)
        self.assertTrue(ended.was_stopped)
        self.assertFalse(ended.is_whole)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertFalse(self.lives(int((directory / "child").read_text())))

    def test_what_a_job_leaves_behind_is_ended(self) -> None:
        ended, directory = self.run_shell("sleep 600 & echo $! > child; exit 1", 60.0)
        self.assertEqual((ended.code, ended.was_stopped, ended.is_whole), (1, False, True))
        self.assertFalse(self.lives(int((directory / "child").read_text())))

    def test_lines_of_partita_are_kept_once(self) -> None:
        ended, _ = self.run_shell("echo partita: a >&2; echo other; echo partita: a; echo partita: b", 60.0)
        self.assertEqual(ended.said, ["partita: a", "partita: b"])

    def test_a_command_that_is_not_there_is_no_result(self) -> None:
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        job = jobs.Job("s", [], {}, directory, directory / "record", directory / "log", 5.0)
        ended = jobs.run(job, ["/nonexistent/program"], {}, None, 5.0, jobs.Living())
        self.assertFalse(ended.is_whole)
        self.assertIn("not started", ended.said[0])


STAND_IN = """#!/bin/sh
case $1 in
--version) echo 'partita 1.2.3';;
run) while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done; [ $# -eq 0 ] && exit 0; shift; AS_TENANT=1 exec "$@";;
esac
"""
PROGRAMS = {
    "good": "echo 'Test passed in 12 ms'",
    "cooperative": "[ -z $AS_TENANT ] && { echo Result = PASS; exit 0; }\n"
                   "echo 'partita: the grid does not fit' >&2; echo 'CUDA error code=720'; exit 1",
    "unknown": "[ -z $AS_TENANT ] || exit 3",
    "words": "[ -z $AS_TENANT ] && echo 'Test passed' || echo 'Test failed'",
    "changes": "[ -e ran ] && exit 1; touch ran",
    "waived": "exit 2",
    "dies": "kill -SEGV $$",
}


class Whole(unittest.TestCase):
    """The command from its arguments to its page, with programs in place of a GPU's."""

    def setUp(self) -> None:
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="compat-test")))
        tools = {"partita": STAND_IN, "nvidia-smi": "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 580.1, 81559, GPU-a'\n"}
        for name, text in tools.items():
            self.program(self.directory / "bin" / name, text)
        for name, text in PROGRAMS.items():
            self.program(self.directory / "samples" / name / name, f"#!/bin/sh\n{text}\n")
        (self.directory / "lists").mkdir()
        self.list([*PROGRAMS, "absent"])

    def program(self, path: pathlib.Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def list(self, names: list[str]) -> None:
        (self.directory / "lists" / "cuda-samples.txt").write_text("\n".join([*names, "! asserts : it fails on purpose"]) + "\n")

    def bench(self, *options: str) -> tuple[subprocess.CompletedProcess, dict]:
        command = [sys.executable, "-B", str(HERE / "run.py"), "--partita", str(self.directory / "bin" / "partita"), "--lists",
                   str(self.directory / "lists"), "--suite", f"cuda-samples={self.directory / 'samples'}", "--out",
                   str(self.directory / "out"), *options]
        environment = dict(os.environ, PATH=f"{self.directory / 'bin'}:{os.environ['PATH']}")
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        path = self.directory / "out" / "compat_h100.json"
        return ended, json.loads(path.read_text()) if path.exists() else {}

    def test_programs_are_compared_and_explained(self) -> None:
        ended, result = self.bench("--modes", "mask")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("absent", ended.stderr)
        row, = result["rows"]
        wanted = {"run": 7, "pass_bare": 5, "pass_tenant": 2, "skip_both": 1, "fail_both": 1, "differ": 3, "unexplained": 2, "flaky": 1,
                  "not_run": 0, "partita": "partita 1.2.3", "driver": "580.1"}
        self.assertEqual({key: row[key] for key in wanted}, wanted)
        kinds = {one["test"]: one["kind"] for one in result["differences"]}
        self.assertEqual(kinds, {"cooperative": "differs", "unknown": "differs", "words": "differs", "changes": "flaky"})
        text = (self.directory / "out" / "compat.md").read_text()
        self.assertIn("| cuda-samples | mask | 7 | 5 | 2 | 1 | 1 | 3 | 2 | 1 | 0 |", text)
        self.assertRegex(text, r"`cooperative` \| mask \| .*720.* \| it sizes a cooperative grid .* \| `partita: the grid does not fit` \|")
        self.assertRegex(text, r"`unknown` \| mask \| .*exit status 3.*unexplained")
        self.assertIn("+ Test failed; - Test passed", text)
        self.assertIn("`asserts`: it fails on purpose", text)

    def test_a_second_run_replaces_its_own_rows_only(self) -> None:
        self.bench("--modes", "mask,own")
        self.list(["good"])
        ended, result = self.bench("--modes", "own=cuda-samples")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual([(row["mode"], row["run"]) for row in result["rows"]], [("mask", 7), ("own", 1)])
        self.assertEqual({one["mode"] for one in result["differences"]}, {"mask"})

    def test_what_does_not_end_without_partita_is_not_run_as_a_tenant(self) -> None:
        self.program(self.directory / "samples" / "slow" / "slow", "#!/bin/sh\nsleep 600\n")
        self.list(["slow"])
        ended, result = self.bench("--modes", "mask", "--job-limit-s", "0.5")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("cuda-samples: no test ended without Partita", ended.stderr)
        self.assertEqual(result["rows"], [])

    def test_one_gpu_of_several_is_seen_alone(self) -> None:
        self.program(self.directory / "bin" / "nvidia-smi", """#!/bin/sh
case "$*" in *--id=1*) ;; *) echo 'NVIDIA H100, 580.1, 81559, GPU-a' ;; esac
echo 'NVIDIA H100, 580.1, 81559, GPU-b'
""")
        self.program(self.directory / "samples" / "seen" / "seen", '#!/bin/sh\n[ "$CUDA_VISIBLE_DEVICES $PARTITA_GPU" = "GPU-b 1" ]\n')
        self.list(["seen"])
        ended, result = self.bench("--modes", "own", "--gpu", "1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual((result["count"], [row["pass_tenant"] for row in result["rows"]]), (1, [1]))

    @unittest.skipUnless(os.environ.get("PARTITA_TEST_LONG") == "1", "it takes its whole budget of 25 s")
    def test_when_the_time_is_over_what_was_run_is_reported(self) -> None:
        self.program(self.directory / "samples" / "slow" / "slow", "#!/bin/sh\n[ -z $AS_TENANT ] || sleep 600\n")
        self.list(["good", "slow"])
        ended, result = self.bench("--modes", "mask,own", "--budget-s", "25")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        row, = result["rows"]
        self.assertEqual((row["run"], row["differ"], row["not_run"], row["was_stopped"]), (1, 0, 1, True))

    def test_a_tenant_that_does_not_start_is_said(self) -> None:
        self.program(self.directory / "bin" / "partita", STAND_IN.replace("AS_TENANT=1 exec", "echo 'partita: no room' >&2; exit 1; :"))
        ended, result = self.bench("--modes", "mask")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual((result["rows"][0]["error"], result["differences"]), ("partita: no room", []))
        self.assertIn("not run: partita: no room", (self.directory / "out" / "compat.md").read_text())

    def test_bad_arguments_are_refused_by_name(self) -> None:
        for options, words in ((["--suite", "cupi=/"], "--suite cupi"), (["--suite", "cupy"], "--suite cupy=DIR"),
                               (["--modes", "mask,fast"], "--modes fast"), (["--modes", "mask:few"], "--modes mask:few"),
                               (["--modes", "mask=cupy"], "--modes mask=cupy")):
            ended, _ = self.bench(*options)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(words, ended.stderr)


class Page(unittest.TestCase):
    def test_devices_have_short_names(self) -> None:
        for name, count, wanted in (("NVIDIA H100 80GB HBM3", 1, "h100"), ("NVIDIA H200", 2, "h200_x2"),
                                    ("NVIDIA GeForce GTX 1060", 1, "nvidia_geforce_gtx_1060")):
            self.assertEqual(run.slug({"name": name, "count": count}), wanted)

    def test_texts_do_not_break_a_table(self) -> None:
        self.assertEqual(page.code("a|b\n `c`"), "`a\\|b 'c'`")
        self.assertEqual(page.code("x" * 300, 10), "`xxxxxxxxxx…`")

    def test_a_difference_alike_in_several_modes_is_one_line(self) -> None:
        one = {"suite": "s", "test": "t", "kind": "differs", "reason": "", "line": "", "bare": ["passed"], "tenant": ["failed"],
               "tenant_detail": "why", "bare_detail": ""}
        lines = page.differences({"differences": [{**one, "mode": "mask"}, {**one, "mode": "own"}, {**one, "mode": "hami", "kind": "once"}]})
        self.assertEqual(len(lines), 3)
        self.assertIn("| mask, own |", lines[2])


class Plugin(unittest.TestCase):
    """The recorder, fed as pytest feeds it."""

    def test_a_record_is_what_the_judge_reads(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "record")
            recorder = compat_record.Recorder(str(path))
            crash = types.SimpleNamespace(message="assert 1 == 2\n more")
            reports = [("setup", "passed", None, []), ("call", "failed", types.SimpleNamespace(reprcrash=crash),
                                                     [("Captured stderr call", "partita: no room\nother")]), ("teardown", "passed", None, [])]
            recorder.pytest_runtest_logstart("t")
            for when, outcome, cause, sections in reports:
                report = types.SimpleNamespace(nodeid="t", when=when, outcome=outcome, longrepr=cause, sections=sections)
                recorder.pytest_runtest_logreport(report)
            recorder.file.close()
            outcome = judge.read(path)["t"]
        self.assertEqual((outcome.state, outcome.detail, outcome.said), ("failed", "assert 1 == 2 more", ("partita: no room",)))

    def test_processes_of_tests_do_not_wait_for_each_other_in_the_compilers_cache(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "plan")
            path.write_text(json.dumps(plan(("a", None))))
            environment = {compat_record.PLAN: str(path), compat_record.CACHE: "/c", compat_record.WORKER: "gw3"}
            config = unittest.mock.Mock(spec=["pluginmanager", "workerinput"])
            with unittest.mock.patch.dict(os.environ, environment):
                compat_record.pytest_configure(config)
                self.assertEqual(os.environ[compat_record.CACHE], "/c/gw3")

    def test_an_expected_failure_is_skipped(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "record")
            recorder = compat_record.Recorder(str(path))
            for when in ("setup", "call", "teardown"):
                outcome = "skipped" if when == "call" else "passed"
                report = types.SimpleNamespace(nodeid="t", when=when, outcome=outcome, longrepr="x", sections=[])
                if when == "call":
                    report.wasxfail = "known"
                recorder.pytest_runtest_logreport(report)
            recorder.file.close()
            self.assertEqual(judge.read(path)["t"].state, "skipped")


if __name__ == "__main__":
    unittest.main()
