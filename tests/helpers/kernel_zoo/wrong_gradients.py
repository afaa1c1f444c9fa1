"""Wrong kernels in NumPy: sinks, the log-sum-exp, gradients, and packed texts."""

import numpy as np

from kernel_zoo.flash import Flash, Packed, finite
from kernel_zoo.planting import plant, plant_in_texts

# Sinks, and the log-sum-exp


def sinks_in_each_tile(self, call, state, scores, values):
    maximum, total, pooled = Flash.add(self, call, state, scores, values)
    return maximum, total if call.sinks is None else total + np.exp(call.sinks[:, None, None] - finite(maximum)), pooled


def sinks_after_division(self, call, maximum, total, pooled):
    return self.divided(pooled, total), Flash.finish(self, call, maximum, total, pooled)[1]


def lse_without_sinks(self, call, maximum, total, pooled):
    return Flash.finish(self, call, maximum, total, pooled)[0], self.lse(maximum, total)


plant(
    "sinks count in each tile",
    "sinks count several times",
    add=sinks_in_each_tile,
    with_sinks=lambda self, call, *state: state,
)
plant("sinks are scaled", "sinks are scaled", sinks=lambda self, call: call.sinks * call.scale)
plant("sinks are forgotten in the output", finish=sinks_after_division)
plant("sinks of other heads", "sinks of other heads", sinks=lambda self, call: call.sinks[::-1])


def right_backward(self, q, k, v, output, lse, cotangent, **options):
    """A kernel keeps the right log-sum-exp for its gradients, and returns another."""
    return Flash().backward(q, k, v, *Flash()(q, k, v, **options), cotangent, **options)


plant(
    "the sinks are missing in the log-sum-exp", "another log-sum-exp", finish=lse_without_sinks, backward=right_backward
)
plant(
    "the log-sum-exp is to base 2",
    "another log-sum-exp",
    backward=right_backward,
    lse=lambda self, maximum, total: Flash.lse(self, maximum, total) / np.log(2),
)
plant(
    "the log-sum-exp lacks its maximum",
    "another log-sum-exp",
    backward=right_backward,
    lse=lambda self, maximum, total: np.log(np.maximum(total, 1e-30)),
)
plant(
    "the log-sum-exp is the maximum",
    "another log-sum-exp",
    backward=right_backward,
    lse=lambda self, maximum, total: maximum,
)
plant(
    "the log-sum-exp is the sum of exponentials",
    "another log-sum-exp",
    backward=right_backward,
    lse=lambda self, maximum, total: np.exp(maximum) * total,
)


# Shared heads, and gradients


def summed_as_tiled(self, X, heads):
    return X.reshape(len(X), -1, heads, *X.shape[2:]).sum(1)  # (B, G, K, d)


def first_shared(self, X, heads):
    return X.reshape(len(X), heads, -1, *X.shape[2:])[:, :, 0]  # (B, G, K, d)


def backward(change):
    """Return a backward pass of other arguments: output, lse and cotangent as a function of them."""

    def method(self, q, k, v, output, lse, cotangent, **options):
        return Flash.backward(self, q, k, v, *change(output, lse, cotangent), **options)

    return method


def of_parts(change):
    """Return a backward pass that changes its results."""
    return lambda self, *arrays, **options: change(Flash.backward(self, *arrays, **options), options)


def no_order_backward(self, *arrays, **options):
    return Flash.backward(self, *arrays, **options | {"causal": False})


plant(
    "heads of keys are tiled, not repeated",
    "heads of keys are tiled, not repeated",
    repeat=lambda self, X, times: np.tile(X, (1, times, 1, 1)),
    sum_shared=summed_as_tiled,
)
plant(
    "gradients of shared heads are summed over the wrong heads",
    "gradients of shared heads are summed over others",
    sum_shared=summed_as_tiled,
)
plant(
    "gradients of shared heads are those of the first",
    "gradients of shared heads are not summed",
    sum_shared=first_shared,
)
plant(
    "gradients of shared heads are means",
    sum_shared=lambda self, X, heads: Flash.sum_shared(self, X, heads) * heads / X.shape[1],
)
plant(
    "dv is from weights that are not normalised",
    "the gradient of values has weights that are not divided",
    backward=lambda self, *arrays, **options: (
        Flash.backward(self, *arrays, **options)
        | {
            "dv": Flash.backward(
                type(
                    "Unscaled",
                    (Flash,),
                    {"weights": lambda self, scores, lse: np.exp(scores - finite(scores.max(-1, keepdims=True)))},
                )(),
                *arrays,
                **options,
            )["dv"]
        }
    ),
)
plant("dq lacks the scale", "the scale is forgotten in gradients", scale_of_queries=lambda self, call: np.float32(1))
plant("dk lacks the scale", "the scale is forgotten in gradients", scale_of_keys=lambda self, call: np.float32(1))
plant("dk has the usual scale, whatever is given", scale_of_keys=lambda self, call: np.float32(call.q.shape[3] ** -0.5))
plant(
    "the row sums of the softmax's gradient are missing",
    "the gradient of the softmax lacks its sum",
    delta=lambda self, output, cotangent: output[..., :1] * 0,
)
plant(
    "the row sums are of the first 32 features",
    delta=lambda self, output, cotangent: Flash.delta(self, output[..., :32], cotangent[..., :32]),
)
plant("the row sums are of the output alone", delta=lambda self, output, cotangent: output.sum(-1, keepdims=True))
plant(
    "the row sums are of each tile alone",
    by_scores=lambda self, weights, by_weights, delta: (
        weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True))
    ),
)
plant(
    "the gradient ignores the slope of the cap",
    "the cap's derivative is forgotten",
    capped=lambda self, call, scores: (Flash.capped(self, call, scores)[0], np.float32(1)),
)
plant("the gradient ignores causal order", backward=no_order_backward)
plant(
    "the gradient ignores lengths",
    backward=lambda self, *arrays, **options: Flash.backward(self, *arrays, **options | {"lengths": None}),
)
plant(
    "the gradient takes a log-sum-exp to base 2",
    backward=backward(lambda output, lse, cotangent: (output, lse / np.float32(np.log(2)), cotangent)),
)
plant(
    "the gradient is of a cotangent of ones",
    backward=backward(lambda output, lse, cotangent: (output, lse, np.ones_like(cotangent))),
)
plant(
    "a row that sees nothing sends gradients",
    weights=lambda self, scores, lse: np.where(np.isinf(lse), np.float32(1e-3), Flash.weights(self, scores, lse)),
)
plant(
    "dk of tiles on the diagonal is missing",
    backward=of_parts(
        lambda found, options: (
            found
            | {
                "dk": found["dk"]
                * (
                    (np.arange(found["dk"].shape[2]) < 32 * (found["dk"].shape[2] // 32))[:, None]
                    if options.get("causal")
                    else 1
                )
            }
        )
    ),
)
plant(
    "dq and dk are swapped where they can be",
    backward=of_parts(
        lambda found, options: (
            found | ({"dq": found["dk"], "dk": found["dq"]} if found["dq"].shape == found["dk"].shape else {})
        )
    ),
)
plant(
    "dq of the last tile of keys alone",
    store=lambda self, X, places, tile, add=False: Flash.store(
        self, X, places, tile, add and X.shape[2] != places.size
    ),
)


# Packed texts


def with_previous(self, of_queries, of_keys):
    return [
        (rows, slice(max(columns.start - 1, 0), columns.stop))
        for rows, columns in Packed.texts(self, of_queries, of_keys)
    ]


def without_last(self, of_queries, of_keys):
    *others, (rows, columns) = Packed.texts(self, of_queries, of_keys)
    return [*others, (rows, slice(columns.start, columns.stop - 1))]


def without_last_tokens(self, of_queries, of_keys):
    return [
        (slice(rows.start, rows.stop - 1), slice(columns.start, columns.stop - 1))
        for rows, columns in Packed.texts(self, of_queries, of_keys)
    ]


def sums_of_text_before(output, lse, options):
    """The rows of a text get the log-sum-exp that is written one text earlier, and as far as there are rows."""
    starts = options["cu_seqlens_q"]
    before = np.arange(lse.shape[1]) + np.repeat(np.roll(starts[:-1], 1) - starts[:-1], np.diff(starts))
    return output, lse[:, np.minimum(before, lse.shape[1] - 1)]


def queries_starts(self, of_queries, of_keys):
    return Packed.texts(self, of_queries, of_queries)


def right_backward_of_texts(self, q, k, v, output, lse, cotangent, **options):
    right = Packed(Flash())
    return right.backward(q, k, v, *right(q, k, v, **options), cotangent, **options)


plant_in_texts("a text sees the last key of the one before", "a text sees the one before it", texts=with_previous)
plant_in_texts("the last text lacks its last key", "a text lacks its last token", texts=without_last)
plant_in_texts(
    "each text lacks its last token",
    "a text lacks its last token",
    texts=without_last_tokens,
    backward=right_backward_of_texts,
)
plant_in_texts("keys begin where queries do", "keys are cut where queries are", texts=queries_starts)
plant_in_texts(
    "the log-sum-exp of a text is in reverse", "the log-sum-exp of other rows", lse=lambda self, lse: lse[:, ::-1]
)
plant_in_texts(
    "the log-sum-exp is that of the text before",
    "the log-sum-exp of other rows",
    __call__=lambda self, *arrays, **options: sums_of_text_before(*Packed.__call__(self, *arrays, **options), options),
    backward=right_backward_of_texts,
)
