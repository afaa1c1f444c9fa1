"""Mistakes in one layer of `small_llama`, each with the name that the catalogue has for it."""

import torch
from small_llama import GROUPS, HEAD_DIM, HEADS, WIDTH, Attention


class Interleaved(Attention):
    def split(self, x, heads):
        return x.view(*x.shape[:2], -1, heads).permute(0, 3, 1, 2)  # (B, H, T, d)


class Tiled(Attention):
    def share(self, x):
        return x.repeat(1, HEADS // GROUPS, 1, 1)


class Neighbours(Attention):
    def turn(self, x, before):
        angles = self.angles(torch.arange(before, before + x.shape[2]).float())
        cos, sin, (a, b) = angles.cos(), angles.sin(), (x[..., ::2], x[..., 1::2])
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)  # (B, H, T, d)


class Backwards(Attention):
    def angles(self, places):
        return super().angles(-places)


class OtherBase(Attention):
    def angles(self, places):
        return torch.outer(places, 500000.0 ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))


class Unturned(Attention):
    def turn(self, x, before):
        return x


class ValuesTurned(Attention):
    def share(self, x):
        self.shares = not getattr(self, "shares", False)  # of keys first, then of values
        return super().share(x if self.shares else self.turn(x, 0))


class NoScale(Attention):
    def scores(self, q, k):
        return q @ k.transpose(2, 3)


class ScaledTwice(Attention):
    def scores(self, q, k):
        return super().scores(q, k) * HEAD_DIM**-0.5


class ScaleOfModel(Attention):
    def scores(self, q, k):
        return q @ k.transpose(2, 3) * WIDTH**-0.5


class NoOrder(Attention):
    """Padding is hidden, what follows is not: the last query of each sample sees what is no padding."""

    def see(self, seen):
        return seen[:, :, -1:].expand_as(seen)


class OneAhead(Attention):
    def see(self, seen):
        return seen | torch.cat((seen[:, :, 1:], seen[:, :, -1:]), 2)


class NoPadding(Attention):
    def see(self, seen):
        return torch.ones_like(seen).tril(seen.shape[3] - seen.shape[2])


class NotMerged(Attention):
    def merge(self, x):
        return x.reshape(len(x), x.shape[2], -1)  # (B, T, H*d)


class HeadsLast(Attention):
    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)  # (B, T, d*H)


class PositionsFromZero(Attention):
    """New tokens after a cache begin at position 0."""

    def turn(self, x, before):
        return super().turn(x, 0)


class NoCache(Attention):
    """The cache is returned, and never read."""

    def forward(self, x, seen, past=None):
        output, own = super().forward(x, seen[..., -x.shape[1] :])
        kept = own if past is None else tuple(torch.cat(pair, 2) for pair in zip(past, own, strict=True))
        return output, kept


# The mistakes of one call, each with a name in the catalogue: any of these is right.
IN_A_CALL = {
    Interleaved: ("are interleaved",),
    Tiled: ("heads of keys are tiled, not repeated",),
    Neighbours: ("rotary components are paired the other way",),
    Backwards: ("the rotation goes backwards",),
    OtherBase: ("another base",),
    Unturned: ("the rotation is forgotten",),
    ValuesTurned: ("values turn, too",),
    NoScale: ("no scale",),
    ScaledTwice: ("the scale is applied twice", "the scale lacks its root"),
    ScaleOfModel: ("the scale of D for that of d",),
    NoOrder: ("causal order is ignored",),
    OneAhead: ("causal order is off by one",),
    NoPadding: ("the mask is ignored", "lengths are ignored"),
    NotMerged: ("the merge lacks the permute",),
    HeadsLast: ("the heads of W_o are interleaved",),
}
