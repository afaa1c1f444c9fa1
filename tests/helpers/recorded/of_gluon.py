"""The decoder in Gluon."""

from mxnet import np, npx
from mxnet.gluon import nn

from mha import parity
from recorded import EPS, LAYERS, WRONG_EPS, D, M, V, attend, d, tokens, weights

BACKEND = "mxnet"
PATHS = "body.{}.mixer", "last"

npx.set_np()


class Attention(nn.Block):
    scale = d**-0.5

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three, self.out = (dense(D, D) for _ in range(4))

    def forward(self, x):
        return self.out(attend(np, npx.softmax, self.one(x), self.two(x), self.three(x), self.scale))


def dense(width, entering):
    return nn.Dense(width, flatten=False, use_bias=False, in_units=entering)


class Block(nn.Block):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.LayerNorm(epsilon=EPS, in_channels=D) for _ in range(2))
        self.mixer, self.wide, self.narrow = Attention(), dense(M, D), dense(D, M)

    def forward(self, x):
        x = x + self.mixer(self.first(x))
        y = self.wide(self.second(x))
        y = 0.5 * y * (1 + np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3)))
        return x + self.narrow(y)


class Decoder(nn.Block):
    def __init__(self):
        super().__init__()
        self.table, self.last, self.out = nn.Embedding(V, D), nn.LayerNorm(epsilon=EPS, in_channels=D), dense(V, D)
        self.body = nn.Sequential()
        self.body.add(*(Block() for _ in range(LAYERS)))

    def forward(self, ids):
        return self.out(self.last(self.body(self.table(ids))))


def recorded(mistake="", path=None, **options):
    """A record of one call."""
    made, found, ids = Decoder(), {name: np.array(X) for name, X in weights().items()}, np.array(tokens())
    made.initialize()
    made(ids)
    made.table.weight.set_data(found["embed"])
    made.out.weight.set_data(found["head"].T)
    norms = {"norm": made.last}
    for at in range(LAYERS):
        block = made.body[at]
        attention = block.mixer
        places = {"q": attention.one, "k": attention.two, "v": attention.three, "o": attention.out}
        for name, module in (places | {"up": block.wide, "down": block.narrow}).items():
            module.weight.set_data(found[f"{at}.{name}"].T)
        norms |= {f"{at}.before": block.first, f"{at}.after": block.second}
    for name, module in norms.items():
        module.gamma.set_data(found[f"{name}.scale"])
        module.beta.set_data(found[f"{name}.bias"])
    if mistake == "scale":
        made.body[1].mixer.scale = 1.0
    elif mistake == "eps":
        made.body[1].second._epsilon = WRONG_EPS
        made.body[1].second._kwargs["eps"] = WRONG_EPS
    with parity.record(made, path, **options) as record:
        made(ids)
    return record
