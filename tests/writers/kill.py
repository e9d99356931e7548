#!/usr/bin/env python3
"""A real framework saves checkpoints until it is killed with -9, again and again.

Usage: kill.py WRITER --trials N --trainit PATH --work DIR [--seed S]

Each trial: a process saves in a loop and reports on a pipe when a save begins and when it has returned; it is killed at a
random instant of a save. Then `trainit checkpoint list --json` judges the directory, and the framework itself loads
every unit in a separate process and compares the content with what was saved. Errors are

    a unit that trainit lists as complete and the framework cannot load, or loads with other content, and
    the newest unit whose save had returned (and that no later save deletes or overwrites), if trainit does not list it as
    complete.

The last line has the counts. The exit code is 1 after an error.
"""
import argparse
import json
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback

import other_writers
import torch_rank_writers
import torch_writers

WRITERS = {**torch_writers.WRITERS, **torch_rank_writers.WRITERS, **other_writers.WRITERS}
SLOW = 60.0


def forked(work):
    """Runs it in a separate process; returns its answer, or its exception as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        silence()
        try:
            answer = {"ok": work()}
        except BaseException as error:
            answer = {"error": "%s: %s" % (type(error).__name__, str(error)[:200])}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    text, deadline = b"", time.monotonic() + SLOW
    while True:
        ready, _, _ = select.select([reading], [], [], max(0, deadline - time.monotonic()))
        chunk = os.read(reading, 65536) if ready else b""
        if not chunk:
            break
        text += chunk
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "died or hung"}


def silence():
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1) if os.environ.get("SHOW") else (0, 1, 2):
        os.dup2(null, fd)


def start(writer, directory):
    """Starts the writer's processes in one group. Returns their pids and the pipe of the first one's events."""
    reading, writing = os.pipe()
    pids = []
    for rank in range(writer.processes):
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            silence()

            def say(word, step):
                if rank == 0:
                    os.write(writing, struct.pack("<cqd", word[0].encode(), step, time.monotonic()))

            try:
                writer.save(directory, rank, say)
            except BaseException:
                traceback.print_exc()
            os._exit(3)
        pids.append(pid)
    os.close(writing)
    return pids, reading


RECORD = struct.calcsize("<cqd")


def listen(pipe, events, until):
    """Reads events until the condition holds. False at the end of the pipe or after the time limit."""
    deadline = time.monotonic() + SLOW
    while not until():
        ready, _, _ = select.select([pipe], [], [], max(0, deadline - time.monotonic()))
        record = os.read(pipe, RECORD) if ready else b""
        if len(record) < RECORD:
            return False
        word, step, at = struct.unpack("<cqd", record)
        events.append((word.decode(), step, at))
    return True


def kill(writer, pids, rng):
    """Kills all processes at once, or one of them a little earlier."""
    first = []
    if len(pids) > 1 and rng.random() < 0.5:
        first = [rng.choice(pids)]
        os.kill(first[0], signal.SIGKILL)
        time.sleep(rng.uniform(0, 0.1))
    for pid in pids:
        if pid not in first:
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def trial(writer, options, rng, durations, counts):
    directory = os.path.join(options.work, "d")
    shutil.rmtree(options.work, ignore_errors=True)
    os.makedirs(directory)
    pids, pipe = start(writer, directory)
    events = []
    target = rng.randint(1, (writer.keep or 2) + 2)
    began = listen(pipe, events, lambda: events and events[-1][0] == "b" and events[-1][1] >= target
                   or len(events) >= 2 * target)
    if not began:
        kill(writer, pids, rng)
        return ["the writer died by itself after %d events" % len(events)]
    usual = sorted(durations)[len(durations) // 2] if durations else 0.05
    time.sleep(rng.uniform(0, usual * 1.1))
    kill(writer, pids, rng)
    listen(pipe, events, lambda: False)
    os.close(pipe)

    starts = {step: at for word, step, at in events if word == "b"}
    done = {step for word, step, _ in events if word == "d"}
    durations.extend(at - starts[step] for word, step, at in events if word == "d" and step in starts)
    begun = max(starts)
    counts["in a save"] += begun not in done

    command = [options.trainit, "checkpoint", "list", "--json", "--checkpoint-dir", directory]
    listed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env={}).stdout)["local"]
    # The listing names the newest complete unit of a format. Files without a format belong to the rest, which
    # has no unit.
    verdicts = {unit["unit"]: unit for unit in listed if unit["unit"] is not None}
    wrong = []
    finished = {unit for unit in [writer.unit(max(done))] if unit in writer.must_be_complete(begun, done)} if done else set()
    for unit in sorted(set(verdicts) | finished):
        loaded = forked(lambda: writer.load(os.path.join(directory, unit)))
        says = verdicts.get(unit)
        complete = bool(says and says["complete"])
        counts["units"] += 1
        counts["torn"] += "error" in loaded
        counts["complete"] += complete
        if complete and "error" in loaded:
            wrong.append("%s is called complete and is torn: %s" % (unit, loaded["error"]))
        if complete and "ok" in loaded and says["step"] not in (None, loaded["ok"]) and options.writer != "keras":
            wrong.append("%s is called step %s and is step %s" % (unit, says["step"], loaded["ok"]))
        # The next save may have been killed after everything was written.
        newer = any((other["complete"] or other["state"] == "unproven") and name != unit for name, other in verdicts.items())
        is_unproven = says and says["state"] == "unproven"
        if unit in finished and not complete and not is_unproven and not newer and not any(part["framework"] == "tree" for part in listed):
            why = says["problem"] if says else "not seen at all"
            wrong.append("%s was finished and is called torn: %s (%s)" % (unit, why, loaded))
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("writer", choices=sorted(WRITERS))
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--trainit", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    writer = WRITERS[options.writer]()
    writer.prepare()
    rng, durations = random.Random(options.seed), []
    counts = {"in a save": 0, "units": 0, "torn": 0, "complete": 0}
    failures, began = 0, time.monotonic()
    for number in range(options.trials):
        wrong = trial(writer, options, rng, durations, counts)
        for line in wrong:
            print("%s: kill %d: %s" % (options.writer, number + 1, line), flush=True)
        if wrong:
            failures += 1
            kept = "%s-wrong-%d" % (options.work, failures)
            shutil.rmtree(kept, ignore_errors=True)
            if os.environ.get("KEEP"):
                shutil.copytree(options.work, kept, symlinks=True)
    shutil.rmtree(options.work, ignore_errors=True)
    print("%-8s %s: %d kills, %d of them in a save; of %d checkpoints %d were torn and %d called complete; "
          "%d kills judged wrongly (seed %d, %.0f s)"
          % ("FAILED" if failures else "ok", options.writer, options.trials, counts["in a save"], counts["units"],
             counts["torn"], counts["complete"], failures, options.seed, time.monotonic() - began))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
