"""Pool by a framework's own kernel, where it computes the same as the lesson."""

from collections.abc import Sequence

from mha.core import dispatch
from mha.core.options.config import score_options
from mha.core.options.names import BackendName
from mha.learn.write.lesson.pooled import POOLING
from mha.learn.write.recipe import BY_HEADS, Recipe
from mha.learn.write.trees import nodes
from mha.learn.write.trees.nodes import code
from mha.learn.write.trees.program import LAYER, Program

MEANT = "# The kernel's softmax is in float32, and of a query that sees no key it makes a mean, which is not taken.\n"
NOT_CUDNN = "# On a GPU, cuDNN's kernel gives a query that sees no key a value, and gradients.\n"
SCALE = "scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale"
SEES = f"{MEANT}sees = None if visible is None else visible.any(-1, keepdims=True)  # (B or 1, H or 1, Q or 1, 1)"
# What pools queries, keys and values as they come to `weigh`: its statements.
KERNELS: dict[str, tuple[str, ...]] = {
    "torch": (
        "training = self.training if training is None else training",
        SCALE,
        "heads = queries[None], keys[None], values[None]  # (1, B*H, T, d)",
        "given = visible, self.dropout if training else 0.0",
        f"{NOT_CUDNN}kinds = nn.attention.SDPBackend",
        "with nn.attention.sdpa_kernel([kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION, kinds.MATH]):\n"
        "    pooled = nn.functional.scaled_dot_product_attention(*heads, *given, scale=scale)[0]  # (B*H, Q, dv)",
        "return pooled, None",
    ),
    "jax": (
        SEES,
        "queries, keys, values = (X.swapaxes(1, 2) for X in (queries, keys, values))  # (B, T, H or G, d)",
        SCALE,
        "pooled = jax.nn.dot_product_attention(queries, keys, values, mask=visible, scale=scale)  # (B, Q, H, dv)",
        "pooled = pooled.swapaxes(1, 2)  # (B, H, Q, dv)",
        "return pooled if sees is None else jnp.where(sees, pooled, 0), None",
    ),
    "mlx": (
        SEES,
        SCALE,
        "heads = queries, keys, values",
        "pooled = mx.fast.scaled_dot_product_attention(*heads, scale=scale, mask=visible)  # (B, H, Q, dv)",
        "return pooled if sees is None else where(sees, pooled, mx.zeros_like(pooled)), None",
    ),
}
# Zeros for what is hidden from all beside a cache, whose slots nobody looked at before: of `weigh`, before the kernel.
SEEN = """if visible is not None:
    seen = visible.any((1, 2))[:, None, :, None]  # (B or 1, 1, K, 1)
    queries = WHERE(visible.any(-1, keepdims=True), queries, 0)
    keys, values = WHERE(seen, keys, 0), WHERE(seen, values, 0)"""
BLANK = {
    "torch": "queries, keys, values = zero_unused(queries, keys, values, visible)",
    "jax": SEEN.replace("WHERE", "jnp.where"),
    "mlx": SEEN.replace("WHERE", "where"),
}
# What hands heads on to the kernels that take them as they are: statements of the layer's `pool`.
POOL = (
    "H, G = config.num_heads, config.num_key_value_heads",
    "B, Q, K = q.shape[0] // H, q.shape[1], k.shape[1]",
    "visible = visible_keys(q, k, call)  # (B or 1, H or 1, Q or 1, K)",
    "q, k, v = q.reshape(B, H, Q, -1), k.reshape(B, G, K, -1), v.reshape(B, G, K, -1)  # (B, H or G, T, d)",
    "pooled, weights = self.attention(q, k, v, visible, training=call.training)  # (B, H, Q, dv)",
    "pooled = pooled.reshape(B * H, Q, -1)  # (B*H, Q, dv)",
    "return pooled, weights",
)


def refuse(recipe: Recipe) -> None:
    """Raise ValueError if a framework has no kernel that computes the same as the lesson with these options."""
    config, backend = recipe.config, recipe.backend
    if backend not in KERNELS:
        title = dispatch.facts("TITLE")[backend]
        raise ValueError(f"fused is True, expected False for {title}, of which no kernel is taken; leave it out")
    wrong = sorted(score_options(config), key=lambda name: name != "pooling")
    wrong += ["dropout"] * (backend in BY_HEADS and config.dropout > 0)
    wrong += ["value_dim"] * (backend == "jax" and config.value_dim != config.key_dim)
    wrong += [name for name in ("score_bias", "return_weights") if name in recipe.call]
    if wrong:
        raise ValueError(f"fused is True beside {wrong[0]}, which the kernel does not know; leave one of them out")


def fuse(program: Program, backend: BackendName, blanks: bool) -> None:
    """Let the kernel compute scores, weights and pooled values; blanks: as of `pooled.with_one_method`."""
    owner = POOLING["dot"]
    first = [BLANK[backend]] if blanks else []
    _put(program, owner, program.entry, [*first, *KERNELS[backend]])
    if backend in BY_HEADS:
        _put(program, LAYER, "pool", POOL)
        setup = program.function(owner, program.setup)
        left = [line for line in nodes.body_of(setup) if "Dropout" not in code(line)]
        program.put(owner, program.setup, nodes.with_body(setup, left) if left else None)


def _put(program: Program, owner: str, name: str, lines: Sequence[str]) -> None:
    """Put other statements into a method."""
    made = [nodes.statement(f"{line}\n") for line in lines]
    program.put(owner, name, nodes.with_body(program.function(owner, name), made))
