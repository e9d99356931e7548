#!/usr/bin/env python3
"""A real framework under `trainit run`, life after life: two on one disk, one on an empty disk, one more on that.

Usage: lives.py WRITER --trainit PATH --work DIR

Its own manager of checkpoints looks at the directory that trainit uses as well, and deletes what it does not keep. In each
life it must go on from the last step of the life before, with what was saved there, and leave no more than it keeps; and
the last step must be in the store. The last line counts; leaves with 1 when anything was wrong.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

KEEP = 2
SAVES = 3
# Saves that come faster than they are committed are not all committed.
PAUSE = 0.4


def tensorflow(directory, resume, say):
    import tensorflow as tf
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), directory, max_to_keep=KEEP)
    if manager.latest_checkpoint:
        tf.train.Checkpoint(step=step).restore(manager.latest_checkpoint).expect_partial()
    begun = say(int(step))
    for _ in range(SAVES):
        step.assign_add(1)
        manager.save(int(step))
        time.sleep(PAUSE)
    return begun + SAVES, [name for name in os.listdir(directory) if name.endswith(".index")]


def orbax(directory, resume, say):
    import jax.numpy as jnp
    import orbax.checkpoint as ocp
    options = ocp.CheckpointManagerOptions(max_to_keep=KEEP, enable_async_checkpointing=False)
    manager = ocp.CheckpointManager(os.path.abspath(directory), options=options)
    latest, begun = manager.latest_step(), 0
    if latest is not None:
        begun = int(manager.restore(latest, args=ocp.args.StandardRestore({"step": jnp.zeros(2)}))["step"][0])
    say(begun)
    for step in range(begun + 1, begun + SAVES + 1):
        manager.save(step, args=ocp.args.StandardSave({"step": jnp.full(2, step)}))
        manager.wait_until_finished()
        time.sleep(PAUSE)
    manager.close()
    return begun + SAVES, [name for name in os.listdir(directory) if name.isdigit()]


def flax(directory, resume, say):
    import flax as library
    import numpy
    library.config.update("flax_use_orbax_checkpointing", False)
    from flax.training import checkpoints
    directory = os.path.abspath(directory)
    begun = say(int(checkpoints.restore_checkpoint(directory, {"step": numpy.zeros(1)})["step"][0]))
    for step in range(begun + 1, begun + SAVES + 1):
        checkpoints.save_checkpoint(directory, {"step": numpy.full(1, float(step))}, step, keep=KEEP)
        time.sleep(PAUSE)
    return begun + SAVES, [name for name in os.listdir(directory) if name.startswith("checkpoint_")]


def huggingface(directory, resume, say):
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x, labels):
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    class Slow(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            say(state.global_step)

        def on_save(self, *_, **__):
            time.sleep(PAUSE)

    begun = int(resume.rsplit("-", 1)[1]) if resume else 0
    arguments = transformers.TrainingArguments(
        output_dir=directory, max_steps=begun + SAVES, save_steps=1, save_total_limit=KEEP, report_to=[], use_cpu=True,
        disable_tqdm=True, per_device_train_batch_size=1)
    data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 64
    trainer = transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[Slow()])
    # True takes the highest in the directory.
    trainer.train(resume_from_checkpoint=bool(resume))
    return trainer.state.global_step, [name for name in os.listdir(directory) if name.startswith("checkpoint-")]


def lightning(directory, resume, say):
    import lightning as library
    import torch

    class Model(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def on_train_start(self):
            say(self.trainer.global_step)

        def training_step(self, batch, _):
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

        def on_train_epoch_end(self):
            # It is saved after this.
            time.sleep(PAUSE)

    begun = int(resume.rsplit("=", 1)[1].split(".")[0]) if resume else 0
    keeper = library.pytorch.callbacks.ModelCheckpoint(
        dirpath=directory, save_top_k=1, save_last=True, filename="{step}", every_n_epochs=1)
    trainer = library.Trainer(
        max_epochs=begun + SAVES, callbacks=[keeper], logger=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False)
    data = torch.utils.data.DataLoader(torch.ones(1, 1))
    trainer.fit(Model(), data, ckpt_path="last" if resume else None, weights_only=False if resume else None)
    return trainer.global_step, [name for name in os.listdir(directory) if name.endswith(".ckpt")]


def accelerate(directory, resume, say):
    import accelerate as library
    import torch
    # Not "checkpoints" in it, where it takes every name for one of its own.
    naming = library.utils.ProjectConfiguration(
        project_dir=directory, automatic_checkpoint_naming=True, total_limit=KEEP)
    accelerator = library.Accelerator(cpu=True, project_config=naming)
    step = torch.nn.Parameter(torch.zeros(1))
    weights, _ = accelerator.prepare(torch.nn.ParameterDict({"step": step}), torch.optim.SGD([step], lr=0.1))
    if resume:
        accelerator.load_state()
        naming.iteration = int(weights["step"]) + 1
    begun = say(int(weights["step"]))
    for number in range(begun + 1, begun + SAVES + 1):
        weights["step"].data.fill_(number)
        naming.iteration = number
        accelerator.save_state()
        time.sleep(PAUSE)
    return begun + SAVES, os.listdir(os.path.join(directory, "checkpoints"))


WRITERS = {f.__name__: f for f in (tensorflow, orbax, flax, huggingface, lightning, accelerate)}


def live(name):
    """One life, in a process of its own: two lines of JSON on descriptor 3."""
    out = os.fdopen(3, "w")

    def say(step):
        print(json.dumps({"begun": step}), file=out, flush=True)
        return step

    directory = os.environ["TRAINIT_CHECKPOINT_DIR"]
    last, kept = WRITERS[name](directory, os.environ.get("TRAINIT_RESUME_FROM"), say)
    print(json.dumps({"last": last, "kept": sorted(kept)}), file=out, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("writer", choices=WRITERS)
    parser.add_argument("--trainit")
    parser.add_argument("--work")
    parser.add_argument("--live", action="store_true")
    args = parser.parse_args()
    if args.live:
        return live(args.writer)
    local, store = os.path.join(args.work, "lives"), os.path.join(args.work, "lives-store")
    os.makedirs(args.work, exist_ok=True)
    before, wrong = 0, []
    for number, disk in enumerate(["new", "kept", "empty", "kept"], 1):
        if disk == "empty":
            shutil.rmtree(local)
        told, verdict = os.path.join(args.work, "told"), os.path.join(args.work, "verdict")
        run = [args.trainit, "run", "--checkpoint-dir", local, "--checkpoint-store", "file://" + os.path.abspath(store),
               "--settle", "0s", "--mirror-interval", "100ms", "--max-restarts", "0", "--verdict-file", verdict, "--",
               "sh", "-c", 'exec "$@" 3>"$0"', told, sys.executable, os.path.abspath(__file__), args.writer, "--live"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
        life = "life %d (%s disk)" % (number, disk)
        if done.returncode != 0:
            wrong.append("%s ended with %d: %s" % (life, done.returncode, done.stderr[-2000:]))
            break
        with open(told, encoding="utf-8") as lines:
            begun, ended = [json.loads(line) for line in lines]
        with open(verdict, encoding="utf-8") as text:
            committed = json.load(text)["committed_step"]
        if begun["begun"] != before:
            wrong.append("%s began at step %d, where %d was the last" % (life, begun["begun"], before))
        if len(ended["kept"]) > KEEP:
            wrong.append("%s left %s" % (life, ended["kept"]))
        if committed != ended["last"]:
            wrong.append("%s ended at step %d, and step %s is committed" % (life, ended["last"], committed))
        before = ended["last"]
    for line in wrong:
        print("  " + line, file=sys.stderr)
    print("%s %s: %d steps in %d lives, one on an empty disk; %d wrong"
          % ("FAILED  " if wrong else "ok      ", args.writer, before, number, len(wrong)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
