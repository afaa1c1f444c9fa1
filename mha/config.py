"""What a layer is: its sizes and options, checked once, the same for every backend."""

import dataclasses

from mha import checks

POOLINGS = ("dot", "additive")
DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes and options of a multi-head attention layer, defaults filled in.

    Args:
        num_hiddens: width D of the output.
        num_heads: number of heads H.
        dropout: probability, in [0, 1), that training drops an attention weight.
        bias: whether the four projections add a bias.
        query_size, key_size, value_size: widths of the inputs; None = num_hiddens.
        key_dim, value_dim: widths d and dv of one head; None = num_hiddens / num_heads. Where num_hiddens does not
            divide into num_heads, key_dim must be given and value_dim defaults to it.
        pooling: "dot" (scaled dot product) or "additive".
        dtype: "float32", "float64", "float16" or "bfloat16", of inputs, weights and output.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if a size is not positive, dropout is outside [0, 1), a name is unknown, or num_hiddens does not
            divide into num_heads and key_dim is not given.
    """

    num_hiddens: int
    num_heads: int
    dropout: float = 0.0
    bias: bool = False
    _: dataclasses.KW_ONLY
    query_size: int = None  # type: ignore[assignment]
    key_size: int = None  # type: ignore[assignment]
    value_size: int = None  # type: ignore[assignment]
    key_dim: int = None  # type: ignore[assignment]
    value_dim: int = None  # type: ignore[assignment]
    pooling: str = "dot"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        settle("num_hiddens", checks.size("num_hiddens", self.num_hiddens))
        settle("num_heads", checks.size("num_heads", self.num_heads))
        settle("dropout", checks.probability("dropout", self.dropout))
        settle("bias", checks.flag("bias", self.bias))
        for name in ("query_size", "key_size", "value_size"):
            value = getattr(self, name)
            settle(name, self.num_hiddens if value is None else checks.size(name, value))
        width, remainder = divmod(self.num_hiddens, self.num_heads)
        if remainder and self.key_dim is None:
            raise ValueError(
                f"num_hiddens is {self.num_hiddens}, expected a multiple of num_heads = {self.num_heads}; "
                "choose another number of heads, or say with key_dim how wide a head is"
            )
        settle("key_dim", width if self.key_dim is None else checks.size("key_dim", self.key_dim))
        value_dim = self.key_dim if remainder else width
        settle("value_dim", value_dim if self.value_dim is None else checks.size("value_dim", self.value_dim))
        settle("pooling", checks.choice("pooling", self.pooling, POOLINGS))
        settle("dtype", checks.choice("dtype", checks.dtype_name(self.dtype), DTYPES))
