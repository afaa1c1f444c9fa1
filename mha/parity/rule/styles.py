"""The styles of right code in half precision, as data: the places where it rounds a number to its dtype.

Between two such places code computes in float32, as kernels accumulate. A style is a border and a core. The core is
attention itself: scores, softmax, weights. The border is all else: projections, norms, rotation, gates. Inputs and the
output are rounded in every style.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from mha.core.options.config import Config
from mha.core.options.names import FloatName


@dataclasses.dataclass(frozen=True)
class Core:
    """Where attention rounds.

    Attributes:
        scale: what it multiplies: the dot products, or queries before them, or both sides, by its root. "rounded": it
            is rounded itself, as is the cap; "root": queries are divided by its rounded inverse.
        dots: whether dot products are rounded before anything else is done with them.
        scores: whether scores are, at each step: scaled, capped, biased. at_once: only after the last of these.
        softmax: where the softmax rounds: nowhere; "flash": its exponentials, which are divided by their sum after they
            have met the values; "half": after each step; "inverse": likewise, but it multiplies by the inverse of the
            sum; "one by one": likewise, and each addition to the sum is rounded.
        tile: the number of keys that flash attention takes at a time; 0 = all.
        weights: whether weights are rounded before they meet the values.
        sums: whether matrix products are summed one by one, and rounded each time, as Keras' are in float16.
        base_2: whether queries are multiplied by log2(e), too, for exponentials to base 2.
    """

    scale: Literal["dots", "dots, rounded", "queries", "queries, rounded", "queries, root", "both"] = "dots"
    dots: bool = False
    scores: bool = False
    at_once: bool = False
    softmax: Literal["float32", "flash", "half", "inverse", "one by one"] = "float32"
    tile: int = 0
    weights: bool = False
    sums: bool = False
    base_2: bool = False

    @property
    def rounds_scores(self) -> bool:
        """Return whether it rounds dot products or scores."""
        return self.dots or self.scores

    @property
    def coarse(self) -> bool:
        """Return whether the scale and the cap are rounded themselves."""
        return "," in self.scale

    @property
    def in_half(self) -> bool:
        """Return whether each step of the softmax is rounded."""
        return self.softmax in ("half", "inverse", "one by one")

    def __str__(self) -> str:
        flash, queries = self.softmax == "flash", "queries" in self.scale or self.scale == "both"
        places = {
            "scaled queries": queries and not self.base_2, "queries scaled to base 2": self.base_2,
            "the scale": self.coarse, "dot products": self.dots, "scores": self.scores,
            f"exponentials in tiles of {self.tile} keys": flash and self.tile, "exponentials": flash and not self.tile,
            "each step of the softmax": self.in_half, "each sum of exponentials": self.softmax == "one by one",
            "weights": self.weights, "each sum of a product": self.sums,
        }  # fmt: skip
        where = ", ".join(place for place, there in places.items() if there)
        return f"in steps: {where}" if self.rounds_scores else f"as a fused kernel does: {where or 'nothing within'}"


@dataclasses.dataclass(frozen=True)
class Border:
    """Where all but attention rounds.

    Attributes:
        rounds: whether projections, norms, rotations, pooled heads and gates are rounded; False = nothing is.
        products: whether projections of heads are rounded before their bias is added, too.
        last: whether the last projection is.
        scaled: whether queries are scaled before their projection is rounded.
        norms: whether normed heads are rounded before the norm's scale.
        angles: whether the angles of the rotation are float32, not float64.
        cosines: whether cosines and sines are rounded.
        turns: whether each product of the rotation is rounded before two are added.
        gates: whether the sigmoid of an output gate is rounded.
        cut: whether products of matrices are cut off, not rounded, as TensorFlow's are on processors without bfloat16.
    """

    rounds: bool = True
    products: bool = False
    last: bool = False
    scaled: bool = False
    norms: bool = False
    angles: bool = False
    cosines: bool = False
    turns: bool = False
    gates: bool = False
    cut: bool = False

    @classmethod
    def usual(cls, config: Config) -> "Border":
        """Return where most code for models rounds."""
        turns = config.rotary is not None
        return cls(norms=bool(config.qk_norm or config.value_norm), angles=turns, cosines=turns, turns=turns)

    def variations(self, config: Config) -> Iterator["Border"]:
        """Yield borders that differ in one place, of those that a layer has."""
        turns, norms = config.rotary is not None, bool(config.qk_norm or config.value_norm)
        if config.bias:
            yield dataclasses.replace(self, products=not self.products, last=not self.products)
        places = {"products": config.bias, "last": config.bias, "norms": norms, "gates": bool(config.output_gate)}
        places |= {"angles": turns, "scaled": config.pooling == "dot" and not (turns or config.qk_norm)}
        for name, there in places.items():
            if there:
                yield dataclasses.replace(self, **{name: not getattr(self, name)})
        for cosines, products in itertools.product((True, False), repeat=2):
            if turns and (cosines, products) != (self.cosines, self.turns):
                yield dataclasses.replace(self, cosines=cosines, turns=products)


def around(config: Config) -> Iterator[Border]:
    """Yield the usual border and those that differ from it in one place."""
    usual = Border.usual(config)
    yield from (usual, *usual.variations(config))


def cutting(config: Config) -> Iterable[Border]:
    """Return borders whose products are cut off, each once: the usual one, and those around one that rounds little."""
    cut = dataclasses.replace(Border.usual(config), products=config.bias, last=config.bias, cut=True)
    little = dataclasses.replace(cut, angles=False, cosines=False, turns=False, norms=False)
    return dict.fromkeys((cut, little, *little.variations(config)))


@dataclasses.dataclass(frozen=True)
class Family:
    """Styles that are alike, and tried together.

    Attributes:
        kind: by which they are asked for; None = they are tried only where no kind is asked for.
        cores: the likeliest first.
        dtypes: in which code has these styles.
        borders: makes all borders that are tried, each with every core; None = they are searched from the usual one on.
    """

    kind: Literal["fused", "steps"] | None
    cores: tuple[Core, ...]
    dtypes: tuple[FloatName, ...] = ("float16", "bfloat16")
    borders: Callable[[Config], Iterable[Border]] | None = None

    def serves(self, kind: str | None, dtype: FloatName) -> bool:
        """Return whether it is tried for a kind that is asked for, None = any, in a dtype."""
        return dtype in self.dtypes and kind in (None, self.kind)


Style = tuple[Border, Core]
PLAIN = Core()  # rounds nothing
WIDE = Border(rounds=False)
EXACT: Style = WIDE, PLAIN  # code that computes in float32 up to the output
# Cores, the likeliest first.
FUSED = (Core(softmax="flash"), Core(weights=True), PLAIN)
TILES = tuple(Core(softmax="flash", tile=tile) for tile in (512, 128, 64, 32))
STEPS = (
    Core("dots", dots=True, scores=True, weights=True),
    Core("queries", scores=True, weights=True),
    Core("queries, rounded", scores=True, weights=True),
    Core("dots", scores=True, weights=True),
    Core("dots, rounded", dots=True, scores=True, weights=True),
    Core("queries, root", scores=True, weights=True),
    Core("both", scores=True, weights=True),
    Core("dots", dots=True, weights=True),
    Core("dots", dots=True, scores=True),
    Core("queries", scores=True, at_once=True, weights=True),
    Core("dots", scores=True, at_once=True, weights=True),
)
HALVES = tuple(
    tuple(Core(scale, "dots" in scale, True, False, softmax, weights=True)
          for scale in ("dots", "dots, rounded", "queries, rounded", "queries, root"))
    for softmax in ("half", "inverse", "one by one")
)  # fmt: skip
SUMS = (Core(dots=True, weights=True, sums=True),)
QUERIES = tuple(Core(scale, weights=True) for scale in ("queries", "queries, rounded", "queries, root"))
QUERIES_FLASH = tuple(
    dataclasses.replace(core, softmax="flash", tile=tile)
    for tile in (0, 64, 128)
    for core in (Core("queries", base_2=True), Core("queries, rounded", base_2=True), Core("queries"))
)
CUT = PLAIN, FUSED[1], STEPS[4], STEPS[0], STEPS[7], HALVES[0][1], HALVES[1][1]
FAMILIES = (
    Family("fused", (*FUSED, *TILES)),
    Family("fused", QUERIES),
    Family("fused", QUERIES_FLASH),
    Family("steps", STEPS),
    *(Family("steps", cores) for cores in HALVES),
    Family("steps", SUMS, ("float16",), around),
    Family(None, CUT, ("bfloat16",), cutting),
)
