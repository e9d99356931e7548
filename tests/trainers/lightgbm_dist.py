#!/usr/bin/env python3
"""LightGBM over several machines, synthetic data.

Environment: TRAINIT_LIGHTGBM_MACHINES, LightGBM's `machines` with the own rank
as the first element. LightGBM reads no environment itself. num_machines must be
given, because LightGBM would count that element. Names are resolved here,
because LightGBM would dial 0.0.0.0 for a name.

Every machine prints   step=3 loss=0.123456   on its own shard, then a hash of the
model, which is the same on all machines if they trained together.
"""
import argparse
import hashlib
import os
import socket

import lightgbm as lgb
import numpy as np


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--checkpoint-dir", help="for the like of the other trainers; nothing is written")
    p.add_argument("--steps", type=int, default=10)
    args = p.parse_args()

    rank, *hosts = os.environ["TRAINIT_LIGHTGBM_MACHINES"].split(",")
    hosts = ["%s:%s" % (socket.gethostbyname(host), port) for host, port in (h.rsplit(":", 1) for h in hosts)]
    machines = ",".join([rank] + hosts)
    rank = int(rank.split("=")[1])
    rng = np.random.default_rng(100 + rank)
    x = rng.normal(size=(500, 4))
    y = x @ np.array([1.0, -2.0, 0.5, 3.0])
    params = {
        "objective": "regression", "tree_learner": "data", "num_threads": 1, "verbosity": -1, "time_out": 2,
        "machines": machines, "num_machines": len(hosts), "local_listen_port": int(hosts[rank].split(":")[1]),
    }

    def report(env):
        print("step=%d loss=%.6f" % (env.iteration + 1, env.evaluation_result_list[0][2]), flush=True)

    print("start rank=%d world=%d lightgbm=%s" % (rank, len(hosts), lgb.__version__), flush=True)
    data = lgb.Dataset(x, y)
    booster = lgb.train(params, data, num_boost_round=args.steps, valid_sets=[data], callbacks=[report])
    trees = booster.model_to_string().split("parameters:")[0]
    print("model=%s" % hashlib.sha256(trees.encode()).hexdigest()[:16], flush=True)
    print("done step=%d" % args.steps, flush=True)


if __name__ == "__main__":
    main()
