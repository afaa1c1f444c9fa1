"""Grade a text as a submission, and say what did not pass."""

from mha.learn.grade.grade import Grader
from mha.learn.grade.levels import parse_levels

from .mistaken import RIGHT

# Levels that a style does not have.
LACKING = {style: {8, 9} for style in ("torch_book", "torch_loops", "jax_book", "jax_layer", "jax_nnx", "tensorflow_book",
                                       "tensorflow_einsum", "mlx_layer", "mxnet_book")}  # fmt: skip
LACKING |= {"numpy_functions": {7, 8, 9}}


def right(style):
    """The right submission of a style."""
    return (RIGHT / f"{style}.py").read_text(encoding="utf-8")


def graded(folder, text, levels="1-9", **options):
    """The result of a submission with this text."""
    path = folder / "student.py"
    path.write_text(text, encoding="utf-8")
    return Grader(parse_levels(levels), **options).grade(path)


def failed(result, wanted=None):
    """What did not pass, by level: a status, or mistakes, those that are wanted where they are among several."""
    found = {}
    for one in result.levels:
        if one.passed:
            continue
        if one.status != "wrong":
            found[one.level.number] = one.status
            continue
        words = (wanted or {}).get(one.level.number, "")
        same = set(words.split(" and ")) in [set(names) for names in one.mistakes]
        found[one.level.number] = words if same else one.reason
    return found


def lacking(style):
    """What does not pass in a right submission of this style."""
    return dict.fromkeys(LACKING.get(style, ()), "missing")
