"""PyTorch's arrays in and out: to and from NumPy, whose they are, where they lie."""

import contextlib
import contextvars

import ml_dtypes
import numpy as np
import torch

from mha.core.devices import device_in_words, no_device

USUAL = contextvars.ContextVar("USUAL", default=None)  # where layers and arrays are made, None = as PyTorch says
NOTHING = contextlib.nullcontext()


def tensor(array, place=None):
    """A NumPy array as this framework's own, with the same dtype, at the given place."""
    half, place = array.dtype == ml_dtypes.bfloat16, place or USUAL.get()
    made = torch.tensor(array.view(np.int16) if half else array)
    made = made if place is None else made.to(place, non_blocking=True)  # so that no GPU is waited for
    return made.view(torch.bfloat16) if half else made


def to_numpy(X):
    """This framework's array as a NumPy array, with the same dtype."""
    if hasattr(X, "full_tensor"):  # torch.distributed's, which would send to all ranks without a word
        raise RuntimeError(
            f"{X.device_mesh.size()} ranks have parts of this array; on all of them call mha.parallel.gather, "
            "mha.parallel.save or mha.parallel.load, for a layer, or X.full_tensor()"
        )
    if X.dtype == torch.bfloat16:
        return X.detach().view(torch.int16).numpy(force=True).view(ml_dtypes.bfloat16)
    return X.numpy(force=True)


def is_own(X):
    """Whether X is an array that the layers here take: dense, and of this framework."""
    return isinstance(X, torch.Tensor) and X.layout == torch.strided and not X.is_nested


def is_known(X):
    """Whether X has its values by now, and does not stand for those that a compiler will know only later."""
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing())


def is_far(X):
    """Whether to read the values of X is to wait for a device that computes beside the processor."""
    return getattr(X, "is_cuda", False)


def value_of(X):
    """X as a NumPy array; None if it stands for values that a compiler will know only later."""
    if not is_known(X):
        return None
    try:
        return to_numpy(X)
    except RuntimeError:  # inside `torch.func.vmap`, or without memory of its own
        return None


def clone(X):
    """X in memory of its own, as this framework's array: what becomes of X does not change it."""
    return X.detach().clone()


def value_and_gradients(function, arrays, cotangent=None):
    """The value of a function of arrays, and the gradients of sum(value * cotangent) by them; cotangent None = ones.

    The function may give both itself, as it must with NumPy. None for a gradient where it does not use the array.
    """
    arrays = [X.detach().requires_grad_() for X in arrays]
    with torch.enable_grad():
        found = function(*arrays)
    if isinstance(found, tuple):
        return found
    if not (is_own(found) and found.requires_grad):
        return found, (None,) * len(arrays)
    cotangent = torch.ones_like(found) if cotangent is None else cotangent
    return found, torch.autograd.grad(found, arrays, cotangent, allow_unused=True)


def context(dtype, tracked=True):
    """The context for a computation in this dtype; tracked: whether somebody may ask for its gradients later."""
    if tracked and not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        return NOTHING  # as for most calls
    inside = contextlib.ExitStack()
    for kind in ("cpu", "cuda"):
        # Autocast would narrow the products in there; whoever wants that calls the layer itself.
        if torch.is_autocast_enabled(kind):
            inside.enter_context(torch.autocast(kind, enabled=False))
    if not tracked:
        inside.enter_context(torch.no_grad())
    return inside


def place(layer, array=None):
    """Where the weights of a layer, or else an array, lie; None where the framework moves arrays by itself."""
    kernel = getattr(getattr(layer, "W_q", None), "weight", array)
    return getattr(kernel, "device", None)


def device(place=None):
    """A device in words, and whether float32 products may be in TF32 there; place None = where layers are made."""
    place = torch.device(place or USUAL.get() or torch.get_default_device())
    if place.type != "cuda":
        return str(place)
    products = torch.backends.cuda.matmul
    # Of the two, PyTorch 2.9 refuses to read the older one where the newer one was set.
    tf32 = products.fp32_precision == "tf32" if hasattr(products, "fp32_precision") else products.allow_tf32
    return device_in_words(str(place), torch.cuda.get_device_name(place), tf32)


def use_device(name):
    """Make layers and arrays at a device from now on; ValueError if PyTorch cannot compute there."""
    try:
        place = torch.device(name)
        torch.zeros(1, device=place).numpy(force=True)
    except (RuntimeError, AssertionError) as error:  # AssertionError from a build without such devices
        raise no_device("PyTorch", name, error) from error
    USUAL.set(place)
