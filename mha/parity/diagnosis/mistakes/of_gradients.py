"""Known mistakes in gradients, of implementations whose outputs are right."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from mha.parity.diagnosis.mistakes.mistake import Change, Mistake, one
from mha.parity.diagnosis.mistakes.of_softmax import divide_by_nothing, fill_hidden, uniform_over
from mha.parity.diagnosis.mistakes.of_weights import PROJECTIONS
from mha.parity.diagnosis.pipeline import backward, pieces
from mha.parity.diagnosis.pipeline.backward import Backward
from mha.parity.diagnosis.pipeline.parts import ROLES
from mha.parity.diagnosis.pipeline.pieces import Array
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


def detach(role: str) -> dict[str, Change]:
    """Make the forms of detached queries, keys or values."""
    return {"after the projection": stop(role), "before the projection": stop(ROLES[role])}


def of_parameters(factor: Callable[[Backward], float], kinds: tuple[str, ...], back: Backward) -> Backward | None:
    """Multiply the gradients of kernels or biases by a factor."""
    names = [name for name in back.plan.weights if name.endswith(kinds)]
    times = factor(back)
    return on_the_way({name: lambda X: X * times for name in names}, back) if names and times != 1 else None


def rescale_output(factor: Callable[[Backward], float], back: Backward) -> Backward | None:
    """Multiply the gradient of the output by a factor."""
    times = factor(back)
    return None if times == 1 else on_the_way({"output": lambda X: X * times}, back)


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


def straight_cap(back: Backward) -> Backward | None:
    """Pass gradients through the cap as they come."""
    return None if back.plan.softcap is None else replace(back, through_cap=lambda back, by_capped: by_capped)


def rescale(factor: Callable[[Backward], float], roles: str, back: Backward) -> Backward | None:
    """Multiply the gradients of scaled scores by a factor, on their way to queries or keys."""
    if back.plan.config.pooling != "dot" or factor(back) == 1:
        return None
    times = factor(back)
    return on_the_way({f"scaled_{role}": lambda X: X * times for role in roles}, back)


def transpose(names: tuple[str, ...], back: Backward) -> Backward | None:
    """Transpose the gradients of these kernels, if they are square."""
    kernels = [f"{name}.kernel" for name in names]
    if any(back.plan.weights[name].shape != back.plan.weights[name].T.shape for name in kernels):
        return None
    return on_the_way(dict.fromkeys(kernels, np.transpose), back)


def without_group_sum(mean: bool, back: Backward) -> Backward | None:
    """Take the gradient of the first head of a group, or the mean, instead of the sum."""
    if back.plan.groups == back.plan.heads:
        return None

    def unshare(by_X: Array, groups: int) -> Array:
        B, H, K, d = by_X.shape
        apart = by_X.reshape(B, groups, H // groups, K, d)  # (B, G, H / G, K, d)
        return apart.mean(2) if mean else apart[:, :, 0]

    return replace(back, unshare=unshare)


def without_turn_back(again: bool, back: Backward) -> Backward | None:
    """Do not turn gradients back; again: turn them as heads are turned."""
    if back.plan.frequencies is None:
        return None

    def turn_back(back: Backward, role: str, by_X: Array) -> Array:
        return backward.rotate_heads(back.plan, role, by_X) if again else by_X

    return replace(back, turn_back=turn_back)


def constant_norm(back: Backward) -> Backward | None:
    """Take what a norm divides by, and its mean, for constants."""
    if not back.plan.norms:
        return None

    def through_norm(back: Backward, role: str, by_X: Array) -> tuple[Array, Array]:
        normalized, roots, scale = back.parts_of_norm(role)
        return by_X * scale / roots, backward.by_scale(scale, by_X * normalized)

    return replace(back, through_norm=through_norm)


MEANS: dict[str, Callable[[Backward], float]] = {
    "over samples": lambda back: 1 / len(back.cotangent),
    "over tokens": lambda back: 1 / back.cotangent.shape[1],
    "over both": lambda back: 1 / (back.cotangent.shape[0] * back.cotangent.shape[1]),
}
KINDS = {"kernels": (".kernel",), "biases": (".bias",), "kernels and biases": (".kernel", ".bias")}
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
    Mistake("queries are detached", "no gradient flows back through queries", (), detach("q")),
    Mistake("keys are detached", "no gradient flows back through keys", (), detach("k")),
    Mistake("values are detached", "no gradient flows back through values", (), detach("v")),
    Mistake("attention weights are detached", "gradients take attention weights for constants", (),
            one(stop("weights"))),
    Mistake("a projection gets no gradient", "the gradients of its kernel and bias are 0", (),
            {name: stop(f"{name}.kernel", f"{name}.bias") for name in PROJECTIONS}
            | {"biases alone": stop(*(f"{name}.bias" for name in PROJECTIONS))}),
    Mistake("the cap's derivative is forgotten", "gradients pass the cap as if it were not there", (),
            one(straight_cap)),
    Mistake("gradients forget what hides keys", "hidden keys get gradients of weights that they do not have", (),
            {"": partial(unhide, False), "and sums have all keys": partial(unhide, True)}),
    Mistake("the gradient of the softmax lacks its sum", "p * by_p instead of p * (by_p - sum(p * by_p))", (),
            one(partial(replace, through_softmax=without_sum))),
    Mistake("the scale is forgotten in gradients", "gradients of queries or keys lack the scale of scores", (),
            {"of both": partial(rescale, lambda back: 1 / back.plan.scale, "qk"),
             "of queries": partial(rescale, lambda back: 1 / back.plan.scale, "q"),
             "of keys": partial(rescale, lambda back: 1 / back.plan.scale, "k")}),
    Mistake("the scale is applied twice in gradients", "gradients of queries and keys have it twice", (),
            {"": partial(rescale, lambda back: back.plan.scale, "qk")}),
    Mistake("gradients of kernels are transposed", "the gradient of a square kernel is (out, in)", (),
            {"of all": partial(transpose, PROJECTIONS),
             **{name: partial(transpose, (name,)) for name in PROJECTIONS},
             "of W_q, W_k and W_v": partial(transpose, PROJECTIONS[:3])}),
    Mistake("gradients of weights are means", "sums over samples or tokens are divided by their number", (),
            {f"{kind} {how}": partial(of_parameters, factor, ends) for kind, ends in KINDS.items()
             for how, factor in MEANS.items()}),
    Mistake("gradients are added twice", "those of the step before were not set to 0, or a loss counts twice", (),
            {"those of weights": partial(of_parameters, lambda back: 2.0, PARAMETERS),
             "all": partial(rescale_output, lambda back: 2.0)}),
    Mistake("the loss is a mean", "gradients are those of a mean of the outputs, not of the sum", (),
            {how: partial(rescale_output, factor) for how, factor in MEANS.items()}
            | {"over all numbers": partial(rescale_output, lambda back: 1 / back.cotangent.size)}),
    Mistake("gradients of shared heads are not summed", "a head of keys has the gradient of one of its heads", (),
            {"the first of each group": partial(without_group_sum, False),
             "their mean": partial(without_group_sum, True)}),
    Mistake("gradients are not turned back", "the rotation is left out of gradients, or done again", (),
            {"not at all": partial(without_turn_back, False),
             "turned again": partial(without_turn_back, True)}),
    Mistake("rows without keys are NaN", "the softmax of a row of minus infinity is NaN, and so are its "
            "gradients, even where the loss leaves the row out or the NaN became 0 afterwards", (),
            {f"{'a mask is added' if added else 'hidden scores are filled in'}{AFTERWARDS[kept]}":
             partial(in_empty_rows, divide_by_nothing, added, kept)
             for added in (True, False) for kept in AFTERWARDS if added or kept != "weights"}),
    Mistake("rows without keys are uniform", "a query that sees no key has weights, and they have gradients", (),
            {"hidden scores are filled in": partial(in_empty_rows, ALIKE, False, ""),
             "a mask is added": partial(in_empty_rows, ALIKE, True, ""),
             "a mask of -10000 is added": partial(in_empty_rows, partial(fill_hidden, -1e4, True), True, "")}),
    Mistake("sinks get no gradient", "they are taken for constants", (), one(stop("sinks"))),
    Mistake("a norm is a constant in gradients", "gradients do not flow through what a norm divides by", (),
            one(constant_norm)),
)  # fmt: skip
DROPOUT = Mistake(
    "dropout's scale in gradients alone", "gradients are multiplied by 1 / (1 - p), the output is not", (), {}
)


def with_dropout(p: float) -> Mistake:
    """Make the mistake of dropout's factor, for this p."""
    factor = {f"{how}, p {p:.3g}": {name: lambda X: X / (1 - p) for name in names} for how, names in DROPPED.items()}
    return replace(DROPOUT, forms={how: partial(on_the_way, changes) for how, changes in factor.items()})
