#!/usr/bin/env python3
"""XGBoost over several processes, synthetic data.

Environment: DMLC_TRACKER_URI, DMLC_TRACKER_PORT, DMLC_TASK_ID, DMLC_NUM_WORKER, none of which XGBoost reads itself.
Rank 0 starts the tracker; it gives ranks in the order of task ids as text.

Every process prints   step=3 loss=0.123456   of all shards together, then a hash of the model, which is the same
in all processes if they trained together.
"""
import argparse
import hashlib
import json
import os
import socket

import numpy as np
import xgboost as xgb
from xgboost import collective
from xgboost.tracker import RabitTracker


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--checkpoint-dir", help="for the like of the other trainers; nothing is written")
    p.add_argument("--steps", type=int, default=10)
    args = p.parse_args()

    host = socket.gethostbyname(os.environ["DMLC_TRACKER_URI"])
    port, task = int(os.environ["DMLC_TRACKER_PORT"]), os.environ["DMLC_TASK_ID"]
    world, tracker = int(os.environ["DMLC_NUM_WORKER"]), None
    if int(task) == 0:
        tracker = RabitTracker(n_workers=world, host_ip=host, port=port, sortby="task")
        tracker.start()
    # The tracker may start later than this process.
    retry = {"dmlc_retry": 60}
    with collective.CommunicatorContext(dmlc_tracker_uri=host, dmlc_tracker_port=port, dmlc_task_id=task, **retry):
        rank = collective.get_rank()
        assert (rank, collective.get_world_size()) == (int(task), world), "rank %d for task %s" % (rank, task)
        print("start rank=%d world=%d xgboost=%s" % (rank, world, xgb.__version__), flush=True)
        rng = np.random.default_rng(100 + rank)
        x = rng.normal(size=(500, 4))
        data, seen = xgb.DMatrix(x, x @ np.array([1.0, -2.0, 0.5, 3.0])), {}
        params = {"objective": "reg:squarederror", "tree_method": "hist", "nthread": 1, "verbosity": 0}
        booster = xgb.train(params, data, args.steps, [(data, "all")], evals_result=seen, verbose_eval=False)
        for step, loss in enumerate(seen["all"]["rmse"]):
            print("step=%d loss=%.6f" % (step + 1, loss), flush=True)
        trees = json.dumps(booster.get_dump(dump_format="json"))
        print("model=%s" % hashlib.sha256(trees.encode()).hexdigest()[:16], flush=True)
    if tracker:
        tracker.wait_for()
    print("done step=%d" % args.steps, flush=True)


if __name__ == "__main__":
    main()
