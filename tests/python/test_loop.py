"""The Python package: its promises to a training loop."""
import json
import os
import signal
import sys
import threading
import warnings
from unittest import mock

from case import Case

import trainit
from trainit import _metrics_file, _report


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

    def test_each_request_to_save_is_true_once_from_its_step_on(self):
        self.assertIs(trainit.should_save(1), False)
        self.under_trainit(TRAINIT_SAVE_STEP_FILE=os.path.join(self.dir, "save-step"))
        self.assertIs(trainit.should_save(1), False)
        for text in ("", "soon"):
            self.write("save-step", text)
            self.assertIs(trainit.should_save(1), False)
        self.write("save-step", "12\n")
        self.assertEqual([n for n in range(9, 16) if trainit.should_save(n)], [12])
        self.write("save-step", "20\n")
        self.assertEqual([n for n in range(23, 26) if trainit.should_save(n)], [23])

    def test_in_a_gang_the_loop_stops_at_the_step_at_which_all_save(self):
        self.under_trainit(TRAINIT_SAVE_AT_STEP_FILE=os.path.join(self.dir, "save-at-step"))
        self.assertIsNone(trainit.save_at_step())
        self.write("save-at-step", "12\n")
        self.write("preemption", "2999-01-01T00:00:00.000Z\n")
        self.assertEqual(trainit.save_at_step(), 12)
        self.assertIs(trainit.should_stop(), True, "the step of this replica is not known")
        answers = []
        for n in (10, 11, 12):
            trainit.step(n)
            answers.append(trainit.should_stop())
        self.assertEqual(answers, [False, False, True])
        trainit.step(11)
        self.write("preemption", "2001-01-01T00:00:00.000Z\n")
        self.assertIs(trainit.should_stop(), True, "the time for reaching that step is over")

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
