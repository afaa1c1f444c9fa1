"""TensorFlow on several devices: training under MirroredStrategy, and in two processes."""

import json
import os
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.backends("tensorflow")

# Trains a layer on batches that are spread over two replicas; its weights must be those of NumPy's gradient descent.
TRAIN = """
import json, os, sys
import numpy as np
import keras
import tensorflow as tf
import mha

keras.config.set_floatx("float64")  # of losses, too
kind = sys.argv[1]
if kind == "workers":
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    cpu, *_ = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2

B, Q, K, D, RATE, STEPS = 4, 3, 5, 6, 0.05, 3
random = np.random.default_rng(0)
X, Y, target = (random.normal(size=(STEPS * B, T, D)) for T in (Q, K, Q))
lengths = np.array([5, 3, 0, 2] * STEPS, "int32")
batches = tf.data.Dataset.from_tensor_slices(((X, Y, lengths), target)).batch(B)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = batches.with_options(options)

class Model(keras.Model):
    def __init__(self):
        super().__init__(dtype="float64")
        self.attention = mha.MultiHeadAttention(D, 2, bias=True, dtype="float64", seed=0, backend="tensorflow").layer

    def call(self, inputs):
        queries, keys, lengths = inputs
        # `fit` builds the model with the mean of what the replicas get, of which integers are floats.
        return self.attention(queries, keys, keys, tf.cast(lengths, "int32"))

def loss(wanted, found):  # of each sample
    return tf.reduce_sum(tf.square(wanted - found), (1, 2))

with strategy.scope():
    model = Model()
    optimizer = keras.optimizers.SGD(RATE)
    model.compile(optimizer, loss, jit_compile=False)

def step(inputs, target):
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(loss(target, model(inputs))) / B
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))

if kind == "fit":
    model.fit(batches, shuffle=False, verbose=0)
else:
    spread = strategy.experimental_distribute_dataset(batches)
    with strategy.scope():
        model((X[:1], Y[:1], lengths[:1]))
        optimizer.build(model.trainable_variables)
    run = tf.function(lambda *batch: strategy.run(step, batch))
    for batch in spread:
        run(*batch)

plain = mha.MultiHeadAttention(D, 2, bias=True, dtype="float64", seed=0, backend="numpy")
for first in range(0, STEPS * B, B):
    own = slice(first, first + B)
    output, pull_back = plain.vjp(X[own], Y[own], Y[own], lengths[own])
    gradients = pull_back(2 * (output - target[own]) / B)
    plain.weights = {name: W - RATE * gradients[name] for name, W in plain.weights.items()}
for name, W in plain.weights.items():
    part, word = name.split(".")
    found = getattr(getattr(model.attention, part), word).numpy()
    limit = mha.parity.bound("float64", W, W, gradient=True, scale=1.0)
    assert mha.parity.error(found, W) <= limit, (name, mha.parity.error(found, W), limit)
print("trained")
"""


def run(kind, **environment):
    command = [sys.executable, "-c", TRAIN, kind]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def answered(processes):
    """The output of processes, all of which must end well within two minutes; none is left."""
    try:
        told = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, told, strict=True):
        assert process.returncode == 0, errors
    return [printed.strip() for printed, _ in told]


@pytest.mark.parametrize("kind", ["fit", "loop"])
def test_training_on_two_replicas_is_plain_gradient_descent(kind):
    assert answered([run(kind)]) == ["trained"]


def test_training_in_two_processes_is_plain_gradient_descent():
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in (first, second)]
    configs = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}} for index in (0, 1)]
    processes = [run("workers", TF_CONFIG=json.dumps(config)) for config in configs]
    assert answered(processes) == ["trained", "trained"]
