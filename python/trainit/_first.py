"""Decides whether this process is the first of its job, as `trainit report-metric --rank0-only` does.

The order is that of the executable (`src/rules/cluster/first.rs`): the rank of the process, else the task in the cluster's
description, else the rank of the host. Without a sign of other processes this process is the first.
"""
import json
import os
import re
from typing import Any, Optional

# The first variable of each row is the rank. It counts only if all variables of the row are set.
RANKS = (
    ("RANK",),
    ("OMPI_COMM_WORLD_RANK",),
    ("PMI_RANK",),
    ("PMIX_RANK",),
    ("JAX_PROCESS_ID",),
    ("PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_ADDRESS"),
    ("SLURM_PROCID",),
)
TASKS = ("TF_CONFIG", "CLUSTER_SPEC")
HOSTS = ("PET_NODE_RANK", "TPU_WORKER_ID", "MEGASCALE_SLICE_ID")


def is_first() -> bool:
    """Reads the environment; never raises."""
    for names in RANKS:
        if all(map(_given, names)):
            return _is_zero(_given(names[0]))
    for name in TASKS:
        answer = _is_first_task(_json(_given(name)))
        if answer is not None:
            return answer
    return all(_is_zero(_given(name)) for name in HOSTS if _given(name)) and _is_first_name()


def _given(name: str) -> str:
    """The value of a variable; empty if it is unset, blank or not UTF-8."""
    text = os.environ.get(name, "")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return ""
    return text if text.strip() else ""


def _is_zero(rank: str) -> bool:
    return re.match(r"\+?0+\Z", rank.strip()) is not None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_first_name() -> bool:
    hosts = _json(_given("SM_HOSTS"))
    if not _given("SM_CURRENT_HOST") or not isinstance(hosts, list) or not hosts:
        return True
    if not all(isinstance(host, str) for host in hosts):
        return True
    return bool(hosts[0] == _given("SM_CURRENT_HOST").strip())


def _is_first_task(spec: Any) -> Optional[bool]:
    """None if the description names no task."""
    task = spec.get("task") if isinstance(spec, dict) else None
    if not isinstance(task, dict) or not isinstance(task.get("type"), str):
        return None
    kind = task["type"]
    cluster = spec.get("cluster")

    def has(role: str) -> bool:
        tasks = cluster.get(role) if isinstance(cluster, dict) else None
        return isinstance(tasks, (list, dict)) and bool(tasks)

    is_reporter = kind in ("chief", "master", "workerpool0") or (
        kind == "worker" and "cluster" in spec and not has("chief") and not has("master")
    )
    index = task.get("index", 0)
    if isinstance(index, str):
        try:
            index = float(index)
        except ValueError:
            return False
    return is_reporter and isinstance(index, (int, float)) and not isinstance(index, bool) and index == 0
