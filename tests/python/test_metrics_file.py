"""The Python package: reports, and the same metrics file as cloudml-hypertune's."""
import fcntl
import json
import os
import pathlib
import select
import subprocess
import tempfile
import threading
import warnings
from unittest import mock

from case import Case, DEADLINE, ROOT

import trainit
from trainit import _metrics_file, _report, hypertune

GOLDEN = ROOT / "tests/golden/hypertune-cases.jsonl"


class Reports(Case):
    def setUp(self):
        super().setUp()
        self.under_trainit()

    def test_a_report_has_tag_value_step_and_checkpoint(self):
        self.assertTrue(trainit.report("acc", 0.5, step=7, checkpoint_path=pathlib.Path("/m/ck")))
        line = self.lines()[0]
        self.assertEqual((line["acc"], line["global_step"], line["checkpoint_path"], line["trial"]), ("0.5", "7", "/m/ck", "0"))

    def test_an_empty_tag_is_that_of_the_variable_or_else_the_default(self):
        trainit.report("", 1)
        os.environ["CLOUD_ML_HP_METRIC_TAG"] = "acc"
        trainit.report("", 1)
        self.assertEqual([sorted(x)[-2 if i == 0 else 0] for i, x in enumerate(self.lines())], [_metrics_file.DEFAULT_TAG, "acc"])

    def test_bad_input_is_a_warning_and_nothing_is_written(self):
        class Odd:
            def __float__(self):
                raise MemoryError("odd")

            def __bool__(self):
                raise RuntimeError("odd")

        bad = [("a", None), ("a", "x"), ("a", ""), ("a", object()), ("a", Odd()), ("a", 10**400), ("a", [1]), ("a", 1j),
               (5, 1), (Odd(), 1), ("\udc80", 1), ("trial", 1), ("global_step", 1), ("timestamp", 1), ("checkpoint_path", 1)]
        bad_steps = ["x", "1.5", float("nan"), float("inf"), object(), [1], Odd(), b"\xff"]
        for tag, value, step in [(t, v, 1) for t, v in bad] + [("a", 1, s) for s in bad_steps]:
            _report._warned.clear()
            with self.one_warning("is not reported"):
                self.assertIs(trainit.report(tag, value, step=step), False)
        for path in (5, b"x", object()):
            _report._warned.clear()
            with self.one_warning("is not reported"):
                self.assertIs(trainit.report("a", 1, checkpoint_path=path), False)
        self.assertEqual(self.lines(), [])

    def test_many_different_mistakes_do_not_fill_the_log(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for n in range(1000):
                trainit.report("a", "x%d" % n)
        self.assertEqual(len(caught), _report.MOST_WARNINGS)

    def test_a_file_that_cannot_be_written_is_one_warning(self):
        os.environ["CLOUD_ML_HP_METRIC_FILE"] = self.dir
        with self.one_warning("is not in"):
            self.assertIs(trainit.report("a", 1), False)
            self.assertIs(trainit.report("a", 2), False)

    def test_a_fifo_without_a_reader_does_not_block_the_trainer(self):
        os.mkdir(os.path.dirname(self.file))
        os.mkfifo(self.file)
        with self.one_warning("is not in"):
            self.assertIs(trainit.report("a", 1), False)

    def test_only_the_first_rank_reports_by_default(self):
        os.environ["RANK"] = "1"
        self.assertIs(trainit.report("a", 1), False)
        self.assertIs(trainit.report("a", 1, every_rank=True), True)
        self.assertEqual(len(self.lines()), 1)

    def test_threads_lose_no_report(self):
        os.environ["TRAINIT_KEEP"] = "0"

        def many():
            for n in range(50):
                self.assertTrue(trainit.report("a", n))

        threads = [threading.Thread(target=many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(self.lines()), 400)

    def test_only_the_last_lines_are_kept(self):
        for keep, stay in (("3", 3), ("0", 8), ("nonsense", 13)):
            _report._warned.clear()
            os.environ["TRAINIT_KEEP"] = keep
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                for n in range(5):
                    trainit.report("a", n)
            self.assertEqual(len(self.lines()), stay)


class File(Case):
    """The protocol of the metrics file."""

    def carry_out(self, data, new, keep):
        os.makedirs(os.path.dirname(self.file), exist_ok=True)
        with open(self.file, "wb") as file:
            file.write(data)
        _metrics_file.MetricsFile(self.file, keep).append(new)
        with open(self.file, "rb") as file:
            return file.read()

    def test_a_torn_line_is_cut_off_and_a_whole_one_gets_its_newline(self):
        for torn in (b'{"a": "0.', b"x", b"\0\0", b"  ", b"[1]", b"7", b"{} {}", b"\xff{", b'{"a": NaN}', b"{" * 100000):
            for keep in (0, 5):
                self.assertEqual(self.carry_out(b"{}\n" + torn, b'{"b": 1}\n', keep), b'{}\n{"b": 1}\n', torn[:20])
            self.assertEqual(self.carry_out(b"{}\n{}\n" + torn, b"{}\n", 2), b"{}\n{}\n")
        for keep in (0, 5):
            self.assertEqual(self.carry_out(b'{}\n{"a": 1}', b"{}\n", keep), b'{}\n{"a": 1}\n{}\n')

    def test_the_oldest_lines_are_dropped(self):
        self.assertEqual(self.carry_out(b"aaa\nc\n", b"d\n", 2), b"c\nd\n")
        self.assertEqual(self.carry_out(b"a\nb\n\n\n", b"c\n", 3), b"a\nb\nc\n")
        self.assertEqual(self.carry_out(b"a\nb\n\n\n", b"c\n", 2), b"b\nc\n")
        self.assertEqual(self.carry_out(b"", b"1\n2\n3\n", 2), b"2\n3\n")

    def test_a_trim_that_was_killed_at_any_byte_is_finished(self):
        def lines(count, padding):
            return b"".join(b'{"%d": "%s"}\n' % (n % 3, b"x" * (n * padding % 5)) for n in range(count))

        for old, new, keep in ((lines(9, 2), lines(1, 0), 9), (lines(9, 0), lines(4, 0), 7), (lines(3, 1), lines(9, 3), 5)):
            cut_to, append, trim = _metrics_file.plan(old, 0, new, keep)
            file, expected = old + append, b"".join(line + b"\n" for line in (old + new).splitlines()[-keep:])
            for killed_at in range(len(file)):
                killed = trim.content[:killed_at] + file[killed_at:]
                self.assertEqual(self.carry_out(killed, b'{"b": 1}\n', 0), expected + b'{"b": 1}\n', killed_at)

    def test_a_file_that_is_not_a_metrics_file_is_not_changed(self):
        data = b"x" * (_metrics_file.LONGEST_LINE + 1)
        with self.assertRaises(OSError):
            self.carry_out(data, b"{}\n", 100)
        self.assertEqual(os.path.getsize(self.file), len(data))

    def test_a_line_longer_than_the_first_read_is_found(self):
        long = b'{"a": "' + b"x" * 50000 + b'"}\n'
        self.assertEqual(self.carry_out(long + b"torn", b"{}\n", 0), long + b"{}\n")

    def test_the_inode_and_the_mode_stay(self):
        self.carry_out(b"{}\n" * 3, b"{}\n", 2)
        os.chmod(self.file, 0o640)
        before = os.stat(self.file)
        _metrics_file.MetricsFile(self.file, 2).append(b"{}\n")
        after = os.stat(self.file)
        self.assertEqual((before.st_ino, before.st_mode), (after.st_ino, after.st_mode))

    def test_a_lock_that_is_never_released_only_prevents_trimming(self):
        os.makedirs(os.path.dirname(self.file))
        with open(self.file, "wb") as holder, mock.patch.object(_metrics_file, "PATIENCE", 0.05):
            holder.write(b"{}\n" * 3)
            holder.flush()
            fcntl.flock(holder, fcntl.LOCK_EX)
            _metrics_file.MetricsFile(self.file, 2).append(b"{}\n")
        self.assertEqual(len(self.lines()), 4)

    def test_the_lock_is_released_although_a_forked_child_has_the_descriptor(self):
        metrics = _metrics_file.MetricsFile(self.file)
        fork_in_the_middle = """
            import os, sys, time
            from trainit import _metrics_file
            metrics = _metrics_file.MetricsFile(sys.argv[1])
            whole = metrics._write_locked
            def forking(fd, lines):
                if os.fork() == 0:
                    sys.stdin.read()
                    os._exit(0)
                whole(fd, lines)
            metrics._write_locked = forking
            metrics.append(b"{}\\n")
            print("done", flush=True)
            os.wait()
        """
        process = self.python(fork_in_the_middle.replace("sys.argv[1]", repr(self.file)), stdin=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "done\n")
        with open(self.file, "rb") as file:
            # Raises if the child holds it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        metrics.append(b"{}\n")
        process.communicate("", timeout=DEADLINE)
        self.assertEqual(len(self.lines()), 2)

    def test_a_kill_at_any_moment_leaves_a_file_that_can_be_read(self):
        for turn in range(10):
            process = self.python(
                """
                import sys
                from trainit import _metrics_file
                metrics = _metrics_file.MetricsFile(%r, 5)
                print("go", flush=True)
                for n in range(10**9):
                    metrics.append(b'{"n": "%%s"}\\n' %% (b"%%d" %% n * 50))
                """ % self.file)
            self.assertEqual(process.stdout.readline(), "go\n")
            # The content is read only after the kill: a reader beside a trim may see parts of two lines.
            while not os.path.exists(self.file):
                pass
            select.select([], [], [], 0.001 * turn)
            process.kill()
            process.communicate(timeout=DEADLINE)
            self.lines()
        self.assertTrue(self.lines())


class HyperTune(Case):
    # Cases where the library loses the lines of others, or breaks every later report.
    DIFFERENCES = {
        "old file is lost at the first report": '{"a": "1"}\n',
        "checkpoint path object poisons the queue": None,
        "a second process wipes the first one's lines": None,
    }

    def test_every_case_leaves_the_packages_bytes(self):
        cases = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
        self.assertGreater(len(cases), 100)
        tried = 0
        for case in cases:
            tried += self.run_case(case)
        self.assertGreater(tried, 100)

    def run_case(self, case):
        try:
            calls = [{key: self.value(value) for key, value in call.items()} for call in case["calls"]]
        except ImportError:
            return 0  # numpy's numbers, without numpy
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
            path = os.path.join(folder, "sub", "output.metrics")
            os.environ["CLOUD_ML_HP_METRIC_FILE"] = path
            errors = self.carry_out(calls, path)
            try:
                with open(path, encoding="ascii", newline="") as file:
                    found = file.read()
            except FileNotFoundError:
                found = None
        if case["name"] in self.DIFFERENCES:
            self.assertNotEqual((found, errors), (case["expect"], case["errors"]))
            kept = self.DIFFERENCES[case["name"]]
            self.assertTrue(kept is None or found == kept + case["expect"], found)
        else:
            self.assertEqual((found, errors), (case["expect"], case["errors"]), case["name"])
        return 1

    @staticmethod
    def carry_out(calls, path):
        reporter, errors, clock = None, [], 1700000000.5
        for index, call in enumerate(calls):
            op = call.pop("op", "report")
            if op == "env":
                os.environ.update(call["set"])
            elif op == "file":
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8", newline="") as file:
                    file.write(call["text"])
            elif op == "new":
                reporter = hypertune.HyperTune()
            else:
                reporter = reporter or hypertune.HyperTune()
                clock = float(call.pop("t", clock))
                names = {"step": "global_step", "checkpoint_path": "checkpoint_path"}
                more = {names[key]: value for key, value in call.items() if key in names}
                try:
                    with mock.patch.object(_metrics_file.time, "time", lambda now=clock: now):
                        reporter.report_hyperparameter_tuning_metric(call.get("tag"), call.get("value"), **more)
                except Exception as error:  # the case names it
                    errors.append([index, type(error).__name__])
        return errors

    @staticmethod
    def value(value):
        if not (isinstance(value, dict) and set(value) == {"py", "v"}):
            return value
        kind, text = value["py"], value["v"]
        if kind == "float":
            return float(text)
        if kind == "path":
            return pathlib.PurePosixPath(text)
        if kind == "bytes":
            return text.encode()
        import numpy

        return getattr(numpy, kind)(text)

    def test_a_file_without_a_folder_and_an_empty_variable_are_accepted(self):
        before = os.getcwd()
        os.chdir(self.dir)
        self.addCleanup(os.chdir, before)
        os.environ["CLOUD_ML_HP_METRIC_FILE"] = "output.metrics"
        hypertune.HyperTune().report_hyperparameter_tuning_metric("a", 1)
        self.assertEqual(os.listdir("."), ["output.metrics"])
        os.environ["CLOUD_ML_HP_METRIC_FILE"] = ""
        with mock.patch.object(_metrics_file, "DEFAULT_FILE", self.file):
            self.assertEqual(hypertune.HyperTune().metric_path, self.file)

    def test_a_failed_write_raises_the_same_error_as_in_the_library(self):
        os.environ["CLOUD_ML_HP_METRIC_FILE"] = "/dev/full"
        with self.assertRaises(OSError):
            hypertune.HyperTune().report_hyperparameter_tuning_metric("a", 1)
