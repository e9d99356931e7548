"""A JAX loop: values are arrays that are still being computed when step() gets them."""
import os
import sys

import jax
import jax.numpy as jnp
import numpy

import trainit

steps = int(sys.argv[1])
weights, start = jnp.zeros(4), 0
if trainit.resume_from():
    saved = numpy.load(trainit.resume_from())
    weights, start = jnp.asarray(saved["weights"]), int(saved["step"])
    assert start == trainit.resume_step()
trainit.should_stop()
print("start", start, flush=True)


@jax.jit
def update(weights, inputs):
    loss, gradient = jax.value_and_grad(lambda w: ((inputs @ w - inputs.sum(1)) ** 2).mean())(weights)
    return weights - 0.01 * gradient, loss


key, n = jax.random.key(0), start
while n < steps and not trainit.should_stop():
    n += 1
    weights, loss = update(weights, jax.random.normal(jax.random.fold_in(key, n), (8, 4)))
    trainit.step(n, loss=loss)
trainit.report("final_loss", loss, step=jnp.asarray(n))
path = os.path.join(trainit.checkpoint_dir(), "ckpt-%08d.npz" % n)
with open(path + ".tmp", "wb") as file:
    numpy.savez(file, weights=weights, step=n)
os.replace(path + ".tmp", path)
print("end", n, flush=True)
