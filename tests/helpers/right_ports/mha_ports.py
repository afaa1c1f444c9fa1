"""Our own backends, with and without attention weights, which choose between a framework's kernel and steps."""

from draws import ABILITIES

from mha.core import dispatch

BACKENDS = [name for name, known in dispatch.FRAMEWORKS.items() if "bfloat16" in known.dtypes]


def port(backend, return_weights):
    """A port that calls a backend."""

    def attend(trial):
        result = trial.layer.to(backend)(*trial.inputs, **trial.call, return_weights=return_weights)
        return result[0] if return_weights else result

    return attend


def gradients(backend, trial, cotangent):
    """The gradients of a backend."""
    return trial.layer.to(backend).gradients(*trial.inputs, cotangent=cotangent, **trial.call)


PORTS = {name: (port(name, False), ABILITIES) for name in BACKENDS}
PORTS |= {f"{name}_weights": (port(name, True), ABILITIES) for name in BACKENDS}
