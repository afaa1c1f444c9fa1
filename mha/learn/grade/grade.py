"""Grade one submission, level by level, in its own process, with our functions in the place of those that failed."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.learn.grade import files, heads, judging
from mha.learn.grade.cases import Case, cases
from mha.learn.grade.judging import CaseVerdict
from mha.learn.grade.levels import Level
from mha.learn.grade.process import Answer, Child, EndedError
from mha.learn.grade.results import MISSING, PASSED, LevelResult, Result
from mha.parity.diagnosis.search.explanations import Explanation


@dataclasses.dataclass(frozen=True)
class Grader:
    """The way to grade submissions.

    Attributes:
        levels: those to grade.
        seed: of the inputs.
        backend: the framework of a submission that imports none.
        empty_rows: whether rows of queries that see no key count.
        allow: whether the framework's own attention may be used.
        limit: seconds for the import and for each case.
        hints: how much students are told, see `LevelResult.feedback`.
    """

    levels: tuple[Level, ...]
    seed: int = 0
    backend: str = "numpy"
    empty_rows: bool = False
    allow: bool = False
    limit: float = 20.0
    hints: int = 2

    def grade(self, path: Path) -> Result:
        """Grade a submission: a file or a folder."""
        with tempfile.TemporaryDirectory(prefix="mha-grade-", ignore_cleanup_errors=True) as folder:
            try:
                file = files.copy_submission(path, Path(folder))
            except ValueError as error:
                return self.nothing(path, "", str(error))
            frameworks = files.frameworks(file) or [self.backend]
            if problem := dispatch.backends()[frameworks[0]].problem:  # type: ignore[index]
                return self.nothing(path, frameworks[0], problem)
            submission = Submission(self, file, Path(folder), frameworks)
            try:
                levels = tuple(submission.level(level) for level in self.levels)
            finally:
                submission.end()
            return Result(path.name, frameworks[0], levels, submission.problem, self.hints)

    def nothing(self, path: Path, framework: str, why: str) -> Result:
        """Return the result of a submission that cannot be run at all."""
        levels = tuple(LevelResult(level, "raised", why) for level in self.levels)
        return Result(path.name, framework, levels, why, self.hints)


class Submission:
    """A submission while it is graded.

    Attributes:
        problem: the error of its first failing statement.
        failed: the names of earlier levels that failed.
        made: the mistakes that were found in these.
        like: the form of its functions' results, so that ours return the same.
    """

    def __init__(self, grader: Grader, file: Path, folder: Path, frameworks: list[str]) -> None:
        self.grader, self.file, self.folder, self.frameworks = grader, file, folder, frameworks
        self.child: Child | None = None
        self.problem, self.broken = "", ""
        self.failed: list[str] = []
        self.made: set[str] = set()
        self.like = {"pair": frameworks[0] == "jax", "axes": 3}

    def end(self) -> None:
        """End the submission's process."""
        if self.child is not None:
            self.child.end()
            self.child = None

    def ask(self, case: Case, failed: list[str], inputs: Any = None, options: Any = None) -> Answer:
        """Let the submission run a case, in a new process where the last one has ended."""
        if self.broken:
            return Answer(failure="left", text=self.broken)
        try:
            if self.child is None:
                grader = self.grader
                self.child = Child(self.file, self.folder, self.frameworks, grader.allow, grader.limit)
                self.problem = self.child.problem
        except EndedError as ended:
            self.broken = f"while it was loaded, {ended.text}"
            return Answer(failure=ended.failure, text=self.broken)
        try:
            return self.child.ask(case.task, inputs or case.inputs, options or case.options, failed, self.like)
        except EndedError as ended:
            self.end()
            return Answer(failure=ended.failure, text=ended.text)

    def level(self, level: Level) -> LevelResult:
        """Grade one level, first as it is, then with our functions in the place of those that failed before."""
        result = self.run(level, [])
        if result.status != PASSED and self.failed and level.number != 3 and not self.broken:
            with_ours = self.run(level, self.failed)
            if with_ours.status == PASSED:
                with_ours = dataclasses.replace(with_ours, note=f"with ours for {', '.join(self.failed)}")
            if with_ours.status in (PASSED, "wrong") or result.status == MISSING:
                result = with_ours
        if result.status == "wrong" and result.mistakes:
            result = self.leave_out_known(result)
        if result.status != PASSED:
            defined = self.child.defined if self.child else level.replaced
            self.failed += [name for name in level.replaced if name in defined or name.startswith("transpose")]
            if result.status == MISSING:
                self.failed += [name for name in level.replaced if name not in self.failed]
            self.made |= {name for names in result.mistakes[:1] for name in names}
        return result

    def leave_out_known(self, result: LevelResult) -> LevelResult:
        """Leave out mistakes that counted in an earlier level: with nothing else, the level has passed."""
        for one in result.explanations:
            if set(one.mistakes) <= self.made:
                note = f"but for {' and '.join(one.mistakes)}, which counts once"
                return dataclasses.replace(result, status=PASSED, note=note)
        explanations = tuple(without(one, self.made) for one in result.explanations)
        return dataclasses.replace(result, explanations=explanations)

    def run(self, level: Level, failed: list[str]) -> LevelResult:
        """Run the cases of a level, and judge them."""
        if level.number == 3:
            return self.heads(level)
        wrong: list[CaseVerdict] = []
        skipped: list[str] = []
        for case in cases(level.number, self.grader.seed):
            answer = self.ask(case, failed)
            if answer.failure:
                if answer.failure == MISSING and case.optional:
                    skipped.append(case.words)
                    continue
                text = answer.text
                if answer.failure == MISSING and self.problem:
                    text = f"{text}; loading it raised {self.problem}"
                return LevelResult(level, answer.failure, text, case.words)
            if level.number == 2:
                self.like["pair"] = bool(answer.facts.get("pair"))
            judge = judging.judge_portions if case.task == "decode" else judging.judge
            judged = judge(case, answer, self.grader.empty_rows)
            wrong += [judged] if not judged.right else []
        note = f"not asked, as it takes none: {', '.join(skipped)}" if skipped else ""
        if not wrong:
            return LevelResult(level, PASSED, note=note)
        explanations = judging.why(wrong, level.number)
        first = wrong[0]
        return LevelResult(level, "wrong", first.differs, first.case.words, tuple(explanations), note)

    def heads(self, level: Level) -> LevelResult:
        """Grade level 3, in which nothing is rounded."""
        found: list[tuple[str, str]] = []
        for case in cases(level.number, self.grader.seed):
            X, H = case.inputs["X"], case.options["num_heads"]
            for name in level.names:
                given = X
                if name == "transpose_output":
                    given = heads.split(X, H)  # (B, H, T, d)
                    given = given if self.like["axes"] == 4 else given.reshape(-1, *given.shape[2:])  # (B*H, T, d)
                answer = self.ask(case, [], {"X": np.ascontiguousarray(given)}, case.options | {"name": name})
                if answer.failure:
                    named = "" if answer.failure == MISSING else f"{name}: "
                    return LevelResult(level, answer.failure, f"{named}{answer.text}")
                theirs = answer.arrays["heads"]
                if name == "transpose_qkv":
                    self.like["axes"] = 4 if theirs.ndim == 4 else 3
                    right, mistake, differs = heads.judge_split(X, H, theirs)
                else:
                    right, mistake, differs = heads.judge_merge(heads.split(X, H), theirs)
                if not right:
                    found.append((mistake, differs))
        if not found:
            return LevelResult(level, PASSED)
        mistakes = dict.fromkeys(mistake for mistake, _ in found if mistake)
        why = (judging.certain({name: heads.WHAT[name] for name in mistakes}),) if mistakes else ()
        return LevelResult(level, "wrong", found[0][1], "", why)


def without(one: Explanation, made: set[str]) -> Explanation:
    """Leave some mistakes out of an explanation."""
    kept = [at for at, name in enumerate(one.mistakes) if name not in made]
    fields: dict[str, Any] = {name: tuple(getattr(one, name)[at] for at in kept) for name in judging.OF_EACH}
    return dataclasses.replace(one, **fields)
