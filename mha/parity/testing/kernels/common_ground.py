"""Find what all wrong cases of a kernel have and no right one has, and the option that leaves such cases out."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from mha.parity.testing.kernels.kernel_cases import DRAWN, HALVES
from mha.parity.testing.kernels.running import KernelCall

TILES = 128, 64, 32, 16, 8
LISTED = 3  # facts in a line, at most
WORDS = {
    "large": "large scores", "low": "scores near -120", "growing": "a maximum that grows", "equal": "equal keys",
    "small": "small values in some heads", "hidden huge": "huge numbers in hidden keys", "hidden NaN": "hidden NaN",
}  # fmt: skip


def common_ground(wrong: Sequence[KernelCall], right: Sequence[KernelCall]) -> str:
    """Return what all wrong cases have and no right one has, in words: facts, or two facts together; "" = nothing."""
    if not (wrong and right):
        return ""
    others = [{*facts_of(call)} for call in right]
    everywhere = set.intersection(*({*facts_of(call)} for call in wrong))
    shared = [fact for fact in facts_of(wrong[0]) if fact in everywhere]  # the most telling first
    alone = [fact for fact in shared if not any(fact in facts for facts in others)]
    if alone:
        return ", ".join(alone[:LISTED])
    pairs = itertools.combinations(shared, 2)
    return next((" and ".join(pair) for pair in pairs if not any({*pair} <= facts for facts in others)), "")


def facts_of(call: KernelCall) -> list[str]:
    """List what can be said of a case in words, the most telling first."""
    return [*facts_of_options(call), *facts_of_sizes(call)]


def facts_of_options(call: KernelCall) -> Iterator[str]:
    """Yield what is said of the options of a case, its numbers, its memory and its dtype."""
    case, visible = call.case, call.visible
    if case.mask == "heads":
        yield "a mask of its own for each head"
    yield from case.options
    if case.window is not None:
        yield "a window of two sides" if None not in case.window else "a window of one side"
    if case.numbers:
        yield WORDS[case.numbers]
    if case.memory:
        yield case.memory if "NaN" in case.memory else f"{case.memory} inputs"
    yield call.dtype
    if call.dtype in HALVES:
        yield "half precision"
    if not visible.any(3).all():
        yield "queries that see no key"
    yield "hidden keys" if not visible.all() else "no hidden keys"
    yield from (f"no {name}" for name in DRAWN if name not in case.options)


def facts_of_sizes(call: KernelCall) -> Iterator[str]:
    """Yield what is said of the shapes of a case."""
    case, texts = call.case, [*zip(call.case.texts, call.case.key_texts or call.case.texts, strict=True)]
    pairs = texts or [(case.queries, case.keys)]
    if len(pairs) > 1:
        yield "several texts"
    if any(Q == 0 for Q, _ in pairs):
        yield "an empty text"
    yield from (words for words, holds in (
        ("more keys than queries", any(K > Q for Q, K in pairs)),
        ("more queries than keys", any(Q > K for Q, K in pairs)),
        ("fewer heads of keys", case.groups < case.heads), ("one head of keys", case.groups == 1),
        ("several samples", case.batch > 1), ("no samples", case.batch == 0),
        ("values of another width", case.value_width not in (None, case.width)),
    ) if holds)  # fmt: skip
    if call.visible[..., -1:].any():
        yield "a query that sees the last key"
    for name, sizes in (("keys", [K for _, K in pairs]), ("queries", [Q for Q, _ in pairs])):
        yield from (f"a last tile of {n} {name} that is not full" for n in TILES if max(sizes) > n and max(sizes) % n)
        yield from (f"{name} % {n} != 0" for n in TILES[::-1] if any(size % n for size in sizes))
        yield from (f"more than {n} {name}" for n in (256, *TILES) if max(sizes) > n)
        yield from (f"at least {n} {name}" for n in (256, *TILES) if max(sizes) >= n)
        yield from (f"{name} % {n} = 0" for n in TILES if not any(size % n for size in sizes))
        yield from (f"at most {n} {name}" for n in TILES[::-1] if max(sizes) <= n)
    yield from (f"width % {n} != 0" for n in TILES[::-1] if case.width % n)
    yield from (f"width above {n}" for n in TILES if case.width > n)
    if case.width & (case.width - 1):
        yield "a width that is no power of 2"


def option_without(raised: Sequence[KernelCall], others: Sequence[KernelCall]) -> str:
    """Return the option that leaves out the cases in which a kernel raised, and no other; "" = there is none."""
    if not others:
        return ""
    sizes = [size for call in others for size in (call.case.queries, call.case.keys)]
    tile = next((n for n in TILES if not any(size % n for size in sizes)), 1)
    dtypes, widths = ({*some} for some in zip(*((call.dtype, call.case.width) for call in others), strict=True))
    classes: dict[str, Callable[[KernelCall], bool]] = {
        "equal_lengths=True": lambda call: call.case.queries != call.case.keys,
        "groups=False": lambda call: call.case.groups != call.case.heads,
        f"dtypes={tuple(sorted(dtypes))}": lambda call: call.dtype not in dtypes,
        "empty_rows=False": lambda call: not call.visible.any(3).all(),
        f"head_dims={tuple(sorted(widths))}": lambda call: call.case.width not in widths,
        f"multiple_of={tile}": lambda call: bool(call.case.queries % tile or call.case.keys % tile),
    }
    found = (option for option, has in classes.items() if all(map(has, raised)) and not any(map(has, others)))
    return next(found, "")
