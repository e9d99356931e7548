"""Keras with the callback of the package."""
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras  # noqa: E402
import numpy  # noqa: E402

import trainit  # noqa: E402
from trainit.keras import TrainitCallback  # noqa: E402


class UntilStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) >= int(sys.argv[1]):
            self.model.stop_training = True


def build():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


model = keras.models.load_model(trainit.resume_from()) if trainit.resume_from() else build()
print("start", int(model.optimizer.iterations), flush=True)
data = numpy.ones((4096, 4), "float32")
history = model.fit(data, data.sum(1), batch_size=2, epochs=1000, verbose=0, callbacks=[TrainitCallback(), UntilStep()])
print("end", int(model.optimizer.iterations), flush=True)
trainit.report("final_loss", history.history["loss"][-1], step=int(model.optimizer.iterations))
model.save(os.path.join(trainit.checkpoint_dir("."), "step-%d.keras" % int(model.optimizer.iterations)))
