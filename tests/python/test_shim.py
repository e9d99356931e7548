"""The Python package: its promises to a training loop, and the same metrics file as the executable's.

Run by scripts/test, or by hand: python3 -m unittest discover -s tests/python. The package is compared with the executable
that TRAINIT names, else with the debug build if there is one.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import warnings
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import trainit  # noqa: E402
from trainit import _first, _metrics_file, _report, hypertune  # noqa: E402

GOLDEN = ROOT / "tests/golden/hypertune-cases.jsonl"
DEADLINE = 60


# The tests' environment is empty, so this is read before.
EXECUTABLE = os.environ.get("TRAINIT") or os.path.join(os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target")), "debug/trainit")

needs_executable = unittest.skipUnless(os.access(EXECUTABLE, os.X_OK), "no trainit executable: cargo build, or name one with TRAINIT")


class Case(unittest.TestCase):
    """A directory, an environment without variables of trainit or a tuner, and no earlier warning."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.file = os.path.join(self.dir, "sub", "output.metrics")
        clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "python"), "TMPDIR": self.dir}
        environment = mock.patch.dict(os.environ, clean, clear=True)
        environment.start()
        self.addCleanup(environment.stop)
        _report._warned.clear()
        trainit._steps = trainit._Steps()
        trainit._got_sigterm = trainit._checked_handler = False
        before = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, before)

    def under_trainit(self, **more):
        os.environ.update(
            TRAINIT_ATTEMPT="1",
            TRAINIT_HEARTBEAT_FILE=os.path.join(self.dir, "heartbeat"),
            TRAINIT_PREEMPTION_FILE=os.path.join(self.dir, "preemption"),
            CLOUD_ML_HP_METRIC_FILE=self.file,
            **more
        )

    def lines(self):
        try:
            with open(self.file, "rb") as file:
                return [json.loads(line) for line in file.read().split(b"\n") if line.strip()]
        except FileNotFoundError:
            return []

    def write(self, name, text):
        with open(os.path.join(self.dir, name), "w", encoding="ascii") as file:
            file.write(text)

    def python(self, code, **how):
        command = [sys.executable, "-c", textwrap.dedent(code)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
        self.addCleanup(process.kill)
        return process

    def end(self, process, code=0):
        out, err = process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, code, err)
        return out

    @contextlib.contextmanager
    def one_warning(self, words):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        self.assertEqual([w.category for w in caught], [RuntimeWarning], [str(w.message) for w in caught])
        self.assertIn(words, str(caught[0].message))


class OutsideTrainit(Case):
    def test_every_call_is_harmless_and_creates_nothing(self):
        with mock.patch.object(_metrics_file, "DEFAULT_FILE", self.file), warnings.catch_warnings():
            warnings.simplefilter("error")
            trainit.step(1, loss=0.5)
            trainit.step("x", loss=object())
            trainit._flush()
            self.assertIs(trainit.report("acc", 0.9, step=1), False)
            self.assertIs(trainit.should_stop(), False)
        self.assertIsNone(trainit.deadline())
        self.assertIsNone(trainit.resume_from())
        self.assertIsNone(trainit.resume_step())
        self.assertIsNone(trainit.checkpoint_dir())
        self.assertEqual(trainit.checkpoint_dir("ck"), "ck")
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
        self.assertEqual(os.listdir(self.dir), [])

    def test_without_trainit_a_report_reaches_the_tuner(self):
        os.environ["CLOUD_ML_HP_METRIC_FILE"] = self.file
        self.assertTrue(trainit.report("acc", 0.9))
        self.assertEqual(len(self.lines()), 1)

    def test_the_package_imports_only_the_standard_library(self):
        code = "import sys; before = set(sys.modules); import trainit, trainit.hypertune; print(*(set(sys.modules) - before))"
        for name in self.end(self.python(code)).split():
            origin = getattr(sys.modules.get(name), "__file__", None) or ""
            self.assertNotIn("site-packages", origin, name)


class Steps(Case):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        clock = mock.patch.object(trainit.time, "monotonic", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)

    def beat(self):
        with open(os.environ["TRAINIT_HEARTBEAT_FILE"], encoding="ascii") as file:
            return json.load(file)

    def test_the_first_step_writes_a_heartbeat_and_later_steps_once_a_second(self):
        self.under_trainit()
        trainit.step(1)
        self.assertEqual(self.beat(), {"step": 1})
        for n in range(2, 10000):
            trainit.step(n)
        self.assertEqual(self.beat(), {"step": 1})
        self.now += 1.0
        trainit.step(10000)
        self.assertEqual(self.beat(), {"step": 10000})
        self.assertEqual(os.listdir(self.dir), ["heartbeat"])

    def test_a_metric_is_written_with_its_newest_value_and_step(self):
        self.under_trainit()
        trainit.step(1, loss=4)
        trainit.step(2, loss=3, acc=0.5)
        trainit.step(3, loss=2)
        self.assertEqual([(x["loss"], x["global_step"]) for x in self.lines()], [("4.0", "1")])
        self.now += 1.0
        trainit.step(4)
        found = {(tag, line[tag], line["global_step"]) for line in self.lines()[1:] for tag in ("loss", "acc") if tag in line}
        self.assertEqual(found, {("loss", "2.0", "3"), ("acc", "0.5", "2")})

    def test_a_value_is_converted_only_when_it_is_written(self):
        self.under_trainit()
        converted = []

        class Tensor:
            def __float__(self):
                converted.append(self)
                return 0.5

        for n in range(100):
            trainit.step(n, loss=Tensor())
        self.assertEqual(len(converted), 1)

    def test_a_step_that_is_not_a_number_still_writes_a_heartbeat(self):
        self.under_trainit()
        with self.one_warning("is no whole number"):
            trainit.step("many")
        self.assertEqual(self.beat(), {})
        self.now += 1.0
        trainit.step()
        self.assertEqual(self.beat(), {})

    def test_a_metric_may_have_the_name_of_a_parameter(self):
        self.under_trainit()
        trainit.step(7, n=1, self=2, tag=3)
        self.assertEqual(len(self.lines()), 3)

    def test_a_heartbeat_that_cannot_be_written_is_one_warning(self):
        self.under_trainit()
        os.environ["TRAINIT_HEARTBEAT_FILE"] = os.path.join(self.dir, "gone", "heartbeat")
        with self.one_warning("no heartbeat"):
            trainit.step(1)
            self.now += 1.0
            trainit.step(2)

    def test_a_handler_may_call_step_while_step_runs(self):
        self.under_trainit()

        class Interrupted(dict):
            def __setitem__(self, key, value):
                super().__setitem__(key, value)
                if key == "loss":
                    trainit.step(2, inner=1)

        trainit._steps.pending = Interrupted()
        trainit.step(1, loss=1)

    def test_the_last_values_are_written_when_python_ends(self):
        self.under_trainit()
        self.end(self.python("import trainit\nfor n in range(1, 501): trainit.step(n, loss=n)"))
        self.assertEqual((self.lines()[-1]["loss"], self.lines()[-1]["global_step"]), ("500.0", "500"))

    def test_a_forked_child_writes_no_values_of_its_parent(self):
        self.under_trainit()
        code = """
            import os, sys, trainit
            trainit.step(1, loss=1)
            trainit.step(2, loss=2)
            trainit._steps.lock.acquire()
            if os.fork() == 0:
                trainit.step(3, child=3)
                sys.exit()
            os.wait()
        """
        self.end(self.python(code))
        self.assertEqual([sorted(set(x) - set(_report.RESERVED)) for x in self.lines()], [["loss"], ["child"], ["loss"]])


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

    def test_the_oldest_lines_are_dropped_and_newlines_fill_the_file_until_it_is_shortened(self):
        plan = _metrics_file.plan(b"aaa\nc\n", 0, b"d\n", 2)
        self.assertEqual((plan.content, plan.length), (b"c\nd\n\n\n", 4))
        self.assertEqual(self.carry_out(b"a\nb\n\n\n", b"c\n", 3), b"a\nb\n\n\nc\n")
        self.assertEqual(self.carry_out(b"a\nb\n\n\n", b"c\n", 2), b"b\nc\n")
        self.assertEqual(self.carry_out(b"", b"1\n2\n3\n", 2), b"2\n3\n")

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
        for _ in range(10):
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
            while not self.lines():
                pass
            select.select([], [], [], 0.01 * len(self.lines()) / 5)
            process.kill()
            process.communicate(timeout=DEADLINE)
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


class Stopping(Case):
    def setUp(self):
        super().setUp()
        self.under_trainit()

    def test_the_preemption_file_announces_a_stop_and_has_the_deadline(self):
        self.assertIs(trainit.should_stop(), False)
        self.assertIsNone(trainit.deadline())
        self.write("preemption", "2026-04-11T22:26:58.250Z\n")
        self.assertIs(trainit.should_stop(), True)
        deadline = trainit.deadline()
        self.assertEqual((deadline.isoformat(), deadline.utcoffset().total_seconds()), ("2026-04-11T22:26:58.250000+00:00", 0.0))

    def test_an_invalid_deadline_is_none(self):
        for text in ("", "\n", "soon", "2026-13-45T00:00:00Z", "x" * 5000):
            self.write("preemption", text)
            self.assertIsNone(trainit.deadline(), text[:20])
            self.assertIs(trainit.should_stop(), True)

    def test_sigterm_is_noticed_after_the_first_call(self):
        trainit.should_stop()
        os.kill(os.getpid(), signal.SIGTERM)
        self.assertIs(trainit.should_stop(), True)

    def test_the_trainers_own_handler_stays(self):
        def own(*_):
            pass

        signal.signal(signal.SIGTERM, own)
        trainit.should_stop()
        self.assertIs(signal.getsignal(signal.SIGTERM), own)

    def test_another_thread_may_ask_and_installs_no_handler(self):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(trainit.should_stop()))
        thread.start()
        thread.join()
        self.assertEqual(answers, [False])
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    def test_a_forked_child_is_ended_by_sigterm(self):
        code = """
            import os, signal, trainit
            trainit.should_stop()
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(write, b"x")
                while True: signal.pause()
            os.read(read, 1)
            os.kill(child, signal.SIGTERM)
            print(os.WTERMSIG(os.waitpid(child, 0)[1]))
        """
        self.assertEqual(self.end(self.python(code)), "%d\n" % signal.SIGTERM)


class Resuming(Case):
    def test_the_values_are_those_of_trainits_variables(self):
        os.environ.update(TRAINIT_RESUME_FROM="/ck/5", TRAINIT_RESUME_STEP="5", TRAINIT_CHECKPOINT_DIR="/ck")
        self.assertEqual((trainit.resume_from(), trainit.resume_step(), trainit.checkpoint_dir("x")), ("/ck/5", 5, "/ck"))

    def test_a_checkpoint_with_an_unknown_step_has_none(self):
        for text in ("", "x", "-1", "1.5"):
            os.environ.update(TRAINIT_RESUME_FROM="/ck/5", TRAINIT_RESUME_STEP=text)
            self.assertIsNone(trainit.resume_step())


@needs_executable
class BesideTheExecutable(Case):
    def report_metric(self, *args, **how):
        return subprocess.Popen([EXECUTABLE, "report-metric", *args], stderr=subprocess.PIPE, text=True, **how)

    def test_writers_of_both_kinds_at_once_lose_no_report(self):
        for keep, stay in (("0", 4 * 25 + 40), ("30", 30)):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.file)
            self.under_trainit(TRAINIT_KEEP=keep)
            code = "import trainit\nfor n in range(25): assert trainit.report('a', n)"
            python = [self.python(code) for _ in range(4)]
            for _ in range(10):
                for process in [self.report_metric("b", "1") for _ in range(4)]:
                    self.end(process)
            for process in python:
                self.end(process)
            self.assertEqual(len(self.lines()), stay)

    def test_a_report_is_the_same_line(self):
        self.under_trainit(CLOUD_ML_TRIAL_ID="7", TRAINIT_TEST_CLOCK="1700000000.5")
        with mock.patch.object(_metrics_file.time, "time", lambda: 1700000000.5):
            for tag, value, step, path in [("acc", "0.1", "3", ""), ("", "1e16", "0", "gs://b/ck"), ("é\U0001f600\x7f", "-inf", "-2", "ü")]:
                self.assertTrue(trainit.report(tag, value, step=step, checkpoint_path=path))
                self.end(self.report_metric(tag, value, "--step=" + step, "--checkpoint-path=" + path))
        with open(self.file, "rb") as file:
            lines = file.read().splitlines()
        if b"1700000000.5" not in lines[1]:
            self.skipTest("a release build has no clock to freeze")
        self.assertEqual(lines[0::2], lines[1::2])

    def test_both_agree_on_the_first_rank(self):
        task = '{"cluster": {"%s": ["a"], "worker": ["b"]}, "task": {"type": "%s", "index": %s}}'
        environments = [{}, {"PROCESS_ID": "1"}, {"PROCESS_ID": "1", "NUM_PROCESSES": "2", "COORDINATOR_ADDRESS": "a"}]
        names = [names[0] for names in _first.RANKS if len(names) == 1] + list(_first.HOSTS)
        environments += [{name: text} for name in names for text in ("0", "1", " 0 ", "", " ", "x", "+0", "-1", "00")]
        environments += [{name: task % (chief, kind, index)} for name in _first.TASKS for chief in ("chief", "ps")
                         for kind in ("chief", "worker", "master", "ps", "workerpool0") for index in ("0", "1", '"0"', "null", "true")]
        environments += [{name: text} for name in _first.TASKS for text in ("{", "[]", '{"task": 1}', '{"task": {"type": 1}}')]
        environments += [{"SM_CURRENT_HOST": host, "SM_HOSTS": hosts} for host in ("algo-1", "algo-2", "")
                         for hosts in ('["algo-1", "algo-2"]', "x", "[]", "[1]")]
        environments += [{"RANK": "1", "SLURM_PROCID": "0"}, {"PET_NODE_RANK": "0", "RANK": "3"},
                         {"CLUSTER_SPEC": task % ("chief", "worker", "0"), "TF_CONFIG": task % ("chief", "chief", "0")}]
        self.under_trainit(TRAINIT_KEEP="0", TRAINIT_RANK0_ONLY="true")
        is_first = []
        for at in range(0, len(environments), 8):
            batch = environments[at:at + 8]
            running = [self.report_metric("t%d" % (at + n), "1", env={**os.environ, **one}) for n, one in enumerate(batch)]
            for process in running:
                self.end(process)
        reported = {tag for line in self.lines() for tag in line}
        for n, one in enumerate(environments):
            with mock.patch.dict(os.environ, one):
                self.assertEqual(_first.is_first(), "t%d" % n in reported, one)
            is_first.append("t%d" % n in reported)
        self.assertTrue(any(is_first) and not all(is_first))

    def test_a_loop_under_trainit_stops_saves_and_resumes(self):
        checkpoints = os.path.join(self.dir, "checkpoints")
        os.mkdir(checkpoints)
        loop = """
            import json, os, signal, trainit
            start = 0
            if trainit.resume_from():
                start = json.load(open(trainit.resume_from()))["step"]
                assert start == trainit.resume_step(), start
            print("start", start, trainit.should_stop(), flush=True)
            for n in range(start + 1, start + 6):
                trainit.step(n, loss=1 / n)
            if start == 0:
                while not trainit.should_stop():
                    signal.sigtimedwait([], 0.01)
                assert trainit.deadline() is not None
            path = os.path.join(trainit.checkpoint_dir(), "ckpt-%08d.json" % n)
            with open(path + ".tmp", "w") as file:
                json.dump({"step": n}, file)
            os.replace(path + ".tmp", path)
        """
        command = [EXECUTABLE, "run", "--checkpoint-dir", checkpoints, "--settle", "10ms", "--preemption", "off", "--",
                   sys.executable, "-c", textwrap.dedent(loop)]
        environment = {**os.environ, "CLOUD_ML_HP_METRIC_FILE": self.file}
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.assertEqual(first.stdout.readline(), "start 0 False\n")
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=DEADLINE)
        self.assertEqual(first.returncode, 143, err)
        self.assertEqual(json.loads(err.splitlines()[-1])["verdict"]["child_code"], 0, err)
        second = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, timeout=DEADLINE)
        self.assertEqual((second.returncode, second.stdout), (0, "start 5 False\n"), second.stderr)
        self.assertEqual(self.lines()[-1]["global_step"], "10")


if __name__ == "__main__":
    unittest.main()
