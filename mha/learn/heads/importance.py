"""Measure how much each head of a layer matters: leave it out, or take the gradient of a loss by its gate."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.call import ROWS, to_backend
from mha.core.options import checks
from mha.core.options.config import numpy_dtype
from mha.layer import MultiHeadAttention

Method = Literal["ablation", "gradient"]
Loss = Callable[[Any, Any], Any]
INPUTS = ("queries", "keys", "values", "valid_lens")
CALL = (*INPUTS[:3], *(name for name in ROWS if name != "head_gates"))


def importance(
    attention: MultiHeadAttention, batches: Iterable[Any], loss: Loss | None = None, method: Method = "ablation"
) -> np.ndarray:
    """Measure how much each head matters on some data, without dropout. The layer is not changed.

    Method "ablation" leaves out one head after the other, with H + 1 calls for each batch. The importance of head h is

    - without a loss, the mean over samples of ||Y - Y_h||, where Y is the output (Q, D) of a sample and Y_h is the
      output without the head;
    - with a loss, the growth of the loss without the head, divided by the number of samples; below 0 if it shrinks.

    Method "gradient" measures how fast the loss changes with the heads' gates, at gates of 1, with one call and its
    gradient for each batch: the importance is the mean over samples of |d loss / d gate of h in this sample|. Without
    a loss, ||Y||^2 / 2 of each sample is taken, since ||Y - Y_h|| has no gradient at 0.

    Every row of the output counts, even a row of padding; your loss may leave these rows out.

    Args:
        attention: the layer, with any options, on any backend.
        batches: calls of the layer, read once: tuples (queries, keys, values) or (queries, keys, values, valid_lens),
            or dicts of a call's arguments, but not head_gates. A dict may also hold "targets", anything that the loss
            needs. Arrays as for a call.
        loss: None, or a function `loss(output, batch)`. It gets the output (B, Q, D), an array of the backend's
            framework, and the batch as it came. It returns the sum of the losses of the samples, one number computed by
            that framework; or a pair of this number and its gradient by the output (B, Q, D). With method "gradient",
            NumPy needs the pair, because it computes no gradients itself.
        method: "ablation" or "gradient".

    Returns:
        The importance of each head (H,), a float64 NumPy array.

    Raises:
        TypeError, ValueError: if an argument is not as above, if there is no sample, or if the loss returns no finite
            number; the message says what was expected.

    Source: Michel, Levy and Neubig, Are Sixteen Heads Really Better than One? (2019), sections 3 and 4.1.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss is {checks.brief(loss)}, expected a function of the output and the batch, or None")
    of_batch = _ablation if checks.choice("method", method, get_args(Method)) == "ablation" else _gradient
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise TypeError(f"batches is {checks.brief(batches)}, expected a list of batches; pass one as [batch]")
    total, samples = np.zeros(attention.config.num_heads), 0
    for number, batch in enumerate(batches):
        call = _call(f"batches[{number}]", batch)
        found, size = of_batch(attention, call, loss and _of_batch(loss, batch))
        total, samples = total + found, samples + size
    if not samples:
        raise ValueError("batches holds no sample, expected at least one")
    return total / samples


def _call(name: str, batch: Any) -> dict[str, Any]:
    """The arguments of the layer's call in a batch, by name."""
    if isinstance(batch, (tuple, list)):
        if not 3 <= len(batch) <= 4:
            raise ValueError(f"{name} holds {len(batch)} things, expected queries, keys, values and maybe valid_lens")
        return dict(zip(INPUTS, batch, strict=False))
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"{name} is a {type(batch).__name__}, expected a tuple (queries, keys, values) or a dict of a call's "
            "arguments; pass one batch as [batch]"
        )
    if lacking := [one for one in INPUTS[:3] if one not in batch]:
        raise ValueError(f"{name} lacks {', '.join(lacking)}; expected queries, keys and values")
    if unknown := [str(one) for one in batch if one not in (*CALL, "targets")]:
        raise TypeError(f"{name} has {', '.join(unknown)}, expected some of {', '.join(CALL)} and targets")
    return {one: X for one, X in batch.items() if one != "targets"}


def _of_batch(loss: Loss, batch: Any) -> Callable[[Any], Any]:
    """The loss of a batch as a function of the output alone; it returns one number, or a tuple of two things."""

    def of_output(output: Any) -> Any:
        found = loss(output, batch)
        if isinstance(found, (tuple, list)):
            if len(found) != 2:
                raise TypeError(f"loss gave {len(found)} things, expected one number, or a pair of it and its gradient")
            found = tuple(found)
        value = found[0] if isinstance(found, tuple) else found
        if shape := tuple(getattr(value, "shape", ())):
            raise ValueError(f"loss gave an array of shape {shape}, expected one number: the sum over the samples")
        return found

    return of_output


def _ablation(attention: MultiHeadAttention, call: dict[str, Any], loss: Any) -> tuple[np.ndarray, int]:
    """The importance of each head (H,), summed over the samples of a batch, and the number of samples."""
    config = attention.config
    whole = attention(**call)  # (B, Q, D)
    found = np.zeros(config.num_heads)
    value = loss and _value(attention, loss, whole)
    for head in range(config.num_heads):
        gates = np.ones(config.num_heads, numpy_dtype(config.dtype))
        gates[head] = 0
        output = attention(**call, head_gates=gates)
        if loss:
            found[head] = _value(attention, loss, output) - value
        else:
            change = _float64(whole) - _float64(output)
            found[head] = np.linalg.norm(change, axis=(1, 2)).sum()
    return found, len(whole)


def _gradient(attention: MultiHeadAttention, call: dict[str, Any], loss: Any) -> tuple[np.ndarray, int]:
    """The same as `_ablation`, from the gradients of the loss by the gates of each sample."""
    config = attention.config
    samples = (
        len(call["queries"]) if hasattr(call["queries"], "__len__") else 1
    )  # anything else is refused by the layer
    gates = np.ones((samples, config.num_heads), numpy_dtype(config.dtype))
    output, pull_back = attention.vjp(**call, head_gates=gates)
    cotangent = _slope(attention, loss, output) if loss else output  # the gradient of ||Y||^2 / 2 is Y
    return np.abs(_float64(pull_back(cotangent)["head_gates"])).sum(0), len(gates)  # (H,)


def _value(attention: MultiHeadAttention, loss: Callable[[Any], Any], output: Any) -> float:
    """The number that a loss returns for an output."""
    module: Any = dispatch.load(attention.backend)
    with module.context(attention.config.dtype):
        found = loss(_native(attention, output))
        return _number(found[0] if isinstance(found, tuple) else found)


def _slope(attention: MultiHeadAttention, loss: Callable[[Any], Any], output: Any) -> Any:
    """The gradient of a loss by the output (B, Q, D): the loss's own, or the framework's."""
    module: Any = dispatch.load(attention.backend)
    with module.context(attention.config.dtype):
        value, given = module.value_and_gradients(loss, [_native(attention, output)])
    gradient = given[0] if isinstance(given, tuple) else given
    _number(value)
    if gradient is None:
        framework = dispatch.FRAMEWORKS[attention.backend]
        raise ValueError(
            "loss gave a number without its gradient by the output; compute it from the output by functions of "
            f"{framework.needs[-1]}"
            + (
                ", and return the pair of it and the gradient, (B, Q, D)"
                if "automatic differentiation" in framework.lacks
                else ""
            )
        )
    return gradient


def _number(value: Any) -> float:
    """The value of a loss as a float; it must be one finite number."""
    plain = isinstance(value, (int, float, np.generic)) or dispatch.backend_of(value) is None
    array = np.asarray(value) if plain else arrays.to_numpy(value)
    if array.dtype.kind not in "fiu" and checks.dtype_name(array.dtype) != "bfloat16":
        raise TypeError(f"loss gave {checks.brief(value)}, expected one number: the sum over the samples")
    if not np.isfinite(number := float(array)):
        raise ValueError(f"loss gave {number}, expected a finite number")
    return number


def _native(attention: MultiHeadAttention, output: Any) -> Any:
    """An output as an array of the layer's backend."""
    module: Any = dispatch.load(attention.backend)
    return to_backend(module, module.place(attention.layer), output)


def _float64(X: Any) -> np.ndarray:
    return arrays.to_numpy(X).astype(np.float64)
