"""A drop-in replacement for the package cloudml-hypertune: `from trainit.hypertune import HyperTune`.

The lines are the same bytes. The differences: reports of other and of earlier processes stay in the file, any number of
processes may report at once, and a kill at any moment leaves a readable file. It works with and without trainit.
"""
import os
from typing import Any, Optional

from . import _metrics_file
from ._report import keep, metrics_path, tell

__all__ = ["HyperTune"]


class HyperTune:
    """Reports metrics of one trial to `$CLOUD_ML_HP_METRIC_FILE`, else `/tmp/hypertune/output.metrics`."""

    def __init__(self) -> None:
        """Creates the file's directory. Raises OSError if that fails."""
        self.metric_path = metrics_path()
        folder = os.path.dirname(self.metric_path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        self.trial_id = os.environ.get("CLOUD_ML_TRIAL_ID", "0")
        self._file = _metrics_file.MetricsFile(self.metric_path, keep())

    def report_hyperparameter_tuning_metric(
        self,
        hyperparameter_metric_tag: Optional[str],
        metric_value: Any,
        global_step: Any = None,
        checkpoint_path: Any = "",
    ) -> None:
        """Writes one report. The default tag is `training/hptuning/metric`, the default step 0.

        Raises ValueError, TypeError or OverflowError if value or step is no number, TypeError if the checkpoint path has no JSON
        form, and OSError if the file cannot be written. The file is unchanged then."""
        value = str(float(metric_value))
        step = str(int(global_step) if global_step else 0)
        tag = hyperparameter_metric_tag or _metrics_file.DEFAULT_TAG
        line = _metrics_file.line(tag, value, step, checkpoint_path, self.trial_id)
        self._file.append(line)
        tell(line)
