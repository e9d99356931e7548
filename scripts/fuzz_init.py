"""The driver of scripts/fuzz-init: random process trees and random signals under `trainit run`, against a model of what
must come of them. Standard library only.

What must hold, whatever the timing:
  - it ends: nothing hangs beyond the grace;
  - the exit code is the main child's own, 143 after a SIGTERM, 128+n where signal n ended it;
  - nobody is left when trainit leaves, and no zombie stays while it runs;
  - nobody gets SIGTERM twice, or with --signal-target group oftener than it was sent; whoever waits for it outside the main
    child gets it;
  - nobody but the stopped hears SIGCONT, and nobody but the main child (or its group) hears what was sent to trainit.
What the kernel itself sends to an orphaned group with a stopped member (HUP, CONT) is told apart and is no one's fault.
"""
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

GRACE = 1.2
SLACK = 20.0  # more than any case takes on a busy machine
PATIENT_US = 600_000  # who was set up for that long has been swept
FOREVER = 60_000
IGNORED = {17, 18, 23, 28}
STOPPING = {20, 21, 22}
UNCATCHABLE = {9, 19}
SIGNALS = [n for n in range(1, 65) if n not in UNCATCHABLE]


class Node:
    """A process of the model: its script, and what must come of it."""

    def __init__(self, ident, script, hears_term, waits, stopped, children):
        self.ident, self.script, self.hears_term, self.waits, self.stopped = ident, script, hears_term, waits, stopped
        self.children = children

    def all(self):
        yield self
        for child in self.children:
            yield from child.all()


class Tree:
    """Makes a random tree."""

    def __init__(self, rng):
        self.rng, self.next_id = rng, 0

    def ident(self):
        self.next_id += 1
        return self.next_id - 1

    def node(self, depth):
        rng, ident = self.rng, self.ident()
        script, children, hears, stopped = "", [], False, False
        handled = rng.sample(SIGNALS, rng.choice([0, 0, 1, 3, 10]))
        for n in handled:
            if n not in (17, 15):
                script += rng.choice("hhi") + "%d;" % n
        kind = rng.choice("eeeeaac-i" if depth else "eeeac---i")
        if kind in "ec":
            script += "%s%d;" % (kind, rng.randrange(120) if kind == "e" else self.ident())
        elif kind == "a":
            script += "a"
        elif kind == "i" and rng.random() < 0.4:
            script += "i15;"
        hears = kind in "eac"
        if depth and rng.random() < 0.4:
            script += rng.choice("sg")
        script += "u"
        for _ in range(rng.choice([0, 1, 1, 2, 4] if depth < 3 else [0])):
            child = self.node(depth + 1)
            children.append(child)
            script += rng.choice("FFD") + "%d(%s)" % (child.ident, child.script)
            if rng.random() < 0.3:
                script += "w%d;" % rng.randrange(40)
        if depth and rng.random() < 0.1:
            script += "z"
            stopped = True
        waits = rng.random() < (0.5 if depth else 0.6)
        end = rng.random()
        if waits:
            script += "w%d;x99;" % FOREVER
            self.last = None
        elif end < 0.8:
            code = rng.randrange(126)
            script += "w%d;x%d;" % (rng.randrange(150), code)
            self.last = code
        else:
            fatal = rng.choice([n for n in range(1, 65) if n not in IGNORED | STOPPING | {19}])
            script += "w%d;k%d;" % (rng.randrange(150), fatal)
            self.last = 128 + fatal
        return Node(ident, script, hears, waits, stopped, children)

    def main(self):
        main = self.node(0)
        return main, self.last


def settings_of(script):
    """What the main child's script does with each signal, before it says that it is set up."""
    ours, at = {}, 0
    setup = script.split("u", 1)[0]
    while at < len(setup):
        op, digits = setup[at], ""
        at += 1
        while at < len(setup) and (setup[at].isdigit() or setup[at] == ";"):
            digits += setup[at]
            at += 1
        if op in "hi":
            ours[int(digits.rstrip(";"))] = op
    return ours


class Case:
    """One life."""

    def __init__(self, seed, helper, trainit, work, can_be_pid1):
        rng = random.Random(seed)
        self.seed, self.helper, self.trainit = seed, helper, trainit
        self.main, self.natural = Tree(rng).main()
        self.pid1 = can_be_pid1 and rng.random() < 0.5
        self.group = rng.random() < 0.25
        self.early = rng.random() < 0.2
        self.log = os.path.join(work, "log-%d" % seed)
        self.mark = "FUZZ_INIT_MARK=%s" % self.log
        self.signals = []
        for _ in range(rng.choice([0, 0, 1, 2, 6, 30])):
            self.signals.append((rng.choice([0, 0, 0.001, 0.01, 0.05]), rng.choice(SIGNALS)))
        if any(n in STOPPING for _, n in self.signals):
            self.signals.append((0.01, 18))
        terms = sum(n == 15 for _, n in self.signals)
        if self.main.waits and not terms:
            self.signals.append((rng.choice([0, 0.05, 0.2]), 15))

    def possible_codes(self):
        ours = {} if self.early else settings_of(self.main.script)
        fatal = set()
        for _, n in self.signals:
            if n == 15:
                fatal.add(143)
            elif n not in IGNORED | STOPPING and n not in ours:
                fatal.add(128 + n)
        if self.main.waits:
            return fatal
        return fatal | {self.natural}

    def run(self):
        open(self.log, "w").close()
        command = [self.trainit, "run", "--stop-grace", "%dms" % (GRACE * 1000)]
        if self.group:
            command += ["--signal-target", "group"]
        command += ["--", self.helper, self.log, "0", self.main.script]
        if self.pid1:
            command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", *command]
        name, value = self.mark.split("=", 1)
        self.begun = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, env={**os.environ, name: value}, start_new_session=True)
        errors = []
        reader = threading.Thread(target=lambda: errors.append(self.process.stderr.read()))
        reader.start()
        problem = self.drive()
        if problem is None:
            try:
                self.process.wait(max(0.1, self.begun + SLACK - time.monotonic()))
            except subprocess.TimeoutExpired:
                problem = "it hangs: %s" % self.alive()
        if problem is not None:
            self.clean_up()
        self.process.wait()
        self.ended = time.monotonic()
        reader.join()
        text = errors[0].decode(errors="replace")
        problem = problem or self.judge(text)
        self.clean_up()
        if problem:
            return "%s\n  command: %s\n  signals: %s\n  log:\n%s  stderr:\n%s" % (
                problem, " ".join(command), self.signals, open(self.log).read(), text)
        os.unlink(self.log)
        return None

    def target(self):
        """trainit's own process id, once it has blocked every signal (or is gone)."""
        name = "Name:\t%s\n" % os.path.basename(self.trainit)[:15]
        while time.monotonic() < self.begun + SLACK:
            if self.process.poll() is not None:
                return None
            pids = [self.process.pid]
            if self.pid1:
                pids = [int(p) for p in read("/proc/%d/task/%d/children" % (pids[0], pids[0])).split()]
            for pid in pids:
                status = read("/proc/%d/status" % pid)
                blocked = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")]
                if name in status and blocked and int(blocked[0], 16) == 0xfffffffffffbfeff:
                    return pid
            time.sleep(0.0005)
        return None

    def drive(self):
        """Waits for the right moment and sends the signals, looking for zombies that stay."""
        pid = self.target()
        if pid is None:
            return None if self.process.poll() is not None else "trainit did not block its signals"
        while not self.early and self.process.poll() is None and " 0 up " not in read(self.log):
            if time.monotonic() > self.begun + SLACK:
                return "the main child was never set up"
            time.sleep(0.001)
        for pause, number in self.signals:
            time.sleep(pause)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                break
        zombies = {}
        while self.process.poll() is None and time.monotonic() < self.begun + SLACK:
            now = time.monotonic()
            # trainit stops with its command at a stop from a terminal; whoever sends one continues it, as a shell does.
            if any(n in STOPPING for _, n in self.signals) and state_of(pid) == "T":
                os.kill(pid, signal.SIGCONT)
            dead = {p for p in read("/proc/%d/task/%d/children" % (pid, pid)).split() if is_zombie(p)}
            zombies = {p: zombies.get(p, now) for p in dead}
            if any(now - since > 3 for since in zombies.values()):
                return "zombies stay: %s" % dead
            time.sleep(0.02)
        return None

    def judge(self, text):
        code = self.process.returncode
        events = [line.split() for line in open(self.log).read().splitlines()]
        started = any(e[1] == "0" and e[2] == "start" for e in events)
        possible = self.possible_codes()
        # A command that was stopped before it could say anything ran all the same.
        if code not in possible and (started or code != 143):
            return "exit code %s, possible were %s" % (code, sorted(possible))
        if '"verdict"' not in text:
            return "no verdict"
        if self.alive():
            return "left behind: %s" % self.alive()
        if "stuck" in text or "could not be sent" in text:
            return "trainit complains"
        got = {}
        for at, ident, what, number in events:
            if what == "got":
                got.setdefault((int(ident), int(number)), []).append(int(at))
        own = {n for _, n in self.signals}
        terms = sum(n == 15 for _, n in self.signals)
        for (ident, number), times in got.items():
            if ident < 0:  # the short-lived middle of a double fork: any number of processes
                continue
            if ident == 0:
                if number not in own and not (number == 18 and self.main.stopped):
                    return "the main child heard %d, which nobody sent" % number
                continue
            if number == 15 and len(times) > (max(1, terms) if self.group else 1):
                return "node %d got SIGTERM %d times" % (ident, len(times))
            node = next((n for n in self.main.all() if n.ident == ident), None)
            if number == 18 and not self.group and node is not None and not node.stopped:
                return "node %d heard a SIGCONT and was not stopped" % ident
            if number not in (15, 18) and not self.group:
                return "node %d heard %d" % (ident, number)
        # What else the group was sent may have ended any of it.
        if self.group and own - IGNORED - {15}:
            return None
        return self.unheard(events, got, "the stop grace is over" in text)

    def unheard(self, events, got, killed):
        """Who waited for SIGTERM long enough and never got it. It comes when the main child has gone: never, where that
        stayed until the grace was over."""
        end = self.ended * 1e6
        up = {int(e[1]): int(e[0]) for e in events if e[2] == "up"}
        over = {int(e[1]) for e in events if e[2] in ("exit", "die")}
        main_over = next((int(e[0]) for e in events if e[1] == "0" and e[2] in ("exit", "die")), None)
        if main_over is None and killed:
            return None
        for node in self.main.all():
            if not (node.ident and node.hears_term and node.waits) or node.ident not in up or node.ident in over:
                continue
            if main_over is not None and end - max(up[node.ident], main_over) < PATIENT_US:
                continue
            if end - up[node.ident] > PATIENT_US and (node.ident, 15) not in got and not self.late(node, events):
                return "node %d waited for SIGTERM and got none" % node.ident
        return None

    def late(self, node, events):
        """Set up so late that the grace may have been over."""
        up = next(int(e[0]) for e in events if e[2] == "up" and int(e[1]) == node.ident)
        return up > self.begun * 1e6 + GRACE * 0.5e6

    def alive(self):
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and self.mark.encode() in read_bytes("/proc/%s/environ" % entry).split(b"\0"):
                if not is_zombie(entry):
                    found.append("%s %s" % (entry, read("/proc/%s/cmdline" % entry).replace("\0", " ")[:60]))
        return found

    def clean_up(self):
        for line in self.alive():
            try:
                os.kill(int(line.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                pass


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def read(path):
    return read_bytes(path).decode(errors="replace")


def state_of(pid):
    return "".join(read("/proc/%s/stat" % pid).rsplit(")", 1)[-1].split()[:1])


def is_zombie(pid):
    return state_of(pid) == "Z"


def main():
    trainit, seconds = os.path.abspath(sys.argv[1]), float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 40)
    only = len(sys.argv) > 4 and sys.argv[4] == "only"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    can_be_pid1 = os.geteuid() == 0
    if not can_be_pid1:
        print("skipped: as PID 1 (wants root, for a PID namespace)")
    failures, counts, lock, end = [], {}, threading.Lock(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as work:
        helper = os.path.join(work, "node")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_init.c")
        subprocess.run(["cc", "-O2", "-o", helper, source], check=True)
        seeds = iter(range(seed, seed + 1 if only else seed + (1 << 40)))

        def work_on():
            while time.monotonic() < end and not failures:
                with lock:
                    number = next(seeds, None)
                if number is None:
                    return
                case = Case(number, helper, trainit, work, can_be_pid1)
                problem = case.run()
                with lock:
                    how = ("PID 1" if case.pid1 else "subreaper") + (", group" if case.group else "")
                    counts[how] = counts.get(how, 0) + 1
                    if problem:
                        failures.append("seed %d: %s" % (number, problem))

        threads = [threading.Thread(target=work_on) for _ in range(1 if only else 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for failure in failures:
        print("FAILED %s\n  again: scripts/fuzz-init 1 %s only" % (failure, failure.split()[1].rstrip(":")))
    lives = ", ".join("%d as %s" % (count, how) for how, count in sorted(counts.items()))
    print("fuzz-init: %d lives from seed %d: %s; %s" % (sum(counts.values()), seed, lives,
                                                        "%d FAILED" % len(failures) if failures else "all as the model says"))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
