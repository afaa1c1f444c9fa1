import json

import pytest
import safetensors.numpy

from .llama_config import MODEL, arrays


@pytest.fixture
def write(tmp_path, rng):
    """Writes a checkpoint of one layer, number 1, with a config.json beside it, and returns the path of the first."""

    def written(model, **kind):
        safetensors.numpy.save_file(arrays(rng, **kind), tmp_path / "model.safetensors")
        if model is not None:
            (tmp_path / "config.json").write_text(json.dumps(MODEL | model))
        return tmp_path / "model.safetensors"

    return written
