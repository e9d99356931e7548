"""The behaviours that users of tini and dumb-init rely on, run against both and against trainit in their place.
scripts/test-peers calls it. Standard library only.

A scenario is played with the init's own command line; what came of it (exit code, what the command printed) is compared.
"""
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# A shell cannot trap what is ignored when it starts, and under nohup or in the background something is.
for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)
LOOP = "while :; do sleep 0.01; done"
# For SIGINT, which a shell forgets where it comes as the foreground child ends by itself, trap or not.
LOOP_ON_INT = "while :; do sleep 0.01 & wait $!; done"
PATIENCE = 30


class Run:
    """An init with a command, its standard output a line at a time."""

    def __init__(self, init, flags, command, env=None):
        environment = {"PATH": os.environ["PATH"], "TRAINIT": os.environ["TRAINIT"], **(env or {})}
        self.process = subprocess.Popen([*init, *flags, "--", *command], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True,
                                        preexec_fn=os.setpgrp)
        self.lines = []

    def until(self, word):
        while word not in "".join(self.lines):
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError("%r never came: %r" % (word, self.lines))
            self.lines.append(line)
        return self

    def send(self, number):
        self.process.send_signal(number)
        return self

    def end(self):
        """(exit code, the lines in alphabetical order)"""
        rest, _ = self.process.communicate(timeout=PATIENCE)
        # What tini says of itself with -v is "[LEVEL tini (PID)] ...", on standard output.
        lines = [line for line in ("".join(self.lines) + rest).splitlines() if not line.startswith("[")]
        return self.process.returncode, sorted(" ".join(lines).split())


def sh(script):
    return ["bash", "-c", script]


def plain(flags, command, env=None):
    return lambda init: Run(init, flags, command, env).end()


def told(flags, script, *numbers, env=None):
    """Signals once the command says "ready"; every command waits for a second word before the next signal."""
    def play(init):
        run = Run(init, flags, sh(script), env).until("ready")
        for at, number in enumerate(numbers):
            run.send(number)
            if at + 1 < len(numbers):
                run.until("heard%d" % (at + 1))
        return run.end()
    return play


def trap(number, then):
    return "trap '%s' %d; " % (then, number)


def family(quit_code=9):
    """A command and a child of it that both say what they hear of TERM; the command leaves when the child has had time."""
    child = "trap 'echo child; exit' TERM; echo ready; " + LOOP
    # The trap first: the child may be ready before this bash is.
    return ("trap 'echo parent; sleep 0.4; kill -KILL $! 2>/dev/null; exit %d' TERM; bash -c \"%s\" & %s"
            % (quit_code, child, LOOP))


def suspended(flags, number, script="", word=""):
    """A stop from a terminal stops the command, or is heard by it, and stops the init; SIGCONT lets both go on."""
    def play(init):
        run = Run(init, flags, sh(script + "trap 'echo woken' CONT; echo ready $$; " + LOOP))
        run.until("ready")
        pid, own = int(run.lines[-1].split()[1]), run.process.pid
        run.send(number)
        if word:
            run.until(word)
        stopped = (not word and becomes(pid, "T"), becomes(own, "T"))
        run.send(signal.SIGCONT)
        run.until("woken")
        going = (becomes(pid, "SR"), becomes(own, "SR"))
        run.send(signal.SIGTERM)
        code, _ = run.end()
        return stopped, going, code
    return play


STOPS = (20, 21, 22)
# tini dies of what could be a fault of its own, and ignores a background terminal; trainit passes on what somebody sent.
TINI_KEEPS = (4, 5, 6, 7, 8, 11, 21, 22, 31)


def becomes(pid, states):
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[0] in states:
            return True
        time.sleep(0.01)
    return False


def orphaned(number):
    """The init's own parent dies: the init hears `number`, and passes it on."""
    def play(init):
        name = signal.Signals(number).name
        script = "trap 'echo heard; exit' %s; echo ready; %s" % (name[3:], LOOP)
        line = " ".join([*init, "-p", name, "--", "bash", "-c", '"$SCRIPT"'])
        env = {"PATH": os.environ["PATH"], "TRAINIT": os.environ["TRAINIT"], "SCRIPT": script}
        # The starter waits for a word on its standard input, and leaves without a look at the init.
        starter = subprocess.Popen(["bash", "-c", line + " & read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env=env, text=True, start_new_session=True)
        first = starter.stdout.readline()
        starter.stdin.write("go\n")
        starter.stdin.flush()
        rest = starter.stdout.read()
        starter.wait()
        return first, rest
    return play


REAPED = ("(setsid bash -c 'exit 0' &); i=0; while [ $i -lt 300 ] && ps --ppid $PPID -o stat= | grep -q Z; "
          "do i=$((i+1)); sleep 0.01; done; [ $i -lt 300 ] && echo clean")
SESSION = "read -r _ _ _ _ group session _ </proc/$$/stat; [ $group = $$ ] && echo group; [ $session = $$ ] && echo session; :"
HEARS = "".join(trap(n, "echo got%d; exit 3" % n) for n in (1, 2, 3, 10, 12, 15, 40)) + "echo ready; " + LOOP_ON_INT

TINI = {
    "the command's exit code": [plain([], sh("exit %d" % code)) for code in (0, 1, 42, 255)],
    "a command that a signal ends": [plain([], sh("kill -%d $$" % n)) for n in (9, 11, 15)],
    "a missing command": [plain([], ["/no/such/command"])],
    "what cannot be executed": [plain([], ["/etc/passwd"])],
    "arguments untouched": [plain(["-s"], ["printf", "<%s>", "-g", "--", "a b", ""])],
    "-e": [plain(["-e", "143"], sh("kill -TERM $$")), plain(["-e", "7", "-e", "8"], sh("exit 8")),
           plain(["-e", "7"], sh("exit 9")), plain(["-e7"], sh("exit 7"))],
    "signals reach the command": [told([], HEARS, n) for n in (1, 2, 3, 10, 12, 15, 40)],
    "signals one after another": [told([], trap(10, "echo heard1") + trap(12, "echo bye; exit 4") + "echo ready; " + LOOP,
                                       signal.SIGUSR1, signal.SIGUSR2)],
    "a command that SIGTERM ends": [told([], "echo ready; exec sleep 100", 15)],
    "only the command without -g": [told([], family(), 15)],
    "the whole group with -g": [told(["-g"], family(), 15), told(["-sg"], family(), 15)],
    "TINI_KILL_PROCESS_GROUP": [told([], family(), 15, env={"TINI_KILL_PROCESS_GROUP": "1"})],
    "a group of its own": [plain([], sh(SESSION))],
    "-s reaps": [plain(["-s"], sh(REAPED))],
    "-w": [plain(["-s", "-w"], sh("exit 6"))],
    "flags in one word": [plain(["-vvv"], sh("exit 6")), told(["-gw"], family(), 15), plain(["-vvsw", "-e", "6"], sh("exit 6")),
                          plain(["-sve6"], sh("exit 6"))],
    "-e, every code": [plain(["-e", str(n)], sh("exit %d" % n)) for n in (0, 1, 127, 128, 200, 255)],
    "-e that is no code": [plain(["-e", bad], ["true"]) for bad in ("256", "-1", "x")],
    "-p that is no signal": [plain(["-p", "NONSENSE"], ["true"])],
    "an unknown flag": [plain(["-q"], ["true"])],
    "variables": [plain([], sh("exit 6"), env={"TINI_SUBREAPER": "", "TINI_VERBOSITY": "3"}),
                  plain([], sh(REAPED), env={"TINI_SUBREAPER": ""})],
    "every signal": [told([], trap(n, "echo got%d; exit 3" % n) + "echo ready; " + LOOP_ON_INT, n)
                     for n in range(1, 32) if n not in (9, 17, 18, 19, *TINI_KEEPS)],
    "what it ignores and blocks is not the command's": [plain([], ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"])],
    "the working directory": [plain([], ["pwd"])],
    "-p": [orphaned(signal.SIGTERM), orphaned(signal.SIGUSR1)],
}

DUMB_INIT = {
    "the command's exit code": [plain([], sh("exit %d" % code)) for code in (0, 1, 42, 255)],
    "a command that a signal ends": [plain([], sh("kill -%d $$" % n)) for n in (9, 11, 15)],
    "arguments untouched": [plain([], ["printf", "<%s>", "-c", "--", "a b", ""])],
    "signals reach the command": [told(f, HEARS, n) for n in (1, 2, 3, 10, 12, 15) for f in ([], ["-c"])],
    "a command that SIGTERM ends": [told([], "echo ready; exec sleep 100", 15)],
    "the whole session's group": [told([], family(), 15)],
    "-c, --single-child": [told(f, family(), 15) for f in (["-c"], ["--single-child"])],
    "DUMB_INIT_SETSID=0": [told([], family(), 15, env={"DUMB_INIT_SETSID": "0"})],
    "a session of its own": [plain([], sh(SESSION))],
    "-r": [told(["-r", "15:2"], HEARS, 15), told(["-r", "15:2", "-r", "2:10"], HEARS, 15),
           told(["--rewrite", "10:3"], HEARS, 10), told(["--rewrite=10:12"], HEARS, 10), told(["-r1:15"], HEARS, 1)],
    "-r to 0 drops": [told(["-r", "10:0"], "trap 'echo usr1' 10; " + trap(12, "echo bye; exit") + "echo ready; echo heard1; "
                           + LOOP, 10, 12)],
    "SIGTSTP, SIGTTIN, SIGTTOU and SIGCONT": [suspended(f, n) for f in ([], ["-c"]) for n in STOPS],
    "the same with a command that hears them": [suspended(["-c"], n, trap(n, "echo heard"), "heard") for n in STOPS],
    "the same rewritten": [suspended(["-r", "%d:10" % n], n, trap(10, "echo heard"), "heard") for n in STOPS],
    "every signal": [told(f, trap(n, "echo got%d; exit 3" % n) + "echo ready; " + LOOP_ON_INT, n) for f in ([], ["-c"])
                     for n in range(1, 32) if n not in (9, 17, 18, 19, *STOPS)],
    "every signal rewritten": [told(["-r", "%d:10" % n], trap(10, "echo got; exit 3") + "echo ready; " + LOOP, n)
                               for n in range(1, 32) if n not in (9, 17, 18, 19, *STOPS)],
    "long flags": [plain(["--single-child", "--verbose"], sh("exit 4")), plain(["-v", "-c"], sh("exit 4"))],
    "the working directory": [plain([], ["pwd"])],
}


def main():
    suites = {"tini": TINI, "dumb-init": DUMB_INIT}
    failed = played = 0
    for name, suite in suites.items():
        ours = [os.path.join(HERE, "as-" + name)]
        for what, scenarios in suite.items():
            for at, scenario in enumerate(scenarios):
                played += 1
                try:
                    theirs, mine = scenario([name]), scenario(ours)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    theirs, mine = "it went on", error
                if theirs != mine:
                    failed += 1
                    print("FAILED %s, %s (%d): theirs %s, trainit's %s" % (name, what, at + 1, theirs, mine))
    print("peers: %d scenarios of tini and dumb-init, %s" % (played, "%d FAILED" % failed if failed else "all alike"))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
