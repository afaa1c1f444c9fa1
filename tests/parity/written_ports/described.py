"""Right ports whose call was described in another way than it was made."""

import numpy as np
from ports import Port

from .written import CAUSAL, GROUPED, LENGTHS, LLAMA, PLAIN, Written


class PaddingSeesNothing(Port):
    """As Flax makes masks of tokens by tokens: padded queries see no key, and get the mean of all values."""

    def lengths(self, seen, valid_lens):
        tokens = np.arange(seen.shape[-1]) < valid_lens[:, None]
        return seen & tokens[:, None, None] & tokens[:, None, :, None]

    def softmax(self, scores, seen):
        return super().softmax(np.where(seen, scores, np.finfo("f4").min), np.ones_like(seen))


HALF = {"mask": np.random.default_rng(1).random((3, 1, 13, 13)) < 0.5}
PADDING = {"mask": (np.arange(13) < np.array([13, 4, 7])[:, None])[:, None, None]}


def described(id, layer, call, really, name, mistake="", **more):
    """A right port of a layer, called otherwise than it was described; mistake: what it may as well be."""
    return Written(id, Port, layer, call, "output", mistake, really=really, described=(name,), **more)


DESCRIBED = [
    described("an offset that nobody told", LLAMA, CAUSAL, {"offset": 5}, "offset", tokens=(7, 13)),
    described("True hides", PLAIN, HALF, {"mask": lambda call: ~call["mask"]}, "mask", "the mask is inverted"),
    described("a mask of keys by queries", GROUPED, HALF, {"mask": lambda call: call["mask"].swapaxes(2, 3)}, "mask"),
    described("causal was left out", LLAMA, {}, CAUSAL, "causal"),
    described("lengths were left out", PLAIN, {}, {"valid_lens": np.array([13, 5, 7])}, "valid_lens"),
    described("causal was made up", LLAMA, CAUSAL, {"causal": False}, "causal", "causal order is ignored"),
    Written(
        "padded queries that see nothing", PaddingSeesNothing, LLAMA, CAUSAL | LENGTHS, "output", described=("rows",)
    ),
    described("a mask that was not used", PLAIN, PADDING, {"mask": None}, "mask", "the mask is ignored"),
]
