"""Calls for a training loop that runs under trainit.

    import trainit

    start = load(trainit.resume_from()) if trainit.resume_from() else 0
    for n in range(start, steps):
        loss = train_step()
        trainit.step(n, loss=loss)
        if trainit.should_stop():
            save(trainit.checkpoint_dir())
            break

Every call is optional, and harmless outside trainit. Only HyperTune and a wrong call raise exceptions; a failure of any other
call is one RuntimeWarning. All calls are safe in any thread and after a fork. trainit.transformers, trainit.lightning and
trainit.keras have callbacks; each imports its library.
"""
import atexit
import datetime
import os
import signal
import threading
import time
from typing import Any, Dict, Optional, Tuple, TypeVar, Union, overload

from . import _error, _report

__all__ = ["checkpoint_dir", "deadline", "report", "resume_from", "resume_step", "save_at_step", "should_save",
           "should_stop", "step"]

__version__ = "0.1.0"

# Seconds between two writes of step(): heartbeat and metrics.
_PERIOD = 1.0

_Default = TypeVar("_Default")


class _Steps:
    """Values passed to step() and not yet written."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may call step().
        self.lock = threading.RLock()
        self.due = 0.0
        self.pending: Dict[str, Tuple[Any, Any]] = {}
        # The step of the last call.
        self.last: Any = None


_steps = _Steps()
# The handler below received SIGTERM.
_got_sigterm = False
# The request of the last should_save() that was true.
_saved_request: Optional[int] = None
# The main thread has checked whether it must install the handler.
_checked_handler = False


def step(n: Any = None, /, *, total: Any = None, **metrics: Any) -> None:
    """Writes the heartbeat with step `n`, for --hang-timeout and the verdict, and reports metrics.

    Cheap enough for every step. Heartbeat and metrics are written at most once a second: the newest value of each metric, with
    its own step. The last values are written when Python ends. float() converts a value when it is written, so a GPU tensor is
    synchronised once a second, not at each step. Use report() for a value that must not be skipped. Every rank writes
    heartbeats; only the first rank reports metrics. `total` is the training's last step, for the progress and the time left."""
    if "step" in metrics:
        raise TypeError("the step is the first argument: trainit.step(%r), not trainit.step(step=%r)" % ((metrics["step"],) * 2))
    steps = _steps
    now = time.monotonic()
    with steps.lock:
        steps.last = n
        for tag, value in metrics.items():
            steps.pending[tag] = (n, value)
        if now < steps.due:
            return
        steps.due = now + _PERIOD
        pending, steps.pending = steps.pending, {}
    _beat(n, total)
    _write(pending)


def report(tag: str, value: Any, step: Any = None, checkpoint_path: Any = "", *, every_rank: bool = False) -> bool:
    """Appends one metric to the tuner's file, as `trainit report-metric` does. Returns whether it was written.

    float() converts `value`, int() converts `step`. An empty tag means `$CLOUD_ML_HP_METRIC_TAG`. Only the first rank reports,
    unless `every_rank` is true. Outside trainit and outside a tuner's trial nothing is written."""
    return _report.write([(tag, value, step, checkpoint_path)], every_rank)


def should_stop() -> bool:
    """Returns whether the trainer must save and exit, because of a preemption or a stop.

    The first call in the main thread under trainit installs a SIGTERM handler, unless SIGTERM already has one. Without a handler
    SIGTERM ends Python. A call takes about two microseconds.

    In a gang, after a notice, it is true from the step of save_at_step() on, so that all replicas save the same step: call
    step() before it. Half of the time until the deadline is the limit for reaching that step."""
    path = os.environ.get("TRAINIT_PREEMPTION_FILE")
    if not path:
        return False
    if not _checked_handler:
        _install_handler()
    return (_got_sigterm or os.path.exists(path)) and not _saves_later()


def should_save(step: int, /) -> bool:
    """Returns whether to save now: true once for each request of trainit, at the first call with this step or a later one.

    trainit asks at the interval of --save-interval, and after a notice. All ranks get the same step, so call this at each step
    on each rank, after step(). A call takes about ten microseconds."""
    global _saved_request
    try:
        with open(os.environ.get("TRAINIT_SAVE_STEP_FILE") or os.devnull, encoding="ascii") as file:
            request = int(file.read(30))
    except (OSError, ValueError):
        return False
    if request == _saved_request or step < request:
        return False
    _saved_request = request
    return True


def save_at_step() -> Optional[int]:
    """Returns the step at which all replicas of a gang save after a notice; None if there is no such step."""
    found = _save_at_step()
    return found[0] if found else None


def _save_at_step() -> Optional[Tuple[int, float]]:
    """The step, and the time of the notice."""
    try:
        with open(os.environ.get("TRAINIT_SAVE_AT_STEP_FILE") or os.devnull, encoding="ascii") as file:
            return int(file.read(30)), os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError):
        return None


def _saves_later() -> bool:
    """Whether this replica has not reached the common step yet, and has the time to reach it."""
    found, end, last = _save_at_step(), deadline(), _steps.last
    if found is None or end is None or not isinstance(last, int):
        return False
    at, noticed = found
    return last < at and time.time() < (noticed + end.timestamp()) / 2


def deadline() -> Optional[datetime.datetime]:
    """Returns when trainit will kill this process, in UTC; None if no end is known."""
    path = os.environ.get("TRAINIT_PREEMPTION_FILE")
    try:
        with open(path or os.devnull, encoding="ascii") as file:
            text = file.read(100).strip()
        # Python before 3.11 does not parse Z.
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
    except (OSError, ValueError):
        return None


def resume_from() -> Optional[str]:
    """Returns what to load: a file, a directory or a TensorFlow prefix; None to start at the beginning."""
    return os.environ.get("TRAINIT_RESUME_FROM") or None


def resume_step() -> Optional[int]:
    """Returns the step of resume_from(); None if it is not known."""
    text = os.environ.get("TRAINIT_RESUME_STEP", "")
    return int(text) if text.isdigit() else None


@overload
def checkpoint_dir() -> Optional[str]: ...


@overload
def checkpoint_dir(default: _Default) -> Union[str, _Default]: ...


def checkpoint_dir(default: Any = None) -> Any:
    """Returns where to save checkpoints; `default` if trainit has no checkpoint directory."""
    return os.environ.get("TRAINIT_CHECKPOINT_DIR") or default


def _beat(n: Any, total: Any = None) -> None:
    """Replaces the heartbeat file atomically: a reader finds the old step or the new one."""
    path = os.environ.get("TRAINIT_HEARTBEAT_FILE")
    if not path:
        return
    try:
        text = "{}" if n is None else '{"step": %d}' % int(n)
        if n is not None:
            end = b"" if total is None else b', "total_steps": %d' % int(total)
            _report.tell(b'{"global_step": "%d", "timestamp": %r%s}\n' % (int(n), time.time(), end))
    except Exception as error:  # a foreign __int__ may raise anything
        _report.warn("the step %s is no whole number (%s), so the heartbeat has no step" % (repr(n)[:60], type(error).__name__))
        text = "{}"
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, ".%s.%d.%d" % (name, os.getpid(), threading.get_native_id()))
    try:
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
        os.replace(hidden, path)
    except OSError as error:
        _report.warn("no heartbeat: %s: %s; --hang-timeout watches output and checkpoints instead" % (path, error.strerror))


def _write(pending: Dict[str, Tuple[Any, Any]]) -> None:
    if pending:
        _report.write([(tag, value, n, "") for tag, (n, value) in pending.items()], every_rank=False)


def _flush() -> None:
    """Writes the values that step() has not written yet."""
    with _steps.lock:
        pending, _steps.pending = _steps.pending, {}
    _write(pending)


def _on_sigterm(_signal: int, _frame: Any) -> None:
    global _got_sigterm
    _got_sigterm = True


def _install_handler() -> None:
    global _checked_handler
    if threading.current_thread() is not threading.main_thread():
        return
    _checked_handler = True
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        try:
            signal.signal(signal.SIGTERM, _on_sigterm)
        except ValueError:
            # A subinterpreter receives no signals.
            pass


def _after_fork() -> None:
    """The child has its own lock and nothing to write. SIGTERM ends it until it calls should_stop() itself."""
    global _steps, _got_sigterm, _checked_handler
    _steps, _got_sigterm, _checked_handler = _Steps(), False, False
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _at_exit() -> None:
    """Python removes its handlers before it ends. A trainer that saved because of the file is not ended by a late SIGTERM."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is _on_sigterm and should_stop():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _flush()


_error.install()
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
