"""One module per framework, the same sections in the same order: read them side by side.

The package can be called too, `mha.backends()`: a dict of what exists, what is installed, which version, or why not.
"""

import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mha.core import dispatch
    from mha.core.options.names import BackendName


class _CallablePackage(types.ModuleType):
    def __call__(self) -> "dict[BackendName, dispatch.Backend]":
        from mha.core import dispatch

        return dispatch.backends()


sys.modules[__name__].__class__ = _CallablePackage
