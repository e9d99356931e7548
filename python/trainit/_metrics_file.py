"""The metrics file: appends whole lines under a lock, on the same inode, as `trainit report-metric` does.

The protocol is that of the executable (`src/edge/fs/metrics_file.rs`, `src/rules/metric/plan.rs`), so both may write at once:
open for appending, flock(2) the file itself, truncate or complete an unfinished last line, append in one write, and trim in
place. Deliberately absent: a temporary file with a rename (a reader that follows the file would stay on the old inode, and a
bind mount refuses it), truncation before writing, and any flush to the device.
"""
import errno
import fcntl
import json
import os
import stat
import time
from typing import Any, List, NamedTuple, NoReturn, Optional, Tuple

DEFAULT_FILE = "/tmp/hypertune/output.metrics"
DEFAULT_TAG = "training/hptuning/metric"
DEFAULT_KEEP = 100

# Seconds to wait for the lock or for a FIFO's reader: the first time, and after a wait that timed out.
PATIENCE, MOMENT = 5.0, 0.02
# Seconds between two tries: at first, and at most.
PAUSES = (50e-6, 5e-3)
# An unfinished last line longer than this cannot be a report.
LONGEST_LINE = 1 << 20
# A longer file is not trimmed, because a trim holds it in memory.
LARGEST_TRIM = 256 << 20
# White space around a line: ASCII without the vertical tab.
BLANKS = b" \t\n\x0c\r"


class Plan(NamedTuple):
    """What one write does to the file. Without `content` the new lines are appended."""

    cut_to: Optional[int]  # shorten the file to this first
    newline_first: bool  # the last line lacks only its newline
    content: Optional[bytes]  # write this over the file from its start
    length: int  # then shorten the file to this


def line(tag: str, value: str, step: str, checkpoint_path: Any, trial: str) -> bytes:
    """One report, its newline included. The order of the keys decides where a tag equals one of them.

    Raises TypeError if `checkpoint_path` has no JSON form."""
    fields = {"timestamp": time.time(), "trial": trial, tag: value, "global_step": step, "checkpoint_path": checkpoint_path}
    return json.dumps(fields, sort_keys=True).encode("ascii") + b"\n"


def plan(tail: bytes, start: int, new: bytes, keep: int) -> Plan:
    """Plans a write. `tail` is the end of the file from offset `start`; the whole file if `keep` is not 0."""
    end_of_lines = tail.rfind(b"\n") + 1
    rest = tail[end_of_lines:]
    lacks_newline = bool(rest) and _is_object(rest)
    is_torn = bool(rest) and not lacks_newline
    kept = _lines(tail if lacks_newline else tail[:end_of_lines]) + _lines(new)
    if keep == 0 or len(kept) <= keep:
        return Plan(start + end_of_lines if is_torn else None, lacks_newline, None, 0)
    content = b"".join(one + b"\n" for one in kept[-keep:])
    # Padded with newlines to the old size: a kill before the truncation leaves blank lines, which readers skip.
    return Plan(None, False, content.ljust(start + len(tail), b"\n"), len(content))


def _lines(data: bytes) -> List[bytes]:
    return [one for one in data.split(b"\n") if one.strip(BLANKS)]


def _is_object(data: bytes) -> bool:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    if not data.lstrip(BLANKS).startswith(b"{"):
        return False
    try:
        json.loads(data.decode("utf-8"), parse_constant=refuse)
        return True
    except (ValueError, RecursionError):
        return False


class MetricsFile:
    """The destination of reports. Safe for threads, forks and other processes: every write opens and locks the file."""

    def __init__(self, path: str, keep: int = DEFAULT_KEEP) -> None:
        self.path, self.keep = path, keep
        self._is_stuck = False

    def append(self, lines: bytes) -> None:
        """Appends whole lines in one write. If it raises OSError, the file is unchanged, except for a FIFO or device."""
        try:
            mode = os.stat(self.path).st_mode
        except OSError:
            mode = 0
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            self._send(lines)
            return
        if stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "it is a block device, and a write would overwrite its data", self.path)
        fd = self._open()
        try:
            if self._lock(fd):
                try:
                    self._write_locked(fd, lines)
                finally:
                    # close(2) is not enough: a child that was forked meanwhile holds the descriptor, and with it the lock.
                    fcntl.flock(fd, fcntl.LOCK_UN)
            else:
                self._write_unlocked(fd, lines)
        finally:
            os.close(fd)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
        try:
            return os.open(self.path, flags | os.O_CREAT, 0o666)
        except FileNotFoundError:
            folder = os.path.dirname(self.path)
            if folder:
                os.makedirs(folder, exist_ok=True)
            return os.open(self.path, flags | os.O_CREAT, 0o666)
        except PermissionError:
            # fs.protected_regular refuses O_CREAT on another user's file in a sticky directory, but not writing to it.
            return os.open(self.path, flags)

    def _lock(self, fd: int) -> bool:
        waits = _Patience(MOMENT if self._is_stuck else PATIENCE)
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._is_stuck = False
                return True
            except BlockingIOError:
                if not waits.wait():
                    self._is_stuck = True
                    return False
            except OSError:
                # A file system without locks.
                return False

    def _write_locked(self, fd: int, lines: bytes) -> None:
        size = os.fstat(fd).st_size
        start, old = self._read_end(fd, size)
        cut_to, newline_first, content, length = plan(old, start, lines, self.keep)
        if content is None:
            if cut_to is not None:
                os.ftruncate(fd, cut_to)
            self._append_whole(fd, newline_first, lines)
            return
        # Writers without the lock append; their lines must not be overwritten.
        if os.fstat(fd).st_size != len(old):
            self._append_whole(fd, False, lines)
            return
        # With O_APPEND, pwrite(2) ignores its offset.
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
        if os.pwrite(fd, content, 0) < len(content):
            os.pwrite(fd, old, 0)
            os.ftruncate(fd, size)
            raise self._no_room()
        if os.fstat(fd).st_size == len(content):
            os.ftruncate(fd, length)

    def _read_end(self, fd: int, size: int) -> Tuple[int, bytes]:
        """Returns an offset and the data from there: the whole file if it may be trimmed, else from its last newline."""
        if self.keep > 0 and size > LARGEST_TRIM:
            raise OSError(errno.EFBIG, "too large to trim; TRAINIT_KEEP=0 never trims", self.path)
        wanted = size if self.keep > 0 else 4096
        while True:
            start = max(0, size - wanted)
            end = _read(fd, start, size - start)
            unfinished = len(end) - (end.rfind(b"\n") + 1)
            if unfinished > LONGEST_LINE:
                raise OSError(errno.EINVAL, "its last line is longer than 1 MiB, so it is not a metrics file", self.path)
            if unfinished < len(end) or start == 0:
                return start, end
            wanted *= 8

    def _write_unlocked(self, fd: int, lines: bytes) -> None:
        """Only appends; a torn line of another writer stays, on a line of its own."""
        size = os.fstat(fd).st_size
        last = _read(fd, max(0, size - 1), 1)
        self._append_whole(fd, bool(last) and last != b"\n", lines)

    def _append_whole(self, fd: int, newline_first: bool, lines: bytes) -> None:
        data = b"\n" + lines if newline_first else lines
        written = os.write(fd, data)
        if written < len(data):
            end = os.lseek(fd, 0, os.SEEK_CUR)
            if os.fstat(fd).st_size == end:
                os.ftruncate(fd, end - written)
            raise self._no_room()

    def _send(self, lines: bytes) -> None:
        """Writes to a FIFO or a device: no lock, no trim, and no waiting for a missing reader."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            waits = _Patience(PATIENCE)
            while lines:
                try:
                    lines = lines[os.write(fd, lines):]
                except BlockingIOError:
                    if not waits.wait():
                        raise
        finally:
            os.close(fd)

    def _no_room(self) -> OSError:
        return OSError(errno.ENOSPC, "no space for the report; the file is unchanged", self.path)


def _read(fd: int, at: int, wanted: int) -> bytes:
    """Reads at most `wanted` bytes; fewer if the file was truncated meanwhile."""
    parts = []
    while wanted > 0:
        part = os.pread(fd, wanted, at)
        if not part:
            break
        parts.append(part)
        at, wanted = at + len(part), wanted - len(part)
    return b"".join(parts)


class _Patience:
    """Waits longer each time, up to `limit` seconds in total."""

    def __init__(self, limit: float) -> None:
        self._until: Optional[float] = None
        self._limit, self._pause = limit, PAUSES[0]

    def wait(self) -> bool:
        """Sleeps and returns True, or returns False when the limit is reached."""
        if self._until is None:
            self._until = time.monotonic() + self._limit
        if time.monotonic() >= self._until:
            return False
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, PAUSES[1])
        return True
