"""Run the suite on several devices: start the ranks on this machine, listen, and end all when one fails.

Nothing here imports a framework. Some drive all devices from one process, others have one for each.
"""

import concurrent.futures
import dataclasses
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection

from mha.core import dispatch
from mha.parity.cases.devices import BACKENDS, Group
from mha.parity.cases.run.workers import RunOutcome, SuiteRunner, end
from mha.parity.cases.suite import worst_of_each

# Whether each of several devices takes a process of its own; else the environment variable that gives several to one
# process, and the option in it before their number.
RANKS, DEVICES = dispatch.facts("RANKS", False), dispatch.facts("DEVICES", ())
MOST = 64  # ranks on one machine
GRACE = 2.0  # seconds
# Ranks meet on this machine alone.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo", "NCCL_SOCKET_IFNAME": "lo"}


def group(argument: str, text: str) -> Group:
    """Read a group from its text, torch:2; argument: the name for the error.

    Raises ValueError for any other text.
    """
    name, _, number = text.partition(":")
    if not number.isdecimal() or not 2 <= int(number) <= MOST:
        raise ValueError(f"{argument} is {text}, expected BACKEND:COUNT with 2 to {MOST} devices, such as torch:2")
    return Group(dispatch.parse_backend(argument, dispatch.ALIASES.get(name, name), BACKENDS), int(number))


class GroupRunner(SuiteRunner):
    """A suite to run on groups of devices; only the first rank shows its progress."""

    def run(self, groups: Collection[Group]) -> list[RunOutcome]:
        """Run the suite on one group after the other, as a group takes all processors; return their outcomes."""
        return [self._run_group(one) for one in groups]

    def _run_group(self, group: Group) -> RunOutcome:
        ranks = group.count if RANKS[group.backend] else 1
        # Otherwise each rank would have a thread for every processor, and all would wait for one another.
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))} | os.environ | LOOPBACK
        if DEVICES[group.backend]:
            variable, option = DEVICES[group.backend]
            environment[variable] = f"{environment.get(variable, '')} {option}{group.count}".strip()
        running: list[subprocess.Popen] = []
        outcomes: list[RunOutcome] = []
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(ranks) as pool:
            meet = os.path.join(folder, "meet")
            started = [
                pool.submit(self._run_rank, group, rank, ranks, meet, running, environment) for rank in range(ranks)
            ]
            try:
                waiting = set(started)
                while waiting and not any(map(_is_broken, outcomes)):
                    ended, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                    outcomes += [one.result() for one in ended]
                # The first to end may only have waited for another, which is reported too.
                outcomes += [one.result() for one in concurrent.futures.wait(waiting, GRACE).done]
            finally:  # also after Ctrl-C
                for process in list(running):
                    end(process, running)
        return _join_outcomes(group, outcomes)

    def _run_rank(
        self, group: Group, rank: int, ranks: int, meet: str, running: list[subprocess.Popen],
        environment: dict[str, str],
    ) -> RunOutcome:  # fmt: skip
        own = {"rank": rank, "count": group.count, "meet": meet, "limit": self.limit}

        def progress(done: int, total: int) -> None:
            if rank == 0:
                self.progress(group.name, done, total)

        python, outcome = sys.executable, RunOutcome(group.name)
        self.run_worker(outcome, python, running, environment, progress, group.backend, ranks=own)
        if ranks > 1:
            named = [dataclasses.replace(one, where=f"rank {rank}: {one.where}") for one in outcome.results]
            outcome.results = named
        return outcome


def _is_broken(outcome: RunOutcome) -> bool:
    """Return whether a rank died, hung or did not start, which is a result without a bound."""
    return any(one.error == math.inf and not one.dtype for one in outcome.results)


def _join_outcomes(group: Group, outcomes: list[RunOutcome]) -> RunOutcome:
    """Join the outcomes of all ranks: of each check the result that comes nearest to its bound, or exceeds it most.

    An error, as when a rank dies, is kept for each rank.
    """
    about = next((outcome.about for outcome in outcomes if outcome.about), {})
    results = [one for outcome in outcomes for one in outcome.results]
    worst = worst_of_each(results, lambda one: (one.check, *((one.case, one.dtype) if one.dtype else (one.where,))))
    return RunOutcome(group.name, about, list(worst.values()))
