"""The sizes and options of a layer: each is declared here once, in its row; all else derives from the rows."""

import dataclasses
import math
import reprlib
import sys
from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from mha.core.options import checks
from mha.core.options.names import FloatName, GateName, PoolingName
from mha.core.options.norms import Norm, norm
from mha.core.options.positions import Rotary, Temperature

POOLINGS: tuple[PoolingName, ...] = get_args(PoolingName)
DTYPES = checks.FLOATS
GATES: tuple[GateName, ...] = get_args(GateName)
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Option:
    """The declaration of one option.

    meaning: a line for its users.
    check: a function of its name and a value: returns the value that is kept, raises TypeError or ValueError.
    default: its value where it is not given.
    fill: a function of the configuration so far: the value that None stands for.
    fit: a function of a checked value and the configuration so far, as `check`.
    part: the class of its values, if these have parts, such as the base of a rotation.
    layout: the first layout of mha's own files that records it: 1 has the options of the book's layer alone.
    is_silent: whether no weight shows it, so that a file without a configuration may not say it.
    needs_scores: whether a framework's fused kernel, which keeps no scores, may not know it.
    of_pooling: whether the pooling keeps it, under the same name.
    of_dots: whether it is of dot products, so that additive pooling refuses it.
    step: the step of a trace that it makes, if any, or the beginning of the names of several.
    weights: a function of the configuration: the weights that it brings where it is not at its default, by name.
    """

    meaning: str
    check: Callable[[str, Any], Any]
    default: Any = dataclasses.MISSING
    _: dataclasses.KW_ONLY
    fill: Callable[[Any], Any] = lambda config: None
    fit: Callable[[Any, Any], Any] = lambda value, config: value
    part: type | None = None
    layout: int = 1
    is_silent: bool = False
    needs_scores: bool = False
    of_pooling: bool = False
    of_dots: bool = False
    step: str = ""
    weights: Callable[[Any], dict[str, Shape]] = lambda config: {}


def option(meaning: str, check: Callable[[str, Any], Any], default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """A field of `Config` with its row, an `Option` of the same arguments."""
    return dataclasses.field(default=default, metadata={"row": Option(meaning, check, default, **more)})


def _of_class(part: type, example: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, part):
            came, kind = f"{reprlib.repr(value)} ({type(value).__name__})", f"mha.{part.__name__}"
            raise TypeError(f"{name} is {came}, expected an {kind}, such as {kind}({example})")
        return value

    return check


def _width(config: "Config") -> int:
    """The width of a head where none is given."""
    if config.num_hiddens % config.num_heads:
        wrong = f"num_hiddens is {config.num_hiddens}, expected a multiple of num_heads = {config.num_heads}"
        raise ValueError(f"{wrong}; choose another number of heads, or give key_dim, the width of a head")
    return config.num_hiddens // config.num_heads


def _divisor(groups: int, config: "Config") -> int:
    if config.num_heads % groups:
        wrong = f"num_key_value_heads is {groups}, expected a divisor of num_heads = {config.num_heads}"
        raise ValueError(f"{wrong}: each serves equally many heads")
    return groups


def _unturned(norm: Norm, config: "Config") -> Norm:
    if norm.after:
        raise ValueError("value_norm has after=True, expected False: values do not turn")
    return norm


def _dense(name: str, in_size: int, out_size: int, config: "Config") -> dict[str, Shape]:
    """The weights of a projection: its kernel, and its bias if the layer has biases."""
    bias: dict[str, Shape] = {f"{name}.bias": (out_size,)} if config.bias else {}
    return {f"{name}.kernel": (in_size, out_size), **bias}


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes and options of a multi-head attention layer, each declared by its row, with defaults filled in.

    A size that is None stands for another one: those of inputs for num_hiddens, key_dim and value_dim for num_hiddens /
    num_heads, num_key_value_heads for num_heads. If num_hiddens is no multiple of num_heads, key_dim must be given;
    then value_dim = None means key_dim.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if a size is not positive, dropout is outside [0, 1), a name is unknown, num_hiddens is no multiple
            of num_heads and key_dim is not given, or options do not go together.
    """

    num_hiddens: int = option("width D of the output", checks.size)
    num_heads: int = option("number of heads H", checks.size)
    dropout: float = option(
        "probability, in [0, 1), that training drops an attention weight", checks.probability, 0.0, of_pooling=True
    )
    bias: bool = option("whether the projections add a bias", checks.flag, False)
    _: dataclasses.KW_ONLY
    query_size: int = option("width of the queries", checks.size, None, fill=lambda config: config.num_hiddens)
    key_size: int = option("width of the keys", checks.size, None, fill=lambda config: config.num_hiddens)
    value_size: int = option("width of the values", checks.size, None, fill=lambda config: config.num_hiddens)
    key_dim: int = option("width d of a head", checks.size, None, fill=_width)
    value_dim: int = option(
        "width dv of a head of values", checks.size, None,
        fill=lambda config: config.key_dim if config.num_hiddens % config.num_heads else _width(config),
    )  # fmt: skip
    num_key_value_heads: int = option(
        "number G of heads of keys and values: query head h uses head h // (H / G) of them", checks.size, None,
        fill=lambda config: config.num_heads, fit=_divisor, layout=2,
    )  # fmt: skip
    scale: float | None = option(
        "factor of the dot products", checks.positive, None,
        layout=2, is_silent=True, of_pooling=True, of_dots=True,
    )  # fmt: skip
    softcap: float | None = option(
        "number c of the cap c * tanh(scores / c)", checks.positive, None,
        layout=2, is_silent=True, of_pooling=True, needs_scores=True, step="capped",
    )  # fmt: skip
    window: tuple[int | None, int | None] | None = option(
        "(left, right), the numbers of keys before and after its own position that a query may see",
        checks.window, None, layout=2, is_silent=True,
    )  # fmt: skip
    chunk: int | None = option(
        "number of positions of a chunk, from 0 on: a query sees only the keys of its own",
        checks.chunk, None, layout=3, is_silent=True,
    )  # fmt: skip
    rotary: Rotary | None = option(
        "rotation of queries and keys by their positions", _of_class(Rotary, "base=10000.0"), None,
        fit=lambda rotary, config: rotary.within(config.key_dim),
        part=Rotary, layout=2, is_silent=True, of_dots=True, step="rotate",
    )  # fmt: skip
    qk_norm: Norm | None = option(
        "norm of queries and keys", norm, None, part=Norm, layout=2, of_dots=True, step="norm",
        weights=lambda config: {
            "q_norm.scale": (config.qk_norm.size(config.num_heads, config.key_dim),),
            "k_norm.scale": (config.qk_norm.size(config.num_key_value_heads, config.key_dim),),
        },
    )  # fmt: skip
    value_norm: Norm | None = option(
        "norm of values, right after they are split into heads", norm, None,
        fit=_unturned, part=Norm, layout=3, step="norm_v",
        weights=lambda config: {
            "v_norm.scale": (config.value_norm.size(config.num_key_value_heads, config.value_dim),)
        },
    )  # fmt: skip
    temperature: Temperature | None = option(
        "factor of the queries that grows with their positions", _of_class(Temperature, "0.1, 8192"), None,
        part=Temperature, layout=3, of_dots=True, step="tempered",
    )  # fmt: skip
    sinks: bool = option(
        "whether each head has one more score in the softmax of every query, a weight, which pools nothing",
        checks.flag, False, layout=3, needs_scores=True, weights=lambda config: {"sinks": (config.num_heads,)},
    )  # fmt: skip
    output_gate: GateName | None = option(
        'factors of the pooled heads, the sigmoid of a projection of the queries, of each "element" or of each "head"',
        lambda name, value: checks.choice(name, value, GATES), None, layout=3, step="gated",
        weights=lambda config: _dense("W_g", config.query_size, config.num_heads * config.gate_dim, config),
    )  # fmt: skip
    pooling: PoolingName = option(
        'the scores: "dot", scaled dot products, or "additive"',
        lambda name, value: checks.choice(name, value, POOLINGS), "dot", needs_scores=True,
        weights=lambda config: {
            f"attention.{name}.kernel": (config.key_dim, width)
            for name, width in {"W_q": config.key_dim, "W_k": config.key_dim, "w_v": 1}.items()
        },
    )  # fmt: skip
    dtype: FloatName = option(
        "dtype of inputs, weights and output",
        lambda name, value: checks.choice(name, checks.dtype_name(value), DTYPES), "float32",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, row in ROWS.items():
            value = getattr(self, name)
            value = row.fill(self) if value is None is row.default else row.fit(row.check(name, value), self)
            object.__setattr__(self, name, value)
        for name, row in ROWS.items():
            if row.of_dots and self.pooling == "additive" and getattr(self, name) is not None:
                raise ValueError(f"{name} is given, expected None with pooling='additive', which has no dot products")

    @property
    def gate_dim(self) -> int:
        """The number of gates of one head in the output gate."""
        return self.value_dim if self.output_gate == "element" else 1


ROWS: dict[str, Option] = {field.name: field.metadata["row"] for field in dataclasses.fields(Config)}
MODERN = tuple(name for name, row in ROWS.items() if row.layout > 1)  # layers of others may lack them
SILENT = tuple(name for name, row in ROWS.items() if row.is_silent)
PARTS: dict[str, type] = {name: row.part for name, row in ROWS.items() if row.part}
OF_POOLING = tuple(name for name, row in ROWS.items() if row.of_pooling)
OF_SCORES = tuple(name for name, row in ROWS.items() if row.needs_scores)
BENT = tuple(ROWS[name].step for name in OF_SCORES if ROWS[name].step)  # the steps from scores to biased ones
STEPS_OF_PAIRS = ("scores", *BENT, "biased", "weights")  # of a trace, those with a number for each query and key


def score_options(config: Config) -> list[str]:
    """The options of a layer for which its scores have to be there: a framework's fused kernel keeps none."""
    return [name for name in OF_SCORES if getattr(config, name) != ROWS[name].default]


def plain(config: Config) -> dict[str, Any]:
    """The defaults of the options of today's models, by name, for a layer of these sizes."""
    rows = {name: ROWS[name] for name in MODERN}.items()
    return {name: row.fill(config) if row.default is None else row.default for name, row in rows}


def special(config: Config) -> dict[str, Any]:
    """The options of today's models that are not at their defaults, by name; other layers and files may lack them."""
    return {name: getattr(config, name) for name, default in plain(config).items() if getattr(config, name) != default}


def turns_heads(config: Config) -> bool:
    """Whether options make steps of their own between the projections of heads and the output, beside the scores."""
    names = [name for name, row in ROWS.items() if row.step and not row.needs_scores]
    return any(getattr(config, name) != ROWS[name].default for name in names)


def config_of_record(options: dict[str, Any]) -> Config:
    """The configuration of options as `dataclasses.asdict` records one; raises as `Config` does.

    A norm may also be recorded as its kind, "qk_norm", and its number, "qk_norm_eps".
    """
    options = dict(options)
    if (eps := options.pop("qk_norm_eps", None)) is not None:
        recorded = Norm(options.get("qk_norm") or "rms", eps)
        options["qk_norm"] = recorded if options.get("qk_norm") else None
    made = {name: part(**options[name]) for name, part in PARTS.items() if isinstance(options.get(name), dict)}
    return Config(**options | made)


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of this name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def shapes(config: Config) -> dict[str, Shape]:
    """Name and shape of every weight of a layer, in canonical order: projections first.

    Raises ValueError if one would have more numbers than any memory can hold.
    """
    H, G, d, dv = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim
    named = _dense("W_q", config.query_size, H * d, config) | _dense("W_k", config.key_size, G * d, config)
    named |= _dense("W_v", config.value_size, G * dv, config) | _dense("W_o", H * dv, config.num_hiddens, config)
    rows = [row for name, row in ROWS.items() if getattr(config, name) != row.default]
    brought = [weight for row in rows for weight in row.weights(config).items()]
    named |= dict(sorted(brought, key=lambda weight: not weight[0].endswith((".kernel", ".bias"))))
    for name, shape in named.items():
        if math.prod(shape) > sys.maxsize // 8:  # bytes of a float64
            raise ValueError(f"{name} would have shape {shape}, too many numbers for any memory; choose smaller sizes")
    return named
