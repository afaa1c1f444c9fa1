"""How TensorFlow spreads a call over devices, for the suite of `mha.parity.cases.devices`."""

import numpy as np
import tensorflow as tf

from mha import parallel
from mha.backends.tensorflow.weights import parameters
from mha.core.call import FLOATS, Call
from mha.layer import restore
from mha.parallel.parts import ONCE, heads_of_keys, names_of_copies, split_axes
from mha.parity.cases.devices import part_of_call
from mha.parity.rule.layouts import GRADIENT


class Ranks:
    """All devices, driven by one process: GPUs where there are enough, else parts of the processor."""

    def __init__(self, rank, count, meet, limit):
        self.count, kind = count, "GPU"
        if len(tf.config.list_physical_devices("GPU")) < count:
            (cpu, *_), kind = tf.config.list_physical_devices("CPU"), "CPU"
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        self.strategy = tf.distribute.MirroredStrategy([f"{kind}:{number}" for number in range(count)])
        self.ways, self.alone = {"data (MirroredStrategy)": count, "heads (shard)": 1}, ("heads (shard)",)

    def compute(self, way, case, dtype, inputs, call):
        """Output and gradients of a case, as `mha.parity.cases.devices` asks for them."""
        return (self._data if "data" in way else self._heads)(case, dtype, inputs, call)

    def _data(self, case, dtype, inputs, call):
        """Compute a part of the batch on each replica; gradients of all that samples share are added up."""
        with self.strategy.scope():
            layer = case.layer("tensorflow", dtype).layer
        weights, size = parameters(layer), case.batch // self.count
        given = {name: X for name, X in call.items() if X is not None and not (type(X) is int and X == 0)}  # an offset
        parts = [slice(number * size, (number + 1) * size) for number in range(self.count)]
        calls = [part_of_call(given, samples) for samples in parts]
        arrays = [_arrays([X[samples] for X in inputs], own) for samples, (own, _) in zip(parts, calls, strict=True)]
        floats = [name for name in FLOATS if name in given]
        shared = [name for name in floats if arrays[0][name].shape == call[name].shape]

        def step(arrays):
            inputs = {name: arrays[name] for name in ("queries", "keys", "values", *floats)}
            rest = {name: X for name, X in arrays.items() if name not in (*inputs, "cotangent")}
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = layer(**inputs, **rest, causal=case.causal, training=False)
                loss = tf.reduce_sum(output * arrays["cotangent"])
            by_inputs, by_weights = tape.gradient(loss, (inputs, {name: X.value for name, X in weights.items()}))
            summed = by_weights | {name: by_inputs[name] for name in shared}
            everywhere = tf.distribute.get_replica_context().all_reduce("SUM", summed)
            return {"output": output} | by_inputs | everywhere

        each = self.strategy.experimental_distribute_values_from_function(
            lambda context: arrays[context.replica_id_in_sync_group]
        )
        found = tf.function(lambda: self.strategy.run(step, (each,)))()
        whole = {}
        for name, X in found.items():
            copies = [one.numpy() for one in self.strategy.experimental_local_results(X)]
            whole[_result_name(name)] = (copies[0] if name in weights or name in shared else np.concatenate(copies)), ()
        return whole

    def _heads(self, case, dtype, inputs, call):
        """Compute one part of the heads after another; results that all heads share are added up."""
        whole, found, parts = case.layer("numpy", dtype), [], []
        given, places = part_of_call({name: X for name, X in call.items() if X is not None})
        for index in range(self.count):
            config, weights = parallel.shard(whole.config, whole.weights, index, self.count)
            part, heads = restore(config, weights, "tensorflow"), config.num_heads
            own = Call(**given).part(heads=slice(index * heads, (index + 1) * heads))
            parts.append({name: getattr(own, name) for name in given})
            output, pull_back = part.vjp(*inputs[:3], **parts[-1])
            found.append({"output": output} | pull_back(inputs[3]))
        axes = split_axes(whole.config, self.count)
        axes |= {name: _axis_of_heads(parts[0][name], given[name]) for name in places}
        joined = {name: _join([one[name] for one in found], axes.get(name), name) for name in found[0]}
        for name in names_of_copies(whole.config, self.count) & joined.keys():
            joined[name] = _sum_copies([one[name] for one in found], heads_of_keys(whole.config, self.count))
        return {_result_name(name): (X, ()) for name, X in joined.items()}


def _arrays(inputs, call):
    """The arguments of a replica as arrays of TensorFlow, without those that are None."""
    arrays = dict(zip(("queries", "keys", "values", "cotangent"), inputs, strict=True))
    arrays |= {name: X for name, X in call.items() if name != "causal"}
    return {name: tf.constant(X) for name, X in arrays.items()}


def _result_name(name):
    return name if name == "output" else GRADIENT + name


def _axis_of_heads(part, whole):
    """The axis along which an argument of a part is smaller than that of the whole; None if all heads share it."""
    return next((axis for axis, (n, m) in enumerate(zip(part.shape, whole.shape, strict=True)) if n != m), None)


def _join(parts, axis, name):
    """Join the results of the parts: side by side along the axis of heads, or as a sum where there is none."""
    if name == ONCE:
        return parts[0]  # each part has the whole gradient of the output
    return np.add.reduce(parts) if axis is None else np.concatenate(parts, axis)


def _sum_copies(parts, heads):
    """Sum the gradients of the copies of each head of keys; heads: those of each part."""
    summed = {}
    for X, own in zip(parts, heads, strict=True):
        for head, columns in zip(own, np.split(X, len(own), -1), strict=True):
            summed[head] = summed.get(head, 0) + columns
    return np.concatenate(list(summed.values()), -1)
