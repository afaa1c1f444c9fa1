"""The layers of the small Llama, and what the reports of audits and of records say."""

LAYERS = ["layers.0.self_attn", "layers.1.self_attn", "layers.2.self_attn"]


def verdicts(report):
    """The verdict of each layer, by path."""
    return {row.path: row.verdict for row in report.layers}


def notes(report):
    """The verdict and the note of each layer, by path."""
    return {row.path: (row.verdict, row.note) for row in report.layers}


def mistakes(report):
    """The mistakes that surely explain the first layer that differs."""
    return [name for one in report.first.report.diagnosis.explanations if one.sure for name in one.mistakes]


def place(report):
    """The module where the difference of two records begins, and what of it."""
    return report.first and (report.first.path, report.first.what)
