"""A TensorFlow loop with tf.train.Checkpoint: the checkpoint to resume from is a prefix, not a file."""
import os
import sys

import tensorflow as tf

import trainit

steps = int(sys.argv[1])
weights, step = tf.Variable(tf.zeros([4, 1])), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weights=weights, step=step)
manager = tf.train.CheckpointManager(checkpoint, trainit.checkpoint_dir(), max_to_keep=2)
if trainit.resume_from():
    checkpoint.restore(trainit.resume_from()).assert_consumed()
    assert int(step) == trainit.resume_step()
trainit.should_stop()
print("start", int(step), flush=True)


@tf.function
def update(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((inputs @ weights - tf.reduce_sum(inputs, 1, keepdims=True)) ** 2)
    weights.assign_sub(0.01 * tape.gradient(loss, weights))
    step.assign_add(1)
    return loss


while int(step) < steps and not trainit.should_stop():
    loss = update(tf.random.normal([8, 4]))
    trainit.step(step, loss=loss)
trainit.report("final_loss", loss, step=step)
manager.save(checkpoint_number=int(step))
print("end", int(step), flush=True)
