"""Leaves the exception that ends Python for trainit's verdict, in the file and form of PyTorch's elastic launcher."""
import json
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any, Optional, Type

_previous: Any = None


def install() -> None:
    """Puts the hook before the present one. A second call does nothing."""
    global _previous
    if sys.excepthook is not _hook:
        _previous, sys.excepthook = sys.excepthook, _hook


def _hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    try:
        _write(kind, error, trace)
    except Exception:  # the error itself must still be shown
        pass
    _previous(kind, error, trace)


def _write(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    stack = "".join(traceback.format_exception(kind, error, trace))[-65536:]
    message = "".join(traceback.format_exception_only(kind, error)).strip()[:4096]
    document = {"message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))}}}
    # What PyTorch has written already is kept.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump(document, file)
