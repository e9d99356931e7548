"""A callback for Keras, with any backend.

    model = keras.models.load_model(trainit.resume_from()) if trainit.resume_from() else build()
    model.fit(data, callbacks=[TrainitCallback()])
"""
import os
from typing import Any

import keras

import trainit

from . import _callback

__all__ = ["TrainitCallback"]


class TrainitCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Passes on the step and the metrics. On a notice, or a stop, it saves `step-N.keras` and ends the training."""

    def __init__(self) -> None:
        super().__init__()
        self._step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """A loaded model goes on with the step of its optimizer."""
        self._step = int(self.model.optimizer.iterations)
        trainit.should_stop()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The heartbeat, and the save."""
        self._step += 1
        trainit.step(self._step, **_callback.numbers(logs))
        if trainit.should_stop() and not self.model.stop_training:
            self._save()
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The metrics of the epoch, those of the validation too."""
        _callback.report(logs, self._step)

    def _save(self) -> None:
        done = _callback.checkpoint("step-%d.keras" % self._step)
        # A file that begins with .tmp is not committed.
        new = os.path.join(os.path.dirname(done), ".tmp-" + os.path.basename(done))
        self.model.save(new)
        os.replace(new, done)
