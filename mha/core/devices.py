"""Devices as reports name them: in words, with the precision of products in float32 where a switch decides on it."""


class DeviceError(ValueError):
    """A device that is not there."""


def device_in_words(device: str, model: str = "", tf32: bool | None = None) -> str:
    """The words for a device; tf32: whether float32 products may be in TF32 there, None = it has no such products."""
    words = f"{device} ({model})" if model else device
    return words if tf32 is None else f"{words}, float32 products {'may be in TF32' if tf32 else 'in float32'}"


def no_device(title: str, device: str, error: Exception) -> DeviceError:
    """The error for a device at which a framework, of this title, cannot compute; error: the framework's own."""
    return DeviceError(f"device is {device!r}, expected one that {title} has here, such as 'cpu': {error}")
