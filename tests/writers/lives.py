#!/usr/bin/env python3
"""A real framework under `trainit run` in four runs: two on one disk, one on an empty disk, and one more on that disk.

Usage: lives.py WRITER --trainit PATH --work DIR

The framework's checkpoint manager, or a hand-written loop, uses the same directory as trainit and deletes old checkpoints. Each
run must resume from the last step of the previous run with the saved content, keep no more checkpoints than configured, and have
its last step in the store. The last line has the counts. The exit code is 1 after an error.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

KEEP = 2
SAVES = 3
# Saves that are faster than the commits are not all committed.
PAUSE = 0.4


def number(name):
    return int(re.search("[0-9]+(?!.*[0-9])", name.split("-rank")[0])[0])


def newest(directory, start):
    """Deletes all but the newest names with this start, like a hand-written trainer; returns the kept names."""
    names = sorted((name for name in os.listdir(directory) if name.startswith(start)), key=number)
    for name in names[:-KEEP]:
        path = os.path.join(directory, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    return names[-KEEP:]


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
    # True uses the highest number in the directory.
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
            # The save follows.
            time.sleep(PAUSE)

    begun = torch.load(resume, weights_only=False)["global_step"] if resume else 0
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
    # Not in "checkpoints", because Accelerate takes every name there for one of its own.
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


def dcp(directory, resume, say):
    import torch
    import torch.distributed.checkpoint as library
    # An asynchronous save needs a process group.
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    state = {"step": torch.zeros(1)}
    if resume:
        library.load(state, checkpoint_id=resume)
    begun = say(int(state["step"]))
    for step in range(begun + 1, begun + SAVES + 1):
        home = os.path.join(directory, "step-%d" % step)
        library.async_save({"step": torch.full((1,), float(step))}, checkpoint_id=home).result()
        kept = newest(directory, "step-")
        time.sleep(PAUSE)
    torch.distributed.destroy_process_group()
    return begun + SAVES, kept


def safetensors(directory, resume, say):
    import safetensors.torch as library
    import torch
    step = 0
    if resume:
        # Two files for each save are not a known format, so the directory itself is the checkpoint.
        resume = os.path.join(resume, newest(resume, "model_")[-1])
        step = int(library.load_file(resume)["step"])
        beside = resume.replace("model", "optimizer").replace(".safetensors", ".pt")
        assert torch.load(beside)["step"] == step
    say(step)
    for step in range(step + 1, step + SAVES + 1):
        library.save_file({"step": torch.full((1,), step)}, os.path.join(directory, "model_%d.safetensors" % step))
        torch.save({"step": step}, os.path.join(directory, "optimizer_%d.pt" % step))
        kept = newest(directory, "model_"), newest(directory, "optimizer_")
        time.sleep(PAUSE)
    return step, kept[0]


def deepspeed(directory, resume, say):
    # DeepSpeed compiles a part of itself with the ninja of this Python.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    os.environ.update(DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
                      TORCH_EXTENSIONS_DIR=os.path.join(sys.prefix, "extensions"))
    import deepspeed as library
    import torch
    with tempfile.TemporaryDirectory() as home:
        library.init_distributed(
            "gloo", auto_mpi_discovery=False, init_method="file://%s/meeting" % home, rank=0, world_size=1)
        model = torch.nn.Linear(1, 1)
        engine, _, _, _ = library.initialize(model=model, model_parameters=model.parameters(), config={
            "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}})
        # DeepSpeed reads its own `latest`.
        _, state = engine.load_checkpoint(directory)
        begun = say(state["step"] if state else 0)
        for step in range(begun + 1, begun + SAVES + 1):
            engine.save_checkpoint(directory, tag="global_step%d" % step, client_state={"step": step})
            kept = newest(directory, "global_step")
            time.sleep(PAUSE)
        torch.distributed.destroy_process_group()
    return begun + SAVES, kept


def ignite(directory, resume, say):
    import torch
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver

    class Saver(DiskSaver):
        def remove(self, filename):
            # Its saved list of saves contains some that were not restored.
            if os.path.exists(os.path.join(directory, filename)):
                super().remove(filename)

    model = torch.nn.Linear(1, 1)
    trainer = Engine(lambda engine, _: model.weight.data.fill_(engine.state.iteration).item())
    saved = {"model": model, "trainer": trainer}
    checkpoint = Checkpoint(saved, Saver(directory, require_empty=False), n_saved=KEEP, include_self=True,
                            global_step_transform=lambda engine, _: engine.state.iteration)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, checkpoint)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: time.sleep(PAUSE))
    if resume:
        Checkpoint.load_objects({**saved, "checkpointer": checkpoint}, resume)
        assert int(model.weight) == trainer.state.iteration
    begun = say(trainer.state.iteration)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=begun + SAVES), trainer.terminate)
    trainer.run([0] * 1000)
    return begun + SAVES, [name for name in os.listdir(directory) if name.endswith(".pt")]


def keras(directory, resume, say):
    import keras as library
    import numpy

    class Slow(library.callbacks.Callback):
        begun = None

        def on_epoch_begin(self, epoch, logs=None):
            if self.begun is None:
                self.begun = say(epoch)
            # The previous epoch is saved at this point.
            time.sleep(PAUSE)

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch + 1 == self.begun + SAVES

    model = library.Sequential([library.layers.Input((1,)), library.layers.Dense(1)])
    model.compile("sgd", "mse")
    slow, backup = Slow(), library.callbacks.BackupAndRestore(directory, delete_checkpoint=False)
    model.fit(numpy.ones((1, 1)), numpy.ones((1, 1)), epochs=1000, verbose=0, callbacks=[backup, slow])
    return slow.begun + SAVES, [name for name in os.listdir(directory) if name.endswith(".h5")]


def xgboost(directory, resume, say):
    import numpy
    import xgboost as library

    class Slow(library.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            time.sleep(PAUSE)
            return False

    data = library.DMatrix(numpy.arange(8).reshape(-1, 1), numpy.arange(8))
    say(max(0, library.Booster(model_file=resume).num_boosted_rounds() - 1) if resume else 0)
    point = library.callback.TrainingCheckPoint(directory=directory, name="model", interval=1)
    # It does not save the first round, and keeps all its saves.
    model = library.train({}, data, SAVES + 1, callbacks=[point, Slow()], xgb_model=resume)
    return model.num_boosted_rounds() - 1, []


def composer(directory, resume, say):
    # Turns its telemetry off.
    os.environ.update(MOSAICML_PLATFORM="false", GLOO_SOCKET_IFNAME="lo")
    import composer as library
    import torch

    class Model(library.ComposerModel):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, batch):
            return self.layer(batch[0])

        def loss(self, outputs, batch):
            return outputs.mean()

    class Slow(library.Callback):
        def batch_start(self, state, logger):
            time.sleep(PAUSE)

    model = Model()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1000, 1)))
    trainer = library.Trainer(
        model=model, train_dataloader=data, device="cpu", optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="1ep", run_name="run", save_folder=directory, save_interval="1ba",
        save_num_checkpoints_to_keep=KEEP, autoresume=True, progress_bar=False, callbacks=[Slow()])
    begun = say(int(trainer.state.timestamp.batch))
    trainer.fit(duration="%dba" % SAVES)
    names = [name for name in os.listdir(directory) if name.startswith("ep0-ba")]
    # It deletes only checkpoints that it has saved since its start.
    return begun + SAVES, [name for name in names if number(name) > begun]


WRITERS = {f.__name__: f for f in (tensorflow, keras, orbax, flax, huggingface, lightning, accelerate, dcp, safetensors,
                                   deepspeed, ignite, composer, xgboost)}


def live(name):
    """One run, in a separate process: two lines of JSON on descriptor 3."""
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
    options = ["--step-regex", "model_([0-9]+)"] if args.writer == "safetensors" else []
    for number, disk in enumerate(["new", "kept", "empty", "kept"], 1):
        if disk == "empty":
            shutil.rmtree(local)
        facts, verdict = os.path.join(args.work, "facts"), os.path.join(args.work, "verdict")
        run = [args.trainit, "run", "--checkpoint-dir", local, "--checkpoint-store", "file://" + os.path.abspath(store),
               "--settle", "0s", "--commit-interval", "100ms", "--max-restarts", "0", "--verdict-file", verdict, *options, "--",
               "sh", "-c", 'exec "$@" 3>"$0"', facts, sys.executable, os.path.abspath(__file__), args.writer, "--live"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
        life = "life %d (%s disk)" % (number, disk)
        if done.returncode != 0:
            wrong.append("%s ended with %d: %s" % (life, done.returncode, done.stderr[-2000:]))
            break
        with open(facts, encoding="utf-8") as lines:
            begun, ended = [json.loads(line) for line in lines]
        with open(verdict, encoding="utf-8") as text:
            committed = json.load(text)["committed_step"]
        if begun["begun"] != before:
            wrong.append("%s began at step %d, where %d was the last" % (life, begun["begun"], before))
        if len(ended["kept"]) > KEEP:
            wrong.append("%s left %s" % (life, ended["kept"]))
        # Lightning's last.ckpt has no step in its name.
        if committed != ended["last"] and (args.writer, committed) != ("lightning", None):
            wrong.append("%s ended at step %d, and step %s is committed" % (life, ended["last"], committed))
        before = ended["last"]
    for line in wrong:
        print("  " + line, file=sys.stderr)
    print("%s %s: %d steps in %d lives, one on an empty disk; %d wrong"
          % ("FAILED  " if wrong else "ok      ", args.writer, before, number, len(wrong)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
