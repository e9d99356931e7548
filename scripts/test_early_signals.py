"""Sends SIGTERM to inits in their first milliseconds as PID 1; scripts/test-early-signals says what for.

Each trial clones a process that is PID 1 of a new namespace, which execs the init; the exec is known to have happened when
a close-on-exec pipe ends. After a random pause SIGTERM is sent. The command is a `sleep` that nothing else would end: who is
still alive a third of a second later has lost the signal. The inits beside tini-static get a fifth of the trials.
Standard library only.
"""
import ctypes
import os
import random
import select
import signal
import sys
import time

CLONE_NEWPID = 0x20000000
LATEST_MS = 6
PATIENCE = 0.3
INITS = {"tini-static": [], "tini": [], "dumb-init": [], "catatonit": []}
libc = ctypes.CDLL(None, use_errno=True)


def start(command):
    """Execs the command as PID 1 of a namespace of its own; returns its process id here, when the exec has happened."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pids, told = os.pipe2(os.O_CLOEXEC)
    parent = os.fork()
    if parent == 0:
        if libc.unshare(CLONE_NEWPID) != 0:
            os._exit(97)
        pid = os.fork()
        if pid == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            os.execvp(command[0], command)
        os.write(told, b"%d" % pid)
        os._exit(0)
    os.close(write)
    os.close(told)
    pid = int(os.read(pids, 32))
    os.close(pids)
    os.waitpid(parent, 0)
    os.read(read, 1)
    begun = time.perf_counter()
    os.close(read)
    return pid, begun


def has_blocked(pid):
    """Whether it has blocked SIGTERM by now."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as status:
            line = next(line for line in status if line.startswith("SigBlk"))
        return int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1 == 1
    except (OSError, StopIteration):
        return False


def ends(pidfd, seconds):
    return bool(select.select([pidfd], [], [], seconds)[0])


def trial(command, pause_ms):
    """(lost, whether it had blocked its signals when the signal was sent)"""
    pid, begun = start(command)
    pidfd = os.pidfd_open(pid)
    while (time.perf_counter() - begun) * 1000 < pause_ms:
        pass
    blocked = has_blocked(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    lost = not ends(pidfd, PATIENCE)
    if lost:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ends(pidfd, 10)
    os.close(pidfd)
    return lost, blocked


def main():
    trainit, trials, seed = os.path.abspath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # PID 1 is reparented to us when the process between has gone: then it is ours to reap.
    libc.prctl(36, 1, 0, 0, 0)
    rng = random.Random(seed)
    pauses = [rng.uniform(0, LATEST_MS) for _ in range(trials)]
    commands = {name: [name, *flags, "--", "sleep", "1000"] for name, flags in INITS.items()}
    commands["trainit"] = [trainit, "run", "--", "sleep", "1000"]
    lost = {name: [] for name in commands}
    after_mask = 0
    tried = dict.fromkeys(commands, 0)
    for number, pause in enumerate(pauses):
        for name, command in commands.items():
            if number % 5 and name not in ("trainit", "tini-static"):
                continue
            tried[name] += 1
            was_lost, blocked = trial(command, pause)
            if was_lost:
                lost[name].append(pause)
                after_mask += name == "trainit" and blocked
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
    print("SIGTERM 0 to %d ms after the exec as PID 1: lost (the latest at)" % LATEST_MS)
    for name, pauses_lost in lost.items():
        latest = " (%.2f ms)" % max(pauses_lost) if pauses_lost else ""
        print("  %-12s %4d of %d%s" % (name, len(pauses_lost), tried[name], latest))
    print("  trainit, after it had blocked its signals: %d" % after_mask)
    bad = after_mask > 0 or len(lost["trainit"]) > len(lost["tini-static"])
    print("FAILED" if bad else "early signals: as promised")
    sys.exit(bad)


if __name__ == "__main__":
    main()
