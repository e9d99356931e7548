"""What the tests of the Python package share."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
import warnings
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import trainit  # noqa: E402
from trainit import _report  # noqa: E402

DEADLINE = 60
# The tests' environment is empty, so this is read before.
EXECUTABLE = os.environ.get("TRAINIT") or os.path.join(os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target")), "debug/trainit")


class Case(unittest.TestCase):
    """A directory, an environment without variables of trainit or a tuner, and no earlier warning."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.file = os.path.join(self.dir, "sub", "output.metrics")
        clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "python"), "TMPDIR": self.dir, "TRAINIT_LOG_FORMAT": "json"}
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
