"""Call a submission's functions and classes: by position where that is usual, else by their own names."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .submission import FailureError

# What an argument may be called; the first is the name of the lesson.
WORDS = (
    ("num_hiddens", "num_hidden", "d_model", "embed_dim", "hidden_size", "hidden_dim", "model_dim", "dim", "D"),
    ("num_heads", "n_heads", "num_head", "heads", "nheads", "h", "H"),
    ("dropout", "dropout_rate", "dropout_p", "dropout_prob", "p"),
    ("bias", "use_bias", "qkv_bias"),
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads"),
    ("rotary", "rotary_base", "rope_base", "rope_theta"),
    ("valid_lens", "valid_len", "valid_lengths", "lengths", "lens", "seq_lens"),
    ("mask", "attn_mask", "attention_mask"),
    ("causal", "is_causal"),
    ("cache", "kv_cache", "past", "past_key_value"),
    ("queries", "query", "q", "Q"),
    ("keys", "key", "k", "K"),
    ("values", "value", "v", "V"),
    ("seed", "random_state"),
)
COMMON = {word: words[0] for words in WORDS for word in words}
KINDS = inspect.Parameter


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """List the parameters of a function, or of a class's constructor; without `self`."""
    try:
        if isinstance(function, type):  # a metaclass may hide them
            return list(inspect.signature(function.__init__).parameters.values())[1:]  # type: ignore[misc]
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [KINDS("given", KINDS.VAR_POSITIONAL), KINDS("named", KINDS.VAR_KEYWORD)]


def is_keras(cls: type) -> bool:
    """Whether a class is a layer of Keras, which takes nothing but tensors by position."""
    return any(f"{one.__module__}.".startswith("keras.") for one in cls.__mro__)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name, or of another word for it."""
    return any(COMMON.get(one.name, one.name) == name for one in parameters(function))


def call(
    function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any], signature: Any = None
) -> Any:  # fmt: skip
    """Call a function with `given` by position, and those of `named` that it takes under its own words.

    signature: another callable that says what the function takes.
    """
    own = parameters(signature or function)
    positional = [one for one in own if one.kind in (KINDS.POSITIONAL_ONLY, KINDS.POSITIONAL_OR_KEYWORD)]
    rest = positional[len(given) :] + [one for one in own if one.kind is KINDS.KEYWORD_ONLY]
    words = {one.name: COMMON.get(one.name, one.name) for one in rest}
    chosen = {name: named[word] for name, word in words.items() if word in named}
    more = []
    for one in positional[len(given) :]:  # as far as possible by position: Gluon takes no other
        if one.name not in chosen or (is_keras(type(function)) and not hasattr(chosen[one.name], "shape")):
            break
        more.append(chosen.pop(one.name))
    return function(*given, *more, **chosen)


def construct(cls: Callable[..., Any], named: Mapping[str, Any], makers: Mapping[str, Callable[[], Any]]) -> Any:
    """Make an object with `named` under its own words; makers: functions, by name, for other arguments it needs."""
    chosen = {}
    for one in parameters(cls):
        word = COMMON.get(one.name, one.name)
        if one.kind in (KINDS.VAR_POSITIONAL, KINDS.VAR_KEYWORD):
            continue
        if word in named:
            chosen[one.name] = named[word]
        elif one.name in makers:
            chosen[one.name] = makers[one.name]()
        elif one.default is KINDS.empty:
            name = getattr(cls, "__name__", "it")
            known = ", ".join(named)
            raise FailureError("wrong", f"{name}(...) needs {one.name}, which is not known here; known: {known}")
    return cls(**chosen)
