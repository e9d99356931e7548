"""The metrics file: appends whole lines under a lock, on the same inode, as `trainit report-metric` does.

The protocol is that of the executable (`src/edge/fs/metrics_file.rs`, `src/rules/metric/report/plan.rs`), so both may write at once:
open for appending, flock(2) the file itself, truncate or complete an unfinished last line, append in one write, and trim in
place, or finish the trim of a process that was killed. Deliberately absent: a temporary file with a rename (a reader that follows the file would stay on the old inode, and a
bind mount refuses it), truncation before writing, and any flush to the device.
"""
import errno
import fcntl
import json
import os
import stat
import time
import zlib
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
# Bytes of a mark: one for each bit of the two numbers, and a newline.
MARK = 65
# The limit for places that are tried as the end of a killed write.
MOST_PLACES = 64


class Trim(NamedTuple):
    """Moves the last lines of a file to its front."""

    at: int  # write here
    content: bytes  # this, up to the end of the mark
    length: int  # then shorten the file to this, unless lines were appended meanwhile


class Plan(NamedTuple):
    """What one write does to the file."""

    cut_to: Optional[int]  # shorten the file to this first
    append: bytes  # in one write
    trim: Optional[Trim]


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
    cut_to = start + end_of_lines if rest and not lacks_newline else None
    newline = b"\n" if lacks_newline else b""
    old = tail if lacks_newline else tail[:end_of_lines]
    if keep == 0 or len(_lines(old)) + len(_lines(new)) <= keep:
        return Plan(cut_to, newline + new, None)
    append = newline + new[_start_of_last(new, keep):]
    file = old + append
    dropped = _start_of_last(file, keep)
    kept = file[dropped:]
    return Plan(cut_to, append + _mark(dropped, kept), _trim(0, kept, len(kept), dropped))


def unfinished(file: bytes) -> Optional[Trim]:
    """The rest of a trim that was killed, in the whole file. Blank lines at the end are dropped, too."""
    trim, length = _marked(file), _start_of_blank_end(file)
    if trim is None and length < len(file):
        return Trim(length, b"\n" * (len(file) - length), length)
    return trim


def _start_of_blank_end(file: bytes) -> int:
    lines = len(file.rstrip(BLANKS))
    # The newline of the last line.
    return lines + (1 if lines and file[lines:lines + 1] == b"\n" else 0)


def _marked(file: bytes) -> Optional[Trim]:
    """`src/rules/metric/report/plan.rs` has the reasons."""
    end, found = len(file), None
    while found is None:
        end = file.rfind(b"\n", 0, end)
        if end + 1 < MARK:
            return None
        found = _read_mark(file[end + 1 - MARK:end + 1])
    (dropped, total), file = found, file[:end + 1 - MARK]
    length = len(file) - dropped
    if dropped == 0 or length < 0:
        return None
    run, places = 0, [0, length]
    for at in range(length):
        run = run + 1 if file[at] == file[at + dropped] else 0
        place = at + 1
        ends = place < length and file[place] != file[place + dropped]
        if run >= min(place, dropped) and ends and len(places) < MOST_PLACES:
            places.append(place)
    for place in places:
        if zlib.adler32(file[:place] + file[place + dropped:]) == total:
            return _trim(place, file[place + dropped:], length, dropped)
    return None


def _trim(at: int, rest: bytes, length: int, dropped: int) -> Trim:
    return Trim(at, rest + b"\n" * (dropped + MARK), length)


def _mark(dropped: int, kept: bytes) -> bytes:
    """A line of spaces (0) and tabs (1): how many bytes a trim drops, and the sum of those that stay."""
    digits = format(dropped << 32 | zlib.adler32(kept), "064b")
    return digits.replace("0", " ").replace("1", "\t").encode("ascii") + b"\n"


def _read_mark(line: bytes) -> Optional[Tuple[int, int]]:
    if line[:-1].strip(b" \t") or line[-1:] != b"\n":
        return None
    bits = int(line[:-1].replace(b" ", b"0").replace(b"\t", b"1"), 2)
    return bits >> 32, bits & 0xFFFFFFFF


def _start_of_last(data: bytes, count: int) -> int:
    """Where the last `count` lines start that are not blank."""
    start = at = len(data)
    for one in reversed(data.split(b"\n")):
        at -= len(one)
        if one.strip(BLANKS):
            if count == 0:
                break
            start, count = at, count - 1
        at -= 1
    return start


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
        if _start_of_blank_end(old) < len(old) if self.keep == 0 else unfinished(old):
            self._finish_trim(fd)
            size = os.fstat(fd).st_size
            start, old = self._read_end(fd, size)
        cut_to, append, trim = plan(old, start, lines, self.keep)
        if cut_to is not None:
            os.ftruncate(fd, cut_to)
            size = cut_to
        self._append_whole(fd, append)
        # Writers without the lock append; if lines of theirs came before the mark, the plan is not of this file.
        if trim is not None and os.fstat(fd).st_size == size + len(append):
            self._move_lines(fd, trim)

    def _finish_trim(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        trim = unfinished(_read(fd, 0, size)) if size <= LARGEST_TRIM else None
        if trim is not None:
            self._move_lines(fd, trim)

    @staticmethod
    def _move_lines(fd: int, trim: Trim) -> None:
        """The mark at the end is overwritten last, so a killed or failed write can be continued by the next report."""
        # With O_APPEND, pwrite(2) ignores its offset.
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_APPEND)
        try:
            if os.pwrite(fd, trim.content, trim.at) == len(trim.content):
                if os.fstat(fd).st_size == trim.at + len(trim.content):
                    os.ftruncate(fd, trim.length)
        except OSError:
            # The lines are in the file.
            pass
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)

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
        self._append_whole(fd, b"\n" + lines if last not in (b"", b"\n") else lines)

    def _append_whole(self, fd: int, data: bytes) -> None:
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
