"""Pooling by a framework's own kernel, where it computes the same as the lesson."""

from collections.abc import Collection

from mha import dispatch
from mha.config import Config
from mha.names import BackendName
from mha.written.lesson.pooled import POOLING
from mha.written.trees import nodes
from mha.written.trees.program import Program

# What pools queries (B, Q, d), keys and values of all heads, of which B counts; statements of `weigh`.
KERNELS: dict[str, tuple[str, ...]] = {
    "torch": (
        "training = self.training if training is None else training",
        "scale = 1 / math.sqrt(queries.shape[-1]) if self.scale is None else self.scale",
        "heads = queries[None], keys[None], values[None]  # (1, B*H, T, d)",
        "given = visible, self.dropout if training else 0.0",
        "pooled = nn.functional.scaled_dot_product_attention(*heads, *given, scale=scale)[0]  # (B*H, Q, dv)",
        "return pooled, None",
    ),
}


def refuse(config: Config, backend: BackendName, call: Collection[str]) -> None:
    """Raise ValueError if a framework has no kernel that computes the same as the lesson with these options."""
    if backend not in KERNELS:
        title = dispatch.FRAMEWORKS[backend].title
        raise ValueError(f"fused is True, expected False for {title}, of which no kernel is taken; leave it out")
    options = {"pooling": config.pooling == "additive", "softcap": config.softcap is not None, "sinks": config.sinks}
    wrong = [name for name, given in options.items() if given]
    wrong += [name for name in ("score_bias", "return_weights") if name in call]
    if wrong:
        raise ValueError(f"fused is True beside {wrong[0]}, which the kernel does not know; leave one of them out")


def fuse(program: Program, backend: BackendName) -> None:
    """Let the kernel weigh: scores and weights are its own."""
    owner = POOLING["dot"]
    tree = program.function(owner, program.entry)
    lines = [nodes.statement(f"{line}\n") for line in KERNELS[backend]]
    program.put(owner, program.entry, nodes.with_body(tree, lines))
