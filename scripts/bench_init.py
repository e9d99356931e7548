"""Measures inits side by side; scripts/bench-init calls it with trainit last. Standard library only.

Everything is taken in turns, one round of all inits after the other, so that a noisy minute hits all of them alike:
  forward   SIGTERM to the init -> the child's handler runs (the child says when, by CLOCK_MONOTONIC), soon after the
            start and after a while of idling
  orphans   10,000 grandchildren that end at once, adopted and reaped; against a waitpid loop with no init at all
"""
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ORPHANS = 10000
HELPER = ""  # bench_init.c, built


def name(init):
    return os.path.basename(init) if init else "none"


def line(init, *command):
    """The command under an init; without one, itself."""
    if not init:
        return list(command)
    # tini reaps only as a subreaper where it is not PID 1; dumb-init and catatonit know no such thing.
    start = {"trainit": ["run"], "tini": ["-s"], "tini-static": ["-s"]}.get(name(init), [])
    return [init, *start, "--", *command]


def started(init):
    """An init with the child that notes when it is signalled; the init is asleep in its wait, so its start is over."""
    p = subprocess.Popen(line(init, HELPER, "child"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert p.stdout.readline() == b"ready\n", name(init)
    while open("/proc/%d/stat" % p.pid, encoding="ascii").read().rsplit(")", 1)[1].split()[0] != "S":
        time.sleep(0.001)
    return p


def forward_us(p):
    """One measurement; a process of its own for each, since the child ends."""
    sent = time.monotonic_ns()
    os.kill(p.pid, signal.SIGTERM)
    heard = int(p.stdout.readline())
    p.wait()
    return (heard - sent) / 1e3


def forward_idle(inits, rounds):
    """After 1.5 s of nothing: trainit has by then let go of the memory that only its start needed, and everybody's caches are cold."""
    rows = [(init, []) for init in inits]
    for turn in range(rounds):
        running = [started(init) for init in inits]
        time.sleep(1.5)
        # Each is the first in its turn: who comes first pays for waking the processor up.
        for at in range(len(inits)):
            at = (at + turn) % len(inits)
            rows[at][1].append(forward_us(running[at]))
    return rows


def storm_s(init):
    """As PID 1 of a namespace, where every orphan is the init's. The yardstick is a bare loop around waitpid(-1)."""
    storm = [HELPER, "storm", str(ORPHANS)]
    bare = [HELPER, "bare", *storm]
    begun = time.perf_counter()
    subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", *(line(init, *storm) if init else bare)],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def table(title, unit, rows, form="%6.3f", what="median", of=statistics.median):
    """rows: (init, values); ratios against the first."""
    print("== %s (%s of %d)" % (title, what, len(rows[0][1])))
    medians = [(init, of(values)) for init, values in rows]
    base = medians[0]
    for init, median in medians:
        print("  %-55s %s %s   x %.2f" % (name(init), form % median, unit, median / base[1]))


def turns(inits, count, measure):
    rows = [(init, []) for init in inits]
    for _ in range(count):
        for init, values in rows:
            values.append(measure(init))
    return rows


def main():
    inits = sys.argv[1:]
    with tempfile.TemporaryDirectory() as work:
        global HELPER
        HELPER = os.path.join(work, "helper")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_init.c")
        subprocess.run(["cc", "-O2", "-o", HELPER, source], check=True)
        measure(inits)


def measure(inits):
    table("SIGTERM to the child's handler, in turns", "us", turns(inits, 200, lambda init: forward_us(started(init))), "%6.0f")
    table("the same after 1.5 s of idling", "us", forward_idle(inits, 40), "%6.0f")
    if os.geteuid() == 0:
        table("%d orphans, as PID 1 (none: a bare waitpid loop)" % ORPHANS, "s", turns([None, *inits], 7, storm_s),
              what="best", of=min)
    else:
        print("skipped: orphans (wants root, for a PID namespace)")


if __name__ == "__main__":
    main()
