"""How far right implementations of attention in half precision are from a layer, by the rule of `mha.parity`.

python tests/programs/right_ports.py --calls 20 --seed 0 --only torch.eager --only mlx.mha [--gradients]
"""

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import mha
from mha.parity.rule.layouts import GRADIENT

sys.path.append(str(Path(__file__).parents[1] / "helpers" / "right_ports"))
from draws import Trial, draw, draw_cotangent

# The names of the ports by framework; a framework is imported when one of them is called.
PORTS = {
    "torch": "eager half_softmax upcast autocast autocast_sdpa sdpa sdpa_math mha mha_fused mha_fast",
    "jax": "einsum einsum_jit wide wide_jit function function_jit linen linen_jit nnx nnx_jit nnx_weights",
    "mlx": "fast steps precise layer",
    "tensorflow": "steps steps_graph steps_xla keras keras_weights keras_grouped keras_grouped_weights",
    "numpy": "steps",
    "mha": "numpy numpy_weights torch torch_weights tensorflow tensorflow_weights jax jax_weights mlx mlx_weights",
}
WORST = 3  # so many seeds are printed
RARE = 60  # so many seeds are drawn for each call that is wanted: some ports can do little


def ports() -> list[str]:
    """List the names of all ports."""
    return [f"{framework}.{name}" for framework, names in PORTS.items() for name in names.split()]


def make(name: str, seed: int) -> Trial | None:
    """Draw a call and make it with a port; None if the port cannot do what was drawn, or if it overflows."""
    return attend(name, draw(seed))


def attend(name: str, trial: Trial) -> Trial | None:
    """Make a call with a port; None as for `make`."""
    framework, _, own_name = name.partition(".")
    port, abilities = importlib.import_module(f"{framework}_ports").PORTS[own_name]
    if not trial.needs <= abilities:
        return None
    with np.errstate(all="ignore"):
        result = port(trial)
    if result is None:
        return None
    output = mha.to_numpy(result)
    seeing = np.True_ if trial.seen is None else trial.seen.any((1, 3))[..., None]  # (B or 1, Q, 1)
    if not np.isfinite(np.where(seeing, output.astype("float32"), 0)).all():
        return None
    return Trial(trial.layer, trial.inputs, trial.call, output)


def gradients(name: str, trial: Trial, cotangent: np.ndarray) -> dict[str, np.ndarray] | None:
    """Return a port's gradients of sum(output * cotangent), by canonical names; None if it cannot do the call."""
    framework, _, own_name = name.partition(".")
    module = importlib.import_module(f"{framework}_ports")
    port, abilities = module.PORTS[own_name]
    unseen = trial.seen is not None and not trial.seen.any(3).all()  # ports differ in what such rows give
    if unseen or not trial.needs <= abilities or not hasattr(module, "gradients"):
        return None
    with np.errstate(all="ignore"):
        compiled = (own_name.endswith("_jit"),) if framework == "jax" else ()
        found = module.gradients(own_name if framework == "mha" else port, trial, cotangent, *compiled)
    return found and {each: mha.to_numpy(X) for each, X in found.items() if X is not None}


def gradient_ratios(name: str, calls: int, first: int) -> Iterator[tuple[int, float]]:
    """Take a port's gradients in so many calls, from this seed on; yield each seed and its largest ratio."""
    found = 0
    if name.endswith(("mha_fast", "numpy.steps")) or (name.startswith("mha.") and name.endswith("_weights")):
        return  # these have no gradients, or the same as without weights
    for seed in range(first, first + RARE * calls):
        trial = draw(seed)
        cotangent = draw_cotangent(seed, trial)
        theirs = gradients(name, trial, cotangent)
        if theirs is None:
            continue
        asked = trial.problem(cotangent)
        with np.errstate(all="ignore"):
            yield seed, max(asked.expected(GRADIENT + each).ratio(X.astype("float64")) for each, X in theirs.items())
        found += 1
        if found == calls:
            return


def check(name: str, seed: int) -> None:
    """Check a port in float32, where rounding hides nothing; raise if it is not right."""
    trial = attend(name, draw(seed).in_float32())
    if trial is None or not trial.ratio() <= 1:
        raise RuntimeError(f"{name} is not right with seed {seed}: {trial and trial.ratio()} in float32")


def ratios(name: str, calls: int, first: int) -> Iterator[tuple[int, float]]:
    """Make so many calls with a port, from this seed on; yield each seed and its ratio."""
    found = 0
    for seed in range(first, first + RARE * calls):
        trial = make(name, seed)
        if trial is None:
            continue
        if not found:
            check(name, seed)
        try:
            ratio = trial.ratio()
        except ValueError:  # the layer itself overflows
            continue
        yield seed, ratio
        found += 1
        if found == calls:
            return


def main(
    calls: Annotated[int, typer.Option(help="Calls of each port.")] = 20,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="A name of a port, or the beginning of one.")] = None,
    by_gradients: Annotated[bool, typer.Option("--gradients", help="Compare gradients, not outputs.")] = False,
) -> None:
    """Call right ports with random layers, and print how many the rule calls wrong; seconds are of one call."""
    table = Table("port", "calls", "alarms", "largest", "median", "worst seeds", "seconds")
    for name in ports():
        if only and not name.startswith(tuple(only)):
            continue
        start = time.perf_counter()
        measure = gradient_ratios if by_gradients else ratios
        found = sorted(measure(name, calls, seed), key=lambda one: -one[1])
        seconds = (time.perf_counter() - start) / max(len(found), 1)
        numbers = np.array([ratio for _, ratio in found] or [np.nan])
        worst = ", ".join(f"{each}: {ratio:.2f}" for each, ratio in found[:WORST])
        counts = map(str, (len(found), (numbers > 1).sum()))
        table.add_row(
            name, *counts, *(f"{X:.2f}" for X in (numbers.max(), np.median(numbers))), worst, f"{seconds:.2f}"
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
