"""What the writers of kill.py share: a loop of saves, and a content that names its step."""
import itertools
import os

# Before the first import of numpy, which otherwise starts threads. A fork would lose them.
os.environ.update(CUDA_VISIBLE_DEVICES="-1", GLOO_SOCKET_IFNAME="lo", JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1",
                  TF_CPP_MIN_LOG_LEVEL="3")

import numpy  # noqa: E402


class Writer:
    """A framework that saves checkpoints. A writer has hooks for the common loop, or its own `save`."""

    name = None      # trainit's name for a unit, with the step as %d; without %d all saves have this name
    first = 1        # the first step
    keep = None      # how many checkpoints the framework keeps; None: all
    processes = 1    # of the writer; one may be killed first

    def prepare(self):
        """Imports, in the parent; nothing that starts a thread."""

    def open(self, directory, rank):
        """Prepares the process that saves."""

    def state(self, step):
        """The content of this step."""
        return filled(step)

    def write(self, state, path, step):
        """Saves the content as the unit with this path."""
        raise NotImplementedError

    def save(self, directory, rank, say):
        """Saves until it is killed, with say("begin", step) and say("done", step) around each save."""
        self.open(directory, rank)
        for step in itertools.count(self.first):
            state = self.state(step)
            say("begin", step)
            self.write(state, os.path.join(directory, self.unit(step)), step)
            say("done", step)

    def load(self, path):
        """The step whose content the unit has. Raises if it cannot be loaded."""
        raise NotImplementedError

    def unit(self, step):
        return self.name % step if "%" in self.name else self.name

    def must_be_complete(self, begun, done):
        """Units whose save has returned and that no process has changed since."""
        if "%" not in self.name:
            return {self.name} if begun in done else set()
        oldest = begun - self.keep + 1 if self.keep else 0
        # The current save may already be deleting the oldest checkpoint.
        return {self.unit(step) for step in done if step >= oldest}


def filled(step, size=1 << 20, count=4):
    """Arrays that only this step has."""
    return {"w%d" % n: numpy.arange(size, dtype="float32") + step * 10 + n for n in range(count)}


def step_of(arrays):
    """The step of these arrays. Raises if they are of no step."""
    arrays = {name: numpy.asarray(array) for name, array in arrays.items()}
    step = int(arrays["w0"].reshape(-1)[0]) // 10
    for name, array in filled(step, arrays["w0"].size, len(arrays)).items():
        if not numpy.array_equal(arrays[name], array):
            raise ValueError("%s of step %d has other content" % (name, step))
    return step
