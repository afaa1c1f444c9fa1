"""Several texts in one row, whose positions begin again: may they see each other, and what to say if they do.

A call does not always say which is meant, and each library has a rule of its own. Source: `masking_utils` of
transformers 5.23.

Letters: B batch, Q queries, K keys and values.
"""

import numpy as np

from mha.models.audit.calls.model_calls import ModelCall
from mha.models.audit.layers.reference import Reference
from mha.weights import models

Sizes = tuple[int, int, int]  # B, Q, K


def are_separate(call: ModelCall, attends: models.CallConvention, reference: Reference) -> bool:
    """Whether positions that begin again begin a separate text, by the rule of transformers; see `reasons_together`."""
    return attends.causal and not reasons_together(call, attends, reference)


def reasons_together(call: ModelCall, attends: models.CallConvention, reference: Reference) -> list[str]:
    """List the arguments for which transformers lets texts in one row see each other."""
    by_default = (reference.config or {}).get("use_cache", False)
    cached = call.arguments.get("use_cache")
    reasons = ["use_cache"] if call.history.tokens or (by_default if cached is None else cached) else []
    return reasons + [name for name in (attends.keys,) if call.array(name) is not None]


def count_texts(call: ModelCall, attends: models.CallConvention, sizes: Sizes) -> int:
    """Count the texts in a row of a call whose positions begin again; 1 if they do not, or if a mask decides."""
    B, Q, K = sizes
    mask = call.array(attends.keys)
    if attends.cross or (mask is not None and mask.ndim == 4) or (places := call.places(Q)) is None:
        return 1
    if places.shape[1] != K:
        return 1
    real = np.ones((B, K), bool) if mask is None or mask.shape[-1] != K else np.broadcast_to(mask != 0, (B, K))
    rows = (row[counts] for row, counts in zip(np.broadcast_to(places, (B, K)), real, strict=True))
    return max((1 + int((np.diff(row) < 1).sum()) for row in rows), default=1)


def note_on_texts(count: int, reasons: list[str]) -> str:
    """Say that texts see each other; reasons: as of `reasons_together`, if the model may keep texts apart at all."""
    found = f"positions begin again: the {count} texts in a row see each other"
    if not reasons:
        return f"{found}: the model does not keep them apart; give a mask (B, 1, T, T), or one text in a row"
    without = " and ".join("use_cache=False" if name == "use_cache" else f"{name}=None" for name in reasons)
    return f"{found}, as transformers has it with {' and '.join(reasons)}; call with {without}, or a mask (B, 1, T, T)"
