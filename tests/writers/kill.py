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
import glob
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

SLOW = 60.0


class Writer:
    """Common code of all writers. A unit has trainit's name for it."""

    keep = None        # how many checkpoints the framework keeps; None: all
    arguments = []     # flags for trainit
    processes = 1      # of the writer; one may be killed first

    def prepare(self):
        """Imports, in the parent; nothing that starts a thread."""

    def save(self, directory, rank, say):
        """Saves until it is killed, with say("begin", step) and say("done", step) around each save."""

    def unit(self, step):
        raise NotImplementedError

    def load(self, directory, unit):
        """The step whose content the unit has. Raises if it cannot be loaded."""

    def must_be_complete(self, begun, done):
        """Units whose save has returned and that no process has changed since."""
        oldest = begun - self.keep + 1 if self.keep else 0
        # The current save may already be deleting the oldest checkpoint.
        return {self.unit(step) for step in done if step >= oldest}


def filled(numpy, step, size=1 << 20, count=4):
    """Arrays that only this step has."""
    return {"w%d" % n: numpy.arange(size, dtype="float32") + step * 10 + n for n in range(count)}


def step_of(numpy, arrays):
    """The step of these arrays. Raises if they are of no step."""
    step = int(arrays["w0"].reshape(-1)[0]) // 10
    for name, array in filled(numpy, step, arrays["w0"].size, len(arrays)).items():
        if not numpy.array_equal(numpy.asarray(arrays[name]), array):
            raise ValueError("%s of step %d has other content" % (name, step))
    return step


class TorchFile(Writer):
    """torch.save under a new name each time."""

    def prepare(self):
        import numpy
        import torch
        self.torch, self.numpy = torch, numpy

    def unit(self, step):
        return "model_%d.pt" % step

    def save(self, directory, rank, say):
        step = 0
        while True:
            step += 1
            state = {k: self.torch.from_numpy(v) for k, v in filled(self.numpy, step).items()}
            say("begin", step)
            self.torch.save(state, os.path.join(directory, self.unit(step)))
            say("done", step)

    def load(self, directory, unit):
        state = self.torch.load(os.path.join(directory, unit))
        return step_of(self.numpy, {k: v.numpy() for k, v in state.items()})


class TorchSame(TorchFile):
    """torch.save over the same file."""

    def unit(self, step):
        return "last.pt"

    def must_be_complete(self, begun, done):
        return {"last.pt"} if begun in done else set()


class Ignite(TorchFile):
    """Ignite's DiskSaver, which its Checkpoint saves with."""

    def prepare(self):
        super().prepare()
        import ignite.handlers
        self.handlers = ignite.handlers

    def unit(self, step):
        return "checkpoint_%d.pt" % step

    def save(self, directory, rank, say):
        saver, step = self.handlers.DiskSaver(directory), 0
        while True:
            step += 1
            state = {k: self.torch.from_numpy(v) for k, v in filled(self.numpy, step).items()}
            say("begin", step)
            saver(state, self.unit(step))
            say("done", step)


class Safetensors(TorchFile):
    """safetensors.torch.save_file."""

    def prepare(self):
        super().prepare()
        import safetensors.torch
        self.safetensors = safetensors.torch

    def unit(self, step):
        return "model-%d.safetensors" % step

    def save(self, directory, rank, say):
        step = 0
        while True:
            step += 1
            state = {k: self.torch.from_numpy(v) for k, v in filled(self.numpy, step).items()}
            say("begin", step)
            self.safetensors.save_file(state, os.path.join(directory, self.unit(step)))
            say("done", step)

    def load(self, directory, unit):
        state = self.safetensors.load_file(os.path.join(directory, unit))
        return step_of(self.numpy, {k: v.numpy() for k, v in state.items()})


class Distributed(TorchFile):
    """torch.distributed.checkpoint of two processes."""

    processes = 2
    names = ("w0", "w1", "w2", "w3")

    def prepare(self):
        super().prepare()
        import torch.distributed
        import torch.distributed.checkpoint
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.dcp = torch.distributed.checkpoint

    def unit(self, step):
        return "step_%d" % step

    def save(self, directory, rank, say):
        self.torch.distributed.init_process_group(
            "gloo", init_method="file://%s.rendezvous" % directory, rank=rank, world_size=self.processes)
        step = 0
        while True:
            step += 1
            arrays = filled(self.numpy, step, count=len(self.names))
            state = {k: self.torch.from_numpy(v) for k, v in arrays.items()}
            self.torch.distributed.barrier()
            say("begin", step)
            self.dcp.save(state, checkpoint_id=os.path.join(directory, self.unit(step)))
            say("done", step)

    def load(self, directory, unit):
        state = {k: self.torch.zeros(1 << 20) for k in self.names}
        self.dcp.load(state, checkpoint_id=os.path.join(directory, unit), no_dist=True)
        return step_of(self.numpy, {k: v.numpy() for k, v in state.items()})


class DistributedLopsided(Distributed):
    """The same with one tensor, so that one of the two processes has nothing to write."""

    names = ("w0",)


class DistributedSame(Distributed):
    """One process that saves over the same directory."""

    processes = 1

    def unit(self, step):
        return "last"

    def must_be_complete(self, begun, done):
        return {"last"} if begun in done else set()


class DeepSpeed(TorchFile):
    """DeepSpeed's engine of two processes, ZeRO stage 1."""

    processes = 2
    stage = 1

    def prepare(self):
        # DeepSpeed compiles a part of itself at its first use, with the ninja of this Python. This happens here, because a
        # writer that is killed while it compiles would leave a lock, and the next writer would wait for it for ever.
        os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        extensions = os.path.join(sys.prefix, "extensions")
        os.environ.update(DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo", TORCH_EXTENSIONS_DIR=extensions)
        super().prepare()
        for lock in glob.glob(os.path.join(extensions, "*", "lock")):
            os.remove(lock)
        import deepspeed
        from deepspeed.comm.torch import build_shm_op
        build_shm_op()
        self.deepspeed = deepspeed

    def unit(self, step):
        return "global_step%d" % step

    def save(self, directory, rank, say):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.processes))
        self.deepspeed.init_distributed(
            "gloo", auto_mpi_discovery=False, init_method="file://%s.rendezvous" % directory, rank=rank,
            world_size=self.processes)
        model = self.torch.nn.ParameterDict(
            {k: self.torch.nn.Parameter(self.torch.from_numpy(v)) for k, v in filled(self.numpy, 0).items()})
        engine, _, _, _ = self.deepspeed.initialize(
            model=model, model_parameters=model.parameters(),
            config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": self.stage},
                    "zero_allow_untested_optimizer": True, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}})
        step = 0
        while True:
            step += 1
            for name, value in filled(self.numpy, step).items():
                model[name].data.copy_(self.torch.from_numpy(value))
            self.mark(engine, step)
            self.torch.distributed.barrier()
            say("begin", step)
            engine.save_checkpoint(directory, tag=self.unit(step))
            say("done", step)

    def mark(self, engine, step):
        """Makes the optimizer's state differ from step to step, where one name is saved over."""

    def load(self, directory, unit):
        unit = os.path.join(directory, unit)
        for rank in range(self.processes):
            name = "zero_pp_rank_%d_mp_rank_00_optim_states.pt" % rank
            self.torch.load(os.path.join(unit, name), weights_only=False)
        state = self.torch.load(os.path.join(unit, "mp_rank_00_model_states.pt"), weights_only=False)
        return step_of(self.numpy, {k: v.numpy() for k, v in state["module"].items()})


class DeepSpeedSame(DeepSpeed):
    """The same under one tag."""

    def unit(self, step):
        return "last"

    def must_be_complete(self, begun, done):
        return {"last"} if begun in done else set()

    def mark(self, engine, step):
        engine.optimizer.param_groups[0]["lr"] = float(step)

    def load(self, directory, unit):
        step = super().load(directory, unit)
        for rank in range(self.processes):
            name = "zero_pp_rank_%d_mp_rank_00_optim_states.pt" % rank
            state = self.torch.load(os.path.join(directory, unit, name), weights_only=False)["optimizer_state_dict"]
            if state["base_optimizer_state"]["param_groups"][0]["lr"] != step:
                raise ValueError("the model of step %d, the optimizer of another" % step)
        return step


class HuggingFace(Writer):
    """transformers.Trainer: a checkpoint each step, three kept."""

    keep = 3

    def prepare(self):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import transformers
        self.torch, self.transformers = torch, transformers
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        # It imports most modules lazily.
        for name in ("Trainer", "TrainerCallback", "TrainingArguments", "GPT2Config", "GPT2LMHeadModel"):
            getattr(transformers, name)

    def unit(self, step):
        return "checkpoint-%d" % step

    def save(self, directory, rank, say):
        torch, transformers = self.torch, self.transformers
        torch.set_num_threads(1)

        class Say(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                say("begin", state.global_step)

            def on_save(self, args, state, control, **_):
                say("done", state.global_step)

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 1000

            def __getitem__(self, at):
                ids = torch.full((4,), at % 50)
                return {"input_ids": ids, "labels": ids}

        config = transformers.GPT2Config(vocab_size=2000, n_positions=8, n_embd=256, n_layer=2, n_head=2)
        arguments = transformers.TrainingArguments(
            output_dir=directory, max_steps=10000, save_steps=1, save_total_limit=self.keep, use_cpu=True,
            report_to=[], disable_tqdm=True, logging_strategy="no", per_device_train_batch_size=1)
        trainer = transformers.Trainer(
            transformers.GPT2LMHeadModel(config), arguments, train_dataset=Data(), callbacks=[Say()])
        trainer.train()

    def load(self, directory, unit):
        unit = os.path.join(directory, unit)
        self.transformers.GPT2LMHeadModel.from_pretrained(unit)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
            self.torch.load(os.path.join(unit, name), weights_only=False)
        with open(os.path.join(unit, "trainer_state.json")) as f:
            return json.load(f)["global_step"]


class Accelerate(TorchFile):
    """accelerate's save_state under automatic names, which count from 0, three kept."""

    keep = 3

    def prepare(self):
        super().prepare()
        import accelerate
        import safetensors.torch
        self.accelerate, self.safetensors = accelerate, safetensors.torch

    def unit(self, step):
        return "checkpoints/checkpoint_%d" % step

    def save(self, directory, rank, say):
        naming = self.accelerate.utils.ProjectConfiguration(
            project_dir=directory, automatic_checkpoint_naming=True, total_limit=self.keep)
        accelerator = self.accelerate.Accelerator(cpu=True, project_config=naming)
        weights = self.torch.nn.ParameterDict(
            {k: self.torch.nn.Parameter(self.torch.from_numpy(v)) for k, v in filled(self.numpy, 0).items()})
        weights, _ = accelerator.prepare(weights, self.torch.optim.SGD(weights.parameters(), lr=0.1))
        step = -1
        while True:
            step += 1
            for name, value in filled(self.numpy, step).items():
                weights[name].data.copy_(self.torch.from_numpy(value))
            say("begin", step)
            accelerator.save_state()
            say("done", step)

    def load(self, directory, unit):
        unit = os.path.join(directory, unit)
        for name in ("optimizer.bin", "random_states_0.pkl"):
            self.torch.load(os.path.join(unit, name), weights_only=False)
        state = self.safetensors.load_file(os.path.join(unit, "model.safetensors"))
        return step_of(self.numpy, {k: v.numpy() for k, v in state.items()})


class AccelerateSame(Accelerate):
    """save_state over the same directory."""

    def unit(self, step):
        return "checkpoint_1"

    def must_be_complete(self, begun, done):
        return {"checkpoint_1"} if begun in done else set()

    def save(self, directory, rank, say):
        accelerator = self.accelerate.Accelerator(cpu=True)
        weights = self.torch.nn.ParameterDict(
            {k: self.torch.nn.Parameter(self.torch.from_numpy(v)) for k, v in filled(self.numpy, 0).items()})
        weights, optimizer = accelerator.prepare(weights, self.torch.optim.SGD(weights.parameters(), lr=0.1))
        step = 0
        while True:
            step += 1
            for name, value in filled(self.numpy, step).items():
                weights[name].data.copy_(self.torch.from_numpy(value))
            optimizer.param_groups[0]["lr"] = float(step)
            say("begin", step)
            accelerator.save_state(os.path.join(directory, self.unit(step)))
            say("done", step)

    def load(self, directory, unit):
        step = super().load(directory, unit)
        optimizer = self.torch.load(os.path.join(directory, unit, "optimizer.bin"), weights_only=False)
        if optimizer["param_groups"][0]["lr"] != step:
            raise ValueError("the model of step %d, the optimizer of another" % step)
        # A constant name does not contain the trainer's step.
        return 1


class Lightning(TorchFile):
    """lightning's ModelCheckpoint after every batch, all kept, and the link last.ckpt."""

    def prepare(self):
        super().prepare()
        import lightning
        self.lightning = lightning

    def unit(self, step):
        return "epoch=0-step=%d.ckpt" % step

    def save(self, directory, rank, say):
        torch, numpy, lightning = self.torch, self.numpy, self.lightning

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False
                for name, value in filled(numpy, 0).items():
                    self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(value)))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

            def training_step(self, batch, number):
                self.optimizers().step()
                for name, value in filled(numpy, self.global_step).items():
                    getattr(self, name).data.copy_(torch.from_numpy(value))
                say("begin", self.global_step)

            # The checkpoint's callback runs last at the end of a batch.
            def on_train_batch_start(self, batch, number):
                if self.global_step:
                    say("done", self.global_step)

        point = lightning.pytorch.callbacks.ModelCheckpoint(
            dirpath=directory, every_n_train_steps=1, save_top_k=-1, save_last="link")
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[point])
        trainer.fit(Model(), torch.utils.data.DataLoader(range(10000)))

    def load(self, directory, unit):
        state = self.torch.load(os.path.join(directory, unit), weights_only=False)
        step = step_of(self.numpy, {k: v.numpy() for k, v in state["state_dict"].items()})
        if state["global_step"] != step:
            raise ValueError("weights of step %d, global_step %d" % (step, state["global_step"]))
        return step


class TensorFlow(Writer):
    """tf.train.CheckpointManager, three kept."""

    keep = 3

    def prepare(self):
        import numpy
        import tensorflow
        self.numpy, self.tf = numpy, tensorflow

    def unit(self, step):
        return "ckpt-%d" % step

    def save(self, directory, rank, say):
        tf = self.tf
        variables = {k: tf.Variable(v) for k, v in filled(self.numpy, 0).items()}
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(**variables), directory, max_to_keep=self.keep)
        step = 0
        while True:
            step += 1
            for name, value in filled(self.numpy, step).items():
                variables[name].assign(value)
            say("begin", step)
            manager.save(checkpoint_number=step)
            say("done", step)

    def load(self, directory, unit):
        variables = {k: self.tf.Variable(v) for k, v in filled(self.numpy, 0).items()}
        read = self.tf.train.Checkpoint(**variables).read(os.path.join(directory, unit))
        read.assert_existing_objects_matched()
        return step_of(self.numpy, {k: v.numpy() for k, v in variables.items()})


class TensorFlowSame(TensorFlow):
    """Checkpoint.write over the same prefix, and the state file, as Keras 2 saved weights."""

    def unit(self, step):
        return "model"

    def must_be_complete(self, begun, done):
        return {"model"} if begun in done else set()

    def save(self, directory, rank, say):
        tf = self.tf
        variables = {k: tf.Variable(v) for k, v in filled(self.numpy, 0).items()}
        checkpoint = tf.train.Checkpoint(**variables)
        step = 0
        while True:
            step += 1
            for name, value in filled(self.numpy, step).items():
                variables[name].assign(value)
            say("begin", step)
            prefix = checkpoint.write(os.path.join(directory, self.unit(step)))
            tf.compat.v1.train.update_checkpoint_state(directory, prefix)
            say("done", step)


class Keras(Writer):
    """keras.callbacks.BackupAndRestore: weights, then metadata, over and over in place."""

    def prepare(self):
        import numpy
        import tensorflow
        self.numpy, self.tf, self.keras = numpy, tensorflow, tensorflow.keras

    def unit(self, step):
        return ""    # the directory itself

    def must_be_complete(self, begun, done):
        return {self.unit(0)} if begun in done else set()

    def model(self):
        model = self.keras.Sequential([self.keras.layers.Dense(1024, use_bias=False) for _ in range(4)])
        model.build((None, 1024))
        model.compile(loss="mse")
        return model

    def save(self, directory, rank, say):
        model = self.model()
        backup = self.keras.callbacks.BackupAndRestore(directory)
        backup.set_model(model)
        backup.on_train_begin()
        step = 0
        while True:
            step += 1
            model.set_weights([a.reshape(1024, 1024) for a in filled(self.numpy, step).values()])
            say("begin", step)
            backup.on_epoch_end(step)
            say("done", step)

    def load(self, directory, unit):
        model = self.model()
        model.load_weights(os.path.join(directory, unit, "latest.weights.h5"))
        step = step_of(self.numpy, {"w%d" % n: w.reshape(-1) for n, w in enumerate(model.get_weights())})
        with open(os.path.join(directory, "training_metadata.json")) as f:
            # The callback continues with the epoch after the saved one.
            epoch = json.load(f)["epoch"]
        if epoch != step + 1:
            raise ValueError("weights of epoch %d, metadata of epoch %d" % (step, epoch))
        return step


class Orbax(Writer):
    """orbax CheckpointManager, three kept."""

    keep = 3
    asynchronous = False

    def prepare(self):
        import jax
        import numpy
        import orbax.checkpoint
        self.numpy, self.jax, self.ocp = numpy, jax, orbax.checkpoint
        import logging
        logging.disable(logging.WARNING)

    def unit(self, step):
        return str(step)

    def manager(self, directory):
        options = self.ocp.CheckpointManagerOptions(
            max_to_keep=self.keep, enable_async_checkpointing=self.asynchronous)
        return self.ocp.CheckpointManager(directory, options=options)

    def save(self, directory, rank, say):
        manager = self.manager(directory)
        step = 0
        while True:
            step += 1
            tree = filled(self.numpy, step)
            say("begin", step)
            manager.save(step, args=self.ocp.args.StandardSave(tree))
            manager.wait_until_finished()
            say("done", step)

    def load(self, directory, unit):
        checkpointer = self.ocp.StandardCheckpointer()
        tree = checkpointer.restore(os.path.join(directory, unit, "default"))
        return step_of(self.numpy, {k: self.numpy.asarray(v) for k, v in tree.items()})


class OrbaxAsync(Orbax):
    """The same, asynchronous."""

    asynchronous = True


class Flax(Writer):
    """flax.training.checkpoints without Orbax, three kept."""

    keep = 3

    def prepare(self):
        import flax
        import numpy
        from flax.training import checkpoints
        flax.config.update("flax_use_orbax_checkpointing", False)
        self.numpy, self.checkpoints = numpy, checkpoints

    def unit(self, step):
        return "checkpoint_%d" % step

    def save(self, directory, rank, say):
        step = 0
        while True:
            step += 1
            tree = filled(self.numpy, step)
            say("begin", step)
            self.checkpoints.save_checkpoint(directory, tree, step, keep=self.keep)
            say("done", step)

    def load(self, directory, unit):
        return step_of(self.numpy, self.checkpoints.restore_checkpoint(os.path.join(directory, unit), target=None))


class XGBoost(Writer):
    """xgboost.callback.TrainingCheckPoint, a model each round."""

    def prepare(self):
        import numpy
        import xgboost
        self.numpy, self.xgb = numpy, xgboost

    def unit(self, step):
        return "model_%d.ubj" % step

    def save(self, directory, rank, say):
        class Say(self.xgb.callback.TrainingCallback):
            def __init__(self, word):
                super().__init__()
                self.word = word

            def after_iteration(self, model, epoch, evals_log):
                # It saves nothing in the first round.
                if epoch > 0:
                    say(self.word, epoch)
                return False

        random = self.numpy.random.default_rng(1)
        data = self.xgb.DMatrix(random.normal(size=(4000, 8)), random.normal(size=4000))
        point = self.xgb.callback.TrainingCheckPoint(directory=directory, name="model", interval=1)
        self.xgb.train({"nthread": 1, "max_depth": 10, "num_parallel_tree": 20, "subsample": 0.5}, data, 10000,
                       callbacks=[Say("begin"), point, Say("done")])

    def load(self, directory, unit):
        model = self.xgb.Booster(model_file=os.path.join(directory, unit))
        trees = model.num_boosted_rounds()
        model.predict(self.xgb.DMatrix(self.numpy.zeros((1, 8))))
        return trees - 1


class Composer(TorchFile):
    """Composer's Trainer: a checkpoint each batch, three kept, and its link to the newest."""

    keep = 3
    sharded = None

    def prepare(self):
        # Turns its telemetry off.
        os.environ.update(MOSAICML_PLATFORM="false", GLOO_SOCKET_IFNAME="lo")
        super().prepare()
        import composer
        self.composer = composer

    def unit(self, step):
        return "ep0-ba%d-rank0.pt" % step

    def save(self, directory, rank, say):
        self.train(directory, rank, say)

    def train(self, directory, rank, say):
        torch, numpy, composer = self.torch, self.numpy, self.composer
        torch.set_num_threads(1)

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                for name, value in filled(numpy, 0).items():
                    self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(value)))

            def forward(self, x):
                return sum(w[0] for w in self.parameters()) * x.sum()

        class Model(composer.ComposerModel):
            def __init__(self):
                super().__init__()
                self.net = Net()

            def forward(self, batch):
                return self.net(batch[0])

            def loss(self, outputs, batch):
                return outputs

        class Say(composer.Callback):
            def batch_start(self, state, logger):
                if int(state.timestamp.batch) > 0:
                    say("done", int(state.timestamp.batch))

            def batch_end(self, state, logger):
                step = int(state.timestamp.batch)
                arrays = filled(numpy, step)
                for name, parameter in state.model.named_parameters():
                    own(parameter).data.copy_(shard(torch.from_numpy(arrays[name.split(".")[-1]])))

            def batch_checkpoint(self, state, logger):
                # Composer's own callback for it runs last.
                say("begin", int(state.timestamp.batch))

        def own(parameter):
            return parameter.to_local() if self.sharded else parameter

        def shard(array):
            return array.chunk(self.processes)[rank]

        model = Model()
        data = torch.utils.data.TensorDataset(torch.ones(10000, 1))
        sampler = torch.utils.data.DistributedSampler(data, num_replicas=self.processes, rank=rank)
        loader = torch.utils.data.DataLoader(data, sampler=sampler)
        trainer = composer.Trainer(
            model=model, train_dataloader=loader, max_duration="1ep", device="cpu",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.0), run_name="run", save_folder=directory,
            save_interval="1ba", save_num_checkpoints_to_keep=self.keep, autoresume=True, progress_bar=False,
            parallelism_config=self.sharded and {"fsdp": self.sharded()}, callbacks=[Say()])
        trainer.fit()

    def load(self, directory, unit):
        state = self.torch.load(os.path.join(directory, unit), weights_only=False)
        if "rng" not in state:
            raise ValueError("it has no random states")
        return step_of(self.numpy, {k.split(".")[-1]: v.numpy() for k, v in state["state"]["model"].items()})


class ComposerSharded(Composer):
    """The same with two processes, each of which saves its shards."""

    processes = 2

    def prepare(self):
        super().prepare()
        import torch.distributed.checkpoint
        from composer.utils.parallelism import FSDP2Config
        self.dcp, self.sharded = torch.distributed.checkpoint, FSDP2Config

    def unit(self, step):
        return "ep0-ba%d" % step

    def save(self, directory, rank, say):
        count = str(self.processes)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=count, LOCAL_WORLD_SIZE=count, NODE_RANK="0")
        self.torch.distributed.init_process_group(
            "gloo", init_method="file://%s.rendezvous" % directory, rank=rank, world_size=self.processes)
        self.train(directory, rank, say)

    def load(self, directory, unit):
        state = {"state": {"model": {"net.w%d" % n: self.torch.zeros(1 << 20) for n in range(4)}}}
        self.dcp.load(state, checkpoint_id=os.path.join(directory, unit), no_dist=True)
        return step_of(self.numpy, {k.split(".")[-1]: v.numpy() for k, v in state["state"]["model"].items()})


class Nvrx(TorchFile):
    """The local checkpoints of NVIDIA's resiliency extension, of two processes."""

    processes = 2
    keep = 1

    def prepare(self):
        super().prepare()
        import torch.distributed
        from nvidia_resiliency_ext.checkpointing.local import basic_state_dict
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers import local_manager
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        self.states, self.managers = basic_state_dict, local_manager

    def unit(self, step):
        return "s/0/iter_%07d" % step

    def save(self, directory, rank, say):
        self.torch.distributed.init_process_group(
            "gloo", init_method="file://%s.rendezvous" % directory, rank=rank, world_size=self.processes)
        manager = self.managers.LocalCheckpointManager(directory, session_id="s")
        step = 0
        while True:
            step += 1
            # With tensors it needs a GPU.
            state = self.states.BasicTensorAwareStateDict({})
            state.state_dict = {k: self.torch.from_numpy(v) for k, v in filled(self.numpy, step).items()}
            self.torch.distributed.barrier()
            say("begin", step)
            manager.save(state, step)
            say("done", step)

    def load(self, directory, unit):
        steps = set()
        for rank in range(self.processes):
            home, name = os.path.split(os.path.join(directory, unit))
            path = os.path.join(os.path.dirname(home), str(rank), "%s_%d_local.pt" % (name, rank))
            state = self.torch.load(path, weights_only=False).state_dict
            steps.add(step_of(self.numpy, {k: v.numpy() for k, v in state.items()}))
        [step] = steps
        return step


class Numpy(Writer):
    """numpy.save, as in many hand-written trainers."""

    def prepare(self):
        import numpy
        self.numpy = numpy

    def unit(self, step):
        return "step-%d.npy" % step

    def save(self, directory, rank, say):
        step = 0
        while True:
            step += 1
            array = self.numpy.stack(list(filled(self.numpy, step).values()))
            say("begin", step)
            self.numpy.save(os.path.join(directory, self.unit(step)), array)
            say("done", step)

    def load(self, directory, unit):
        array = self.numpy.load(os.path.join(directory, unit))
        return step_of(self.numpy, {"w%d" % n: a for n, a in enumerate(array)})


class Pickle(Numpy):
    """pickle.dump, as in many hand-written trainers."""

    def unit(self, step):
        return "step-%d.pkl" % step

    def save(self, directory, rank, say):
        import pickle
        step = 0
        while True:
            step += 1
            state = {k: v.tolist() for k, v in filled(self.numpy, step, 1 << 16).items()}
            say("begin", step)
            with open(os.path.join(directory, self.unit(step)), "wb") as f:
                pickle.dump(state, f)
            say("done", step)

    def load(self, directory, unit):
        import pickle
        with open(os.path.join(directory, unit), "rb") as f:
            state = pickle.load(f)
        return step_of(self.numpy, {k: self.numpy.asarray(v, "float32") for k, v in state.items()})


WRITERS = {
    "torch-file": TorchFile, "torch-same": TorchSame, "ignite": Ignite, "safetensors": Safetensors, "dcp": Distributed, "dcp-lopsided": DistributedLopsided, "dcp-same": DistributedSame,
    "deepspeed": DeepSpeed, "deepspeed-same": DeepSpeedSame, "huggingface": HuggingFace, "accelerate": Accelerate, "accelerate-same": AccelerateSame, "lightning": Lightning, "flax": Flax,
    "tensorflow": TensorFlow, "tensorflow-same": TensorFlowSame, "keras": Keras, "orbax": Orbax,
    "orbax-async": OrbaxAsync, "composer": Composer, "composer-sharded": ComposerSharded, "nvrx": Nvrx, "xgboost": XGBoost, "numpy": Numpy, "pickle": Pickle,
}


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

    command = [options.trainit, "checkpoint", "list", "--json", "--checkpoint-dir", directory] + writer.arguments
    listed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env={}).stdout)["local"]
    # The listing names the newest complete unit of a format. Files without a format belong to the rest, which
    # has no unit.
    verdicts = {unit["unit"]: unit for unit in listed if unit["unit"] is not None}
    wrong = []
    finished = {unit for unit in [writer.unit(max(done))] if unit in writer.must_be_complete(begun, done)} if done else set()
    for unit in sorted(set(verdicts) | finished):
        loaded = forked(lambda: writer.load(directory, unit))
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
    for name in ("CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "JAX_PLATFORMS", "OMP_NUM_THREADS"):
        os.environ[name] = {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}.get(name, "3")
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
