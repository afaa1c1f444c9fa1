"""The time that a search for reasons may take, and its progress on a terminal."""

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from mha.core.tables import plural, progress

SECONDS = 6.0  # of the search in a diagnosis, about
QUIET = 2.0  # seconds before progress is shown
Thing = TypeVar("Thing")


class Effort:
    """The time of a diagnosis, from now on: seconds of work of its own thread.

    So the answer is the same while other programs run.
    """

    def __init__(self) -> None:
        self.begin, self.end = time.monotonic(), time.thread_time() + SECONDS
        self.soonest = self.begin + SECONDS

    @property
    def over(self) -> bool:
        """Return whether the time is over; a thread's own clock, which runs no faster than time, is slow to read."""
        now = time.monotonic()
        if now < self.soonest:
            return False
        left = self.end - time.thread_time()
        self.soonest = now + left
        return left <= 0

    def within(self, things: Sequence[Thing]) -> Iterator[Thing]:
        """Yield things one by one until the time is over; show progress if it takes long and stderr is a terminal."""
        bar = progress()
        task = bar.add_task("Looking for reasons", total=len(things))
        shown = False
        try:
            for at, thing in enumerate(things):
                if self.over:
                    return
                if not shown and time.monotonic() - self.begin > QUIET:
                    bar.start()
                    shown = True
                bar.update(task, completed=at)
                yield thing
        finally:
            if shown:
                bar.stop()


def describe_untried(singles: int, pairs: int) -> str:
    """Return the words for forms and pairs of mistakes that were not tried, since there was no time; "" if all were."""
    counts = [plural(number, thing) for number, thing in ((singles, "form"), (pairs, "pair")) if number]
    verb = "was" if singles + pairs == 1 else "were"
    return f"{' and '.join(counts)} of mistakes {verb} not tried, there was no time" if counts else ""
