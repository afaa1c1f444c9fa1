"""Keep a submission from accidents: using up the machine, starting programs, writing elsewhere, importing answers."""

import importlib
import importlib.abc
import os
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

ANSWERS = ("mha", "_mha_pytest_plugin", "transformers", "keras_hub", "keras_nlp", "mlx_lm", "xformers", "flash_attn")
MOST_PROCESSES = 256  # beyond those that run already, threads counted
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.symlink", "os.link", "shutil.rmtree")
STARTS = ("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "os.spawn", "subprocess.Popen")

# By the framework that is imported: what of it computes attention.
OWN_ATTENTION: dict[str, tuple[str, ...]] = {
    "torch": (
        "torch.nn.MultiheadAttention", "torch.nn.functional.scaled_dot_product_attention",
        "torch.nn.functional.multi_head_attention_forward", "torch.nn.attention.flex_attention.flex_attention",
    ),
    "tensorflow": (
        "keras.layers.MultiHeadAttention", "keras.layers.GroupQueryAttention", "keras.layers.Attention",
        "keras.layers.AdditiveAttention", "keras.ops.dot_product_attention",
    ),
    "jax": (
        "jax.nn.dot_product_attention", "flax.linen.MultiHeadDotProductAttention", "flax.linen.MultiHeadAttention",
        "flax.linen.SelfAttention", "flax.linen.dot_product_attention", "flax.linen.dot_product_attention_weights",
        "flax.nnx.MultiHeadAttention", "flax.nnx.dot_product_attention",
    ),
    "mlx": (
        "mlx.nn.MultiHeadAttention", "mlx.core.fast.scaled_dot_product_attention",
    ),
    "mxnet": (
        "mxnet.symbol.contrib.interleaved_matmul_selfatt_qk", "mxnet.ndarray.contrib.interleaved_matmul_selfatt_qk",
        "mxnet.ndarray.contrib.interleaved_matmul_encdec_qk",
    ),
}  # fmt: skip


class RefusedError(Exception):
    """A submission did something that it may not do."""


class RefusedImportError(RefusedError, ImportError):
    """An import of a module with the answer; a library that only tries it goes on without."""


class RefusedChangeError(RefusedError, PermissionError):
    """A change of a file elsewhere, or the start of a program; a library that only tries it goes on without."""


def limit(memory: int, file_size: int, seconds: int) -> None:
    """Limit the address space and file sizes, in bytes, the processor time and the processes of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = running() + MOST_PROCESSES
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def running() -> int:
    """Count the threads of this user's processes; 0 where that cannot be seen."""
    count = 0
    try:
        for name in os.listdir("/proc"):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    except OSError:  # one has ended meanwhile
        return count + MOST_PROCESSES
    return count


class NoAnswers(importlib.abc.MetaPathFinder):
    """A finder of modules that refuses to import those with the answer."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Raise where a module has the answer, else leave it to the other finders."""
        if name.partition(".")[0] in ANSWERS:
            raise RefusedImportError(f"{name} cannot be imported here: write the attention yourself")


def watch(folder: str) -> None:
    """From now on, refuse to import answers, to start programs, and to change files outside of the folder."""
    sys.meta_path.insert(0, NoAnswers())
    inside = (os.path.realpath(folder) + os.sep, "/dev/")

    def may_change(path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            real = os.path.realpath(os.fsdecode(path))
            if not f"{real}{os.sep}".startswith(inside):
                raise RefusedChangeError(f"{real} may not be changed: write into the working directory")

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event in STARTS:
            raise RefusedChangeError(f"a submission may start no other process ({event})")
        if (event == "open" and isinstance(given[2], int) and given[2] & WRITING) or event in CHANGES:
            may_change(given[0])

    sys.addaudithook(hook)


def forbid_own_attention(framework: str) -> None:
    """Make the framework's own attention raise."""
    for path in OWN_ATTENTION.get(framework, ()):
        module, _, name = path.rpartition(".")
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            found = None
            parent, _, last = module.rpartition(".")  # some are no modules but attributes
            if parent in sys.modules:
                found = getattr(sys.modules[parent], last, None)
        own = getattr(found, name, None)
        if isinstance(own, type):
            own.__new__ = refuse(path)  # type: ignore[method-assign]
        elif own is not None:
            setattr(found, name, refuse(path))


def refuse(name: str) -> Callable[..., NoReturn]:
    """Make a function that raises: this is the framework's own attention."""

    def refuse_call(*given: Any, **named: Any) -> NoReturn:
        raise RefusedError(f"{name} is the framework's own attention: write it yourself")

    return refuse_call
