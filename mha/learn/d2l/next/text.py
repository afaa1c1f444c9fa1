"""The text of the book's next edition, *The Time Machine* by H. G. Wells, as numbers of characters."""

import collections
import hashlib
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mha.core.options import checks

FOLDER = Path("../data")  # as in the book, beside the folder of its chapter
ADDRESS = "http://d2l-data.s3-accelerate.amazonaws.com/timemachine.txt"
SHA1 = "090b5e7e70c295757f55df93cb0a180b9691891a"


class Vocab:
    """The characters of a text, the most frequent first, after "<unk>", which stands for all others."""

    def __init__(self, text: str) -> None:
        found = [character for character, _ in collections.Counter(text).most_common()]
        self.idx_to_token = ["<unk>", *found]
        self.token_to_idx = {token: index for index, token in enumerate(self.idx_to_token)}

    def __len__(self) -> int:
        return len(self.idx_to_token)

    def __getitem__(self, tokens: str | Sequence[str]) -> Any:
        """The number of a character, or those of a list of them."""
        if isinstance(tokens, str):
            return self.token_to_idx.get(tokens, 0)
        return [self[token] for token in tokens]


class TimeMachine:
    """The windows of so many characters of the text, with the characters that follow them.

    Args:
        batch_size: number of windows that are given at a time.
        num_steps: number of characters of a window.
        num_train, num_val: numbers of windows to train with, the first ones, and to validate with, those after them.
        tokenization: "char"; the chapter "Attention" has no other.

    The text is in `../data/timemachine.txt`; if it is not there, it is fetched as the book does. A subclass makes the
    framework's batches of windows with one character more: `batches(windows, shuffle)`.

    Raises:
        TypeError, ValueError: if an argument is not as above, or if there are too few windows.
        OSError: if the text can be neither read nor fetched.
    """

    batches: Any

    def __init__(
        self, batch_size: int, num_steps: int, num_train: int = 10000, num_val: int = 5000, *, tokenization: str
    ) -> None:
        self.batch_size, self.num_steps = checks.size("batch_size", batch_size), checks.size("num_steps", num_steps)
        self.num_train, self.num_val = checks.size("num_train", num_train), checks.size("num_val", num_val)
        checks.choice("tokenization", tokenization, ("char",))
        text = re.sub("[^A-Za-z]+", " ", read()).lower()
        self.vocab = Vocab(text)
        self.corpus = np.array(self.vocab[list(text)])
        windows = len(text) - num_steps
        if windows < self.num_train + self.num_val:
            raise ValueError(
                f"num_train is {num_train} and num_val {num_val}, expected at most {max(windows, 0)} windows of "
                f"{num_steps} characters together"
            )
        if self.num_train < self.batch_size:
            raise ValueError(f"num_train is {num_train}, expected at least batch_size = {batch_size}")

    def train_dataloader(self) -> Any:
        """Batches of windows (batch_size, num_steps) and of what follows each character, in a random order."""
        return self.batches(self.windows(train=True), shuffle=True)

    def val_dataloader(self) -> Any:
        """Batches of windows (batch_size, num_steps) and of what follows each character, in their order."""
        return self.batches(self.windows(train=False), shuffle=False)

    def windows(self, train: bool) -> np.ndarray:
        """The windows to train with, or to validate with, each with one character more: (windows, num_steps + 1)."""
        every = np.lib.stride_tricks.sliding_window_view(self.corpus, self.num_steps + 1)
        return every[: self.num_train] if train else every[self.num_train : self.num_train + self.num_val]


def read() -> str:
    """The text, from its file, or from where the book has it."""
    path = FOLDER / "timemachine.txt"
    if not path.exists():
        try:
            with urllib.request.urlopen(ADDRESS) as answer:
                data = answer.read()
        except OSError as error:
            raise OSError(f"{path} is not there, and {ADDRESS} does not answer: {error}; put the text there") from error
        if (found := hashlib.sha1(data, usedforsecurity=False).hexdigest()) != SHA1:
            raise OSError(f"{ADDRESS} has another text than the book's: its SHA-1 is {found}, expected {SHA1}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return path.read_text(encoding="utf-8")


def forever(data: Any) -> Iterator[Any]:
    """The batches to train with, in another order each time that all were given."""
    while True:
        yield from data.train_dataloader()
