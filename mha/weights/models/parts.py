"""Find the part of a model's configuration that is about a layer, and the stack that the layer is in."""

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


def config_part(model: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the configuration of the part of a model with this prefix; all of it if it has no parts."""
    for name in prefix.split("."):
        if isinstance(found := model.get(_CONFIGS.get(name, "")), dict):
            return found
    return model


def stack_of(prefix: str) -> str:
    """Return "encoder" or "decoder", the stack of the layer with this prefix; "" if the prefix has neither."""
    found = _STACK.findall(prefix)
    return found[-1] if found else ""
