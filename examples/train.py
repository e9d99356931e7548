#!/usr/bin/env python3
"""A small, real training job with nothing but the standard library: logistic regression by gradient descent.

It does not need trainit. It prints `step=12 loss=0.123456 accuracy=0.9100` at every step, writes
DIR/ckpt-00000010.json at every fifth (to a temporary name, flushed, then renamed), resumes from the newest of them,
and on SIGTERM finishes its step, saves and exits. Without arguments it takes a minute, DIR is $TRAINIT_CHECKPOINT_DIR or
./checkpoints, and the numbers are the same each time. Of several processes on a machine only the first saves.
"""
import argparse
import glob
import json
import math
import os
import random
import signal
import sys
import time


def data(count):
    rng = random.Random(7)
    points = []
    for _ in range(count):
        x = (rng.uniform(-1, 1), rng.uniform(-1, 1))
        points.append((x, 1.0 if 2 * x[0] - x[1] + 0.1 * rng.gauss(0, 1) > 0.2 else 0.0))
    return points


def step_once(model, points, rate=1.0):
    grad, loss, right = [0.0, 0.0, 0.0], 0.0, 0
    for (x0, x1), label in points:
        p = 1 / (1 + math.exp(-(model[0] * x0 + model[1] * x1 + model[2])))
        p = min(max(p, 1e-12), 1 - 1e-12)
        loss -= label * math.log(p) + (1 - label) * math.log(1 - p)
        right += (p > 0.5) == (label > 0.5)
        for i, x in enumerate((x0, x1, 1.0)):
            grad[i] += (p - label) * x
    n = len(points)
    return [m - rate * g / n for m, g in zip(model, grad)], loss / n, right / n


def save(directory, step, model):
    path = os.path.join(directory, "ckpt-%08d.json" % step)
    with open(path + ".tmp", "w", encoding="ascii") as f:
        json.dump({"step": step, "model": model}, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)


def newest(directory):
    # trainit names the checkpoint; without trainit, take the newest file.
    path = os.environ.get("TRAINIT_RESUME_FROM")
    found = [path] if path else sorted(glob.glob(os.path.join(directory, "ckpt-*.json")))[-1:]
    for path in found:
        with open(path, encoding="ascii") as f:
            state = json.load(f)
        return state["step"], state["model"]
    return 0, [0.0, 0.0, 0.0]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--checkpoint-dir", default=os.environ.get("TRAINIT_CHECKPOINT_DIR") or "checkpoints")
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--step-seconds", type=float, default=float(os.environ.get("STEP_SECONDS") or 0.5))
    args = p.parse_args()
    os.makedirs(args.checkpoint_dir, exist_ok=True)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    points = data(400)
    step, model = newest(args.checkpoint_dir)
    print("start resume_step=%d" % step, flush=True)
    while step < args.steps:
        model, loss, accuracy = step_once(model, points)
        step += 1
        print("step=%d loss=%.6f accuracy=%.4f" % (step, loss, accuracy), flush=True)
        if os.environ.get("LOCAL_RANK", "0") == "0" and (stop or step % 5 == 0 or step == args.steps):
            save(args.checkpoint_dir, step, model)
        if stop:
            print("stopped at step=%d" % step, flush=True)
            return 0
        time.sleep(args.step_seconds)
    print("done step=%d" % step, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
