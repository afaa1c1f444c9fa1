"""`attention.layer` is the framework's own: it trains, compiles, differentiates and saves as that framework does."""

import contextlib
import functools
import itertools

import numpy as np
import pytest

import mha
from mha import dispatch, parity

# B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
B, Q, K, H, D = 3, 2, 5, 2, 14
WIDTHS = {"query_size": 13, "key_size": 11, "value_size": 7}


def make(backend, dtype="float64", **options):
    """A layer with a bias that is not 0."""
    attention = mha.MultiHeadAttention(D, H, bias=True, dtype=dtype, backend=backend, **WIDTHS, **options)
    attention.weights = {name: X + X.dtype.type(0.125) for name, X in attention.weights.items()}
    return attention


def draw(rng, sizes=(B, Q, K), dtype="float64"):
    """Queries, keys and values."""
    batch, queries, keys = sizes
    shapes = ((batch, queries, 13), (batch, keys, 11), (batch, keys, 7))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def native(backend, *arrays):
    """NumPy arrays as the framework's own; None stays None."""
    return [None if X is None else mha.tensor(X, backend=backend) for X in arrays]


def agrees(result, expected, *, gradient=False):
    limit = parity.bound(expected.dtype.name, expected, expected, gradient=gradient, scale=1.0)
    return parity.error(mha.to_numpy(result), expected) <= limit


# 1. Training: the framework's loop, gradients and optimiser. Each function takes a few steps of gradient descent on the
# mean squared error and returns the loss before each.

STEPS, RATE = 5, 1 / 16  # a rate that needs no rounding: some optimisers keep it in float32


def train_numpy(attention, inputs, target):
    losses = []
    for _ in range(STEPS):
        output = attention(*inputs)
        losses.append(((output - target) ** 2).mean())
        gradients = attention.gradients(*inputs, cotangent=2 * (output - target) / target.size)
        attention.weights = {name: X - RATE * gradients[name] for name, X in attention.weights.items()}
    return losses


def train_torch(attention, inputs, target):
    import torch

    optimizer = torch.optim.SGD(attention.layer.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(attention.layer(*inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_tensorflow(attention, inputs, target):
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(RATE)
    losses = []
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((attention.layer(*inputs) - target) ** 2)
        optimizer.apply(tape.gradient(loss, attention.layer.trainable_variables), attention.layer.trainable_variables)
        losses.append(float(loss))
    return losses


def train_jax(attention, inputs, target):
    import jax
    import optax

    module, variables = attention.layer.unbind()

    @jax.jit
    @jax.value_and_grad
    def loss_of(variables):
        return ((module.apply(variables, *inputs) - target) ** 2).mean()

    with jax.enable_x64(True):
        optimizer = optax.sgd(RATE)
        state = optimizer.init(variables)
        losses = []
        for _ in range(STEPS):
            loss, gradients = loss_of(variables)
            updates, state = optimizer.update(gradients, state)
            variables = optax.apply_updates(variables, updates)
            losses.append(float(loss))
    attention.layer = module.bind(variables)  # a module holds no weights: those of the loop become the layer's
    return losses


def train_mxnet(attention, inputs, target):
    from mxnet import autograd, gluon

    trainer = gluon.Trainer(attention.layer.collect_params(), "sgd", {"learning_rate": RATE})
    losses = []
    for _ in range(STEPS):
        with autograd.record():
            loss = ((attention.layer(*inputs) - target) ** 2).sum() / target.size  # MXNet 2 takes means in float32
        loss.backward()
        trainer.step(1)
        losses.append(loss.item())
    return losses


TRAIN = {
    "numpy": train_numpy,
    "torch": train_torch,
    "tensorflow": train_tensorflow,
    "jax": train_jax,
    "mxnet": train_mxnet,
}


@pytest.mark.parametrize("pooling", ["dot", "additive"])
def test_trains_in_its_own_loop_as_numpy_does(backend, rng, pooling):
    inputs, target = draw(rng), rng.normal(size=(B, Q, D))
    attention, reference = make(backend, pooling=pooling), make("numpy", pooling=pooling)
    before = attention.weights
    *inputs_native, target_native = native(backend, *inputs, target)
    losses = TRAIN[backend](attention, inputs_native, target_native)
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    assert ((attention(*inputs) - target) ** 2).mean() < losses[-1]
    assert agrees(np.array(losses), np.array(train_numpy(reference, inputs, target)))
    for name, expected in reference.weights.items():
        assert agrees(attention.weights[name], expected, gradient=True)
        assert name == "W_k.bias" or (attention.weights[name] != before[name]).any()


# 2. Saving: each function writes the layer with the framework's saver and reads it into another one.


def save_numpy(attention, other, path):
    np.savez(path / "weights.npz", **attention.weights)
    with np.load(path / "weights.npz") as file:
        other.weights = dict(file)


def save_torch(attention, other, path):
    import torch

    torch.save(attention.layer.state_dict(), path / "weights.pt")
    other.layer.load_state_dict(torch.load(path / "weights.pt"))


def save_tensorflow(attention, other, path):
    import keras

    sizes = [keras.Input((None, width), dtype="float64") for width in WIDTHS.values()]
    inputs = [*sizes, keras.Input((), dtype="int32")]
    model = keras.Model(inputs, attention.layer(*inputs))
    model.save(path / "model.keras")
    loaded = keras.saving.load_model(path / "model.keras")
    other.layer = next(layer for layer in loaded.layers if isinstance(layer, type(attention.layer)))


def save_jax(attention, other, path):
    from flax import serialization

    (path / "weights.msgpack").write_bytes(serialization.to_bytes(attention.layer.variables))
    module, variables = other.layer.unbind()
    other.layer = module.bind(serialization.from_bytes(variables, (path / "weights.msgpack").read_bytes()))


def save_mxnet(attention, other, path):
    attention.layer.save_parameters(str(path / "weights.params"))
    other.layer.load_parameters(str(path / "weights.params"))


SAVE = {
    "numpy": save_numpy,
    "torch": save_torch,
    "tensorflow": save_tensorflow,
    "jax": save_jax,
    "mxnet": save_mxnet,
}


# Keras turns its variables into NumPy arrays in a way that NumPy 2 frowns upon.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("pooling", ["dot", "additive"])
def test_is_saved_and_loaded_by_its_own_saver(backend, rng, tmp_path, pooling):
    attention, other = make(backend, pooling=pooling), make(backend, pooling=pooling, seed=1)
    inputs = draw(rng)
    assert (attention(*inputs, [3, 0, 5]) != other(*inputs, [3, 0, 5])).any()
    SAVE[backend](attention, other, tmp_path)
    assert other.weights.keys() == attention.weights.keys()
    assert all((other.weights[name] == X).all() for name, X in attention.weights.items())
    assert (attention(*inputs, [3, 0, 5]) == other(*inputs, [3, 0, 5])).all()


# 3. Compiling. Each function returns a compiled one that takes the framework's own queries, keys, values, lengths, mask
# and causal, and returns the output and the gradient of half its square by the queries. What is compiled is the layer,
# or the mha layer around it.


def compile_numpy(attention, callee):
    """NumPy has no compiler: as it is."""

    def both(queries, *others):
        *others, mask, causal = others
        output = callee(queries, *others, mask=mask, causal=causal)
        return output, attention.gradients(queries, *others, mask=mask, causal=causal, cotangent=output)["queries"]

    return both


def compile_torch(attention, callee):
    import torch

    torch.compiler.reset()  # or the versions that earlier tests compiled count against torch's limit
    # "aot_eager" traces both passes as the default does, without a C++ compiler, which not every machine has. The layer
    # is one graph; the mha layer looks at the values of lengths and masks, where a graph has to end.
    whole = callee is attention.layer
    compiled = torch.compile(callee, backend="aot_eager", fullgraph=whole)

    def both(queries, keys, values, valid_lens, mask, causal):
        queries.requires_grad_()
        output = compiled(queries, keys, values, valid_lens, mask=mask, causal=causal)
        (by_queries,) = torch.autograd.grad(output, queries, output)
        return output, by_queries

    return both


def compile_tensorflow(attention, callee):
    import tensorflow as tf

    inputs = [tf.TensorSpec([None, None, width], attention.config.dtype) for width in WIDTHS.values()]

    @functools.cache
    def compiled(causal, **ranks_and_dtypes):
        hiding = {name: tf.TensorSpec([None] * rank, dtype) for name, (rank, dtype) in ranks_and_dtypes.items()}

        @tf.function(input_signature=[*inputs, hiding])  # every size but the widths unknown, the batch's too
        def both(queries, keys, values, hiding):
            with tf.GradientTape() as tape:
                tape.watch(queries)
                output = callee(queries, keys, values, **hiding, causal=causal)
            return output, tape.gradient(output, queries, output)

        return both

    def both(queries, keys, values, valid_lens, mask, causal):
        hiding = {name: X for name, X in {"valid_lens": valid_lens, "mask": mask}.items() if X is not None}
        ranks_and_dtypes = {name: (len(X.shape), X.dtype) for name, X in hiding.items()}
        return compiled(causal, **ranks_and_dtypes)(queries, keys, values, hiding)

    return both


def compile_jax(attention, callee):
    import jax

    if callee is attention.layer:
        callee = functools.partial(attention.layer.unbind()[0].apply, attention.layer.variables)

    @functools.partial(jax.jit, static_argnames="causal")
    def compiled(queries, keys, values, valid_lens, mask, causal):
        output, pull_back = jax.vjp(lambda X: callee(X, keys, values, valid_lens, mask=mask, causal=causal), queries)
        return output, pull_back(output)[0]

    def both(*arrays_and_causal):
        *arrays, causal = arrays_and_causal
        with dispatch.load("jax").context(attention.config.dtype):
            return compiled(*arrays, causal=causal)

    return both


def compile_mxnet(attention, callee):
    from mxnet import autograd

    # The layer is a Block that reads shapes as it goes, which MXNet's symbols do not have: hybridize() passes through
    # it and compiles the dense layers in it.
    attention.layer.hybridize()

    def both(queries, keys, values, valid_lens, mask, causal):
        queries.attach_grad()
        with autograd.record(train_mode=False):
            if callee is attention.layer:  # Gluon takes no names
                output = callee(queries, keys, values, valid_lens, mask, causal)
            else:
                output = callee(queries, keys, values, valid_lens, mask=mask, causal=causal)
        output.backward(output)
        return output, queries.grad

    return both


COMPILE = {
    "numpy": compile_numpy,
    "torch": compile_torch,
    "tensorflow": compile_tensorflow,
    "jax": compile_jax,
    "mxnet": compile_mxnet,
}

HIDING = {
    "nothing": lambda rng, B, Q, K: (None, None, False),
    "lengths": lambda rng, B, Q, K: (np.arange(B) * 2, None, False),
    "lengths-of-queries": lambda rng, B, Q, K: (rng.integers(0, K + 2, (B, Q)), None, True),
    "mask": lambda rng, B, Q, K: (None, rng.random((B, H, Q, K)) < 0.4, False),
    "all": lambda rng, B, Q, K: (np.arange(B) * 2, rng.random((Q, K)) < 0.7, True),
}


@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("what", ["layer", "mha"])
def test_compiled_results_are_unchanged(backend, rng, what, hiding):
    attention = make(backend, pooling="additive" if hiding == "all" else "dot")
    compiled = COMPILE[backend](attention, attention.layer if what == "layer" else attention)
    for sizes in ((B, Q, K), (B + 2, Q + 5, K + 6)):  # the second time with all sizes changed
        inputs, (valid_lens, mask, causal) = draw(rng, sizes), HIDING[hiding](rng, *sizes)
        output, by_queries = compiled(*native(backend, *inputs, valid_lens, mask), causal)
        expected = attention.to("numpy")(*inputs, valid_lens, mask=mask, causal=causal)
        assert agrees(output, expected)
        gradients = attention.to("numpy").gradients(*inputs, valid_lens, mask=mask, causal=causal, cotangent=expected)
        assert agrees(by_queries, gradients["queries"], gradient=True)


def test_compiled_padding_does_not_matter(backend, rng):
    attention = make(backend)
    compiled = COMPILE[backend](attention, attention.layer)
    queries, keys, values = draw(rng)
    valid_lens = np.array([3, 0, 1])
    expected = compiled(*native(backend, queries, keys, values, valid_lens), None, False)
    padding = np.arange(K) >= valid_lens[:, None]
    keys[padding], values[padding] = np.nan, np.inf
    queries[1] = np.nan
    padded = compiled(*native(backend, queries, keys, values, valid_lens), None, False)
    for result, wanted in zip(padded, expected, strict=True):
        assert (mha.to_numpy(result) == mha.to_numpy(wanted)).all()


@pytest.mark.parametrize("what", ["layer", "mha"])
def test_a_wrong_shape_is_told_under_compilation(backend, rng, what):
    attention = make(backend)
    compiled = COMPILE[backend](attention, attention.layer if what == "layer" else attention)
    queries, keys, values = draw(rng)
    # Three axes are wrong even where a compiler does not know the sizes. Of a whole graph torch raises an error of its
    # own, which quotes ours.
    with pytest.raises(Exception, match=r"valid_lens has shape \(.*, .*, .*\), expected \(.*,\) or \(.*, .*\)"):
        compiled(*native(backend, queries, keys, values, np.ones((B, Q, K), "int64")), None, False)


# What a compiler does not check, because it does not know the values: NumPy has none, and MXNet's compiles no layer.
UNCHECKED = {"numpy": False, "torch": True, "tensorflow": True, "jax": True, "mxnet": False}


@pytest.mark.parametrize("what", ["layer", "mha"])
def test_compiled_lengths_below_0_act_as_0(backend, rng, what):
    attention = make(backend)
    compiled = COMPILE[backend](attention, attention.layer if what == "layer" else attention)
    inputs = draw(rng)

    def call(*valid_lens):
        lengths = native(backend, np.array(valid_lens, "int32"))
        return [mha.to_numpy(result) for result in compiled(*native(backend, *inputs), *lengths, None, False)]

    if not UNCHECKED[backend]:
        with pytest.raises(ValueError, match="valid_lens holds -7, expected 0 or more"):
            call(-7, 2, -1)
        return
    for result, expected in zip(call(-7, 2, -1), call(0, 2, 0), strict=True):
        assert (result == expected).all()


@pytest.mark.parametrize("what", ["layer", "mha"])
def test_compiled_lengths_above_all_keys_act_as_all(backend, rng, what):
    attention = make(backend, dtype="float32")
    compiled = COMPILE[backend](attention, attention.layer if what == "layer" else attention)
    inputs = draw(rng, dtype="float32")

    def call(*valid_lens, dtype):
        lengths = native(backend, np.array(valid_lens, dtype))
        return mha.to_numpy(compiled(*native(backend, *inputs), *lengths, None, False)[0])

    expected = call(K, 2, K, dtype="int32")
    for dtype in WIDE[backend]:
        assert (call(np.iinfo(dtype).max, 2, np.iinfo(dtype).max - 1, dtype=dtype) == expected).all(), dtype


# The integers that a framework has; JAX has those of 64 bits in x64 alone.
INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32"]
WIDE = {
    "numpy": [*INTEGERS, "int64", "uint64"],
    "torch": [*INTEGERS, "int64", "uint64"],
    "tensorflow": [*INTEGERS, "int64", "uint64"],
    "jax": INTEGERS,
    "mxnet": ["uint8", "int8", "int32", "int64"],
}


# A function that takes one sample's queries, keys, values (B, T, any) and lengths, mapped over several.


def map_numpy(function, *arrays):
    """NumPy maps by loops."""
    return np.stack([function(*samples) for samples in zip(*arrays, strict=True)])


def map_torch(function, *arrays):
    import torch

    return torch.func.vmap(function)(*arrays)


def map_tensorflow(function, *arrays):
    import tensorflow as tf

    return tf.vectorized_map(lambda samples: function(*samples), arrays)


def map_jax(function, *arrays):
    import jax

    with jax.enable_x64(True):
        return jax.vmap(function)(*arrays)


def map_mxnet(function, *arrays):
    """MXNet maps by loops."""
    from mxnet import np as mxnp

    return mxnp.stack([function(*samples) for samples in zip(*arrays, strict=True)])


MAP = {"numpy": map_numpy, "torch": map_torch, "tensorflow": map_tensorflow, "jax": map_jax, "mxnet": map_mxnet}


@pytest.mark.parametrize("what", ["layer", "mha"])
def test_mapped_over_samples(backend, rng, what):
    attention = make(backend)
    callee = attention.layer if what == "layer" else attention
    samples = [draw(rng) for _ in range(4)]
    inputs = [np.stack(Xs) for Xs in zip(*samples, strict=True)]
    valid_lens = rng.integers(0, K + 2, (4, B))
    mapped = MAP[backend](callee, *native(backend, *inputs, valid_lens))
    reference = attention.to("numpy")
    for result, sample, lengths in zip(mha.to_numpy(mapped), samples, valid_lens, strict=True):
        assert agrees(np.array(result), reference(*sample, lengths))
    with pytest.raises(ValueError, match=r"valid_lens has shape \(4, 3\), expected \(3,\) or \(3, 2\)"):
        MAP[backend](callee, *native(backend, *inputs, np.ones((4, 4, B), "int64")))


# 4. Differentiating by the framework's own means, through `attention(...)` with the framework's own arrays. Each
# function returns the gradients of sum(output * cotangent) by the queries and by W_q, the latter as the layer holds it.


def differentiate_numpy(attention, queries, keys, values, valid_lens, cotangent):
    """NumPy has no means of its own: the layer itself."""
    gradients = attention.gradients(queries, keys, values, valid_lens, cotangent=cotangent)
    return gradients["queries"], gradients["W_q.kernel"]


def differentiate_torch(attention, queries, keys, values, valid_lens, cotangent):
    queries.requires_grad_()
    attention.layer.eval()  # no matter: a layer that evaluates still sends gradients
    (attention(queries, keys, values, valid_lens) * cotangent).sum().backward()
    return queries.grad, attention.layer.W_q.weight.grad.T


def differentiate_tensorflow(attention, queries, keys, values, valid_lens, cotangent):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(queries)
        loss = tf.reduce_sum(attention(queries, keys, values, valid_lens) * cotangent)
    return tape.gradient(loss, [queries, attention.layer.W_q.kernel])


def differentiate_jax(attention, queries, keys, values, valid_lens, cotangent):
    import jax

    module, variables = attention.layer.unbind()
    with jax.enable_x64(True):
        by_queries = jax.grad(lambda X: (attention(X, keys, values, valid_lens) * cotangent).sum())(queries)
        by_variables = jax.jit(
            jax.grad(lambda variables: (module.apply(variables, queries, keys, values, valid_lens) * cotangent).sum())
        )(variables)
    return by_queries, by_variables["params"]["W_q"]["kernel"]


def differentiate_mxnet(attention, queries, keys, values, valid_lens, cotangent):
    from mxnet import autograd

    queries.attach_grad()
    with autograd.record():
        loss = (attention(queries, keys, values, valid_lens) * cotangent).sum()
    loss.backward()
    return queries.grad, attention.layer.W_q.weight.grad().T


DIFFERENTIATE = {
    "numpy": differentiate_numpy,
    "torch": differentiate_torch,
    "tensorflow": differentiate_tensorflow,
    "jax": differentiate_jax,
    "mxnet": differentiate_mxnet,
}


def test_its_own_differentiation_passes_through(backend, rng):
    attention, inputs, valid_lens = make(backend), draw(rng), np.array([3, 0, 9])
    cotangent = rng.normal(size=(B, Q, D))
    by_queries, by_W_q = DIFFERENTIATE[backend](attention, *native(backend, *inputs, valid_lens, cotangent))
    expected = make("numpy").gradients(*inputs, valid_lens, cotangent=cotangent)
    assert agrees(by_queries, expected["queries"], gradient=True)
    assert agrees(by_W_q, expected["W_q.kernel"], gradient=True)


# 5. What calls leave alone: whether a layer is training, the gradients it has gathered, and the arguments.


@contextlib.contextmanager
def training_torch(layer):
    layer.train()
    yield True
    assert layer.training
    assert layer.attention.training


@contextlib.contextmanager
def training_mxnet(layer):
    from mxnet import autograd

    with autograd.record():
        yield True
        assert autograd.is_training()


@contextlib.contextmanager
def training_by_argument(layer):
    """NumPy, Keras and JAX know of no state of training outside a call."""
    yield False


TRAINING = {
    "numpy": training_by_argument,
    "torch": training_torch,
    "tensorflow": training_by_argument,
    "jax": training_by_argument,
    "mxnet": training_mxnet,
}


def test_the_frameworks_state_of_training_holds_for_the_layer_alone(backend, rng):
    attention = make(backend, dtype="float32", dropout=0.9)
    inputs = native(backend, *draw(rng, dtype="float32"))
    plain = mha.to_numpy(attention(*inputs))
    by_queries = mha.to_numpy(attention.gradients(*inputs)["queries"])
    with TRAINING[backend](attention.layer) as training:
        assert training != agrees(attention.layer(*inputs), plain)
        assert agrees(attention(*inputs), plain)
        assert agrees(attention.trace(*inputs)["output"], plain)
        assert agrees(attention.gradients(*inputs)["queries"], by_queries, gradient=True)


EVALUATING = {
    "numpy": lambda layer: layer,
    "torch": lambda layer: layer.eval(),  # the others have no state to begin with
    "tensorflow": lambda layer: layer,
    "jax": lambda layer: layer,
    "mxnet": lambda layer: layer,
}


def test_training_in_one_call_is_forgotten_by_the_next(backend, rng):
    attention = make(backend, dtype="float32", dropout=0.9)
    inputs = native(backend, *draw(rng, dtype="float32"))
    layer = EVALUATING[backend](attention.layer)
    plain = mha.to_numpy(attention(*inputs))
    assert not agrees(attention(*inputs, training=True), plain)
    assert agrees(layer(*inputs), plain)


def gathered_torch(layer):
    import torch

    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 7)
    return lambda: [parameter.grad.numpy() for parameter in layer.parameters()]


def gathered_mxnet(layer):
    for parameter in layer.collect_params().values():
        parameter.grad()[:] = 7
    return lambda: [parameter.grad().asnumpy() for parameter in layer.collect_params().values()]


def gathered_nowhere(layer):
    """NumPy, Keras and JAX hand gradients out and keep none."""
    return list


GATHERED = {
    "numpy": gathered_nowhere,
    "torch": gathered_torch,
    "tensorflow": gathered_nowhere,
    "jax": gathered_nowhere,
    "mxnet": gathered_mxnet,
}


def test_gradients_leave_gathered_gradients_and_weights_alone(backend, rng):
    attention = make(backend)
    before, gathered = attention.weights, GATHERED[backend](attention.layer)
    attention.gradients(*draw(rng), [3, 0, 9])
    attention.gradients(*native(backend, *draw(rng)), [3, 0, 9])
    assert all((X == 7).all() for X in gathered())
    assert all((attention.weights[name] == X).all() for name, X in before.items())


@pytest.mark.parametrize("as_numpy", [True, False], ids=["numpy-arrays", "own-arrays"])
def test_arguments_are_not_changed(backend, rng, as_numpy):
    attention = make(backend, dropout=0.5)
    cotangent, valid_lens, mask = rng.normal(size=(B, Q, D)), np.array([3, 0, 9]), rng.random((Q, K)) < 0.5
    arrays = [*draw(rng), cotangent, valid_lens, mask]
    given = arrays if as_numpy else native(backend, *arrays)
    before = [mha.to_numpy(X).tobytes() for X in given]
    *inputs, cotangent, valid_lens, mask = given
    attention(*inputs, valid_lens, mask=mask, training=True, return_weights=True)
    attention.trace(*inputs, valid_lens, mask=mask)
    attention.gradients(*inputs, valid_lens, mask=mask, cotangent=cotangent)
    assert [mha.to_numpy(X).tobytes() for X in given] == before


def frozen_torch(attention):
    import torch

    attention.layer.requires_grad_(False)
    return [contextlib.nullcontext(), torch.no_grad(), torch.inference_mode()]


def frozen_tensorflow(attention):
    attention.layer.trainable = False
    return [contextlib.nullcontext()]


def frozen_mxnet(attention):
    for parameter in attention.layer.collect_params().values():
        parameter.grad_req = "null"
    return [contextlib.nullcontext()]


def not_frozen(attention):
    """NumPy and JAX differentiate by what they are told to."""
    return [contextlib.nullcontext()]


FROZEN = {
    "numpy": not_frozen,
    "torch": frozen_torch,
    "tensorflow": frozen_tensorflow,
    "jax": not_frozen,
    "mxnet": frozen_mxnet,
}


def test_gradients_of_a_frozen_layer(backend, rng):
    attention, inputs = make(backend), draw(rng)
    expected = attention.gradients(*inputs, [3, 0, 9])
    for context in FROZEN[backend](attention):
        with context:
            gradients = attention.gradients(*inputs, [3, 0, 9])
        assert all((gradients[name] == X).all() for name, X in expected.items())


def states_torch():
    import torch

    yield torch.autocast("cpu", dtype=torch.bfloat16)
    yield reverting(torch.set_default_dtype, torch.float64, torch.float32)


def states_tensorflow():
    import keras

    yield reverting(keras.config.set_dtype_policy, "mixed_bfloat16", "float32")
    yield reverting(keras.config.set_floatx, "float64", "float32")


def states_jax():
    import jax

    yield jax.default_matmul_precision("bfloat16")
    yield jax.enable_x64(True)


@contextlib.contextmanager
def reverting(change, state, usual):
    change(state)
    try:
        yield
    finally:
        change(usual)


STATES = {
    "numpy": lambda: [np.errstate(all="raise")],
    "torch": states_torch,
    "tensorflow": states_tensorflow,
    "jax": states_jax,
    "mxnet": lambda: [],  # none that would matter
}


def test_the_frameworks_state_of_precision_changes_nothing(backend, rng):
    inputs = draw(rng, dtype="float32")
    expected = make(backend, dtype="float32")(*inputs, [3, 0, 9])
    attention = make(backend, dtype="float32")
    for state in STATES[backend]():
        with state:
            for layer in (attention, make(backend, dtype="float32")):
                output = layer(*inputs, [3, 0, 9])
                assert output.dtype == np.float32
                assert (output == expected).all()
