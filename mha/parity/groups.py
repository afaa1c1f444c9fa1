"""Run the suite on several devices: start the ranks of a group on this machine, listen, and end all when one fails.

Nothing here imports a framework. JAX and TensorFlow drive all devices from one process; PyTorch has one for each.
"""

import concurrent.futures
import dataclasses
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection

from mha import checks
from mha.names import FloatName
from mha.parity.devices import BACKENDS, Group
from mha.parity.rules import fraction
from mha.parity.suite import Result, SuiteName
from mha.parity.workers import Outcome, end, run_worker

SHORT = {"tf": "tensorflow"}
MOST = 64  # ranks on one machine
GRACE = 2.0  # seconds
# Ranks meet on this machine alone.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo", "NCCL_SOCKET_IFNAME": "lo"}


def group(argument: str, text: str) -> Group:
    """A group as it is written, torch:2; argument: for the error.

    Raises ValueError if it is none.
    """
    name, _, number = text.partition(":")
    if not number.isdecimal() or not 2 <= int(number) <= MOST:
        raise ValueError(f"{argument} is {text}, expected BACKEND:COUNT with 2 to {MOST} devices, such as torch:2")
    return Group(checks.choice(argument, SHORT.get(name, name), BACKENDS), int(number))


@dataclasses.dataclass(frozen=True)
class GroupRunner:
    """What to run on each group, for how long, and whom to tell.

    suite, cases, dtypes: as for `devices.plan`; limit: seconds after which a rank that has given nothing is taken to
    hang; progress(name, done, total): is told of each check of the first rank.
    """

    suite: SuiteName = "quick"
    cases: Collection[str] | None = None
    dtypes: Collection[FloatName] | None = None
    limit: float = 120.0
    progress: Callable[[str, int, int], None] = lambda name, done, total: None

    def run(self, groups: Collection[Group]) -> list[Outcome]:
        """What came of each group, one after the other: a group takes the processors by itself."""
        return [self._run_group(one) for one in groups]

    def _run_group(self, group: Group) -> Outcome:
        ranks = group.count if group.backend == "torch" else 1
        # Else each would have a thread for every processor, and these wait for one another.
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))} | os.environ | LOOPBACK
        if group.backend == "jax":
            forced = f"--xla_force_host_platform_device_count={group.count}"
            environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {forced}".strip()
        running: list[subprocess.Popen] = []
        outcomes: list[Outcome] = []
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(ranks) as pool:
            meet = os.path.join(folder, "meet")
            started = [
                pool.submit(self._run_rank, group, rank, ranks, meet, running, environment) for rank in range(ranks)
            ]
            try:
                waiting = set(started)
                while waiting and not any(map(_ended_early, outcomes)):
                    ended, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                    outcomes += [one.result() for one in ended]
                # The first to end may be one that waited for another, which is told of too.
                outcomes += [one.result() for one in concurrent.futures.wait(waiting, GRACE).done]
            finally:  # as after Ctrl-C
                for process in list(running):
                    end(process, running)
        return _together(group, outcomes)

    def _run_rank(
        self,
        group: Group,
        rank: int,
        ranks: int,
        meet: str,
        running: list[subprocess.Popen],
        environment: dict[str, str],
    ) -> Outcome:
        outcome = Outcome(group.name)  # type: ignore[arg-type]
        arguments = {
            "backend": group.backend, "suite": self.suite, "cases": self.cases, "dtypes": self.dtypes,
            "ranks": {"rank": rank, "count": group.count, "meet": meet, "limit": self.limit},
        }  # fmt: skip

        def tell(done: int, total: int) -> None:
            if rank == 0:
                self.progress(group.name, done, total)

        run_worker(outcome, sys.executable, arguments, running, environment, self.limit, tell)
        if ranks > 1:
            named = [dataclasses.replace(one, where=f"rank {rank}: {one.where}") for one in outcome.results]
            outcome.results = named
        return outcome


def _ended_early(outcome: Outcome) -> bool:
    """Whether a rank died, hung or did not start, for which a result without a bound stands."""
    return any(one.error == math.inf and not one.dtype for one in outcome.results)


def _together(group: Group, outcomes: list[Outcome]) -> Outcome:
    """What came of all ranks as one: of each check the result that comes nearest to its bound, or exceeds it most.

    What is no comparison, as when a rank dies, is told of each rank.
    """
    whole = Outcome(group.name)  # type: ignore[arg-type]
    worst: dict[tuple[str, ...], Result] = {}
    for outcome in outcomes:
        whole.about = whole.about or outcome.about
        for one in outcome.results:
            key = (one.check, one.case, one.dtype) if one.dtype else (one.check, one.where)
            worst[key] = max(worst.get(key, one), one, key=lambda one: fraction(one.error, one.bound))
    whole.results = list(worst.values())
    return whole
