"""Written layers that take their weights from a checkpoint by `load`, where no renaming of their parts does that."""

import re

import numpy as np
import pytest
import stored
import writing
from safetensors.numpy import save_file

import mha
from mha import parity
from mha.core import dispatch
from mha.core.options.config import Config
from mha.learn.write import check, files
from mha.learn.write.lesson.named import loading
from mha.learn.write.lesson.named.renaming import own_names
from mha.learn.write.recipe import Recipe
from mha.weights import SCHEMES, schemes

PREFIX = "model.layers.3.attention."
# A scheme for each way in which arrays lie: these on every framework, others on NumPy. Those whose layers are slow
# to be written and tried run the first alone but with --long.
FORMS = ("gpt2", "neox", "phi3", "keras", "torch-separate", "vit")
LONG = pytest.mark.long("torch", "tensorflow", "jax", "mxnet")
# Arrays that some files of a scheme lack, which are zeros then.
LACKING = {"vit": ("W_k.bias",), "llama": ("W_o.bias",), "opt": ("W_k.bias",), "internvl": ("W_q.bias", "W_k.bias")}


def options(scheme, **given):
    """Options of a layer with all that a scheme's files have a place for, and shared heads where they may be."""
    known = SCHEMES[scheme]
    found = stored.sizes(scheme) | {"bias": "W_q.bias" in known.places}
    found |= {"num_key_value_heads": 2} if known.grouped else {}
    found |= {"qk_norm": "rms"} if "q_norm.scale" in known.places else {}
    found |= {"sinks": True} if "sinks" in known.places else {}
    found |= {"output_gate": "element" if "keras" in scheme else "head"} if known.gate else {}
    return found | given


def cases():
    """Schemes with options, each on its backends."""
    found = [(scheme, {}) for scheme in SCHEMES]
    found += [("neox", {"num_key_value_heads": 6}), ("phi3", {"num_key_value_heads": 6})]
    found += [(scheme, {"bias": False}) for scheme in ("gpt2", "llama", "keras", "torch-separate")]
    for at, (scheme, given) in enumerate(found):
        every = scheme in FORMS and not given
        name = " ".join([scheme, *(f"{one}={value}" for one, value in given.items())])
        marks = () if scheme == FORMS[0] else LONG
        alone = [pytest.mark.backends("numpy"), *[pytest.mark.long("numpy")] * (at % 4 > 0)]
        yield pytest.param(scheme, given, id=name, marks=marks if every else alone)


@pytest.mark.parametrize(("scheme", "given"), list(cases()))
def test_a_layer_takes_the_checkpoints_of_each_scheme(backend, tmp_path, scheme, given):
    layer = mha.MultiHeadAttention(19, 6, **options(scheme, **given), backend="numpy")
    random, known = np.random.default_rng(7), SCHEMES[scheme]
    weights = {name: random.standard_normal(X.shape).astype("float32") for name, X in layer.weights.items()}
    absent = [name for name in LACKING.get(scheme, ()) if name in weights]
    layer.weights = weights | {name: np.zeros_like(weights[name]) for name in absent}
    arrays = schemes.arrange(layer.config, layer.weights, scheme)
    for name in absent:
        del arrays[known.places[name].name]
    checkpoint, path = tmp_path / "model.safetensors", tmp_path / "attention.py"
    save_file({f"{PREFIX}{name}": np.ascontiguousarray(X) for name, X in arrays.items()}, checkpoint)
    path.write_text(files.file_text(Recipe(layer.config, backend, names=scheme)))
    widths = [len(weights[f"{name}.kernel"]) for name in ("W_q", "W_k", "W_v")]
    inputs = [random.standard_normal((2, 7, width)).astype("float32") for width in widths]
    assert parity.ratio(layer, writing.loaded(path, backend, checkpoint, PREFIX, *inputs), *inputs) <= 1


@pytest.mark.parametrize(
    "scheme",
    [
        *(pytest.param(one, marks=pytest.mark.long("numpy")) for one in ("llama", "torch-separate", "keras", "bert")),
        "gpt2",
    ],
)
@pytest.mark.backends("numpy")
def test_an_array_that_is_missing_is_an_error(tmp_path, scheme):
    layer = mha.MultiHeadAttention(19, 6, **options(scheme), seed=5, backend="numpy")
    path = tmp_path / "attention.py"
    path.write_text(files.file_text(Recipe(layer.config, "numpy", names=scheme)))
    arrays = schemes.arrange(layer.config, layer.weights, scheme)
    inputs = [np.zeros((2, 3, width), "float32") for width in (11, 11, 11)]
    for name in arrays:
        if SCHEMES[scheme].biases and name.endswith("bias"):
            continue
        held = {one: np.ascontiguousarray(X) for one, X in arrays.items() if one != name}
        save_file(held, tmp_path / "model.safetensors")
        with pytest.raises(Exception, match=f"does not contain tensor {re.escape(name)}$"):
            writing.loaded(path, "numpy", tmp_path / "model.safetensors", "", *inputs)


@LONG
def test_a_file_that_loads_is_proven(backend, tmp_path):
    path = mha.write(writing.config(num_key_value_heads=2), backend, tmp_path / "attention.py", names="neox")[0]
    code, output = writing.proof(tmp_path, backend)
    assert code == 0, output
    assert ".load(weights" in (tmp_path / "test_attention.py").read_text()
    assert check(path) == ""


@pytest.mark.backends("numpy")
def test_a_proof_fails_where_load_was_edited(backend, tmp_path):
    path = mha.write(writing.config(num_key_value_heads=2), backend, tmp_path / "attention.py", names="neox")[0]
    text = path.read_text()
    assert text.count("X[:, -2], X[:, -1]") == 1
    path.write_text(text.replace("X[:, -2], X[:, -1]", "X[:, -1], X[:, -2]"))
    code, output = writing.proof(tmp_path, backend)
    assert code == 1, output


@pytest.mark.backends("numpy")
def test_a_load_is_16_lines_at_most():
    for scheme, backend in ((scheme, backend) for scheme in SCHEMES for backend in dispatch.FRAMEWORKS):
        config = Config(19, 6, **options(scheme))
        if not own_names(config, backend, scheme):
            lines = loading.method(config, backend, scheme).splitlines()
            code = [line for line in lines if '"""' not in line]
            assert (len(code) <= 16, max(map(len, lines)) <= 116) == (True, True), "\n".join(lines)


@pytest.mark.backends("numpy")
def test_parts_have_the_names_of_arrays_where_they_can():
    renamed = {
        backend: {scheme for scheme in SCHEMES if own_names(Config(19, 6, **options(scheme)), backend, scheme)}
        for backend in dispatch.FRAMEWORKS
    }
    parts = {"d2l", "mlx", "albert", "distilbert", "llama", "meta", "phi", "t5", "mpnet", "internvl", "opt"}
    parts |= {"equinox", "whisper"}
    assert renamed == {backend: parts if backend in ("torch", "mlx") else set() for backend in renamed}
