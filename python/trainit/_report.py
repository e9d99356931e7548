"""Reports to the metrics file. Failures are warnings, because a metric must not end a training loop."""
import os
import socket
import sys
import warnings
from typing import Any, List, Optional, Set, Tuple

from . import _metrics_file
from ._first import is_first

RESERVED = ("checkpoint_path", "global_step", "timestamp", "trial")
# Limit of different warnings: a metric in every step must not fill the log.
MOST_WARNINGS = 20
# Limit of a message to the run, and of the seconds to wait for a run that does not read.
LONGEST_MESSAGE, TELL_LIMIT = 64 << 10, 0.1

_warned: Set[str] = set()


_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def warn(text: str) -> None:
    """Issues a warning, each text once, at the line of the caller that is not of this package."""
    if text not in _warned and len(_warned) < MOST_WARNINGS:
        _warned.add(text)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == _PACKAGE:
            level, frame = level + 1, frame.f_back
        warnings.warn("trainit: " + text, RuntimeWarning, stacklevel=level)


def metrics_path() -> str:
    """The metrics file; an empty variable counts as unset."""
    return os.environ.get("CLOUD_ML_HP_METRIC_FILE") or _metrics_file.DEFAULT_FILE


def keep() -> int:
    """The number of lines that stay in the file; 0 means all."""
    text = os.environ.get("TRAINIT_KEEP", "").strip()
    if text.isdigit():
        return int(text)
    if text:
        warn("TRAINIT_KEEP is %r, which is no whole number; the last 100 lines are kept" % text[:60])
    return _metrics_file.DEFAULT_KEEP


def is_asked() -> bool:
    """Whether reports have a reader: trainit runs this process, or a tuner's variable is set."""
    names = ("TRAINIT_ATTEMPT", "CLOUD_ML_HP_METRIC_FILE", "CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_TAG")
    return any(name in os.environ for name in names)


def tell(lines: bytes) -> None:
    """Sends a copy of lines to the run, for its status, page and verdict. The file counts, so a failure is silent."""
    status = os.environ.get("TRAINIT_SOCKET")
    if not status:
        return
    path = os.path.join(os.path.dirname(status), "reports")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as run:
            run.settimeout(TELL_LIMIT)
            while lines:
                end = lines.rfind(b"\n", 0, LONGEST_MESSAGE) + 1 or LONGEST_MESSAGE
                run.sendto(lines[:end], path)
                lines = lines[end:]
    except OSError:
        pass


def write(reports: List[Tuple[str, Any, Any, str]], every_rank: bool) -> bool:
    """Writes reports (tag, value, step, checkpoint path) in one write. Returns whether all of them were written; a report
    that was not is a warning. Never raises."""
    if not is_asked() or not (every_rank or is_first()):
        return False
    trial = os.environ.get("CLOUD_ML_TRIAL_ID", "0")
    lines = [_line(report, trial) for report in reports]
    data = b"".join(one for one in lines if one is not None)
    if not data:
        return False
    path = metrics_path()
    try:
        _file(path, keep()).append(data)
        tell(data)
    except OSError as error:
        warn("the metric is not in %s: %s; make that file writable, or name another with CLOUD_ML_HP_METRIC_FILE"
             % (path, error.strerror or error))
        return False
    return None not in lines


def _line(report: Tuple[str, Any, Any, str], trial: str) -> Optional[bytes]:
    tag, value, step, checkpoint_path = report
    try:
        tag = tag or os.environ.get("CLOUD_ML_HP_METRIC_TAG") or _metrics_file.DEFAULT_TAG
        if tag in RESERVED:
            raise ValueError("the tag is a key of every line in the metrics file; choose another")
        # A lone surrogate comes from text that is not UTF-8, which no reader could match.
        tag.encode("utf-8")
        number = str(float(value))
        count = str(0 if step is None else int(step))
        return _metrics_file.line(tag, number, count, os.fspath(checkpoint_path), trial)
    except Exception as error:  # a foreign __float__ may raise anything
        warn("the metric %s is not reported: %s: %s" % (repr(tag)[:60], type(error).__name__, str(error)[:200]))
        return None


_files: "dict[Tuple[str, int], _metrics_file.MetricsFile]" = {}


def _file(path: str, lines_kept: int) -> _metrics_file.MetricsFile:
    """The same object for the same file, because it remembers that waiting for the lock timed out."""
    if (path, lines_kept) not in _files:
        _files.clear()
        _files[path, lines_kept] = _metrics_file.MetricsFile(path, lines_kept)
    return _files[path, lines_kept]
