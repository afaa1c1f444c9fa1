"""TensorFlow, with Keras's layers, for the tests."""

import copy
import functools
import pickle

import keras
import tensorflow as tf

import adapters


class Adapter(adapters.Adapter):
    """TensorFlow and Keras."""

    beside = ("keras.layers.MultiHeadAttention", "keras.layers.MultiHeadAttention, eager")
    beside_groups = ("keras.layers.GroupQueryAttention", "keras.layers.GroupQueryAttention, eager")
    measures = (
        ("kernel", "(in, out)"),
        ("training", "keeps"),
        ("mask", "attends"),
        ("heads", "accepted"),
        ("lazy", "lazy"),
    )
    # TensorFlow may crash where its first operations in a process are several threads': the types that it has met are
    # kept without a lock.
    before_threads = "import mha; mha.MultiHeadAttention(12, 3).gradients(*[mha.ones((2, 5, 12))] * 3, [3, 2])"

    def convert(self, X):
        return tf.constant(X)

    def not_dense(self, X):
        yield tf.sparse.from_dense(X)
        yield tf.RaggedTensor.from_tensor(X)
        yield tf.IndexedSlices(X, tf.range(len(X)))

    def seed(self, seed):
        keras.utils.set_random_seed(seed)

    def compile(self, layer):
        return tf.function(layer)

    def compile_with_gradient(self, attention, callee):
        config = attention.config
        widths = (config.query_size, config.key_size, config.value_size)
        inputs = [tf.TensorSpec([None, None, width], config.dtype) for width in widths]

        @functools.cache
        def compiled(causal, **ranks_and_dtypes):
            hiding = {name: tf.TensorSpec([None] * rank, dtype) for name, (rank, dtype) in ranks_and_dtypes.items()}

            @tf.function(input_signature=[*inputs, hiding])  # every size but the widths unknown, the batch's too
            def both(queries, keys, values, hiding):
                return self.pull_back(lambda X: callee(X, keys, values, **hiding, causal=causal), queries)

            return both

        def both(queries, keys, values, valid_lens, mask, causal):
            hiding = {name: X for name, X in {"valid_lens": valid_lens, "mask": mask}.items() if X is not None}
            ranks_and_dtypes = {name: (len(X.shape), X.dtype) for name, X in hiding.items()}
            return compiled(causal, **ranks_and_dtypes)(queries, keys, values, hiding)

        return both

    def map(self, function, *arrays):
        return tf.vectorized_map(lambda samples: function(*samples), arrays)

    def weights_of_model(self, attention, X):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.attention = attention

            def call(self, X):
                return self.attention(X, X, X)

        model = Model()
        model(X)
        return len(model.weights)

    def pull_back(self, function, X, cotangent=None):
        with tf.GradientTape() as tape:
            tape.watch(X)
            output = function(X)
        return output, tape.gradient(output, X, output if cotangent is None else cotangent)

    def gradient_by_kernel(self, attention, *inputs, cotangent):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(attention(*inputs) * cotangent)
        return tape.gradient(loss, attention.layer.W_q.kernel)

    def train(self, attention, inputs, target, steps, rate):
        optimizer = keras.optimizers.SGD(rate)
        losses = []
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((attention.layer(*inputs) - target) ** 2)
            variables = attention.layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            losses.append(float(loss))
        return losses

    def save(self, attention, other, folder):
        config = attention.config
        sizes = (config.query_size, config.key_size, config.value_size)
        inputs = [*(keras.Input((None, size), dtype=config.dtype) for size in sizes), keras.Input((), dtype="int32")]
        keras.Model(inputs, attention.layer(*inputs)).save(folder / "model.keras")
        loaded = keras.saving.load_model(folder / "model.keras")
        other.layer = next(layer for layer in loaded.layers if isinstance(layer, type(attention.layer)))

    def freeze(self, layer):
        layer.trainable = False

    def changed(self, layer):
        layer.W_v = keras.layers.Dense(24)
        layer.W_v.build((None, 19))
        return layer

    def precisions(self):
        yield adapters.reverting(keras.config.set_dtype_policy, "mixed_bfloat16", "float32")
        yield adapters.reverting(keras.config.set_floatx, "float64", "float32")

    def named_arrays(self, layer):
        return {X.path: X for X in layer.weights}

    def numbers(self, layer):
        return [X.numpy() for X in layer.weights]

    def call_book(self, layer, *inputs, training=False):
        return layer(*inputs, training=training), adapters.attention_weights(layer)

    def compile_book(self, layer):
        return tf.function(lambda *inputs: (layer(*inputs), adapters.attention_weights(layer)))

    def make_again(self, d2l, attention, folder):
        again = type(attention).from_config(attention.get_config())
        again.set_weights(attention.get_weights())
        return again

    def copies(self, layer, folder):  # both by Keras's own saver
        yield copy.deepcopy(layer)
        yield pickle.loads(pickle.dumps(layer))

    def kernel(self, pooling, name):
        return getattr(pooling, name).kernel.value

    def normal(self, d2l, *shape):
        return d2l.normal(shape, 0, 1)
