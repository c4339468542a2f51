"""Tests of computations, output, and control of other programs, without a GPU: `python3 -m unittest discover -s research/bench/victim`."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

import run
import table
from programs import Clock, Deadline, Failed, Program, end_all, said

ENVIRONMENT = dict(os.environ)


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def measured(number: int, setting: str, who: str, phase: int = 0, **figures: object) -> dict:
    return {"round": number, "phase": phase, "aggressor": "train", "setting": setting, "who": who, **figures}


# Three rounds beside training: alone, under a service, and a setting that failed in its second round.
RUNS = [
    *(measured(n, "alone", "victim", requests=300, p50_ms=1.15, p99_ms=p99, load=0.27)
      for n, p99 in enumerate((1.20, 1.25, 1.30))),
    *(measured(n, "alone", "aggressor", aggressor_per_s=per_s) for n, per_s in enumerate((4300.0, 4400.0, 4350.0))),
    *(measured(n, "mps", "pair", requests=150, p50_ms=5.0, p99_ms=p99, aggressor_per_s=4000.0, answers_unchanged=True)
      for n, p99 in enumerate((8.40, 8.25, 8.97))),
    *(measured(n, "uniform", "share", requests=280, p50_ms=1.6, p99_ms=1.65, aggressor_per_s=None) for n in range(3)),
    measured(0, "uniform", "pair", requests=200, p50_ms=2.0, p99_ms=2.31, aggressor_per_s=2700.0, answers_unchanged=True),
    measured(1, "uniform", "pair", error="CUDA error: an illegal memory access | was encountered"),
    measured(0, "gate", "pair", phase=2, error="partita: --priority: not here"),
]


class Figures(unittest.TestCase):
    def test_percentiles_are_nearest_rank(self) -> None:
        values = [float(value) for value in range(100, 0, -1)]
        self.assertEqual((table.percentile(values, 0.5), table.percentile(values, 0.99)), (51.0, 100.0))
        self.assertEqual(table.percentile([7.0], 0.99), 7.0)

    def test_a_rate_counts_what_ends_in_the_window(self) -> None:
        ends = [0.0, 1.0, 1.5, 2.0, 2.5, 9.0]
        self.assertEqual(table.rate(ends, 128, 1.0, 3.0), 256.0)
        self.assertIsNone(table.rate(ends, 128, 2.0, 3.0), "two ends have one gap")

    def test_ratios_are_of_a_round(self) -> None:
        row = table.row(RUNS, 0, "mps", "train", "whole GPU")
        self.assertEqual((row["rounds"], row["requests"], row["errors"]), (3, 450, []))
        self.assertEqual(row["p99_ms"], {"median": 8.40, "least": 8.25, "most": 8.97})
        self.assertAlmostEqual(row["p99_against_alone"]["median"], 8.97 / 1.30)
        self.assertAlmostEqual(row["p99_against_alone"]["least"], 8.25 / 1.25)
        self.assertAlmostEqual(row["aggressor_against_alone"]["most"], 4000 / 4300)
        self.assertNotIn("p99_against_alone_on_share", row)

    def test_a_failed_round_is_told_and_the_others_count(self) -> None:
        row = table.row(RUNS, 0, "uniform", "train", "wrong", "uniform")
        self.assertEqual(row["rounds"], 1)
        self.assertAlmostEqual(row["p99_against_alone_on_share"], 2.31 / 1.65)
        self.assertEqual(row["errors"], ["CUDA error: an illegal memory access | was encountered"])
        text = table.markdown([row], {"uniform": "MPS, uniform"})
        self.assertIn("illegal memory access \\| was", text)
        self.assertIn("| wrong | 200 | 1 ", text)

    def test_a_setting_that_never_ran_is_a_row_with_its_error(self) -> None:
        row = table.row(RUNS, 2, "gate", "train", "whole GPU")
        text = table.markdown([row], {"gate": "gate alone"})
        self.assertIn("| train | gate alone | not measured: partita: --priority: not here |", text)
        widths = {line.count("|") for line in text.splitlines()}
        self.assertEqual(len(widths), 1, text)

    def test_changed_answers_are_told(self) -> None:
        runs = [measured(0, "exact", "pair", requests=1, p50_ms=1.0, p99_ms=1.0, aggressor_per_s=1.0, answers_unchanged=False)]
        self.assertEqual(table.row(runs, 0, "exact", "train")["errors"], ["the victim's answers changed while it served"])

    def test_the_worst_percentage_counts(self) -> None:
        proofs = {50.0: {"state": "right"}, 67.0: {"state": "wrong"}, 20.0: {"state": "unproved"}}
        self.assertEqual(table.verdict([50.0, 67.0], proofs), "wrong")
        self.assertEqual(table.verdict([50.0, 20.0], proofs), "unproved")
        self.assertEqual(table.verdict([50.0, 33.0], proofs), "unproved", "of which nothing is known")
        self.assertEqual(table.verdict([50.0, 100.0], proofs), "right")
        self.assertEqual(table.verdict([100.0, 100.0], proofs), "whole GPU")


class Settings(unittest.TestCase):
    def test_each_key_is_a_setting_in_its_seat(self) -> None:
        plans = {"uniform": [50.0, 50.0], "half": [100.0, 100.0], "weighted": [21.5, 78.5], "exact": Failed("no percentage gives 45")}
        every = {one.key: one for one in run.settings(plans, [88, 45])}
        self.assertEqual(tuple(every), run.KEYS)
        self.assertEqual((every["mps"].seat_of(0), every["half"].seat_of(1)), ("mps 100", "mps 100"))
        self.assertEqual((every["weighted"].seat_of(0), every["weighted"].seat_of(1)), ("mps 21.5", "mps 78.5"))
        self.assertEqual(every["exact"].error, "no percentage gives 45")
        self.assertTrue(every["uniform"].has_own_share and every["masks"].has_own_share)
        self.assertFalse(every["half"].has_own_share or every["masks-gate"].has_own_share)
        # Tenants of a phase fit beside each other.
        self.assertEqual(len({one.phase for one in every.values() if one.seat in run.TENANTS}), 3)

    def test_what_doctor_says_of_masks(self) -> None:
        proof = run.of_doctor({"state": "ok", "detail": "cuBLAS 13.1.0: 36 products right"})
        self.assertEqual(proof, {"state": "right", "detail": "cuBLAS 13.1.0: 36 products right"})
        self.assertEqual(run.of_doctor({"state": "not_checked", "detail": "no libcublas"})["state"], "unproved")
        self.assertEqual(run.of_doctor(None)["state"], "unproved")

    def test_what_limits_says_of_a_percentage(self) -> None:
        right = {"gpu": "GPU-1", "percent": 50.0, "state": "right", "found": "cuBLAS 13.1.0, 12 products"}
        self.assertEqual(run.of_limits({"products": [right]}), {"state": "right", "detail": "cuBLAS 13.1.0, 12 products"})
        unknown = {"gpu": "GPU-2", "percent": 50.0, "state": "unknown", "reason": "no libcublas"}
        self.assertEqual(run.of_limits({"products": [right | {"reason": ""}, unknown]})["state"], "unproved")
        self.assertEqual(run.of_limits({})["state"], "unproved")

    def test_the_page(self) -> None:
        rows = [table.row(RUNS, 0, "mps", "train", "whole GPU"), table.row(RUNS, 2, "gate", "train", "whole GPU")]
        facts = {"device": {"name": "NVIDIA H200", "driver": "580.159.04"}, "torch": "2.11.0", "date": "2026-11-21", "seconds": 1.5,
                 "rounds": 3, "complete": False, "took_s": 440.0, "names": {"mps": "MPS", "gate": "gate alone"}, "rows": rows,
                 "alone": {"victim": table.alone(RUNS, "victim"), "train": table.alone(RUNS, "aggressor", "train"), "memory": None},
                 "products": {"50 %": {"state": "right", "detail": "18 products"}}}
        page = run.markdown(facts)
        for words in ("NVIDIA H200, driver 580.159.04", "p99 1.250 ms", "27 % of the time (900 requests)", "train 4350/s.",
                      "after 440 s: later rounds are missing", "| train | MPS | 5.000 | 8.400 (8.250–8.970) |", "* 50 %: right: 18 products"):
            self.assertIn(words, page)


class Programs(unittest.TestCase):
    def start(self, text: str) -> Program:
        program = Program(python(text), ENVIRONMENT)
        self.addCleanup(program.end)
        return program

    def test_lines_come_and_go(self) -> None:
        program = self.start("import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print(float(line) * 2, flush=True)")
        program.hear_ready(30)
        program.tell("1.5")
        self.assertEqual(program.hear_json(30), 3.0)

    def test_what_fails_says_why_every_time(self) -> None:
        program = self.start("raise RuntimeError('no memory')")
        for _ in range(2):
            with self.assertRaisesRegex(Failed, "RuntimeError: no memory"):
                program.hear_ready(30)
        with self.assertRaisesRegex(Failed, "ended with 3"):
            self.start("import sys; sys.exit(3)").hear(30)

    def test_silence_has_a_limit(self) -> None:
        program = self.start("import sys; sys.stdin.read()")
        with self.assertRaisesRegex(Failed, "no answer within"):
            program.hear(0.1)

    def test_all_are_ended_and_by_what_their_starter_has_first(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            mark = pathlib.Path(directory, "asked")
            deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(1000)"
            program = Program(python(deaf), ENVIRONMENT)
            # As `partita kill` does, it ends the program; here by its number.
            program.before_kill = python(f"import os; os.kill({program.process.pid}, 9); open({str(mark)!r}, 'w')")
            program.hear_ready(30)
            import programs

            kept, programs.LEAVE_LIMIT_S = programs.LEAVE_LIMIT_S, 0.2
            self.addCleanup(setattr, programs, "LEAVE_LIMIT_S", kept)
            obedient = self.start("import sys; sys.stdin.read()")
            end_all([program, obedient])
            self.assertIsNotNone(obedient.process.returncode)
            self.assertEqual(program.process.returncode, -9)

    def test_what_keeps_the_stream_open_keeps_nobody(self) -> None:
        # As when `partita run` is killed and its program lives on: it is of the same group, and ends with it.
        inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(1000)"
        outer = f"import subprocess, sys, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); subprocess.run([sys.executable, '-c', {inner!r}])"
        program = Program(python(outer), ENVIRONMENT)
        program.hear_ready(30)
        import programs

        kept, programs.LEAVE_LIMIT_S = programs.LEAVE_LIMIT_S, 0.1
        self.addCleanup(setattr, programs, "LEAVE_LIMIT_S", kept)
        program.end()
        self.assertEqual(program.process.returncode, -9)
        self.assertIsNone(program.lines.get(timeout=30), "the stream has ended: nobody holds it")

    def test_a_command_says_what_it_says(self) -> None:
        self.assertEqual(said(python("print(input())"), ENVIRONMENT, 30, "hello\n"), "hello\n")
        self.assertEqual(said(python("import sys; print(1); sys.exit(1)"), ENVIRONMENT, 30, codes=(0, 1)), "1\n")
        with self.assertRaisesRegex(Failed, "refused"):
            said(python("import sys; sys.exit('refused')"), ENVIRONMENT, 30)
        with self.assertRaisesRegex(Failed, "no answer"):
            said(python("import time; time.sleep(1000)"), ENVIRONMENT, 0.1)
        with self.assertRaisesRegex(Failed, "No such file"):
            said(["/nonexistent/program"], ENVIRONMENT, 30)

    def test_no_step_begins_after_the_end(self) -> None:
        clock = Clock(1000)
        self.assertEqual(clock.allow(5), 5)
        clock.end = time.monotonic() - 1
        with self.assertRaises(Deadline):
            clock.allow(5)


if __name__ == "__main__":
    unittest.main()
