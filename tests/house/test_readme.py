"""The README and the pages it links to: their code runs as it stands, their links lead somewhere, it stays short.

Code that needs certain frameworks is in tests/real/test_recipe.py.
"""

import re

import adapters
import numpy as np
import pages
import pytest
import safetensors.numpy

import mha
from mha import weights
from mha.core.options.config import Config
from mha.weights import schemes

SWITCH, _, CHECKPOINT, _ = pages.code("README.md")
PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in pages.ROOT.glob("docs/*.md")),
    "docs/course/README.md",
]


def test_switching(backend, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHA_BACKEND", backend)
    names = {}
    exec(SWITCH, names)
    assert capsys.readouterr().out.replace("torch.Size([2, 4, 100])", "(2, 4, 100)") == f"{backend} (2, 4, 100)\n"
    assert tuple(names["weights"].shape) == (2, 5, 4, 6)
    assert names["same"].config == names["attention"].config
    assert "W_q.kernel" in names["gradients"]


def test_a_layer_of_a_checkpoint(backend, monkeypatch, tmp_path):
    """It is shown for PyTorch, with a file of BERT's names."""
    monkeypatch.chdir(tmp_path)
    config = Config(24, 12, bias=True)
    arrays = schemes.from_canonical(config, weights.initial(config, 0), "bert")
    named = {f"encoder.layer.0.attention.{name}": np.ascontiguousarray(X) for name, X in arrays.items()}
    safetensors.numpy.save_file(named, "model.safetensors")
    names = {}
    exec(CHECKPOINT.replace("torch", backend), names)
    assert names["attention"].backend == backend
    assert names["attention"].config == config


def test_using_the_layer(backend, monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", backend)
    block, *_ = pages.code("docs/layer.md")
    names = {}
    exec(block, names)
    assert tuple(names["output"].shape) == (2, 4, 100)
    assert tuple(names["weights"].shape) == (2, 5, 4, 6)
    assert list(names["steps"])[-1] == "output"
    assert "W_q.bias" in names["gradients"]
    copied, source = names["other"].weights, names["attention"].weights
    assert all(np.array_equal(copied[name], X) for name, X in source.items())


@pytest.mark.long(*adapters.COMPILED)
def test_decoding(backend, monkeypatch):
    monkeypatch.setenv("MHA_BACKEND", backend)
    exec("\n".join(pages.code("docs/decoding.md")), {})


def test_training_without_a_frameworks_loop(backend, monkeypatch, capsys):
    monkeypatch.setenv("MHA_BACKEND", backend)
    *_, block = pages.code("docs/layer.md")
    names = {}
    exec(block.replace("import mha, numpy", "import mha, numpy; mha.manual_seed(0)"), names)
    assert float(capsys.readouterr().out) < 0.7  # at first 1.5
    assert names["attention"].backend == backend


@pytest.mark.long("jax")
def test_todays_models(backend, monkeypatch, capsys):
    monkeypatch.setenv("MHA_BACKEND", backend)
    names = {}
    for block in pages.code("docs/models.md"):
        exec(block, names)
    assert "'norm_q', 'norm_k', 'rotate_q', 'rotate_k', 'scores', 'capped', 'weights'" in capsys.readouterr().out

    def agree(found, *expected):
        return np.allclose(mha.to_numpy(found), np.concatenate(expected, 1), rtol=0, atol=1e-5)

    # Token by token, and each segment, prefix and length by itself, as calls that need no such recipe.
    attention, heads, X = names["attention"], names["heads"], mha.to_numpy(names["X"])
    assert agree(attention(X, X, X, causal=True), *(mha.to_numpy(one) for one in names["one_by_one"]))
    padded, short = mha.to_numpy(names["padded"]), X[:1, 3:]
    assert agree(padded[:1, 3:], attention(short, short, short, causal=True))
    assert agree(padded[1:], attention(X, X, X, causal=True)[1:])
    parts = (X[:1, :4], X[:1, 4:7], X[:1, 7:9])
    assert agree(names["packed"][:1, :9], *(attention(part, part, part, causal=True) for part in parts))
    seen = X[:1, :3]
    one_by_one = (heads(X[:1, i : i + 1], X[:1, : i + 1], X[:1, : i + 1]) for i in range(3, 10))
    assert agree(names["prefix"][:1], heads(seen, seen, seen), *one_by_one)
    some = heads(X[:1, :4], X[:1, :7], X[:1, :7])
    assert agree(names["ragged"][:1], some, np.zeros((1, 6, 64), "float32"))


@pytest.mark.backends("mlx")
def test_a_compiled_step_in_mlx(backend, capsys):
    (block,) = pages.code("docs/mlx.md")
    names = {}
    exec(block, names)
    losses = [names["compiled"](names["mx"].ones((2, 3, 8))).item() for _ in range(20)]
    assert losses[-1] < float(capsys.readouterr().out)  # the step has the weights that it changes


@pytest.mark.backends("torch")
def test_a_model_of_ones_own(backend):
    *_, block, _ = pages.code("docs/layer.md")
    names = {}
    exec(block, names)
    model = names["Model"]()
    assert len(list(model.parameters())) == 4
    assert model(mha.ones((2, 4, 100), backend="torch"), mha.tensor([3, 2], backend="torch")).shape == (2, 4, 100)


def test_a_fixed_tolerance_misleads(capsys):
    _, block, *_ = pages.code("docs/one-layer.md")
    exec(block, {})
    passes, right, wrong = capsys.readouterr().out.split()
    assert passes == "True"
    assert float(right) <= 1
    assert float(wrong) > 10


def test_a_port_in_ones_own_tests(capsys):
    *_, block, _, test, decoder = pages.code("docs/one-layer.md")
    names = {}
    exec(block, names)
    compared, *left_out = capsys.readouterr().out.splitlines()
    assert re.match(r"\d+ cases the same, the largest ratio 0\.", compared)
    assert "left out, it takes no mask: float64, mask" in left_out
    exec(decoder, names)
    compared, ragged, *_ = capsys.readouterr().out.splitlines()
    assert compared.startswith("2 cases the same")
    assert ragged.startswith("left out, it takes neither valid_lens nor positions: float64, decoding, ragged")
    exec(test, names)
    with pytest.raises(AssertionError, match=r"raised in 1 of 1 case .*KeyError: 'W_q.bias'"):
        mha.testing.assert_parity(names["port"], "numpy", cases="equal widths, no bias", dtypes="float64")
    assert names["test_port"].__code__.co_varnames == ("mha_backend",)


def test_a_report_is_printed_as_the_page_shows_it(capsys):
    block, decoding = pages.code("docs/parity.md")
    names = {}
    exec(block, names)
    shown = re.findall(r"```text\n(.*?)```", pages.text("docs/parity.md"), re.DOTALL)[0]

    def without_digits(text):  # the last of them are the processor's
        return [re.sub(r"[\d.e+-]+", "0", line).split() for line in text.splitlines()]

    assert without_digits(capsys.readouterr().out) == without_digits(shown)
    exec(decoding, names)
    found = capsys.readouterr().out
    assert "samples 0 of 2; slots 3, 5 of 8" in found
    assert "why: positions are counted from the padded length (and their slots)" in found


def test_the_page_has_the_catalogue_as_it_is():
    import make_catalogue

    assert pages.text("docs/parity.md").endswith(make_catalogue.lists())


def test_the_page_has_every_kind_of_model():
    import make_kinds

    assert make_kinds.table() + "\n" in pages.text("docs/weights.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = (pages.ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", pages.text(page), flags=re.DOTALL)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = folder / path if path else pages.ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def anchors(text):
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short_and_links_every_page():
    text = pages.text("README.md")
    assert len(text.split()) <= 900
    assert [page for page in PAGES[1:] if f"]({page}" not in text] == []
