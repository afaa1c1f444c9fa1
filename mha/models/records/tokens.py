"""Find the tokens of the calls of a record: which rows of an array belong to which of them.

Letters: B batch, Q tokens of a call, F features.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mha.models.records.contents import Record, RecordedCall

FAR = 2**40  # more tokens than a text has
NAMES = ("input_ids", "inputs_embeds", "ids", "tokens", "decoder_input_ids", "decoder_inputs_embeds")


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The tokens of a sequence in a call: ids or None, and keys, -1 = padding; (B, Q) both."""

    ids: np.ndarray | None
    keys: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """B and Q."""
        return self.keys.shape


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """The calls that go through one text, and the grids of the sequences of each."""

    calls: tuple[RecordedCall, ...]
    grids: tuple[tuple[Grid, ...], ...]


def array_of(record: Record, arguments: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return an argument of a call of the model; None if it is no array."""
    number = arguments.get(name, {}).get("array")
    return None if number is None else record.array(number)


def grids_of(record: Record, call: RecordedCall, earlier: int) -> tuple[Grid, ...]:
    """Find the sequences of tokens of a call; earlier: how many tokens its cache has."""
    found = []
    arguments = call.arguments
    arrays = [name for name, argument in arguments.items() if argument.get("array") is not None]
    # The arguments that have tokens are those that are known, else the first that is an array.
    for name in [name for name in NAMES if name in arrays] or arrays[:1]:
        X = array_of(record, arguments, name)
        if X is None or X.ndim < 2:
            continue
        B, Q = X.shape[:2]
        side = "decoder_" if name.startswith("decoder_") else ""
        before = 0 if not side and f"decoder_{NAMES[0]}" in arguments else earlier
        keys = before + np.broadcast_to(np.arange(Q), (B, Q))
        mask = array_of(record, arguments, f"{side}attention_mask")
        if mask is not None and mask.ndim == 2 and mask.shape[0] == B and mask.shape[1] >= Q:
            real = mask != 0
            keys = np.where(real, real.cumsum(1) - 1, -1)[:, -Q:] + (before if mask.shape[1] == Q else 0)
            keys = np.where(real[:, -Q:], keys, -1)
        keys = np.where(keys < 0, -1, keys + FAR * np.arange(B)[:, None])
        found.append(Grid(X if X.dtype.kind in "iu" and X.ndim == 2 else None, keys))
    return tuple(found)


def texts_of(record: Record) -> list[Text]:
    """Join the calls that go on with a cache, or whose text begins with the one before."""
    found: list[list[tuple[RecordedCall, tuple[Grid, ...]]]] = []
    lengths: dict[int, int] = {}
    tokens = 0
    for call in record.calls:
        given = next((argument for argument in call.arguments.values() if argument.get("length") is not None), None)
        has_cache = any("cache" in argument for argument in call.arguments.values())
        earlier = given["length"] if given else lengths.get(call.cache or 0, 0) if has_cache else 0
        grids = grids_of(record, call, earlier)
        if call.cache is not None and grids:
            lengths[call.cache] = earlier + grids[-1].shape[1]
        last = found[-1][-1] if found else None
        if last and ((earlier and (last[0].cache == call.cache or earlier == tokens)) or is_longer(last[1], grids)):
            found[-1].append((call, grids))
        else:
            found.append([(call, grids)])
        tokens = earlier + grids[-1].shape[1] if grids else 0
    return [Text(tuple(call for call, _ in one), tuple(grids for _, grids in one)) for one in found]


def cut_where_different(a: Text, b: Text) -> tuple[Text, Text, str]:
    """Cut two texts where their ids begin to differ; also say what was left out."""
    first, second = ids_of(a), ids_of(b)
    ends: dict[int, int] = {}
    for key, number in first.items():
        sample, place = divmod(key, FAR)
        if second.get(key, number) != number:
            ends[sample] = min(ends.get(sample, FAR), place)
    if not ends:
        return a, b, ""
    sample = min(ends, key=lambda one: ends[one])
    note = f"their texts differ from position {ends[sample]} of sample {sample} on; what follows there was left out"
    return cut_text(a, ends), cut_text(b, ends), note


def ids_of(text: Text) -> dict[int, int]:
    """Return the id of each token by its key."""
    found: dict[int, int] = {}
    for grids in text.grids:
        grid = grids[-1] if grids else None
        if grid is not None and grid.ids is not None:
            for key, number in zip(grid.keys.reshape(-1).tolist(), grid.ids.reshape(-1).tolist(), strict=True):
                if key >= 0:
                    found.setdefault(key, number)
    return found


def cut_text(text: Text, ends: Mapping[int, int]) -> Text:
    """Return a text without the tokens from these positions on, by sample."""
    lasts = np.array([ends.get(sample, FAR) for sample in range(max(ends) + 1)])

    def shorter(grid: Grid) -> Grid:
        samples, places = np.divmod(grid.keys, FAR)
        far = places >= np.append(lasts, FAR)[np.minimum(samples, len(lasts))]
        return Grid(grid.ids, np.where((grid.keys >= 0) & ~far, grid.keys, -1))

    grids = [(*one[:-1], shorter(one[-1])) if one else one for one in text.grids]
    return Text(text.calls, tuple(grids))


def is_longer(before: Sequence[Grid], grids: Sequence[Grid]) -> bool:
    """Whether a text begins with another one, and is longer."""
    if not before or not grids or before[-1].ids is None or grids[-1].ids is None:
        return False
    (B, Q), shape = before[-1].shape, grids[-1].shape
    return shape[0] == B and shape[1] > Q and np.array_equal(grids[-1].ids[:, :Q], before[-1].ids)


def rows_of(X: np.ndarray, grids: Sequence[Grid], decoder: bool, joined: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return an array as rows of features (N, F) and the key of each row; None if it has no row for each token.

    decoder: whether its module belongs to a decoder; joined: whether it may have the last tokens alone.
    """
    for grid in sorted(grids, key=lambda one: one is not grids[-1] if decoder else one is not grids[0]):
        (B, Q), keys = grid.shape, grid.keys
        if X.ndim >= 2 and X.shape[:2] == (B, Q):
            rows = X
        elif X.ndim >= 3 and X.shape[:2] == (Q, B):
            rows = X.swapaxes(0, 1)
        elif X.ndim == 4 and X.shape[0] == B and X.shape[2] == Q and X.shape[3] != Q:
            rows = X.swapaxes(1, 2)
        elif X.ndim >= 2 and X.shape[:2] == (1, Q) and B > 1:
            rows = np.broadcast_to(X, (B, *X.shape[1:]))
        elif X.ndim == 2 and X.shape[0] == B * Q and B * Q > 1:
            rows = X
        elif joined and X.ndim == 3 and X.shape[0] == B and X.shape[1] < Q:
            rows, keys = X, keys[:, Q - X.shape[1] :]
        else:
            continue
        return rows.reshape(keys.size, -1), keys.reshape(-1)  # (N, F), (N,)
    return None
