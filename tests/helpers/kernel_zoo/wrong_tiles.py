"""Wrong kernels in NumPy: sums of blocks, tiles, scores, and what is hidden."""

import numpy as np

from kernel_zoo.flash import Flash, finite
from kernel_zoo.planting import changed_call, plant

# Sums of blocks


NOT_RESCALED = "the accumulator of blocks is not rescaled"
plant("neither pooled values nor their sum are rescaled", NOT_RESCALED, keep=lambda self, old, new: np.ones_like(new))
plant("the sum is not rescaled", keep_sum=lambda self, keep: np.float32(1))
plant("the maximum is of the last tile alone", largest=lambda self, old, scores: scores.max(-1, keepdims=True))
plant(
    "the maximum is of the first tile alone",
    largest=lambda self, old, scores: np.where(np.isinf(old), scores.max(-1, keepdims=True), old),
)
plant("only the last tile counts", "only the last block of keys counts", keep=lambda self, old, new: np.zeros_like(new))
plant("the rescaling is inverted", keep=lambda self, old, new: np.where(np.isinf(old), 0, np.exp(finite(new) - old)))
plant("the accumulator is in bfloat16", accumulator=lambda self, X: X.astype("bfloat16").astype(np.float32))
plant("the accumulator is in float16", accumulator=lambda self, X: X.astype("float16").astype(np.float32))
plant("no maximum is subtracted", "no maximum is subtracted", largest=lambda self, old, scores: np.zeros_like(old))
plant("not divided by the sum", "weights are not divided by their sum", divided=lambda self, pooled, total: pooled)
plant("divided by the sum in each tile", accumulator=lambda self, X: X / np.float32(2))
plant("the base of the exponential is 2", exp=lambda self, X: np.exp2(X))
plant(
    "1 is added to the sum",
    "1 is added to the sum of the softmax",
    divided=lambda self, pooled, total: pooled / (total + 1),
)
plant("a small number is added to the sum", divided=lambda self, pooled, total: pooled / (total + np.float32(1e-3)))


# Tiles


def whole_tiles(self, tokens, size):
    return Flash.tiles(self, tokens, size)[: max(tokens // size, 1)]


def overlapping(self, call, rows):
    return [np.append(tile, tile[-1] + 1) for tile in Flash.seen_tiles(self, call, rows)]


def beginning_early(self, call, rows):
    return [np.append(tile[0] - 1, tile) if tile[0] else tile for tile in Flash.seen_tiles(self, call, rows)]


def unwritten(value):
    def store(self, X, places, tile, add=False):
        Flash.store(self, X, places, tile if add or places[-1] < X.shape[2] else np.full_like(tile, value), add)

    return store


def load_beyond(self, X, places):
    """What lies beyond the last key is the next head's."""
    flat = X.reshape(-1, X.shape[-1])
    at = np.arange(X.shape[0] * X.shape[1])[:, None] * X.shape[2] + places
    return flat[np.minimum(at, len(flat) - 1)].reshape(*X.shape[:2], len(places), -1)  # (B, H, T, d)


def beyond(self, call, places):
    return places < call.ends + (call.ends % self.columns > 0)


plant(
    "the last, partial tile of keys is left out",
    "the last block of keys is left out",
    seen_tiles=lambda self, call, rows: whole_tiles(self, call.k.shape[2], self.columns),
)
plant(
    "padding of the last tile counts",
    "the padding of the last block counts",
    within=lambda self, call, places: places < np.ceil(call.ends / 32) * 32,
)
plant(
    "the next head's key is seen in the last tile",
    load=load_beyond,
    within=beyond,
    backward=lambda self, *arrays, **options: Flash().backward(*arrays, **options),
)
plant("tiles overlap by a key", "blocks of keys overlap by a key", seen_tiles=overlapping)
plant("tiles begin a key early", "blocks of keys overlap by a key", seen_tiles=beginning_early)
plant(
    "tiles on the diagonal are skipped",
    "blocks are skipped too early",
    last_seen=lambda self, call, rows: (
        (self.places(call, rows).max() - self.columns) if call.causal else call.ends.max()
    ),
)
plant(
    "keys are skipped by the first query of a tile, not the last",
    "blocks are skipped too early",
    last_seen=lambda self, call, rows: self.places(call, rows).min() if call.causal else call.ends.max(),
    base=type("Wide", (Flash,), {"__init__": lambda self: Flash.__init__(self, rows=64)}),
)
plant("rows of the last, partial tile are 0", "the last rows are not written", store=unwritten(0))
plant("rows of the last, partial tile are NaN", store=unwritten(np.nan))
plant(
    "places of keys overflow at 256",
    seen_tiles=lambda self, call, rows: [tile % 256 for tile in Flash.seen_tiles(self, call, rows)],
)
plant(
    "inputs are read as if contiguous",
    prepare=lambda self, q, k, v, *options: Flash.prepare(
        self, *(X.ravel("K").reshape(X.shape) for X in (q, k, v)), *options
    ),
)
plant(
    "features beyond 64 are cut",
    prepare=lambda self, q, k, v, *options: Flash.prepare(self, q[..., :64], k[..., :64], v, *options),
)
plant(
    "two heads of queries are swapped", prepare=changed_call(q=lambda call: call.q[:, np.r_[1, 0, 2 : call.q.shape[1]]])
)
plant(
    "keys of the first sample for all", prepare=changed_call(k=lambda call: np.broadcast_to(call.k[:1], call.k.shape))
)


# Scores


def scaled_afresh(self, call, rows, columns):
    scores, slope = Flash.scores(self, call, rows, columns)
    return scores * np.float32(call.q.shape[3] ** -0.5), slope


def cap_after_bias(self, call, rows, columns):
    scores = self.load(call.q, rows) @ self.load(call.k, columns).swapaxes(2, 3) * np.float32(call.scale)
    scores, slope = Flash.capped(self, call, scores + self.of_pairs(call.bias, rows, columns))
    return np.where(self.visible(call, rows, columns), scores, np.float32(-np.inf)), slope


def cap_before_scale(self, call, scores):
    found, slope = Flash.capped(self, call, scores / np.float32(call.scale))
    return found * np.float32(call.scale), slope


plant(
    "the scale of a padded width",
    "the scale of padded heads",
    scale=lambda self, width: (2.0 ** np.ceil(np.log2(width))) ** -0.5,
)
plant("no scale", "no scale", scale=lambda self, width: 1.0)
plant("the scale is applied twice", "the scale is applied twice", scale=lambda self, width: 1 / width)
plant(
    "a given scale is ignored",
    "the default scale for the model's own",
    prepare=changed_call(scale=lambda call: call.q.shape[3] ** -0.5),
)
plant(
    "a given scale comes on top of the usual one",
    "the default scale on top of the model's own",
    prepare=changed_call(
        scale=lambda call: (
            call.scale * (1 if np.isclose(call.scale, call.q.shape[3] ** -0.5) else call.q.shape[3] ** -0.5)
        )
    ),
)
plant("the cap is forgotten", "the cap is forgotten", prepare=changed_call(softcap=lambda call: None))
plant("the cap comes before the scale", "the cap comes before the scale", capped=cap_before_scale)
plant("the cap comes after the bias", "the cap comes after the bias", scores=cap_after_bias)
plant(
    "the cap is not multiplied back",
    "the cap is not multiplied back",
    capped=lambda self, call, scores: (
        Flash.capped(self, call, scores)[0] / np.float32(call.softcap or 1),
        np.float32(1),
    ),
)
plant(
    "the bias of the first head for all",
    "the bias of the first",
    prepare=changed_call(bias=lambda call: np.broadcast_to(call.bias[:, :1], call.bias.shape)),
)
plant(
    "the bias of the first sample for all",
    "the bias of the first",
    prepare=changed_call(bias=lambda call: np.broadcast_to(call.bias[:1], call.bias.shape)),
)
plant(
    "the bias is scaled, too", "the bias is scaled too", prepare=changed_call(bias=lambda call: call.bias * call.scale)
)
plant("the bias is in bfloat16", prepare=changed_call(bias=lambda call: call.bias.astype("bfloat16").astype("f4")))
plant(
    "the bias is not seen beyond the first tile",
    of_pairs=lambda self, X, rows, columns: Flash.of_pairs(
        self, X, rows, columns if X.dtype == bool else columns % self.columns
    ),
)


# What is hidden


def first_of(axis):
    return lambda call: np.broadcast_to(call.mask.take([0], axis), call.mask.shape)


def ends(change):
    return changed_call(ends=lambda call: change(call.ends, call.k.shape[2]))


def mean_of_nothing(self, pooled, total):
    return np.where(total > 0, Flash.divided(self, pooled, total), np.float32(1))


def nan_of_nothing(self, pooled, total):
    with np.errstate(invalid="ignore"):
        return pooled / total


def weak_fill(self, call, rows, columns):
    scores, slope = Flash.scores(self, call, rows, columns)
    return np.maximum(scores, np.where(columns < call.k.shape[2], np.float32(-10), -np.inf)), slope


plant(
    "the mask of the first head for all", "all heads have the mask of the first", prepare=changed_call(mask=first_of(1))
)
plant(
    "the mask of the first sample for all",
    "all samples have the mask of the first",
    prepare=changed_call(mask=first_of(0)),
)
plant("the mask of the first query for all", prepare=changed_call(mask=first_of(2)))
plant(
    "the mask is inverted",
    "the mask is inverted",
    prepare=changed_call(mask=lambda call: ~call.mask if not call.mask.all() else call.mask),
)
plant("the mask is ignored", "the mask is ignored", prepare=changed_call(mask=lambda call: np.ones_like(call.mask)))
plant(
    "a mask replaces causal order",
    "causal order is ignored",
    prepare=changed_call(causal=lambda call: call.causal and call.mask.all()),
)
plant(
    "causal order is lower right",
    "causal order is aligned to the lower right",
    places=lambda self, call, rows: rows[None, None, :, None] + call.ends - call.q.shape[2],
)
plant(
    "causal order sees one key more",
    "causal order is off by one",
    in_order=lambda self, here, places: places <= here + 1,
    last_seen=lambda self, call, rows: call.ends.max(),
)
plant("causal order sees one key less", "causal order is off by one", in_order=lambda self, here, places: places < here)
plant("causal order is ignored", "causal order is ignored", prepare=changed_call(causal=lambda call: False))
for words, side, step in (
    ("wider", "left", 1),
    ("narrower", "left", -1),
    ("wider", "right", 1),
    ("narrower", "right", -1),
):
    name = f"the window is one {words} to the {side}"
    plant(name, name, prepare=changed_call(**{side: lambda call, side=side, step=step: getattr(call, side) + step}))
plant(
    "an open side of the window is closed",
    prepare=changed_call(
        left=lambda call: 0 if call.left == np.inf > call.right else call.left,
        right=lambda call: 0 if call.right == np.inf > call.left else call.right,
    ),
)
plant("the window is ignored", "the window is ignored", in_window=lambda self, call, here, places: np.True_)
plant("lengths are one too long", "lengths are one too long", prepare=ends(lambda ends, K: np.minimum(ends + 1, K)))
plant(
    "lengths are one too short",
    "lengths are one too short",
    prepare=ends(lambda ends, K: np.where(ends < K, ends - 1, K)),
)
plant("lengths of the first sample for all", prepare=ends(lambda ends, K: np.broadcast_to(ends[:1], ends.shape)))
plant("lengths are ignored", "the lengths are ignored", prepare=ends(lambda ends, K: np.full_like(ends, K)))
plant("a row that sees nothing is not 0", divided=mean_of_nothing)
plant("a row that sees nothing is NaN", "rows without keys are NaN", divided=nan_of_nothing)
plant("hidden keys have a score of -10", "weak mask fill", scores=weak_fill)
