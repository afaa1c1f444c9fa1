"""Plan a call with a cache before anything is computed: where its tokens go and which slots its queries see.

The state of the slots is in NumPy, so that no device is asked.

Letters: B batch, S slots, Q new tokens, N those of them that are no padding.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mha.core import dispatch
from mha.core.cache.slots import LOST, left_of


class SlotState:
    """The state of the slots of a cache outside of compilers, in NumPy's integers.

    sizes: B and S.
    tokens: how many tokens each sample has had, if these were at positions 0, 1 and so on and none was padding: this
        number says everything then; else None.
    arrays: positions (B, S), lengths and lost (B,).
    """

    def __init__(self, sizes: tuple[int, int], tokens: int | None = None, arrays: Any = None) -> None:
        self.sizes, self.tokens, self._arrays = sizes, tokens, arrays

    @classmethod
    def of(cls, positions: np.ndarray, lengths: np.ndarray, lost: np.ndarray) -> "SlotState":
        """Make the state from its arrays, as one number where that says everything."""
        arrays, (B, S) = (positions, lengths, lost), positions.shape
        if B and S:
            even = cls((B, S), int(lengths[0]))
            if all(map(np.array_equal, even.arrays, arrays)):
                return even
        return cls((B, S), None, arrays)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions (B, S), lengths (B,) and lost (B,)."""
        if self._arrays is None:
            (B, S), n = self.sizes, self.tokens or 0
            slot = np.arange(S)
            row = np.where(slot < n, n - 1 - (n - 1 - slot) % S, -1)  # (S,): the last one of those that come there
            lost = np.full(B, max(n - S, 0) - 1)
            self._arrays = np.broadcast_to(row, (B, S)), np.full(B, n), lost
        return self._arrays


class CacheStep(NamedTuple):
    """The effect of a call on the slots of a cache, where it is known before the call.

    slot_state: of the cache after the call.
    wrong: the samples that would lose what they need, so that the call is refused.
    early: whether a query sees a token whose slot the call gives to another one.
    first: the position of the first token, if all samples have the same tokens in the same slots; else None.
    positions: (B, Q), where each token is, -1 = padding; None beside first.
    rows, columns, slots: (N,) each: the sample of a token that is kept, its number within the call, and its slot.
    used: the slots that queries may see.
    seen: (B or 1, 1, Q, used) booleans, which of the used slots a query sees; None = all.
    in_order: whether the used slots follow each other, and order and window of the call hide, from the first on.
    hidden: whether a token in one of the used slots is seen by no query.
    """

    slot_state: SlotState
    wrong: Any = ()
    early: bool = False
    first: int | None = None
    positions: Any = None
    rows: Any = None
    columns: Any = None
    slots: Any = None
    used: slice = slice(0, 0)
    seen: Any = None
    in_order: bool = False
    hidden: bool = False

    def runs(self) -> Iterator[tuple[slice, slice]]:
        """Yield the slots of each round of the ring, and their tokens, which are in the same slots in all samples."""
        first, end, S = self.first or 0, self.slot_state.tokens or 0, self.slot_state.sizes[1]
        for begin in range(first - first % S, end, S):
            start, stop = max(begin, first), min(begin + S, end)
            yield slice(start - begin, stop - begin), slice(start - first, stop - first)


def plan_slots(cache: Any, slot_state: SlotState, queries: Any, call: Any) -> CacheStep:
    """Plan the step of a call with a cache, whose slots are in this state.

    queries: of which only the sizes count; call: with its positions and lengths as NumPy arrays.
    """
    if cache.frozen or slot_state.tokens is None or call.valid_lens is not None:
        return _plan_any(cache, slot_state, queries, call)
    if call.positions is not None and not (call.positions == slot_state.tokens + np.arange(queries.shape[1])).all():
        return _plan_any(cache, slot_state, queries, call)
    return _plan_even(cache, slot_state, slot_state.tokens, queries, call)


def _plan_even(cache: Any, slot_state: SlotState, first: int, queries: Any, call: Any) -> CacheStep:
    """Plan a call of which each sample has had the same number of tokens, and gets as many new ones as the others."""
    (_, S), Q = slot_state.sizes, queries.shape[1]
    left, chunk, end = left_reach(cache), cache.config.chunk, first + Q
    after = SlotState(slot_state.sizes, end)
    pushed = end - S - 1  # the furthest position without a slot by then, or below 0
    early = pushed >= 0 and pushed >= first - left
    # Pairs and weights have numbers for each slot, as the slots are after the call.
    if (pushed >= 0 and pushed >= end - 1 - left) or (early and (call.pairs() or call.return_weights)):
        return CacheStep(after, range(slot_state.sizes[0]), early)
    if end <= S:
        begin = max(0, first - left)
        if chunk:  # chunks of the slots that are used have to begin where chunks of positions do
            begin = max(begin, first - first % chunk) if Q == 1 else begin - begin % chunk
        used = slice(begin, max(1, end))
        return CacheStep(after, first=first, used=used, in_order=Q > 1)
    if Q == 1 and left + 1 == S and not chunk:  # as most rings are
        return CacheStep(after, first=first, used=slice(0, S))
    seen, hidden = _find_visible(queries, after, slice(0, S), call._replace(positions=np.arange(first, end)[None]))
    return CacheStep(after, (), early, first, used=slice(0, S), seen=seen, hidden=hidden)


def _plan_any(cache: Any, slot_state: SlotState, queries: Any, call: Any) -> CacheStep:
    """Plan any call, by the chapter of NumPy."""
    chapter, (B, Q), S = dispatch.lesson("numpy"), queries.shape[:2], slot_state.sizes[1]
    nothing, rows = np.empty((B, 0, S, 0)), np.empty((B, Q, 0))
    without_heads = cache.after(nothing, nothing, *slot_state.arrays)
    *_, call = chapter.place(rows, rows, rows, call._replace(cache=without_heads))
    if cache.frozen:
        seen, hidden = _find_visible(queries, slot_state, slice(0, S), call)
        return CacheStep(slot_state, positions=call.positions, used=slice(0, S), seen=seen, hidden=hidden)
    columns, slots, state = chapter.slots_after(*slot_state.arrays, call)
    after, real = SlotState(slot_state.sizes, None, state), call.positions >= 0  # (B, Q)
    pushed = np.where(columns >= S, slot_state.arrays[0], -1).max(1, initial=-1)  # (B,)
    first = np.where(real, call.positions, LOST).min(1, initial=LOST)  # (B,)
    early = ((pushed >= 0) & (pushed >= first - left_reach(cache))).any() or real.sum(1).max(initial=0) > S
    used = slice(0, int(min(S, max(1, state[1].max(initial=1)))))
    seen, hidden = _find_visible(queries, after, used, call)
    rows, columns = np.nonzero(real)
    slots = slots[:, S:][rows, columns]
    return CacheStep(
        after, np.nonzero(state[2] == LOST)[0], bool(early), None, call.positions, rows, columns, slots, used, seen,
        hidden=hidden,
    )  # fmt: skip


def _find_visible(queries: Any, slot_state: SlotState, used: slice, call: Any) -> tuple[np.ndarray | None, bool]:
    """Find the slots that each query of a call sees by position, None = all; and whether a token is hidden."""
    places, chapter = slot_state.arrays[0][:, used], dispatch.lesson("numpy")
    order = call._replace(valid_lens=None, mask=None, score_bias=None, offset=0, key_positions=places)
    seen = chapter.visible_keys(queries, np.empty((len(places), places.shape[1], 0)), order)
    if seen.all():
        return None, False
    return seen, bool(((places >= 0) & ~seen.any((1, 2))).any())


def left_reach(cache: Any) -> int:
    """Return how many positions before its own a query sees; without window and chunk, more than there are."""
    left = left_of(cache.config)
    return LOST if left is None else left
