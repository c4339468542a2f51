"""Tests of computations and output, without a GPU: `python3 -m unittest discover -s research/bench/mps`."""

import argparse
import unittest

import findings
import recovery
from findings import Note

MS = 1_000_000


def work(*moments_ms: float) -> list[Note]:
    return [Note("done", int(moment * MS)) for moment in moments_ms]


class Notes(unittest.TestCase):
    def test_a_file_is_read_up_to_its_last_whole_line(self) -> None:
        told = findings.notes("start 1\ndone 2\nerror 3 cuCtxSynchronize: error 700\ndone 4")
        self.assertEqual(told, [Note("start", 1), Note("done", 2), Note("error", 3, "cuCtxSynchronize: error 700")])
        self.assertEqual(findings.notes("done\n\ndone x\n"), [])

    def test_back_at_work_is_the_new_programs_work(self) -> None:
        told = [Note("start", 0), *work(1, 2), Note("error", 3 * MS), Note("start", 9 * MS), *work(12, 13)]
        # A kernel that was in flight may end after the fault.
        self.assertEqual(findings.back(told, int(1.5 * MS)).at, 12 * MS)
        self.assertIsNone(findings.back(told[:-2], int(1.5 * MS)))
        self.assertIsNone(findings.back(told, 10 * MS))


class Gaps(unittest.TestCase):
    def test_the_longest_gap_that_reaches_into_a_window(self) -> None:
        told = work(0, 1, 2, 7, 8, 9)
        self.assertEqual(findings.gap_max_ms(told, 3 * MS, 8 * MS), 5.0)
        self.assertEqual(findings.gap_max_ms(told, int(7.5 * MS), 9 * MS), 1.0)
        self.assertEqual(findings.gap_max_ms(told, 3 * MS, 5 * MS), 5.0, "one that is longer than the window")

    def test_who_stops_has_a_gap_to_the_end(self) -> None:
        self.assertEqual(findings.gap_max_ms(work(0, 1, 2), 1 * MS, 20 * MS), 18.0)
        self.assertIsNone(findings.gap_max_ms([], 0, MS))
        self.assertIsNone(findings.gap_max_ms(work(5), 0, 4 * MS), "nothing was done before")

    def test_an_error_of_a_spared_client_is_told(self) -> None:
        told = [Note("start", 0), *work(1, 2, 3, 4, 5, 6), Note("error", 7 * MS, "cuCtxSynchronize: error 700")]
        found = findings.untouched(told, [(MS, 3 * MS, 5 * MS)])
        self.assertEqual((found["errors"], found["starts"], found["done"], found["faults"]), (["cuCtxSynchronize: error 700"], 1, 6, 1))
        self.assertEqual((found["gap_max_ms_before"]["median"], found["gap_max_ms_during"]["median"]), (1.0, 1.0))


class States(unittest.TestCase):
    def status(self, faults: int, *states: str) -> dict:
        return {"servers": [{"status": state} for state in states], "counts": {"faults": faults}}

    def test_active_is_after_a_new_fault(self) -> None:
        told = [(1, self.status(1, "active")), (2, self.status(2, "fault")), (3, self.status(2)), (4, self.status(2, "active"))]
        self.assertEqual(recovery.active_at(told, 1), 4)
        self.assertIsNone(recovery.active_at(told, 2))
        self.assertEqual(recovery.states(told), ["active", "fault", "active"])

    def test_the_log_has_the_last_faults_length(self) -> None:
        def of(began: str, ended: str | None) -> dict:
            return {"fault": {"began": began, "ended": ended}}

        told = {"servers": [of("2026-11-21 10:00:00.500", "2026-11-21 10:00:01.750"), of("2026-11-21 09:00:00.000", None), {"fault": None}]}
        self.assertEqual(recovery.log_fault_ms(told), 1250.0)
        self.assertIsNone(recovery.log_fault_ms({"servers": [{"fault": None}]}))


class Plans(unittest.TestCase):
    def test_a_list_of_gpus(self) -> None:
        self.assertEqual(recovery.split("0,1"), ["0", "1"])
        self.assertEqual(recovery.split("sim:h200:0,1"), ["sim:h200:0", "sim:h200:1"])
        self.assertEqual(recovery.split("sim:h200"), ["sim:h200"])
        self.assertEqual(recovery.split("GPU-1,GPU-2"), ["GPU-1", "GPU-2"])

    def test_the_second_gpu_has_a_tenant_of_its_own(self) -> None:
        options = argparse.Namespace(repetitions=2, series=0, torch=0)
        one = recovery.plan("0", options)
        self.assertEqual([(phase.key, phase.services, len(phase.spared)) for phase in one], [("one", ["0"], 1)])
        two = recovery.plan("0,1", options)
        self.assertEqual([(phase.key, phase.services, len(phase.spared)) for phase in two], [("one", ["0", "1"], 2), ("both", ["0,1"], 1)])


class Page(unittest.TestCase):
    def test_the_page(self) -> None:
        good = {"neighbour_error_ms": 150.0, "active_ms": 400.0, "back_ms": 900.0, "told": ["client: cuCtxSynchronize: error 700"]}
        phases = [
            {"key": "one", "title": "One GPU", "is_series": False, "repetitions": [good, {**good, "back_ms": 1100.0}, {"error": "no answer"}],
             "spared": {"another": findings.untouched(work(0, 1, 2, 3), [(MS, 2 * MS, 3 * MS)])}},
            {"key": "series", "title": "Again", "is_series": True, "repetitions": [good], "spared": {}},
        ]
        facts = {"device": {"name": "NVIDIA H200", "driver": "580"}, "date": "2026-11-21", "gpus": "0", "complete": False, "took_s": 100.2, "phases": phases}
        page = findings.markdown(facts)
        for words in ("NVIDIA H200, driver 580", "The time was over after 100 s", "2 of 3 repetitions", "| 1000.0 | 900.0–1100.0 | 2 |",
                      "| another | 1 | none | 0 | 4 | 1.0 | 1.0–1.0 | 1.0 | 1.0–1.0 |", "* failed: no answer", "| 1 |  | 400.0 | 900.0 |"):
            self.assertIn(words, page)


if __name__ == "__main__":
    unittest.main()
