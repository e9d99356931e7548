"""A callback for Lightning's Trainer.

    trainer = lightning.Trainer(callbacks=[TrainitCallback()])
    trainer.fit(model, data, ckpt_path=trainit.resume_from())
"""
import sys
from typing import Any

import trainit

from . import _callback

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

__all__ = ["TrainitCallback"]


class TrainitCallback(Callback):  # type: ignore[misc]
    """Passes on the step and the metrics. On a notice, or a stop, it saves `step=N.ckpt` and ends the training."""

    def __init__(self) -> None:
        # Lightning keeps a handler of SIGTERM that is there before it starts.
        trainit.should_stop()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """The heartbeat, and the save at the same step in all processes."""
        trainit.step(trainer.global_step, **_callback.numbers(trainer.callback_metrics))
        if trainer.strategy.reduce_boolean_decision(trainit.should_stop(), all=False) and not trainer.should_stop:
            trainer.save_checkpoint(_callback.checkpoint("step=%d.ckpt" % trainer.global_step))
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """The metrics of a validation."""
        if not trainer.sanity_checking:
            _callback.report(trainer.callback_metrics, trainer.global_step)
