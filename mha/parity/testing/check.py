"""Assert that an implementation computes the same: run it on each case of a suite, and compare by the rule."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mha.core import dispatch
from mha.core.call import ROWS
from mha.core.call.fitting import WORDS
from mha.core.options import checks
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.core.tables import number, plural, text
from mha.layer import MultiHeadAttention
from mha.parity import Report, one_line
from mha.parity.diagnosis.blind_spots.sight import Sight, Unseen
from mha.parity.diagnosis.blind_spots.views import sight
from mha.parity.diagnosis.compare.comparison import report_of
from mha.parity.rule.layouts import layout_name
from mha.parity.testing.cases import Trial, check_arguments, choose_cases, options_of, replace_by_mask, trial
from mha.parity.testing.decoding import decodings, report_on
from mha.parity.testing.implementations import Implementation, own, read_implementation

Case = TypeVar("Case")
Result = TypeVar("Result")
LISTED = 4  # names of cases in a long list, at most


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of `assert_parity`; prints as text.

    Attributes:
        reports: an `mha.parity.Report` for each compared case, by its dtype and name: "float64, mask".
        left_out: the reason for each case that was not compared.
        note: a remark, or "".
    """

    reports: dict[str, Report]
    left_out: dict[str, str]
    note: str = ""
    look: Callable[[], Sight] | None = dataclasses.field(default=None, compare=False, repr=False)

    @functools.cached_property
    def sight(self) -> Sight | None:
        """Return the known mistakes that no compared case would show; None if none were looked for."""
        return self.look() if self.look else None

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """Return the known mistakes that would have passed each of the compared cases.

        They are worked out when they are first asked for, or printed, in five seconds at most.
        """
        return self.sight.unseen if self.sight else ()

    def __str__(self) -> str:
        worst = max((report.ratio for report in self.reports.values()), default=0.0)
        first = f"{plural(len(self.reports), 'case')} the same, the largest ratio {number(worst)}"
        seen = [text(self.sight)] if self.sight else []
        return "\n".join([first, *describe_left_out(self.left_out), *filter(None, [self.note]), *seen])


def assert_parity(
    implementation: Any,
    backend: BackendName | None = None,
    suite: SuiteName = "quick",
    *,
    attention: MultiHeadAttention | Mapping[str, Any] | None = None,
    cases: Collection[str] | None = None,
    dtypes: Collection[FloatName] | None = None,
    causal: bool = False,
    empty_rows: bool | None = None,
    layout: str | None = None,
    takes: Collection[str] | None = None,
) -> Outcome:
    """Assert that an implementation computes the same as `mha.MultiHeadAttention`, in every case of a suite.

    Args:
        implementation: a function, or a layer of a framework.
            A function is called with arrays of the backend, by the names of its parameters. Its inputs are `queries`,
            `keys` and `values`, or else its three parameters without defaults; if there is only one such parameter, it
            gets one array for all three. It gets those arguments of a call that a case has and that it names, as for
            the layer. If it takes `mask` but not `valid_lens`, `causal`, `offset` or positions, the mask (B, 1 or H, Q,
            K) hides what these hide. If it has a parameter `attention`, it gets the `mha.MultiHeadAttention` whose
            weights it should use, and its `**kwargs` get every argument; if it has `cotangent`, the gradient by the
            output from which its gradients start. It returns the output, the pair (output, weights), or a mapping of
            any steps and gradients, as `mha.parity.compare` takes them.
            A function with a parameter `state` is a decoder, which hides what follows by itself. It returns the pair
            (output, state) and gets that state back in its next call; None at first. Its first call is a prompt, which
            `valid_lens` (B,) says is padded on the right where it is, the others are one token or some. `positions`
            (B, tokens) are -1 in padding. Together its outputs have to be those of one causal call.
            A layer that `mha.from_native` reads, or a layer of a subclass, is called in its framework's manner: output,
            weights and gradients are compared with what its own weights should give. Any other layer is called like a
            function, and needs `attention`. Arrays are made where the weights of a layer lie.
        backend: the backend of the arrays that a function takes; None = the layer's; for a function, MHA_BACKEND, else
            "numpy".
        suite: "quick" or "full", as of `mha parity`.
        attention: the layer that the implementation should equal; or the options of one, in a mapping, whose weights
            are drawn. Then all calls are of this layer. None = the layers of the suite; if the implementation is a
            layer, one with its weights.
        cases: names of the only cases to compare, of both suites, each in all its dtypes; None = those of the suite.
        dtypes: the only dtypes to compare in; None = those of the suite. A given layer has only its own.
        causal: True = every call is causal, as in a decoder; then an implementation that takes neither `causal` nor
            `mask` is called without them, since it hides what follows by itself.
        empty_rows: True = queries that see no key must give 0; False = such cases are left out. None = True, but False
            for the frameworks' own layers, which give something else.
        layout: as for `mha.parity.compare`.
        takes: names of the arguments of a call that its `**kwargs` take; () = none. None = all if it asks for
            `attention`; otherwise only those that it names, and it must name one that hides keys.

    Returns:
        The `Outcome`, with the reports, and the cases that were left out because they need an argument that the
        implementation does not take, or because it raised NotImplementedError.

    Raises:
        AssertionError: if a case differs, if the implementation raises, or if nothing could be compared. The message is
            the report of the first case that differs.
        TypeError, ValueError: if an argument is not as above.
    """
    __tracebackhide__ = True
    layout_name(layout)
    if attention is not None:
        options_of(attention)
    it = read_implementation(
        implementation, backend, attention is not None, takes if takes is None else check_arguments(takes)
    )
    dispatch.load(it.backend)
    of = it.attention if attention is None else attention
    layer = of.to(it.backend) if isinstance(of, MultiHeadAttention) else None
    rows = it.empty_rows if empty_rows is None else checks.flag("empty_rows", empty_rows)
    trials, places = dict[str, Trial](), dict[str, str]()
    table = decodings if it.decodes else None
    chosen = choose_cases(it.backend, suite, cases, dtypes, of, checks.flag("causal", causal), table)
    by_label = {f"{dtype}, {case.name}": (case, dtype) for case, dtype in chosen}

    def compare(label: str) -> Report:
        case, dtype = by_label[label]
        if it.decodes:
            trials[label] = trial(case, dtype, it.backend, layer, it.alone, True)
            report, places[label] = report_on(it, trials[label], rows)
            return report
        trials[label] = replace_by_mask(trial(case, dtype, it.backend, layer, it.alone, rows), it.takes, causal)
        return compare_case(it, trials[label], layout, causal)

    reports, left_out, raised = compare_all(by_label, compare)
    different = [label for label, report in reports.items() if not report]
    if different or raised or not reports:
        cause = next(iter(raised.values()), None)
        message = failure(it.name, reports, left_out, raised, trials, places, layer is None)
        raise AssertionError(message) from cause
    zero = [] if layer is None else [name for name, X in layer.weights.items() if not X.any()]
    note = f"{', '.join(zero)} are all 0: a mistake in them would not show" if zero else ""
    calls = [(trials[label].problem, [row.name for row in report.rows]) for label, report in reports.items()]
    return Outcome(reports, left_out, note, partial(sight, calls))


def compare_all(
    cases: Iterable[Case], compare: Callable[[Case], Result]
) -> tuple[dict[Case, Result], dict[str, str], dict[Case, Exception]]:
    """Compare each case, whatever becomes of the others: return results, what is left out and why, and errors.

    NotImplementedError leaves a case out, by its name.
    """
    results, left_out, raised = dict[Case, Result](), dict[str, str](), dict[Case, Exception]()
    for case in cases:
        try:
            results[case] = compare(case)
        except NotImplementedError as reason:
            left_out[str(case)] = str(reason) or "NotImplementedError"
        except Exception as problem:
            raised[case] = problem
    return results, left_out, raised


def compare_case(it: Implementation, tried: Trial, layout: str | None, by_itself: bool) -> Report:
    """Compare one case; by_itself: True = what takes neither `causal` nor `mask` hides what follows by itself.

    Raises NotImplementedError if the implementation does not take an argument of the case, and any error of its own.
    """
    hidden = ("causal",) if by_itself and not {"causal", "mask"}.intersection(it.takes) else ()
    call = {name: X for name, X in tried.call.items() if name not in hidden}
    if missing := [name for name in ROWS if name in call and name not in it.takes]:
        raise NotImplementedError(f"it takes no {', '.join(missing)}")
    with dispatch.load(it.backend).context(tried.attention.config.dtype):
        arrays = tuple(own(it.backend, X, it.place) for X in tried.inputs)
        theirs = it.run(tried.attention, arrays, call, own(it.backend, tried.cotangent, it.place))
        cotangent = tried.cotangent if it.cotangent else None
        return report_of(tried.problem(cotangent), theirs, layout, call_is_sure=True)


def failure(
    name: str,
    reports: Mapping[str, Report],
    left_out: Mapping[str, str],
    raised: Mapping[str, Exception],
    trials: Mapping[str, Trial],
    places: Mapping[str, str],
    of_suite: bool,
) -> str:
    """Write the message of a failure: a line for each error, and the report of the first case that differs.

    places: where a decoder first differs, in words; of_suite: True if the layer is the suite's; then the message
    describes it.
    """
    different = [label for label, report in reports.items() if not report]
    of = len(reports) + len(raised)
    lines = []
    if not of:
        lines.append(f"{name}: nothing was compared, every case is left out")
    for words, labels in group({label: one_line(problem) for label, problem in raised.items()}).items():
        lines += [f"{name} raised in {name_some(labels, of)}: {words}", *_describe_errors(labels, reports, trials)]
    if raised and reports:
        lines.append("calls that it is not made for are left out if it raises NotImplementedError, or by cases=[...]")
    if different:
        first, tried = different[0], trials[different[0]]
        dtype, _, case = first.partition(", ")
        made = repr(tried.attention).partition("  #")[0] if of_suite else "the layer"
        lines += [
            f"{name} differs in {name_some(different, of)}",
            "",
            f"{first}: {made} called with queries, keys, values{_call(tried)}",
            *filter(None, [places.get(first)]),
            f"this case alone: cases={case!r}, dtypes={dtype!r}",
            str(reports[first]),
            "",
        ]
    return "\n".join([*lines, *describe_left_out(left_out)]).rstrip()


def _describe_errors(labels: list[str], reports: Mapping[str, Report], trials: Mapping[str, Trial]) -> Iterator[str]:
    """Yield lines about calls in which an implementation raised: the first call, and what all of them alone have."""
    if made := [trials[label] for label in labels if label in trials]:
        named = zip(("queries", "keys", "values"), made[0].inputs, strict=True)
        sizes = ", ".join(f"{one} {X.shape}" for one, X in named)
        yield f"  {labels[0]}: it was called with {sizes}{_call(made[0])}"
        others = [_shapes(trials[label]) for label in reports]
        alone = set.intersection(*map(_shapes, made)).difference(*others)
        if alone and others:
            yield f"  only there it gets {', '.join(sorted(alone))}"


def _shapes(tried: Trial) -> set[str]:
    """Return the arguments of a call beside its inputs, each with its axes in words: "valid_lens (batch, queries)"."""
    found = set()
    for name, value in tried.call.items():
        axes = next((axes for axes in ROWS[name].axes if axes and len(axes) == np.ndim(value)), "")
        words = ", ".join(WORDS[axis] for axis in axes) + "," * (len(axes) == 1)
        found.add(f"{name} ({words})" if axes else name)
    return found


def _call(tried: Trial) -> str:
    """Describe the arguments of a call beside its inputs."""
    return "".join(f", {name}={brief(value)}" for name, value in tried.call.items())


def name_some(labels: list[str], of: int) -> str:
    """Describe some of all cases: their number, and the first names."""
    more = "; ..." if len(labels) > LISTED else ""
    return f"{len(labels)} of {plural(of, 'case')} ({'; '.join(labels[:LISTED])}{more})"


def describe_left_out(left_out: Mapping[str, str]) -> list[str]:
    """Return a line for each reason why cases are left out."""
    return [f"left out, {reason}: {'; '.join(labels)}" for reason, labels in group(left_out).items()]


def group(things: Mapping[Case, Result]) -> dict[Result, list[Case]]:
    """List the things that have the same value, by that value."""
    found: dict[Result, list[Case]] = {}
    for thing, value in things.items():
        found.setdefault(value, []).append(thing)
    return found


def brief(value: Any) -> str:
    """Describe an argument of a call: lists of integers in full, other arrays by dtype and shape."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return str(value.tolist())
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
