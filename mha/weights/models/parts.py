"""Where a layer is in its model: which part of the configuration is about it, and in which stack of layers it is."""

import re
from typing import Any

# A part of a model with parts of its own kinds, as it is called in the names of arrays, and in `config.json`.
_CONFIGS = {
    "language_model": "text_config",
    "text_model": "text_config",
    "vision_model": "vision_config",
    "vision_tower": "vision_config",
    "image_model": "image_config",
    "audio_tower": "audio_config",
    "codec_model": "codec_config",
    "depth_decoder": "depth_decoder_config",
    "encoder": "encoder",
    "decoder": "decoder",
}
_STACK = re.compile(r"(?:^|\.)(encoder|decoder)\.")


def part(model: dict[str, Any], prefix: str) -> dict[str, Any]:
    """What the configuration of a model says of the part of it with this prefix; all of it if it has no parts."""
    for name in prefix.split("."):
        if isinstance(found := model.get(_CONFIGS.get(name, "")), dict):
            return found
    return model


def stack(prefix: str) -> str:
    """Whether the layer with this prefix is in the "encoder" or the "decoder"; "" if the prefix does not say it."""
    found = _STACK.findall(prefix)
    return found[-1] if found else ""
