"""Writers of TensorFlow, JAX, XGBoost and of plain Python."""
import json
import os
import pickle

from writer import Writer, filled, numpy, step_of


class TensorFlow(Writer):
    """tf.train.CheckpointManager, three kept."""

    name = "ckpt-%d"
    keep = 3

    def prepare(self):
        import tensorflow
        self.tf = tensorflow

    def open(self, directory, rank):
        self.variables, self.checkpoint = self.tracked()
        self.manager = self.tf.train.CheckpointManager(self.checkpoint, directory, max_to_keep=self.keep)

    def tracked(self):
        variables = {name: self.tf.Variable(array) for name, array in filled(0).items()}
        return variables, self.tf.train.Checkpoint(**variables)

    def state(self, step):
        for name, array in filled(step).items():
            self.variables[name].assign(array)

    def write(self, state, path, step):
        self.manager.save(checkpoint_number=step)

    def load(self, path):
        variables, checkpoint = self.tracked()
        checkpoint.read(path).assert_existing_objects_matched()
        return step_of(variables)


class TensorFlowSame(TensorFlow):
    """Checkpoint.write over the same prefix, and the state file, as Keras 2 saved weights."""

    name = "model"

    def write(self, state, path, step):
        prefix = self.checkpoint.write(path)
        self.tf.compat.v1.train.update_checkpoint_state(os.path.dirname(path), prefix)


class Keras(Writer):
    """keras.callbacks.BackupAndRestore: weights, then metadata, over and over in place."""

    name = ""    # the directory itself

    def prepare(self):
        import tensorflow
        self.keras = tensorflow.keras

    def model(self):
        model = self.keras.Sequential([self.keras.layers.Dense(1024, use_bias=False) for _ in range(4)])
        model.build((None, 1024))
        model.compile(loss="mse")
        return model

    def open(self, directory, rank):
        self.trained, self.backup = self.model(), self.keras.callbacks.BackupAndRestore(directory)
        self.backup.set_model(self.trained)
        self.backup.on_train_begin()

    def state(self, step):
        self.trained.set_weights([array.reshape(1024, 1024) for array in filled(step).values()])

    def write(self, state, path, step):
        self.backup.on_epoch_end(step)

    def load(self, path):
        model = self.model()
        model.load_weights(os.path.join(path, "latest.weights.h5"))
        step = step_of({"w%d" % n: weights.reshape(-1) for n, weights in enumerate(model.get_weights())})
        with open(os.path.join(path, "training_metadata.json")) as f:
            # The callback continues with the epoch after the saved one.
            epoch = json.load(f)["epoch"]
        if epoch != step + 1:
            raise ValueError("weights of epoch %d, metadata of epoch %d" % (step, epoch))
        return step


class Orbax(Writer):
    """orbax CheckpointManager, three kept."""

    name = "%d"
    keep = 3
    asynchronous = False

    def prepare(self):
        import logging

        import jax  # noqa: F401
        import orbax.checkpoint
        self.ocp = orbax.checkpoint
        logging.disable(logging.WARNING)

    def open(self, directory, rank):
        options = self.ocp.CheckpointManagerOptions(
            max_to_keep=self.keep, enable_async_checkpointing=self.asynchronous)
        self.manager = self.ocp.CheckpointManager(directory, options=options)

    def write(self, state, path, step):
        self.manager.save(step, args=self.ocp.args.StandardSave(state))
        self.manager.wait_until_finished()

    def load(self, path):
        return step_of(self.ocp.StandardCheckpointer().restore(os.path.join(path, "default")))


class OrbaxAsync(Orbax):
    """The same, asynchronous."""

    asynchronous = True


class Flax(Writer):
    """flax.training.checkpoints without Orbax, three kept."""

    name = "checkpoint_%d"
    keep = 3

    def prepare(self):
        import flax
        from flax.training import checkpoints
        flax.config.update("flax_use_orbax_checkpointing", False)
        self.checkpoints = checkpoints

    def write(self, state, path, step):
        self.checkpoints.save_checkpoint(os.path.dirname(path), state, step, keep=self.keep)

    def load(self, path):
        return step_of(self.checkpoints.restore_checkpoint(path, target=None))


class XGBoost(Writer):
    """xgboost.callback.TrainingCheckPoint, a model each round."""

    name = "model_%d.ubj"

    def prepare(self):
        import xgboost
        self.xgb = xgboost

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

        random = numpy.random.default_rng(1)
        data = self.xgb.DMatrix(random.normal(size=(4000, 8)), random.normal(size=4000))
        point = self.xgb.callback.TrainingCheckPoint(directory=directory, name="model", interval=1)
        self.xgb.train({"nthread": 1, "max_depth": 10, "num_parallel_tree": 20, "subsample": 0.5}, data, 10000,
                       callbacks=[Say("begin"), point, Say("done")])

    def load(self, path):
        model = self.xgb.Booster(model_file=path)
        model.predict(self.xgb.DMatrix(numpy.zeros((1, 8))))
        return model.num_boosted_rounds() - 1


class Numpy(Writer):
    """numpy.save, as in many hand-written trainers."""

    name = "step-%d.npy"

    def state(self, step):
        return numpy.stack(list(filled(step).values()))

    def write(self, state, path, step):
        numpy.save(path, state)

    def load(self, path):
        return step_of({"w%d" % n: array for n, array in enumerate(numpy.load(path))})


class Pickle(Writer):
    """pickle.dump, as in many hand-written trainers."""

    name = "step-%d.pkl"

    def state(self, step):
        return {name: array.tolist() for name, array in filled(step, 1 << 16).items()}

    def write(self, state, path, step):
        with open(path, "wb") as f:
            pickle.dump(state, f)

    def load(self, path):
        with open(path, "rb") as f:
            state = pickle.load(f)
        return step_of({name: numpy.asarray(values, "float32") for name, values in state.items()})


WRITERS = {
    "tensorflow": TensorFlow, "tensorflow-same": TensorFlowSame, "keras": Keras, "orbax": Orbax,
    "orbax-async": OrbaxAsync, "flax": Flax, "xgboost": XGBoost, "numpy": Numpy, "pickle": Pickle,
}
