"""Run one backend's part of a suite, as a process: `python -m mha.parity.cases.run.worker '{"backend": "torch", ...}'`.

With "ranks" among its arguments, the process is one rank of a group on several devices.

Prints lines of JSON: first versions and the number of checks, then each check as it begins and its results as it ends,
and at last the kernels that pooled.
"""

import dataclasses
import json
import platform
import sys
import traceback
from typing import Any

import mha
from mha import parity
from mha.core import dispatch
from mha.core.call import note_kernels
from mha.core.devices import DeviceError
from mha.core.options.names import BackendName
from mha.parity.cases import devices
from mha.parity.cases.run.processes import own_stdout


def versions(backend: BackendName) -> dict[str, str]:
    """Return the versions of a backend's packages, and its device; this imports the framework."""
    module: Any = dispatch.load(backend)
    found = {name: str(dispatch.version(name)) for name in dispatch.FRAMEWORKS[backend].needs}
    return found | {"device": module.device()}


def main(arguments: str) -> None:
    """Run the checks of `parity.plan`, or with ranks of `cases.devices`; arguments: those of the function, in JSON.

    Among them is the device, see `workers.SuiteRunner`.
    """
    lines = own_stdout()

    def say(**known: Any) -> None:
        print(json.dumps(known), file=lines, flush=True)

    given = json.loads(arguments)
    try:
        about = {"mha": mha.__version__, "python": platform.python_version()}
        ranks, device = given.pop("ranks", None), given.pop("device")
        if device is not None:
            dispatch.load(given["backend"]).arrays.use_device(device)
        checks = devices.plan_rank(**given, **ranks) if ranks else parity.plan(**given)
        say(total=len(checks), about=about | versions(given["backend"]))
    except DeviceError as error:
        say(absent=str(error))
        return
    except Exception as error:
        say(broken=parity.one_line(error))
        return
    with note_kernels() as kernels:
        for check in checks:
            say(begins=check.name)
            try:
                say(results=[dataclasses.asdict(result) for result in check.run()])
            except Exception as error:  # the other ranks wait for this one
                traceback.print_exc()
                raise SystemExit(parity.one_line(error)) from None
    say(kernels=sorted(kernels))


if __name__ == "__main__":
    main(sys.argv[1])
