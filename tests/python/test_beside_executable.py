"""The Python package beside the executable that TRAINIT names, else beside the debug build if there is one."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import unittest
from unittest import mock

from case import Case, DEADLINE, EXECUTABLE

import trainit
from trainit import _first, _metrics_file

needs_executable = unittest.skipUnless(os.access(EXECUTABLE, os.X_OK), "no trainit executable: cargo build, or name one with TRAINIT")


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
