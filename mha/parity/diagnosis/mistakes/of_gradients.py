"""Known mistakes in gradients, of implementations whose outputs are right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, one, only_where
from mha.parity.diagnosis.mistakes.of_softmax import divide_by_nothing, fill_hidden, uniform_over
from mha.parity.diagnosis.mistakes.of_weights import PROJECTIONS
from mha.parity.diagnosis.pipeline import backward, pieces
from mha.parity.diagnosis.pipeline.backward import Backward
from mha.parity.diagnosis.pipeline.parts import ROLES, rotate_heads
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.rule.heads import in_groups
from mha.parity.rule.layouts import PAIRS


def on_the_way(changes: Mapping[str, Callable[[Array], Array]], back: Backward) -> Backward:
    """Change gradients at these places, after what changes them there already."""
    before = back.on_the_way
    both = {
        name: (lambda X, first=before[name], then=change: then(first(X))) if name in before else change
        for name, change in changes.items()
    }
    return replace(back, on_the_way={**before, **both})


def stop(*names: str) -> Change:
    """Make a form: gradients stop at these places."""
    return partial(on_the_way, dict.fromkeys(names, np.zeros_like))


def rescale(factor: Callable[[Backward], float], names: Sequence[str], back: Backward) -> Backward | None:
    """Multiply the gradients at these places by a factor."""
    times = factor(back)
    return on_the_way(dict.fromkeys(names, lambda X: X * times), back) if names and times != 1 else None


def of_parameters(factor: Callable[[Backward], float], kinds: tuple[str, ...], back: Backward) -> Backward | None:
    """Multiply the gradients of kernels or biases by a factor."""
    return rescale(factor, [name for name in back.plan.weights if name.endswith(kinds)], back)


def unhide(normalized: bool, back: Backward) -> Backward | None:
    """Recompute the attention weights with nothing hidden; normalized: so that they add up to 1."""
    if back.visible.all():
        return None

    def through_softmax(back: Backward, by_weights: Array) -> Array:
        scores = [X for name, X in back.steps.items() if name in PAIRS and name != "weights"][-1]
        scores = pieces.beside_sinks(back.plan, scores)
        counted = np.ones_like(back.in_softmax) if normalized else back.in_softmax
        largest = np.where(counted, scores, -np.inf).max(-1, keepdims=True, initial=np.finfo(scores.dtype).min)
        shares = np.exp(scores - largest)
        shares = shares / np.maximum(np.where(counted, shares, 0).sum(-1, keepdims=True), np.finfo(shares.dtype).tiny)
        shares = np.where(counted.any(-1, keepdims=True), shares, 0)  # else it would be infinite
        return shares * (by_weights - (shares * by_weights).sum(-1, keepdims=True))

    return replace(back, through_softmax=through_softmax, blanked=False)


def in_empty_rows(change: Change, added: bool, kept: str, back: Backward) -> Backward | None:
    """Let queries that see no key have other weights, in a layer whose output is not asked for these.

    change: gives them; added: whether a mask is added to scores, so that gradients pass it; kept: the first result
    that is right all the same, as what was NaN became 0 there: "weights", "pooled", "output", or "" for none.
    """
    empty: Array = np.logical_not(back.visible.any(3, keepdims=True))  # (B, H, Q, 1)
    wrong = change(back.plan)
    if wrong is None or not empty.any() or "sinks" in back.plan.weights or (kept == "weights" and not added):
        return None
    key = "rows without keys", change
    if key not in back.computed:
        back.computed[key] = backward.backward(wrong, back.cotangent)
    made, right = back.computed[key], back.through_softmax
    weights = pieces.widen(made.results["weights"])  # (B, H, Q, K)
    if change is not divide_by_nothing and np.isnan(weights).any():  # a bias of minus infinity leaves nothing to weigh
        return None

    def through_softmax(back: Backward, by_weights: Array) -> Array:
        by_empty = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True))
        return np.where(empty, by_empty if added else 0, right(back, by_weights))

    if kept == "output":
        back = on_the_way({"output": lambda X: np.where(empty.any(1), 0, X)}, back)  # of (B, Q, D)
    steps = back.steps if kept in ("weights", "pooled") else made.steps
    results = back.results if kept == "weights" else made.results
    return replace(back, steps=steps, results=results, through_softmax=through_softmax, blanked=False)


def without_sum(back: Backward, by_weights: Array) -> Array:
    """Leave out the sum over a row in the gradient of the softmax."""
    return back.shares * np.where(back.in_softmax, by_weights, 0)


def through_constant_norm(back: Backward, role: str, by_X: Array) -> tuple[Array, Array]:
    """Take what a norm divides by, and its mean, for constants."""
    normalized, roots, scale = back.parts_of_norm(role)
    return by_X * scale / roots, backward.by_scale(back, scale, by_X * normalized)


def transpose(names: tuple[str, ...], back: Backward) -> Backward | None:
    """Transpose the gradients of these kernels, if they are square."""
    kernels = [f"{name}.kernel" for name in names]
    if any(back.plan.weights[name].shape != back.plan.weights[name].T.shape for name in kernels):
        return None
    return on_the_way(dict.fromkeys(kernels, np.transpose), back)


MEANS: dict[str, Callable[[Backward], float]] = {
    "over samples": lambda back: 1 / len(back.cotangent),
    "over tokens": lambda back: 1 / back.cotangent.shape[1],
    "over both": lambda back: 1 / (back.cotangent.shape[0] * back.cotangent.shape[1]),
}
KINDS = {"kernels": (".kernel",), "biases": (".bias",), "kernels and biases": (".kernel", ".bias")}
OUTPUT, SCALED = ("output",), ("scaled_q", "scaled_k")  # places on the way of gradients
PARAMETERS = ".kernel", ".bias", ".scale", "sinks"
DROPPED = {"of attention weights": ("weights",), "of what is pooled": ("pooled",)}  # where the factor may be

AFTERWARDS = {
    "": "",
    "output": ", the loss leaves them out",
    "pooled": ", what is pooled becomes 0",
    "weights": ", weights become 0",
}
ALIKE: Change = partial(uniform_over, True)

GRADIENT_MISTAKES = (
    *(Mistake(f"{name} are detached", f"no gradient flows back through {name}",
              f"let gradients flow through {name}: no detach, no stop_gradient", (),
              {"after the projection": stop(role), "before the projection": stop(name)})
      for role, name in ROLES.items()),
    Mistake("attention weights are detached", "gradients take attention weights for constants",
            "let gradients flow through attention weights: no detach, no stop_gradient", (),
            one(stop("weights"))),
    Mistake("a projection gets no gradient", "the gradients of its kernel and bias are 0",
            "use the kernel and bias themselves in the call, not copies or frozen ones", (),
            {name: stop(f"{name}.kernel", f"{name}.bias") for name in PROJECTIONS}
            | {"biases alone": stop(*(f"{name}.bias" for name in PROJECTIONS))}),
    *only_where(
        lambda back: back.plan.softcap is not None,
        Mistake("the cap's derivative is forgotten", "gradients pass the cap as if it were not there",
                "multiply gradients by 1 - tanh(scores / cap) ** 2 at the cap", (),
                one(partial(replace, through_cap=lambda back, by_capped: by_capped)))),
    Mistake("gradients forget what hides keys", "hidden keys get gradients of weights that they do not have",
            "hide the same keys where weights are computed again for gradients", (),
            {"": partial(unhide, False), "and sums have all keys": partial(unhide, True)}),
    Mistake("the gradient of the softmax lacks its sum", "it is p * by_p",
            "compute p * (by_p - sum(p * by_p)), the sum over keys", (),
            one(partial(replace, through_softmax=without_sum))),
    *only_where(
        lambda back: back.plan.config.pooling == "dot",
        Mistake("the scale is forgotten in gradients", "gradients of queries or keys lack the scale of scores",
                "multiply the gradients of queries and of keys by the scale", (),
                {how: partial(rescale, lambda back: 1 / back.plan.scale, names) for how, names in {
                    "of both": SCALED, "of queries": SCALED[:1], "of keys": SCALED[1:]}.items()}),
        Mistake("the scale is applied twice in gradients", "gradients of queries and keys have it twice",
                "multiply the gradients of queries and of keys by the scale once", (),
                one(partial(rescale, lambda back: back.plan.scale, SCALED)))),
    *only_where(
        lambda back: back.plan.projects,
        Mistake("gradients of kernels are transposed", "the gradient of a square kernel is (out, in)",
                "compute X.T @ by_Y, (in, out), for a kernel that X @ W uses", (),
                {"of all": partial(transpose, PROJECTIONS),
                 **{name: partial(transpose, (name,)) for name in PROJECTIONS},
                 "of W_q, W_k and W_v": partial(transpose, PROJECTIONS[:3])}),
        Mistake("gradients of weights are means", "sums over samples or tokens are divided by their number",
                "sum over samples and tokens, and divide by nothing", (),
                {f"{kind} {how}": partial(of_parameters, factor, ends) for kind, ends in KINDS.items()
                 for how, factor in MEANS.items()})),
    Mistake("gradients are added twice", "those of the step before were not set to 0, or a loss counts twice",
            "set gradients to 0 before each step, and count each loss once", (),
            {"those of weights": partial(of_parameters, lambda back: 2.0, PARAMETERS),
             "all": partial(rescale, lambda back: 2.0, OUTPUT)}),
    Mistake("the loss is a mean", "gradients are those of a mean of the outputs, not of the sum",
            "take the sum of output * cotangent as the loss", (),
            {how: partial(rescale, factor, OUTPUT) for how, factor in MEANS.items()}
            | {"over all numbers": partial(rescale, lambda back: 1 / back.cotangent.size, OUTPUT)}),
    *only_where(
        lambda back: back.plan.groups != back.plan.heads,
        Mistake("gradients of shared heads are not summed", "a head of keys has the gradient of one of its heads",
                "sum the gradients of the H / G heads of queries that share a head of keys", (),
                {"the first of each group": partial(replace, unshare=lambda *heads: in_groups(*heads)[:, :, 0]),
                 "their mean": partial(replace, unshare=lambda *heads: in_groups(*heads).mean(2))})),
    *only_where(
        lambda back: back.plan.frequencies is not None,
        Mistake("gradients are not turned back", "the rotation is left out of gradients, or done again",
                "turn gradients by the same angles, with the other sign of the sines", (),
                {"not at all": partial(replace, turn_back=lambda back, role, by_X: by_X),
                 "turned again": partial(replace, turn_back=lambda back, *heads: rotate_heads(back.plan, *heads))})),
    Mistake("rows without keys are NaN", "the softmax of a row of minus infinity is NaN, and so are its "
            "gradients, even where the loss leaves the row out or the NaN became 0 afterwards",
            "give such rows finite scores before the softmax, then blank what comes out", (),
            {f"{'a mask is added' if added else 'hidden scores are filled in'}{AFTERWARDS[kept]}":
             partial(in_empty_rows, divide_by_nothing, added, kept)
             for added in (True, False) for kept in AFTERWARDS if added or kept != "weights"}),
    Mistake("rows without keys are uniform", "a query that sees no key has weights, and they have gradients",
            "give 0 to a query that sees no key, and let no gradient through it", (),
            {"hidden scores are filled in": partial(in_empty_rows, ALIKE, False, ""),
             "a mask is added": partial(in_empty_rows, ALIKE, True, ""),
             "a mask of -10000 is added": partial(in_empty_rows, partial(fill_hidden, -1e4, True), True, "")}),
    Mistake("sinks get no gradient", "they are taken for constants",
            "give sinks -p_sink * sum(p * by_p), summed over queries and samples", (), one(stop("sinks"))),
    *only_where(
        lambda back: back.plan.norms,
        Mistake("a norm is a constant in gradients", "gradients do not flow through what a norm divides by",
                "let gradients flow through the mean and the root that a norm computes", (),
                one(partial(replace, through_norm=through_constant_norm)))),
)  # fmt: skip
DROPOUT = Mistake("dropout's scale in gradients alone", "gradients are multiplied by 1 / (1 - p), the output is not",
                  "multiply by 1 / (1 - p) in the output and in gradients, or in neither", (), {})  # fmt: skip


def with_dropout(p: float) -> Mistake:
    """Make the mistake of dropout's factor, for this p."""
    factor = {f"{how}, p {p:.3g}": {name: lambda X: X / (1 - p) for name in names} for how, names in DROPPED.items()}
    return replace(DROPOUT, forms={how: partial(on_the_way, changes) for how, changes in factor.items()})
