"""The layers of the small Llama, and the verdicts of an audit by path."""

LAYERS = ["layers.0.self_attn", "layers.1.self_attn", "layers.2.self_attn"]


def verdicts(report):
    return {row.path: row.verdict for row in report.layers}
