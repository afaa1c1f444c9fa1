"""LLaMA's attention as `transformers` has it, written out, with mistakes to put into one layer of a model.

Letters: B samples, T tokens, H heads, G heads of keys and values, d the width of a head.
"""

import types

import torch


class Right:
    """Right attention of a LLaMA, Mistral or Qwen 3; each method is where a mistake may be made."""

    base, shift = 10000.0, 0

    def __init__(self, module, window=None):
        self.module, self.config, self.window = module, module.config, window
        self.H, self.G, self.d = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim

    def __call__(self, hidden_states, attention_mask):
        x, m = hidden_states, self.module
        q, k = self.split("q", m.q_proj(x), self.H), self.split("k", m.k_proj(x), self.G)
        v = self.split("v", m.v_proj(x), self.G)
        q, k = self.prepare(q, k)
        k, v = self.share(k), self.share(self.values(v))
        seen = self.seen(torch.arange(x.shape[1]), attention_mask)
        pooled = self.weights(self.scores(q, k), seen).to(v.dtype) @ v
        return m.o_proj(self.merge(pooled))

    def split(self, role, x, heads):
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)  # (B, H, T, d)

    def prepare(self, q, k):
        return self.turn("q", self.norm("q", q)), self.turn("k", self.norm("k", k))

    def norm(self, role, x):
        return getattr(self.module, f"{role}_norm", torch.nn.Identity())(x)

    def places(self, role, count):
        return torch.arange(count).float()

    def frequencies(self):
        return self.base ** (-torch.arange(0, self.d, 2).float() / self.d)

    def turn(self, role, x):
        angles = torch.outer(self.places(role, x.shape[2]), self.frequencies())  # (T, d / 2)
        return self.turned(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))

    def turned(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)  # (B, H, T, d)

    def values(self, v):
        return v

    def share(self, x):
        return x.repeat_interleave(self.H // self.G, 1)

    def scale(self):
        return self.d**-0.5

    def scores(self, q, k):
        return q @ k.transpose(2, 3) * self.scale()

    def order(self, i, j):
        seen = j <= i
        return seen if self.window is None else seen & (i - j < self.window)

    def seen(self, places, mask):
        return self.order(places[:, None], places) & self.padding(mask)

    def padding(self, mask):
        return mask[:, None, None].bool()  # (B, 1, 1, T)

    def weights(self, scores, seen):
        return scores.float().masked_fill(~seen, -1e30).softmax(-1)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)  # (B, T, H*d)


def changed(name, known, *, of=("llama", "mistral", "qwen3"), **methods):
    """A class with a mistake; known: beginnings of the names of the catalogue, () = it has none."""
    made = type(name.title().replace(" ", ""), (Right,), methods)
    made.title, made.known, made.of = name, known, of
    return made


def interleaved(*roles):
    def split(self, role, x, heads):
        if role not in roles:
            return Right.split(self, role, x, heads)
        return x.view(*x.shape[:2], -1, heads).permute(0, 3, 1, 2)  # (B, H, T, d)

    return split


def neighbours(self, x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)  # (B, H, T, d)


def dropped(self, scores, seen):
    kept = Right.weights(self, scores, seen)
    return kept * (torch.rand(kept.shape, generator=torch.Generator().manual_seed(1)) > 0.2) / 0.8


def one_more(self, scores, seen):
    scores = torch.cat((scores.float().masked_fill(~seen, -1e30), torch.zeros(*scores.shape[:3], 1)), -1)
    return scores.softmax(-1)[..., :-1]


def rms(x, eps, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


WINDOWED, NORMED = ("mistral",), ("qwen3",)
MISTAKES = [
    changed("heads of queries interleaved", ("the heads of W_q are interleaved",), split=interleaved("q")),
    changed("heads of keys interleaved", ("the heads of W_k are interleaved",), split=interleaved("k")),
    changed("heads of values interleaved", ("the heads of W_v are interleaved",), split=interleaved("v")),
    changed("keys tiled", ("heads of keys are tiled",), share=lambda self, x: x.repeat(1, self.H // self.G, 1, 1)),
    changed("another base", ("another base",), base=500000.0),
    changed("pairs of neighbours", ("rotary components are paired the other way",), turned=neighbours),
    changed("a rotation backwards", ("the rotation goes backwards",),
            turned=lambda self, x, cos, sin: Right.turned(self, x, cos, -sin)),
    changed("no rotation", ("the rotation is forgotten",), turn=lambda self, role, x: x),
    changed("no rotation of keys", ("the rotation is forgotten",),
            turn=lambda self, role, x: x if role == "k" else Right.turn(self, role, x)),
    changed("queries one further", ("the rotation is off by one",),
            places=lambda self, role, count: torch.arange(count).float() + (role == "q")),
    changed("keys twice", ("keys turn twice",),
            places=lambda self, role, count: torch.arange(count).float() * (1 + (role == "k"))),
    changed("frequencies in bfloat16", ("frequencies in half precision",),
            frequencies=lambda self: Right.frequencies(self).bfloat16().float()),
    changed("values turned", ("values turn, too",), values=lambda self, v: self.turn("v", v)),
    changed("no scale", ("no scale",), scale=lambda self: 1.0),
    changed("1 / d", ("the scale is applied twice", "the scale lacks its root"), scale=lambda self: 1 / self.d),
    changed("1 / sqrt(D)", ("the scale of D for that of d",), scale=lambda self: self.config.hidden_size**-0.5),
    changed("one key ahead", ("causal order is off by one",), of=("llama", "qwen3"),
            order=lambda self, i, j: j <= i + 1),
    changed("no order", ("causal order is ignored",), of=("llama", "qwen3"), order=lambda self, i, j: j > -i - 1),
    changed("triu", ("causal order is reversed",), of=("llama", "qwen3"), order=lambda self, i, j: j >= i),
    changed("no padding", ("the mask is ignored", "the padding mask is on the axis"),
            padding=lambda self, mask: mask[:, None, None] >= 0),
    changed("padding of queries", ("the mask is ignored", "the padding mask is on the axis"),
            padding=lambda self, mask: mask[:, None, :, None].bool()),
    changed("dropout", ("dropout left on",), weights=dropped),
    changed("a softmax plus one", ("1 is added to the sum of the softmax",), weights=one_more),
    changed("no merge", ("the merge lacks the permute",), merge=lambda self, x: x.reshape(len(x), x.shape[2], -1)),
    changed("heads last", ("the heads of W_o are interleaved",),
            merge=lambda self, x: x.permute(0, 2, 3, 1).flatten(2)),
    changed("no window", ("the window is ignored",), of=WINDOWED, order=lambda self, i, j: j <= i),
    changed("a window one wider", ("the window is one wider",), of=WINDOWED,
            order=lambda self, i, j: (j <= i) & (i - j <= self.window)),
    changed("a window one narrower", ("the window is one narrower",), of=WINDOWED,
            order=lambda self, i, j: (j <= i) & (i - j < self.window - 1)),
    changed("no norms", ("the norms are forgotten",), of=NORMED, norm=lambda self, role, x: x),
    changed("norms after the rotation", ("the norm comes after the rotation",), of=NORMED,
            prepare=lambda self, q, k: (self.norm("q", self.turn("q", q)), self.norm("k", self.turn("k", k)))),
    changed("norms swapped", ("the norm of queries for that of keys",), of=NORMED,
            norm=lambda self, role, x: Right.norm(self, "k" if role == "q" else "q", x)),
    changed("a mask that is not low enough", (),
            weights=lambda self, scores, seen: scores.float().masked_fill(~seen, -3.0).softmax(-1)),
    changed("heads in reverse", (), merge=lambda self, x: Right.merge(self, x.flip(1))),
]  # fmt: skip


def put(model, at, kind, window=None):
    """Let layer `at` of a model compute as a kind of `Right` does, with the mask of the model's own call."""
    module = model.model.layers[at].self_attn
    attention, given = kind(module, window), {}
    model.register_forward_pre_hook(lambda _, args, named: given.update(named), with_kwargs=True)

    def forward(self, hidden_states, *args, **kwargs):
        return attention(hidden_states, given["attention_mask"]), None

    module.forward = types.MethodType(forward, module)
