"""Files that `mha.write` writes: their proof where there is no `mha`, their text, and what a file cannot be."""

import ast
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys

import adapters
import numpy as np
import pytest
import writing
from safetensors.numpy import save_file
from typer.testing import CliRunner

import mha
from mha import cli, parity
from mha.core import dispatch
from mha.learn.write import check, commands, files
from mha.learn.write.recipe import Recipe
from mha.weights import schemes

BACKENDS = tuple(dispatch.FRAMEWORKS)
LLAMA = {"num_key_value_heads": 2, "rotary": mha.Rotary(base=500000.0)}


def run(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture(scope="module")
def plain(backend, tmp_path_factory):
    """A folder with a plain file and its proof."""
    folder = tmp_path_factory.mktemp("plain")
    mha.write(writing.config(), backend, folder / "attention.py")
    return folder


@pytest.fixture(scope="module")
def texts():
    """The text of a plain file for each framework."""
    return {backend: files.file_text(Recipe(writing.config(), backend)) for backend in BACKENDS}


# What test_written_compiled.py has as much of.
COMPILED = pytest.mark.long(*adapters.FRAMEWORKS)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        pytest.param({}, (), marks=pytest.mark.long("numpy", "torch", "tensorflow", "jax"), id="plain"),
        pytest.param(LLAMA | {"window": (2, None)}, ("cache",), marks=COMPILED, id="cache"),
        pytest.param(
            {"window": (None, 2)}, ("cache",), marks=pytest.mark.long(*dispatch.FRAMEWORKS), id="cache without a bound"
        ),
        pytest.param(writing.TOGETHER, writing.MORE, marks=COMPILED, id="all options"),
    ],
)
def test_a_file_is_proven_where_there_is_no_mha(backend, tmp_path, options, call):
    config = writing.config(**options)
    paths = mha.write(config, backend, tmp_path / "attention.py", call=call)
    assert [path.name for path in paths] == ["attention.py", "test_attention.py", "attention.safetensors"]
    code, output = writing.proof(tmp_path, backend)
    assert code == 0, output
    assert re.search(r"\d+ passed", output)
    assert check(paths[0]) == ""


@pytest.mark.backends("torch")
def test_what_a_file_computes_from_lost_slots_is_no_number(backend, tmp_path):
    import torch

    mha.write(writing.config(), backend, tmp_path / "attention.py", call=["cache"])
    own, X = writing.layer_of(tmp_path / "attention.py")(24, 4), torch.ones(2, 1, 24)
    cache = own.cache(2, 3)
    for number in range(4):
        kept, (output, cache) = cache, own(X, X, X, causal=True, cache=cache)
        assert output.isnan().all() == (number == 3)
        assert (kept.lengths == number).all()  # the old one stays
    output, _ = own(X, X, X, torch.tensor([1, 0]), causal=True, cache=kept._replace(lost=kept.lost * 0 - 1))
    assert output.isnan().flatten(1).all(1).tolist() == [True, False]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long("torch", "jax", "mlx")),
        {"num_key_value_heads": 2, "rotary": mha.Rotary(), "window": (5, None)},
    ],
)
@pytest.mark.parametrize("compiled", [pytest.param("", marks=pytest.mark.long("torch", "jax", "mlx")), "quick"])
@pytest.mark.backends("torch", "jax", "mlx")
def test_a_file_may_pool_by_a_kernel(backend, tmp_path, compiled, options):
    path = mha.write(writing.config(**options), backend, tmp_path / "attention.py", fused=True, call=["positions"])[0]
    code, output = writing.proof(tmp_path, backend, compiled=compiled)
    assert code == 0, output
    text = path.read_text()
    assert "dot_product_attention(" in text
    assert "softmax(" not in text
    assert ("dropout" in text, "training" in text) == (backend == "torch", backend == "torch")  # others drop no weights
    assert check(path) == ""


@pytest.mark.backends("torch", "jax", "mlx")
@pytest.mark.long("jax")
def test_what_a_mask_hides_beside_a_cache_never_matters_to_a_kernel(backend, rng, tmp_path):
    config, convert = writing.config(num_key_value_heads=2), adapters.of(backend).convert
    mha.write(config, backend, tmp_path / "attention.py", fused=True, call=["cache"], kind={"jax": "nnx"}.get(backend))
    made = writing.layer_of(tmp_path / "attention.py")
    layer = made(24, 4, rngs=importlib.import_module("flax.nnx").Rngs(0)) if backend == "jax" else made(24, 4)
    queries, keys = rng.standard_normal((2, 2, 7, 24)).astype("float32")
    mask, outputs = convert(np.arange(9)[None, None] != np.full((1, 7, 1), 3)), []
    for hidden in (0, np.nan):
        keys[:, 3] = hidden
        output, _ = layer(convert(queries), convert(keys), convert(keys), mask=mask, cache=layer.cache(2, 9))
        outputs.append(mha.to_numpy(output))
    assert np.isfinite(outputs[1]).all()
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    ("options", "call", "fused", "names"),
    [
        pytest.param({}, (), False, "gpt2", marks=pytest.mark.long("jax"), id="names"),
        pytest.param(writing.TOGETHER, writing.MORE, False, None, marks=pytest.mark.long("jax"), id="all options"),
        pytest.param(
            writing.KNOWN, ("head_gates", "segments"), True, None, marks=pytest.mark.long("jax"), id="a kernel"
        ),
    ],
)
@pytest.mark.backends("jax")
def test_a_file_may_be_a_module_of_nnx(backend, tmp_path, options, call, fused, names):
    config = writing.config(**options)
    given = {"call": call, "fused": fused, "names": names, "kind": "nnx"}
    path = mha.write(config, backend, tmp_path / "attention.py", **given)[0]
    for compiled in ("", "quick"):
        code, output = writing.proof(tmp_path, "nnx", compiled=compiled)
        assert code == 0, output
    text = path.read_text()
    assert "linen" not in text
    assert "training=" not in text  # a module of NNX knows whether it trains
    assert f"mha write jax --kind nnx --num-hiddens {config.num_hiddens} " in text
    assert check(path) == ""


@pytest.mark.backends("jax")
@pytest.mark.long("jax")  # which compiles it for seconds
def test_a_module_of_nnx_drops_weights_until_it_is_deterministic(backend, tmp_path):
    import jax
    from flax import nnx

    config = writing.config(dropout=0.5, pooling="additive", value_norm="rms")
    mha.write(config, backend, tmp_path / "attention.py", kind="nnx")
    layer = writing.layer_of(tmp_path / "attention.py")(24, 4, rngs=nnx.Rngs(0))
    X = jax.random.normal(jax.random.key(1), (2, 7, 24))
    first, second = layer(X, X, X), layer(X, X, X)
    assert not np.allclose(first, second)
    assert (layer.v_norm.scale[...] == 1).all()
    sure = nnx.view(layer, deterministic=True)
    compiled = nnx.jit(lambda layer, X: layer(X, X, X))(sure, X)
    np.testing.assert_allclose(compiled, sure(X, X, X), rtol=1e-5, atol=1e-5)
    found = nnx.state(layer, nnx.Param)["attention"]
    assert {(name, array) for name, one in found.items() for array in one} == {
        (f"{W}", "kernel") for W in ("W_q", "W_k", "w_v")
    }


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("llama", marks=pytest.mark.long("torch")),
        *(pytest.param(one, marks=COMPILED) for one in ("opt", "distilbert")),
    ],
)
@pytest.mark.backends("torch", "mlx")
def test_a_file_may_have_the_names_of_checkpoints(backend, tmp_path, scheme):
    options = {"num_key_value_heads": 2} | ({"qk_norm": "rms", "sinks": True} if scheme == "llama" else {})
    path = mha.write(writing.config(**options), backend, tmp_path / "attention.py", names=scheme)[0]
    code, output = writing.proof(tmp_path, backend)
    assert code == 0, output
    assert "self.W_q" not in path.read_text()
    assert check(path) == ""


@pytest.mark.backends("torch")
def test_a_file_takes_the_arrays_of_a_checkpoint(backend, tmp_path):
    import torch

    layer = mha.MultiHeadAttention(24, 4, num_key_value_heads=2, rotary=mha.Rotary(base=500.0), seed=3, backend="numpy")
    bare = dataclasses.replace(layer.config, rotary=None)  # which names do not say
    arrays = {
        f"model.layers.{n}.self_attn.{name}": np.ascontiguousarray(X + n)
        for n in (0, 10)
        for name, X in schemes.from_canonical(bare, layer.weights, "llama").items()
    }
    save_file(arrays, tmp_path / "model.safetensors")
    model = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24}
    (tmp_path / "config.json").write_text(json.dumps(model | {"rope_theta": 500.0}))
    path = tmp_path / "attention.py"
    result = run("write", backend, "--like", str(tmp_path), "--layer", "0", "--names", "llama", "-o", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    own = writing.layer_of(tmp_path / "attention.py")(24, 4)
    prefix = "model.layers.0.self_attn."
    own.load_state_dict({name.removeprefix(prefix): torch.tensor(X) for name, X in arrays.items() if prefix in name})
    X = np.random.default_rng(5).standard_normal((2, 7, 24)).astype("float32")
    assert parity.ratio(layer, own(torch.tensor(X), torch.tensor(X), torch.tensor(X)).detach().numpy(), X, X, X) <= 1


EDITED = [
    ("[:, None, None] <= ", "[:, None, None] < "),
    ("< per_query", "<= per_query"),
    ("math.sqrt(", "abs("),
    ("scores, hidden", "scores + 1e-11 * scores, hidden"),
    ("(seen, keys, torch.zeros_like(keys))", "(seen, keys, keys)"),
    ("(seen, values, torch.zeros_like(values))", "(seen, values, values)"),
    ("(sees, queries, torch.zeros_like(queries))", "(sees, queries, queries)"),
    ("permute(0, 2, 1, 3)  # (B, H, T, d)", "reshape(B, num_heads, T, width // num_heads)"),
]


@pytest.mark.backends("torch")
def test_proofs_fail_on_edited_files(backend, tmp_path):
    for number, (old, new) in enumerate(EDITED):
        path = mha.write(writing.config(), backend, tmp_path / f"edited_{number}.py")[0]
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
    code, output = writing.proof(tmp_path, backend)
    assert code == 1, output
    assert output.count(" is off by ") >= len(EDITED)
    assert {*re.findall(r"^FAILED .*test_edited_(\d)\.py", output, re.MULTILINE)} == {*map(str, range(len(EDITED)))}


@pytest.mark.xdist_group("texts of files")  # one process makes them
@pytest.mark.backends("numpy")
class TestTexts:
    def test_each_imports_its_framework_and_nothing_of_mha(self, texts):
        for backend, text in texts.items():
            tree = ast.parse(text)
            imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
            imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            ours = dispatch.FRAMEWORKS[backend].needs
            roots = {name.split(".")[0] for name in imported}
            assert roots - {"functools", "math", "operator", "numpy"} == {one.split(".")[0] for one in ours} - {"numpy"}

    def test_a_layer_of_keras_says_what_becomes_of_masks(self, texts):
        """Or Keras warns of every `mask`, and hands it on to the layers that follow."""
        assert "self.supports_masking = True" in texts["tensorflow"]
        assert "def compute_mask(self, inputs, previous_mask):" in texts["tensorflow"]

    def test_none_has_a_trace_of_options_that_are_not_there(self, texts):
        absent = (
            "window chunk sinks rotary norm temperature softcap gate bucket cache record_step score_bias positions "
        )
        absent += "segments offset traced config readable mha."
        for backend, text in texts.items():
            body = text.partition('"""\n')[2]
            words = set(re.findall(r"[a-z_.]+", body))
            assert not {*absent.split()} & words, backend
            assert "call." not in body

    def test_the_lines_for_torch_are_few(self, texts):
        code, lines = writing.counted(texts["torch"])
        assert (code <= 70, lines <= 110) == (True, True), (code, lines)
        code, lines = writing.counted(files.file_text(Recipe(writing.config(**LLAMA), "torch")))
        assert (code <= 120, lines <= 180) == (True, True), (code, lines)

    def test_style_checkers_find_nothing(self, texts, tmp_path):
        for backend, text in texts.items():
            (tmp_path / f"{backend}_attention.py").write_text(text)
        for backend in ("torch", "tensorflow"):
            together = files.file_text(Recipe(writing.config(**writing.TOGETHER), backend, writing.MORE))
            (tmp_path / f"{backend}_together.py").write_text(together)
        for command in (["check", "--extend-select", "E501"], ["format", "--check"]):
            done = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--line-length", "120", "--isolated", "--no-cache", "."],
                cwd=tmp_path, capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout

    def test_the_same_command_gives_the_same_bytes(self, tmp_path):
        folders = [tmp_path / "here", tmp_path / "there"]
        for folder in folders:
            folder.mkdir()
        mha.write(writing.config(), "torch", folders[0] / "attention.py")
        command = [sys.executable, "-m", "mha", "write", "torch", "--num-hiddens", "24", "--num-heads", "4"]
        done = subprocess.run(
            [*command, "-o", str(folders[1] / "attention.py")],
            env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = [[path.read_bytes() for path in sorted(folder.iterdir())] for folder in folders]
        assert found[0] == found[1]
        assert len(found[0]) == 3

    def test_shapes_and_docstrings_of_the_lesson_are_there(self, texts):
        for text in texts.values():
            for line in re.findall(r"\n[^\n]*(?:reshape|transpose|permute)\([^\n]*", text):
                assert re.search(r"# \(|swapaxes|transpose_b|def |transpose_(qkv|output)", line), line
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name != "setup":
                    assert ast.get_docstring(node), node.name

    def test_check_says_whether_a_file_is_as_written(self, tmp_path, monkeypatch):
        path = tmp_path / "attention.py"
        result = run("write", "numpy", "-o", str(path), "--num-hiddens", "24", "--num-heads", "4")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "attention.py is written: " in result.stdout
        assert run("write", "--check", str(path)).exit_code == 0
        text = path.read_text()
        path.write_text(text.replace("math.sqrt", "math.cbrt"))
        result = run("write", "--check", str(path))
        assert (result.exit_code, "was edited" in result.stdout) == (1, True)
        path.write_text(text)
        monkeypatch.setattr(mha, "__version__", "99.0")
        result = run("write", "--check", str(path))
        assert (result.exit_code, "is outdated" in result.stdout) == (1, True)
        result = run("write", "--check", str(tmp_path / "other.py"))
        assert (result.exit_code, "there is no file" in result.stderr) == (2, True)
        for other in ("x = 1\n", "# Made of: []\n", text.replace('"backend": "numpy"', '"backend": "nunpy"')):
            path.write_text(other)
            result = run("write", "--check", str(path))
            assert (result.exit_code, "no file that mha wrote" in result.stderr) == (2, True)

    def test_nothing_is_overwritten_without_force(self, tmp_path):
        path = tmp_path / "attention.py"
        (tmp_path / "test_attention.py").write_text("kept")
        result = run("write", "numpy", "-o", str(path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "test_attention.py exists already; give another path, or --force to overwrite it" in result.stderr
        assert [one.name for one in tmp_path.iterdir()] == ["test_attention.py"]
        assert run("write", "numpy", "-o", str(path), "--force").exit_code == 0
        assert len(list(tmp_path.iterdir())) == 3

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ((), "BACKEND is missing, expected a framework, such as torch, or --check FILE"),
            (("pytorc",), "backend is 'pytorc', expected one of"),
            (("torch", "-o", "a-b.py"), "expected a name of a Python module, such as attention.py"),
            (("torch", "--window", "5"), "--window is '5', expected two numbers of keys"),
            (("torch", "--rotary", "dim=3"), "--rotary is 'dim=3': dim of Rotary is 3, expected an even number"),
            (("torch", "--rotary", "speed=3"), "expected base alone, none, or parts such as base=...: dim, base"),
            (("torch", "--qk-norm", "rns"), "--qk-norm is 'rns': kind of Norm is 'rns', expected one of rms, layer"),
            (("torch", "--call", "posit"), "call is 'posit', expected one of valid_lens"),
            (("torch", "--num-heads", "3", "--num-key-value-heads", "2"), "expected a divisor of num_heads = 3"),
            (("torch", "--names", "lama"), "names is 'lama', expected one of mha, "),
            (("torch", "--names", "gpt2", "--sinks"), "names is 'gpt2', whose files have no sinks; choose another"),
            (("jax", "--names", "t5", "--bias"), "names is 't5', whose files have no W_q.bias; choose another"),
            (("jax", "--names", "keras", "--output-gate", "head"), "whose files have no output_gate of heads"),
            (("torch", "--names", "timm", "--num-key-value-heads", "2"), "whose files have no num_key_value_heads"),
            (("torch", "--names", "neox", "--key-size", "7"), "key_size is 7, expected 512 as of queries"),
            (("torch", "--names", "torch-separate", "--value-dim", "7"), "value_dim is 7, expected 64 as of queries"),
            (("torch", "--names", "opt", "--sinks"), "names is 'opt', whose files have no sinks; choose another"),
            (("torch", "--like", "absent"), "absent"),
            (("torch", "--fused", "--softcap", "3"), "fused is True beside softcap, which the kernel does not know"),
            (("torch", "--fused", "--call", "return_weights"), "fused is True beside return_weights, which the kernel"),
            (("jax", "--fused", "--dropout", "0.1"), "fused is True beside dropout, which the kernel does not know"),
            (("mlx", "--fused", "--dropout", "0.1"), "fused is True beside dropout, which the kernel does not know"),
            (("jax", "--fused", "--value-dim", "5"), "fused is True beside value_dim, which the kernel does not know"),
            (("jax", "--kind", "nnn"), "kind is 'nnn', expected one of linen, nnx"),
            (("torch", "--kind", "nnx"), "kind is 'nnx', expected none for PyTorch, whose modules are all of one"),
            (("mxnet", "--fused"), "fused is True, expected False for MXNet, of which no kernel is taken"),
            (("torch", "--like", ".", "--softcap", "3"), "--softcap is given beside --like, whose file says it"),
            (("torch", "--layer", "3"), "--layer is given without --like, expected both"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_one_line(self, tmp_path, monkeypatch, arguments, told):
        monkeypatch.chdir(tmp_path)
        result = run("write", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in result.stderr
        assert result.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_layer_is_as_good_as_its_configuration(self, tmp_path):
        layer = mha.MultiHeadAttention(24, 4, seed=1)
        path = mha.write(layer, "numpy", tmp_path / "attention.py")[0]
        assert path.read_text() == files.file_text(Recipe(writing.config(), "numpy"))
        with pytest.raises(TypeError, match=r"layer is a dict, expected an mha.MultiHeadAttention or its .config"):
            mha.write({}, "numpy", tmp_path / "attention.py")

    def test_the_usual_kind_need_not_be_said(self, texts):
        assert files.file_text(Recipe(writing.config(), "jax", kind="linen")) == texts["jax"]
        assert '"kind"' not in texts["jax"]

    @pytest.mark.parametrize("name", writing.OPTIONS)
    def test_the_command_in_a_file_is_its_configuration(self, name):
        config = writing.config(**writing.OPTIONS[name])
        words = Recipe(config, "torch", ("offset",)).command.split()
        given = dict(zip(words[3::2], words[4::2], strict=False)) if "--bias" not in words else {}
        for option in commands.PARTS:
            value = getattr(config, option)
            written = given.get(f"--{option.replace('_', '-')}")
            if value is not None:
                made = commands.parse_option(option, written)
                made = made.within(config.key_dim) if option == "rotary" else made
                assert made == value
            else:
                assert written is None
        if config.window is not None:
            assert commands.parse_window(given["--window"]) == config.window
