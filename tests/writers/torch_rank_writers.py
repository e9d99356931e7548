"""Writers of torch in several processes."""
import glob
import os
import sys

from torch_writers import TorchFile
from writer import step_of


class Ranks(TorchFile):
    """Processes that train together."""

    processes = 2

    def prepare(self):
        super().prepare()
        import torch.distributed
        import torch.distributed.checkpoint
        self.dcp = torch.distributed.checkpoint

    def open(self, directory, rank):
        self.torch.distributed.init_process_group(
            "gloo", init_method="file://%s.rendezvous" % directory, rank=rank, world_size=self.processes)

    def state(self, step):
        state = super().state(step)
        self.torch.distributed.barrier()
        return state


class Distributed(Ranks):
    """torch.distributed.checkpoint."""

    name = "step_%d"

    def write(self, state, path, step):
        self.dcp.save(state, checkpoint_id=path)

    def load(self, path):
        state = {"w%d" % n: self.torch.zeros(1 << 20) for n in range(self.count)}
        self.dcp.load(state, checkpoint_id=path, no_dist=True)
        return step_of(state)


class DistributedLopsided(Distributed):
    """The same with one tensor, so that one of the two processes has nothing to write."""

    count = 1


class DistributedSame(Distributed):
    """One process that saves over the same directory."""

    name = "last"
    processes = 1


class DeepSpeed(Ranks):
    """DeepSpeed's engine, ZeRO stage 1."""

    name = "global_step%d"

    def prepare(self):
        # DeepSpeed compiles a part of itself at its first use, with the ninja of this Python. This happens here, because a
        # writer that is killed while it compiles would leave a lock, and the next writer would wait for it for ever.
        os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
        extensions = os.path.join(sys.prefix, "extensions")
        os.environ.update(DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=extensions)
        super().prepare()
        for lock in glob.glob(os.path.join(extensions, "*", "lock")):
            os.remove(lock)
        import deepspeed
        from deepspeed.comm.torch import build_shm_op
        build_shm_op()
        self.deepspeed = deepspeed

    def open(self, directory, rank):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.processes))
        self.deepspeed.init_distributed(
            "gloo", auto_mpi_discovery=False, init_method="file://%s.rendezvous" % directory, rank=rank,
            world_size=self.processes)
        self.model = self.parameters()
        self.engine, _, _, _ = self.deepspeed.initialize(
            model=self.model, model_parameters=self.model.parameters(),
            config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
                    "zero_allow_untested_optimizer": True, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}})

    def state(self, step):
        self.fill(self.model, step)
        self.torch.distributed.barrier()

    def write(self, state, path, step):
        directory, tag = os.path.split(path)
        self.engine.save_checkpoint(directory, tag=tag)

    def optimizers(self, path):
        """The optimizer's state of each rank."""
        names = ("zero_pp_rank_%d_mp_rank_00_optim_states.pt" % rank for rank in range(self.processes))
        return [self.torch.load(os.path.join(path, name), weights_only=False) for name in names]

    def load(self, path):
        self.optimizers(path)
        return step_of(self.torch.load(os.path.join(path, "mp_rank_00_model_states.pt"), weights_only=False)["module"])


class DeepSpeedSame(DeepSpeed):
    """The same under one tag. The learning rate tells the optimizer's step."""

    name = "last"

    def state(self, step):
        self.engine.optimizer.param_groups[0]["lr"] = float(step)
        super().state(step)

    def load(self, path):
        step = super().load(path)
        for state in self.optimizers(path):
            if state["optimizer_state_dict"]["base_optimizer_state"]["param_groups"][0]["lr"] != step:
                raise ValueError("the model of step %d, the optimizer of another" % step)
        return step


class Composer(TorchFile):
    """Composer's Trainer: a checkpoint each batch, three kept, and its link to the newest."""

    name = "ep0-ba%d-rank0.pt"
    keep = 3
    sharded = None

    def prepare(self):
        # Turns its telemetry off.
        os.environ["MOSAICML_PLATFORM"] = "false"
        super().prepare()
        import composer
        self.composer = composer

    def save(self, directory, rank, say):
        self.open(directory, rank)
        torch, composer, parameters, tensors = self.torch, self.composer, self.parameters(), self.tensors
        torch.set_num_threads(1)

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                for name, parameter in parameters.items():
                    self.register_parameter(name, parameter)

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
                new = tensors(int(state.timestamp.batch))
                for name, parameter in state.model.named_parameters():
                    own(parameter).data.copy_(shard(new[name.split(".")[-1]]))

            def batch_checkpoint(self, state, logger):
                # Composer's own callback for it runs last.
                say("begin", int(state.timestamp.batch))

        def own(parameter):
            return parameter.to_local() if self.sharded else parameter

        def shard(tensor):
            return tensor.chunk(self.processes)[rank]

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

    def load(self, path):
        state = self.torch.load(path, weights_only=False)
        if "rng" not in state:
            raise ValueError("it has no random states")
        return self.step_of_model(state)

    def step_of_model(self, state):
        return step_of({name.split(".")[-1]: tensor for name, tensor in state["state"]["model"].items()})


class ComposerSharded(Composer, Ranks):
    """The same with two processes, each of which saves its shards."""

    name = "ep0-ba%d"

    def prepare(self):
        super().prepare()
        from composer.utils.parallelism import FSDP2Config
        self.sharded = FSDP2Config

    def open(self, directory, rank):
        count = str(self.processes)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=count, LOCAL_WORLD_SIZE=count, NODE_RANK="0")
        super().open(directory, rank)

    def load(self, path):
        state = {"state": {"model": {"net.w%d" % n: self.torch.zeros(1 << 20) for n in range(self.count)}}}
        self.dcp.load(state, checkpoint_id=path, no_dist=True)
        return self.step_of_model(state)


class Nvrx(Ranks):
    """The local checkpoints of NVIDIA's resiliency extension."""

    name = "s/0/iter_%07d"
    keep = 1

    def prepare(self):
        super().prepare()
        from nvidia_resiliency_ext.checkpointing.local import basic_state_dict
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers import local_manager
        self.states, self.managers = basic_state_dict, local_manager

    def open(self, directory, rank):
        super().open(directory, rank)
        self.manager = self.managers.LocalCheckpointManager(directory, session_id="s")

    def write(self, state, path, step):
        # With tensors it needs a GPU.
        holder = self.states.BasicTensorAwareStateDict({})
        holder.state_dict = state
        self.manager.save(holder, step)

    def load(self, path):
        home, name = os.path.split(path)
        paths = (os.path.join(os.path.dirname(home), str(rank), "%s_%d_local.pt" % (name, rank))
                 for rank in range(self.processes))
        [step] = {step_of(self.torch.load(path, weights_only=False).state_dict) for path in paths}
        return step


WRITERS = {
    "dcp": Distributed, "dcp-lopsided": DistributedLopsided, "dcp-same": DistributedSame, "deepspeed": DeepSpeed,
    "deepspeed-same": DeepSpeedSame, "composer": Composer, "composer-sharded": ComposerSharded, "nvrx": Nvrx,
}
