"""Run searches for known mistakes one after the other, each with a wider focus, and judge what comes near."""

from collections.abc import Mapping, Sequence

from mha.parity.diagnosis.mistakes.mistake import Form
from mha.parity.diagnosis.mistakes.with_mistakes import State
from mha.parity.diagnosis.pipeline.pieces import Array
from mha.parity.diagnosis.search.sample import Focus, features_of, telling, worst_first
from mha.parity.diagnosis.search.search import CONFIRMED, Search
from mha.parity.diagnosis.search.time_budget import Effort, describe_untried
from mha.parity.diagnosis.search.verdicts import Judge, MistakeVerdict
from mha.parity.rule.problem import Problem

SAMPLES, ROUNDS = 3, 6  # of searches, at most


class Searches:
    """The searches for the mistakes in their arrays, one after the other, as far as the time reaches.

    found: the sets of mistakes that came near, each with its verdict; tried: how many were tried.
    """

    def __init__(self, problem: Problem, theirs: Mapping[str, Array], forms: Sequence[Form], effort: Effort) -> None:
        self.problem, self.theirs, self.forms, self.effort = problem, theirs, forms, effort
        self.order = worst_first(problem, theirs)
        self.first = Focus(self.order[:1], telling(problem, theirs, self.order[0]), features_of(problem, theirs))
        self.judge = Judge(problem, theirs, self.first)
        self.made: list[Search] = []
        self.verdicts: dict[State, MistakeVerdict] = {}

    @property
    def tried(self) -> int:
        """Return how many sets of mistakes were tried."""
        return max((search.tried for search in self.made), default=0)

    def search(self, focus: Focus, before: Search | None = None) -> Search:
        """Return the search with a focus."""
        known = [search for search in self.made if search.focus == focus]
        if not known:
            self.made.append(Search(self.problem, self.theirs, self.forms, focus, self.effort, before))
        return (known or self.made)[-1]

    def verdict_on(self, state: State) -> tuple[State, MistakeVerdict]:
        """Judge a set of mistakes in all samples, once."""
        if state not in self.verdicts:
            self.verdicts[state] = self.judge.verdict_on(state)
        return state, self.verdicts[state]

    def run(self, pairs: bool) -> list[tuple[State, MistakeVerdict]]:
        """Search for mistakes, and judge what comes near in all samples; pairs: whether to try two at a time.

        If nothing near is the same, search again with lower limits, or with one sample and query more.
        """
        found: list[tuple[State, MistakeVerdict]] = []
        search = self.last = self.search(self.first)
        for _ in range(ROUNDS):
            states = search.run(pairs)
            self.last = search
            if not states and search.reached == len(self.theirs):
                break
            if search.reached < len(self.theirs):  # perhaps a mistake alone changes nothing in these samples
                more = next((sample for sample in self.order if sample not in search.focus.samples), None)
                if more is None or len(search.focus.samples) == SAMPLES or self.effort.over:
                    break
                wider = self.search(search.focus.wider(more, None), search)
                if len(wider.forms) <= len(search.forms):
                    break
                search = wider
                continue
            judged = [self.verdict_on(state) for state in states[:CONFIRMED]]
            found += judged
            if same := [state for state, verdict in judged if verdict.same]:
                known = {state for state, _ in found}
                alike = dict.fromkeys(other for state in same for other in search.alike(state) if other not in known)
                return [*found, *map(self.verdict_on, alike)]
            if not search.tighten(states[0]):
                focus = self.counterexample(search.focus, [verdict for _, verdict in judged])
                if focus != search.focus and len(focus.samples) <= SAMPLES:
                    search = self.search(focus, search)
                elif not search.with_rare():  # nothing near is the same, so a rare mistake may be it
                    break
        return found

    def counterexample(self, focus: Focus, verdicts: Sequence[MistakeVerdict]) -> Focus:
        """Widen the focus by the sample and query in which the best of what came near is worst."""
        for one in sorted(verdicts, key=lambda one: one.left):
            if (wider := focus.wider(one.sample, one.row)) != focus:
                return wider
        return focus

    @property
    def untried_note(self) -> str:
        """Return the words for mistakes that were not tried, since there was no time; "" if all were."""
        return describe_untried(self.last.unlooked + self.last.untried[1], self.last.untried[2])
