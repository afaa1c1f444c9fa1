"""Mistakes in PyTorch."""

from .mistaken import MIXED, OF_D, SHORT, SPLIT, ZERO, of_style

IN_TORCH = (
    *of_style(
        "torch_book",
        ({1: SHORT}, "[None, :] < valid_len[:, None]", "[None, :] + 1 < valid_len[:, None]"),
        ({1: ZERO}, "value=-1e6", "value=0"),
        (
            {2: "dropout left on"},
            "self.dropout = nn.Dropout(dropout)",
            "self.dropout = lambda X: nn.functional.dropout(X, dropout)",
        ),
        ({4: "K and V are swapped"}, "self.W_k(keys)", "self.W_v(keys)", "self.W_v(values)", "self.W_k(values)"),
        (
            {7: "a projection gets no gradient"},
            "self.W_o(output_concat)",
            "nn.functional.linear(output_concat, self.W_o.weight.detach(), self.W_o.bias)",
            "        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)",
            "        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)",
        ),
    ),
    *of_style(
        "torch_layer",
        (
            {5: SPLIT},
            "X.view(X.shape[0], X.shape[1], heads, self.d).transpose(1, 2)",
            "X.reshape(X.shape[0], heads, X.shape[1], self.d)",
        ),
        (
            {5: MIXED},
            "X.view(X.shape[0], X.shape[1], heads, self.d).transpose(1, 2)",
            "X.view(X.shape[0], X.shape[1], self.d, heads).permute(0, 3, 1, 2)",
        ),
        ({4: "dropout left on"}, "self.dropout(weights) @ v", "nn.functional.dropout(weights, self.dropout.p) @ v"),
        (
            {6: "causal order is off by one"},
            "torch.arange(K) <= start + torch.arange(Q)[:, None]",
            "torch.arange(K) <= start + torch.arange(Q)[:, None] + (cache is None)",
        ),
        ({7: "values are detached"}, "self.W_v(values)", "self.W_v(values).detach()"),
        (
            {7: "attention weights are detached"},
            "pooled = self.dropout(weights) @ v",
            "pooled = self.dropout(weights.detach()) @ v",
        ),
        (
            {8: "rotary components are paired the other way"},
            "    a, b = X[..., :half], X[..., half:]\n    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)",
            "    a, b = X[..., ::2], X[..., 1::2]\n    return torch.stack([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).flatten(-2)",
        ),
        (
            {8: "values turn, too"},
            "        if cache is not None:\n            if cache:",
            "            v = rotate(v, start + torch.arange(v.shape[2]), self.rotary)\n        if cache is not None:\n            if cache:",
        ),
        (
            {9: "the rotation begins again at every offset"},
            "rotate(q, start + torch.arange(Q)",
            "rotate(q, torch.arange(Q)",
        ),
        (
            {5: OF_D, 6: "the mask is inverted"},
            "/ self.d**0.5",
            "/ queries.shape[-1]**0.5",
            "(mask if mask.dim() == 2 else mask[:, None])",
            "~(mask if mask.dim() == 2 else mask[:, None])",
        ),
        ({4: "W_o is left out and no scale"}, "output = self.W_o(merged)", "output = merged", " / self.d**0.5", ""),
    ),
    *of_style(
        "torch_loops",
        (
            {5: "weights are averaged over the heads"},
            "            heads.append(head)",
            "            heads.append(head)\n        _ = 0",
            "        heads = []\n",
            "        shares = sum(dot_product_attention(a(queries), b(keys), c(values), valid_lens)[1] for a, b, c in zip(self.query, self.key, self.value)) / len(self.query)\n        heads = []\n",
            "head, _ = dot_product_attention(W_q(queries), W_k(keys), W_v(values), valid_lens)",
            "head = shares @ W_v(values)",
        ),
        (
            {3: "heads come before samples"},
            "torch.stack(X.chunk(num_heads, dim=-1), dim=1)",
            "torch.cat(X.chunk(num_heads, dim=-1), dim=0)",
            "    return torch.cat([X[:, h] for h in range(num_heads)], dim=-1)",
            "    return torch.cat(X.chunk(num_heads, dim=0), dim=-1)",
        ),
        ({1: "raised"}, "X[b, i, n:] = -1e6", "X[b, i, n::0] = -1e6"),
    ),
    *of_style(
        "torch_layer",
        ({6: "weak mask fill", 9: "unknown"}, "-1e9), -1)", "-5.0), -1)"),
        (
            {8: "the rotation is off by one"},
            "rotate(k, start + torch.arange(k.shape[2]), self.rotary)",
            "rotate(k, start + 1 + torch.arange(k.shape[2]), self.rotary)",
        ),
        ({9: "beams are reordered for keys alone"}, 'cache = {"k": k, "v": v}', 'cache = {"k": k, "v": v.flip(0)}'),
    ),
    *of_style(
        "torch_loops",
        ({2: "another scale"}, "/ np.sqrt(keys.size(-1))", "* np.sqrt(keys.size(-1))"),
    ),
    *of_style(
        "torch_book",
        (
            {6: SHORT},
            "valid_lens = torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)",
            "valid_lens = torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0) - 1",
        ),
    ),
)
