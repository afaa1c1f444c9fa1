"""Start the ranks of a group for tests, with a limit of time; none is left afterwards."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

LIMIT = 400  # seconds


def on_ranks(program, folder, count, *checks, **environment):
    """What each rank raised, by check, "" where nothing: of a program in this folder that writes it to RANK.json.

    It is given an empty folder, the number of ranks and the names of the checks; environment: variables to set.
    """
    command = [sys.executable, str(Path(__file__).parent / program), str(folder), str(count), *checks]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    told = [Path(folder, f"{rank}.json") for rank in range(count)]
    assert all(path.exists() for path in told), errors
    return [json.loads(path.read_text(encoding="utf-8")) for path in told]
