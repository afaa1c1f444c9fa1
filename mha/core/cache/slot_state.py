"""The state of a cache's slots in NumPy: their positions, lengths and what is lost, without asking a device.

Letters: B batch, S slots.
"""

from typing import Any

import numpy as np


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
