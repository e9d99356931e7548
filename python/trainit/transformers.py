"""A callback for the Trainer of Transformers, and of the libraries that are built on it (TRL, PEFT).

    trainer = transformers.Trainer(args=TrainingArguments(output_dir=trainit.checkpoint_dir("out"), ...),
                                   callbacks=[TrainitCallback()], ...)
    trainer.train(resume_from_checkpoint=trainit.resume_from())
"""
from typing import Any

from transformers import TrainerCallback

import trainit

from . import _callback

__all__ = ["TrainitCallback"]


class TrainitCallback(TrainerCallback):  # type: ignore[misc]
    """Passes on the step and the metrics. On a notice, or a stop, the Trainer saves and ends."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Installs the handler of SIGTERM before the first step."""
        trainit.should_stop()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The heartbeat, and the end at the same step in all processes."""
        trainit.step(state.global_step, total=getattr(state, "max_steps", None) or None)
        if _any(trainit.should_stop(), args):
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Metrics of training and of evaluations."""
        _callback.report(logs, state.global_step)


def _any(is_asked: bool, args: Any) -> bool:
    """Whether any process is asked to stop. All must save at the same step, because a save waits for all of them."""
    if getattr(args, "world_size", 1) < 2:
        return is_asked
    import torch

    flag = torch.tensor(int(is_asked), device=args.device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
