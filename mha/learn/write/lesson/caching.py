"""Make the cache of a file a tuple of arrays: a call takes one, and returns the next one."""

import inspect
from collections.abc import Collection
from typing import Any

import libcst as cst

from mha.core import cache
from mha.core.call import ARGUMENTS, OF_PAIRS
from mha.core.options.config import Config
from mha.core.options.names import BackendName
from mha.learn.write.lesson import facts
from mha.learn.write.trees import nodes, tidying
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program

EMPTY = "cache"  # the method that makes an empty one
ARRAY = {
    "numpy": "np.ndarray", "torch": "torch.Tensor", "tensorflow": "tf.Tensor", "jax": "jax.Array",
    "mxnet": "np.ndarray", "mlx": "mx.array",
}  # fmt: skip
# What an empty cache is made of: heads of zeros of a shape, -1 for each slot, and 0 for each sample.
FILLED = {
    "numpy": ("np.zeros(SHAPE, config.dtype)", 'np.full(SLOTS, -1, "int32")', 'np.zeros(batch_size, "int32")'),
    "torch": (
        "like.new_zeros(SHAPE)",
        "like.new_full(SLOTS, -1, dtype=torch.int32)",
        "like.new_zeros(batch_size, dtype=torch.int32)",
    ),
    "tensorflow": ("tf.zeros(SHAPE, config.dtype)", "tf.fill(SLOTS, -1)", 'tf.zeros((batch_size,), "int32")'),
    "jax": ("jnp.zeros(SHAPE, config.dtype)", 'jnp.full(SLOTS, -1, "int32")', 'jnp.zeros(batch_size, "int32")'),
    "mxnet": (
        "np.zeros(SHAPE, dtype=config.dtype)",
        'np.full(SLOTS, -1, dtype="int32")',
        'np.zeros(batch_size, dtype="int32")',
    ),
    "mlx": (
        "mx.zeros(SHAPE, like.dtype)",
        "mx.full(SLOTS, -1, dtype=mx.int32)",
        "mx.zeros(batch_size, mx.int32)",
    ),
}
LOST = f"LOST = {cache.LOST}  # beyond every position: of a sample whose cache has lost what a query may see\n"
CLASS = '''class Cache(NamedTuple):
    """Keys and values of earlier tokens, in S slots: the n-th token of a sample is in slot n % S.

    lengths says how many tokens a sample has had, lost the furthest position that was overwritten; -1 = none.
    """

    keys: ARRAY  # (B, G, S, d)
    values: ARRAY  # (B, G, S, dv)
    positions: ARRAY  # (B, S)
    lengths: ARRAY  # (B,)
    lost: ARRAY  # (B,)
'''
METHOD = f'''def {EMPTY}(self, batch_size, size):
    """An empty cache of so many slots: as many as there will be tokens, or as a window lets a query see."""
    like = self.W_k.weight
    heads = batch_size, config.num_key_value_heads, size
    keys = ZEROS(key_dim)  # (B, G, S, d)
    values = ZEROS(value_dim)  # (B, G, S, dv)
    positions = SLOTS  # (B, S)
    lengths = SAMPLES  # (B,)
    return Cache(keys, values, positions, lengths, lengths - 1)
'''


def use_tuple(program: Program, backend: BackendName) -> None:
    """Make the lesson's cache a tuple of arrays, which is never frozen and not used up by a call."""
    program.definitions["LOST"] = nodes.statement(LOST)
    source: Any = nodes.statement(inspect.getsource(cache.left_of).replace("limits", "call"))
    bare = [each.with_changes(annotation=None) for each in source.params.params]
    program.definitions["left_of"] = nodes.with_parameters(source, bare).with_changes(returns=None)
    program.definitions = {"Cache": nodes.statement(CLASS.replace("ARRAY", ARRAY[backend])), **program.definitions}
    program.imports["NamedTuple"] = "from typing import NamedTuple"
    never: Any = {"cache.frozen": nodes.FALSE}
    program.map_definitions(
        lambda tree: nodes.map_calls(nodes.map_each(nodes.replace(tree, never), _each_pair), _change)
    )


def _each_pair(line: Any) -> list[Any]:
    """Write a dict of changed arrays of pairs as one statement for each array."""
    made: Any = nodes.as_assignment(line)
    if made is None or not isinstance(made[1], cst.DictComp) or code(made[0]) != "pairs":
        return [line]
    found = []
    for name in OF_PAIRS:
        own = {"X": nodes.expression(f"call.{name}")}
        test, new = (code(nodes.replace(each, own)) for each in (made[1].for_in.ifs[0].test, made[1].value))
        then = f"call = call._replace({name}={new})  # (B, 1 or H, Q, T)"
        found.append(nodes.statement(f"if call.{name} is not None and {test}:\n    {then}\n"))
    return found


def _change(call: cst.Call) -> Any:
    text = code(call.func)
    if text == "call.pairs":
        return nodes.in_brackets(nodes.expression(" or ".join(f"call.{name} is not None" for name in OF_PAIRS)))
    if text == "call._replace":
        return call.with_changes(args=[each for each in call.args if code(each.value) != "pairs"])
    if text == "cache.after":
        listed = call.args[0].value
        if isinstance(listed, cst.List):  # as MLX evaluates all of them at once
            given = [cst.Arg(each.value, star="*") for each in listed.elements]
            return cst.Call(cst.Name("Cache"), given)
        return call.with_changes(func=cst.Name("Cache"))
    return call


def without_what_is_not_asked(program: Program, asked: Collection[str]) -> None:
    """Take arguments that calls do not take, except positions, out of changes of a call."""
    gone = {name for name in ARGUMENTS if name not in asked and name not in ("positions", "key_positions")}

    def less(call: cst.Call) -> cst.Call:
        if code(call.func) != "call._replace":
            return call
        left = [each for each in call.args if each.keyword is None or each.keyword.value not in gone]
        return call.with_changes(args=[each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in left])

    program.map_definitions(lambda tree: nodes.map_calls(tree, less))


def with_empty(program: Program, backend: BackendName, config: Config) -> None:
    """Give the layer a method that makes an empty cache."""
    zeros, slots, samples = (text.replace("SLOTS", "(batch_size, size)") for text in FILLED[backend])
    text = METHOD.replace("SLOTS", slots).replace("SAMPLES", samples)
    for width in ("key_dim", "value_dim"):
        text = text.replace(f"ZEROS({width})", zeros.replace("SHAPE", f"(*heads, config.{width})"))
    made: Any = nodes.replace(tidying.tidy(nodes.statement(text), {}), facts.names(config))
    if program.setup != "__init__" and facts.by_width(config):  # outside of a call, a module has its fields alone
        made = nodes.replace(made, {"config.key_dim": nodes.expression("config.num_hiddens // config.num_heads")})
    program.add(LAYER, made)
