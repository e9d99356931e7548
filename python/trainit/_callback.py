"""What the callbacks share."""
import os
from typing import Any, Dict, Mapping, Optional

import trainit

from ._report import RESERVED


def numbers(values: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """The values that can be metrics: text, lists and names that trainit uses are left out."""
    found = {}
    for tag, value in (values or {}).items():
        try:
            float(value)
        except (TypeError, ValueError):
            continue
        if isinstance(tag, str) and tag not in RESERVED and tag not in ("step", "total"):
            found[tag] = value
    return found


def report(values: Optional[Mapping[str, Any]], step: int) -> None:
    """Reports values that must not be skipped, such as those of a validation."""
    for tag, value in numbers(values).items():
        trainit.report(tag, value, step=step)


def checkpoint(name: str) -> str:
    """The path of a checkpoint in trainit's directory, or in the present one."""
    folder = trainit.checkpoint_dir(".")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)
