"""What the chapter of the book's next edition has beside the layer: a small language model, its text, its helpers."""

import hashlib
import sys

import adapters
import numpy as np
import pages
import pytest
from mha.d2l.next import model, names, text

import mha
from mha import parity
from mha.learn.d2l import common

from . import next_book

B, T, H, D, N = 2, 7, 5, 30, 11  # N characters are known
BLOCKS = 2
POSITIONS = pytest.mark.parametrize("pos", model.POSITIONS)
WITH_NEXT = pytest.mark.needs("a section of the next edition")
NAMES = {
    "DotProductAttention", "MultiHeadAttention", "TimeMachine", "TinyCharLM", "add_to_class", "check_shape",
    "masked_softmax", "ones", "plot", "plt", "show_heatmaps", "tensor", "train_lm",
}  # fmt: skip
IN_TORCH = {"Module", "try_gpu"}


@pytest.fixture
def book(backend):
    with next_book.d2l_of(backend) as module:
        yield module


@pytest.fixture
def framework(backend):
    return next_book.of(backend)


@pytest.fixture
def story(tmp_path, monkeypatch):
    """A text of our own where the book's is read: 26 windows of 4 characters."""
    monkeypatch.setattr(text, "FOLDER", tmp_path)
    (tmp_path / "timemachine.txt").write_text("To be, or\n  NOT to be -- that is 1", encoding="utf-8")
    return "to be or not to be that is "


# The model


@WITH_NEXT
@POSITIONS
def test_a_model_is_blocks_of_attention(backend, book, framework, rng, pos):
    """As computed by NumPy's layers, in float64, from the weights of the model."""
    small = book.TinyCharLM(N, D, H, BLOCKS, pos, max_len=T, bias=True, **framework.seeded(1))
    X = rng.integers(0, N, (B, T))
    (own,) = adapters.of(backend).own(X)
    found, maps = small(own), small.attention_weights(own)
    base, exact = (by_numpy(framework, small, X, pos, dtype) for dtype in ("float32", "float64"))
    assert tuple(found.shape) == (B, T, N)
    assert len(maps) == BLOCKS
    for result, plain, expected in zip((found, *maps), base, exact, strict=True):
        assert parity.error(mha.to_numpy(result), expected) <= parity.bound("float32", expected, plain)
    assert all(tuple(weights.shape) == (B, H, T, T) for weights in maps)


def by_numpy(framework, small, X, pos, dtype):
    """The scores of a model, and the weights of its blocks, by layers of the NumPy backend in a dtype."""
    table = framework.table(small.token_emb).astype(dtype)
    rows, maps = table[X], []
    if pos == "learned":
        rows = rows + framework.table(small.pos_emb).astype(dtype)[:T]
    if pos == "sinusoidal":
        angles = [[p / 10000 ** (i // 2 * 2 / D) for i in range(D)] for p in range(T)]
        rows = rows + np.where(np.arange(D) % 2, np.cos(angles), np.sin(angles)).astype(dtype)
    options = {"rotary": mha.Rotary(interleaved=True)} if pos == "rope" else {}
    call = {"score_bias": mha.alibi(H, T, dtype=dtype)} if pos == "alibi" else {}
    for block in small.blks:
        layer = mha.MultiHeadAttention(D, H, bias=True, dtype=dtype, backend="numpy", **options)
        (kernel, at_bias), (last, at_last) = framework.read(block["qkv"]), framework.read(block["proj"])
        weights = {f"W_{x}.kernel": X for x, X in zip("qkv", np.split(kernel, 3, 1), strict=True)}
        weights |= {f"W_{x}.bias": X for x, X in zip("qkv", np.split(at_bias, 3), strict=True)}
        weights |= {"W_o.kernel": last, "W_o.bias": at_last}
        layer.weights = {name: X.astype(dtype) for name, X in weights.items()}
        attended, seen = layer(rows, rows, rows, causal=True, return_weights=True, **call)
        rows = rows + attended
        maps.append(seen)
    return rows @ table.T, *maps


@WITH_NEXT
def test_a_model_has_the_books_parameters(book, framework):
    sizes = {"learned": 13 * D, "sinusoidal": 0, "rope": 0, "alibi": 0, "none": 0}
    for pos, size in sizes.items():
        small = book.TinyCharLM(N, D, H, BLOCKS, pos, max_len=13, **framework.seeded(1))
        assert framework.count(small) == N * D + BLOCKS * 4 * D * D + size
        assert small.num_heads == H
    assert framework.count(book.TinyCharLM(N, **framework.seeded(1))) == N * 128 + 2 * 4 * 128 * 128
    biased = book.TinyCharLM(N, D, H, BLOCKS, bias=True, **framework.seeded(1))
    assert framework.count(biased) == N * D + BLOCKS * 4 * (D * D + D)
    table = framework.table(book.TinyCharLM(101, D, H, 1, "learned", **framework.seeded(1)).pos_emb)
    assert table.shape == (512, D)
    assert 0.018 < table.std() < 0.022


@WITH_NEXT
def test_the_same_seed_makes_the_same_model(book, framework):
    tables = [framework.table(book.TinyCharLM(N, D, H, 1, **framework.seeded(seed)).token_emb) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(*tables[:2])
    assert not np.array_equal(*tables[1:])


@WITH_NEXT
def test_a_model_refuses_what_it_cannot_do(backend, book, framework, rng):
    with pytest.raises(ValueError, match="pos is 'rotary', expected one of learned, sinusoidal, rope, alibi, none"):
        book.TinyCharLM(N, D, H, pos="rotary")
    with pytest.raises(ValueError, match="num_hiddens is 30, expected a multiple of num_heads = 4"):
        book.TinyCharLM(N, D, 4)
    (X,) = adapters.of(backend).own(rng.integers(0, N, (B, T)))
    for pos in ("learned", "sinusoidal"):
        small = book.TinyCharLM(N, D, H, 1, pos, max_len=T - 1, **framework.seeded(1))
        with pytest.raises(ValueError, match="X has 7 characters, expected at most max_len = 6"):
            small(X)


@WITH_NEXT
def test_a_model_learns_a_text(backend, book, framework, story):
    data = book.TimeMachine(batch_size=3, num_steps=4, num_train=20, num_val=3, tokenization="char")
    small = book.TinyCharLM(len(data.vocab), D, H, 1, **framework.seeded(1))
    losses = book.train_lm(small, data, framework.optimizer(small, 1e-2), 60)
    assert len(losses) == 60  # several times through the text
    assert all(isinstance(loss, float) for loss in losses)
    assert losses[0] == pytest.approx(np.log(len(data.vocab)), rel=0.01)
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])


@WITH_NEXT
@pytest.mark.long("jax")
def test_gradients_reach_every_part(backend, book, framework, rng):
    small = book.TinyCharLM(N, D, H, BLOCKS, "alibi", bias=True, **framework.seeded(1))
    (X,) = adapters.of(backend).own(rng.integers(0, N, (B, T)))
    parts = [block[name] for block in small.blks for name in ("qkv", "proj")]
    for gradients in framework.gradients(small, lambda small: (small(X) ** 2).sum(), *parts):
        assert all(np.abs(gradient).sum() for gradient in gradients)


@WITH_NEXT
def test_the_page_of_the_book_runs(backend):
    today, coming = pages.code("docs/book.md")
    exec({"torch": today, "jax": coming}[backend], {})


# The text


def test_characters_are_numbered_by_how_often_they_come(story):
    data = text.TimeMachine(3, 4, 20, 3, tokenization="char")
    vocab = data.vocab
    counts = [story.count(token) for token in vocab.idx_to_token[1:]]
    assert counts == sorted(counts, reverse=True)
    assert vocab.idx_to_token[0] == "<unk>"
    assert len(vocab) == 1 + len(set(story))
    assert "".join(vocab.idx_to_token[i] for i in data.corpus) == story
    assert vocab["?"] == 0
    assert vocab[["t", "?"]] == [vocab["t"], 0]


@WITH_NEXT
def test_windows_are_given_with_what_follows(backend, book, story):
    data = book.TimeMachine(batch_size=3, num_steps=4, num_train=11, num_val=5, tokenization="char")

    def read(batches):
        pairs = [[mha.to_numpy(each) for each in batch] for batch in batches]
        for X, Y in pairs:
            np.testing.assert_array_equal(X[:, 1:], Y[:, :-1])
        return [
            "".join(data.vocab.idx_to_token[i] for i in (*x, y[-1]))
            for X, Y in pairs
            for x, y in zip(X, Y, strict=True)
        ]

    windows = [story[i : i + 5] for i in range(16)]
    assert read(data.val_dataloader()) == windows[11:]
    first, second = (read(data.train_dataloader()) for _ in range(2))
    whole = {"torch": 11, "jax": 9}[backend]  # JAX leaves out a last, smaller batch
    assert len(first) == len(set(first)) == whole
    assert set(first) <= set(windows[:11])
    assert first != second
    assert first != windows[:whole]


def test_windows_that_there_are_not_are_refused(story):
    with pytest.raises(ValueError, match="num_train is 20 and num_val 4, expected at most 23 windows of 4 characters"):
        text.TimeMachine(3, 4, 20, 4, tokenization="char")
    with pytest.raises(ValueError, match="num_train is 2, expected at least batch_size = 3"):
        text.TimeMachine(3, 4, 2, 2, tokenization="char")
    with pytest.raises(ValueError, match="tokenization is 'bpe', expected one of char"):
        text.TimeMachine(3, 4, tokenization="bpe")
    with pytest.raises(TypeError, match="tokenization"):
        text.TimeMachine(3, 4)


def test_a_text_that_is_not_there_is_fetched_once_and_looked_at(tmp_path, monkeypatch):
    source, folder = tmp_path / "source.txt", tmp_path / "book" / "data"
    source.write_bytes(b"The Time Traveller")
    monkeypatch.setattr(text, "FOLDER", folder)
    monkeypatch.setattr(text, "ADDRESS", source.as_uri())
    with pytest.raises(OSError, match=r"has another text than the book's: its SHA-1 is \w{40}, expected 090b5e"):
        text.read()
    assert not folder.exists()
    monkeypatch.setattr(text, "SHA1", hashlib.sha1(source.read_bytes(), usedforsecurity=False).hexdigest())
    assert text.read() == "The Time Traveller"
    (folder / "timemachine.txt").unlink()
    assert text.read() == "The Time Traveller"
    source.unlink()
    assert text.read() == "The Time Traveller"
    (folder / "timemachine.txt").unlink()
    with pytest.raises(OSError, match=r"timemachine.txt is not there, and .* does not answer: .*; put the text there"):
        text.read()


# The helpers


def test_functions_become_methods():
    class Owner:
        number = 3

    @names.add_to_class(Owner)
    def twice(self):
        return 2 * self.number

    assert Owner().twice() == 6
    assert twice(Owner()) == 6


@pytest.fixture
def pyplot(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def drawn(axes):
    return [tuple(map(list, line.get_data())) for line in axes.get_lines()]


LINES = {
    "heights alone": (([3, 5, 7],), [([0, 1, 2], [3, 5, 7])]),
    "one line": (([1, 2], [3, 5]), [([1, 2], [3, 5])]),
    "several at the same places": (([1, 2], [[3, 5], [7, 11]]), [([1, 2], [3, 5]), ([1, 2], [7, 11])]),
    "places of their own": (([[1, 2], [4]], [[3, 5], [7]]), [([1, 2], [3, 5]), ([4], [7])]),
    "arrays": ((np.array([1, 2]), [np.array([3, 5]), np.array([7, 11])]), [([1, 2], [3, 5]), ([1, 2], [7, 11])]),
    "rows of an array": ((np.array([1, 2]), np.array([[3, 5], [7, 11]])), [([1, 2], [3, 5]), ([1, 2], [7, 11])]),
    "rows alone": ((np.array([[3, 5], [7, 11]]),), [([0, 1], [3, 5]), ([0, 1], [7, 11])]),
}


@pytest.mark.backends("numpy")
@pytest.mark.parametrize(("given", "expected"), LINES.values(), ids=LINES)
def test_lines_are_drawn(pyplot, given, expected):
    names.plot(*given)
    assert drawn(pyplot.gca()) == expected


@pytest.mark.backends("numpy")
def test_a_plot_is_a_new_figure_as_asked_for(pyplot):
    names.plot([1, 2], [[3, 5], [7, 11]], "x", "y", ["a", "b"], (1, 10), (2, 20), "linear", "log", ("r:", "g-"), (5, 4))
    axes = pyplot.gca()
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale()) == ("x", "y", "linear", "log")
    assert (axes.get_xlim(), axes.get_ylim()) == ((1, 10), (2, 20))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert [(line.get_color(), line.get_linestyle()) for line in axes.get_lines()] == [("r", ":"), ("g", "-")]
    assert tuple(axes.figure.get_size_inches()) == (5, 4)
    names.plot([1, 2], [3, 5])
    assert pyplot.gca() is not axes
    assert tuple(pyplot.gcf().get_size_inches()) == (3.5, 2.5)
    assert pyplot.gca().get_legend() is None
    names.plot([3], [4], axes=axes)
    assert drawn(axes) == [([3], [4])]


@pytest.mark.backends("numpy")
def test_lines_that_cannot_be_drawn_are_refused(pyplot):
    with pytest.raises(ValueError, match="X has 2 lines, expected 1 or as many as Y, 3"):
        names.plot([[1], [2]], [[1], [2], [3]])
    with pytest.raises(ValueError, match="fmts has 4 formats, expected one for each of 5 lines; give fmts="):
        names.plot([1], [[1], [2], [3], [4], [5]])


def test_pictures_say_that_they_need_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=r'plot needs matplotlib: pip install "matplotlib>=3.8"'):
        names.plot([1], [2])
    with pytest.raises(ModuleNotFoundError, match=r'show_heatmaps needs matplotlib: pip install "matplotlib>=3.8"'):
        common.show_heatmaps(np.ones((2, 3, 5, 7)), "Keys", "Queries")
    with pytest.raises(ModuleNotFoundError, match=r'plt needs matplotlib: pip install "matplotlib>=3.8"'):
        names.plt  # noqa: B018


# Which names there are


@WITH_NEXT
@pytest.mark.all_backends  # the one environment that has matplotlib
def test_a_framework_has_the_names_of_the_chapter_and_draws(backend, book, pyplot):
    wanted = NAMES | (IN_TORCH if backend == "torch" else set())
    assert {name for name in wanted if hasattr(book, name)} == wanted
    assert book.plt is pyplot
    (points,) = adapters.of(backend).own(np.array([[3, 5], [7, 11]], np.float32))
    book.plot(points[0], points)
    assert drawn(pyplot.gca()) == [([3, 5], [3, 5]), ([3, 5], [7, 11])]
    with pytest.raises(AttributeError, match=r"module 'mha\.d2l\.next' has no attribute 'Trainer'"):
        book.Trainer  # noqa: B018


@pytest.mark.backends("torch")
def test_what_pytorch_has_beside(book):
    import torch
    from mha.d2l import torch as today

    class Own(book.Module):
        pass

    assert isinstance(Own(), torch.nn.Module)
    for name in ("MultiHeadAttention", "DotProductAttention"):
        assert getattr(book, name) is getattr(today, name)
    assert book.try_gpu(torch.cuda.device_count()).type == "cpu"
