"""Writers of torch in one process."""
import json
import os

from writer import Writer, filled, step_of


class TorchFile(Writer):
    """torch.save under a new name each time."""

    name = "model_%d.pt"
    count = 4    # tensors

    def prepare(self):
        import torch
        self.torch = torch

    def state(self, step):
        return self.tensors(step)

    def write(self, state, path, step):
        self.torch.save(state, path)

    def load(self, path):
        return step_of(self.torch.load(path))

    def tensors(self, step):
        return {name: self.torch.from_numpy(array) for name, array in filled(step, count=self.count).items()}

    def parameters(self):
        return self.torch.nn.ParameterDict({k: self.torch.nn.Parameter(v) for k, v in self.tensors(0).items()})

    def fill(self, parameters, step):
        """Gives the parameters the content of this step."""
        for name, tensor in self.tensors(step).items():
            parameters[name].data.copy_(tensor)


class TorchSame(TorchFile):
    """torch.save over the same file."""

    name = "last.pt"


class Ignite(TorchFile):
    """Ignite's DiskSaver, which its Checkpoint saves with."""

    name = "checkpoint_%d.pt"

    def prepare(self):
        super().prepare()
        import ignite.handlers
        self.handlers = ignite.handlers

    def open(self, directory, rank):
        self.saver = self.handlers.DiskSaver(directory)

    def write(self, state, path, step):
        self.saver(state, os.path.basename(path))


class Safetensors(TorchFile):
    """safetensors.torch.save_file."""

    name = "model-%d.safetensors"

    def prepare(self):
        super().prepare()
        import safetensors.torch
        self.safetensors = safetensors.torch

    def write(self, state, path, step):
        self.safetensors.save_file(state, path)

    def load(self, path):
        return step_of(self.safetensors.load_file(path))


class HuggingFace(Writer):
    """transformers.Trainer: a checkpoint each step, three kept."""

    name = "checkpoint-%d"
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

    def load(self, path):
        self.transformers.GPT2LMHeadModel.from_pretrained(path)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
            self.torch.load(os.path.join(path, name), weights_only=False)
        with open(os.path.join(path, "trainer_state.json")) as f:
            return json.load(f)["global_step"]


class Accelerate(Safetensors):
    """accelerate's save_state under automatic names, which count from 0, three kept."""

    name = "checkpoints/checkpoint_%d"
    first = 0
    keep = 3

    def prepare(self):
        super().prepare()
        import accelerate
        self.accelerate = accelerate

    def open(self, directory, rank):
        naming = self.accelerate.utils.ProjectConfiguration(
            project_dir=directory, automatic_checkpoint_naming=True, total_limit=self.keep)
        self.begin(project_config=naming)

    def begin(self, **options):
        self.accelerator, weights = self.accelerate.Accelerator(cpu=True, **options), self.parameters()
        optimizer = self.torch.optim.SGD(weights.parameters(), lr=0.1)
        self.weights, self.optimizer = self.accelerator.prepare(weights, optimizer)

    def state(self, step):
        self.fill(self.weights, step)

    def write(self, state, path, step):
        self.accelerator.save_state()

    def load(self, path):
        for name in ("optimizer.bin", "random_states_0.pkl"):
            self.torch.load(os.path.join(path, name), weights_only=False)
        return super().load(os.path.join(path, "model.safetensors"))


class AccelerateSame(Accelerate):
    """save_state over the same directory."""

    name = "checkpoint_1"
    first = 1

    def open(self, directory, rank):
        self.begin()

    def state(self, step):
        super().state(step)
        self.optimizer.param_groups[0]["lr"] = float(step)

    def write(self, state, path, step):
        self.accelerator.save_state(path)

    def load(self, path):
        step = super().load(path)
        optimizer = self.torch.load(os.path.join(path, "optimizer.bin"), weights_only=False)
        if optimizer["param_groups"][0]["lr"] != step:
            raise ValueError("the model of step %d, the optimizer of another" % step)
        # A constant name does not contain the trainer's step.
        return 1


class Lightning(TorchFile):
    """lightning's ModelCheckpoint after every batch, all kept, and the link last.ckpt."""

    name = "epoch=0-step=%d.ckpt"

    def prepare(self):
        super().prepare()
        import lightning
        self.lightning = lightning

    def save(self, directory, rank, say):
        torch, lightning, fill, parameters = self.torch, self.lightning, self.fill, self.parameters()

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False
                for name, parameter in parameters.items():
                    self.register_parameter(name, parameter)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

            def training_step(self, batch, number):
                self.optimizers().step()
                fill(dict(self.named_parameters()), self.global_step)
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

    def load(self, path):
        state = self.torch.load(path, weights_only=False)
        step = step_of(state["state_dict"])
        if state["global_step"] != step:
            raise ValueError("weights of step %d, global_step %d" % (step, state["global_step"]))
        return step


WRITERS = {
    "torch-file": TorchFile, "torch-same": TorchSame, "ignite": Ignite, "safetensors": Safetensors,
    "huggingface": HuggingFace, "accelerate": Accelerate, "accelerate-same": AccelerateSame, "lightning": Lightning,
}
