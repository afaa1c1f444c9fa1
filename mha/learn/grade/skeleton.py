"""The skeleton of an assignment, made from a framework's lesson: its imports, names, signatures and docstrings."""

import ast
from collections.abc import Iterator

from mha.core import dispatch
from mha.core.options.names import BackendName
from mha.learn.grade.levels import Level

NOT_DONE = "raise NotImplementedError"
CHAPTERS = ("hiding", "pooling", "heads", "layer")
FUNCTIONS = {1: ("masked_softmax",), 3: ("transpose_qkv", "transpose_output")}
SOFTMAX = "Scaled dot-product attention: softmax(q k^T / sqrt(d)) v."
LAYER = """Multi-head attention, with projections W_q, W_k, W_v and W_o.

{heads}Each is {dense}, and has a bias only if bias is True{biases}.
All go from num_hiddens features to num_hiddens{grouped}."""
DENSE = {"numpy": "an array (in, out)"}
BIASES = {"numpy": ": b_q, b_k, b_v and b_o"}
LENGTHS = "valid_lens: lengths (B,) or (B, Q): query i of sample b sees key j if j < valid_lens[b(, i)]; None = all."
BACKWARD = """The gradients of sum(output * cotangent) of the last call.

A dict: queries, keys, values, W_q, W_k, W_v, W_o."""
BEGUN = {"mxnet": ["", "npx.set_np()"]}  # what a file has after its imports


def text(backend: BackendName, levels: tuple[Level, ...]) -> str:
    """Write the skeleton for these levels: the definitions that each needs, with NotImplementedError for a body."""
    numbers = {level.number for level in levels}
    lesson = Lesson(backend)
    parts = [lesson.function(name) for number, names in FUNCTIONS.items() if number in numbers for name in names]
    if 2 in numbers:
        init = {"dropout": "0.0"}
        docstring = (
            "Pool values (B, K, dv) for queries (B, Q, d) over keys (B, K, d); valid_lens: lengths, (B,) or (B, Q).\n\n"
            "Returns (B, Q, dv), or the pair of this and the weights (B, Q, K)."
        )
        given = {"queries": "", "keys": "", "values": "", "valid_lens": "None"}
        parts.insert(1 in numbers, lesson.cls("DotProductAttention", SOFTMAX, init, given, docstring))
    if numbers & set(range(4, 10)):
        parts.append(lesson.layer(numbers))
    head = f'"""Attention: write what raises {NOT_DONE[6:]}."""\n\n{lesson.imports()}'
    return "\n\n\n".join([head, *parts]) + "\n"


class Lesson:
    """The lesson of a framework, as syntax trees of its chapters."""

    def __init__(self, backend: BackendName) -> None:
        folder = dispatch.FOLDER / backend
        self.backend = backend
        self.trees = {name: ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")) for name in CHAPTERS}
        layer = next(one for one in self.trees["layer"].body if getattr(one, "name", "") == "MultiHeadAttention")
        assert isinstance(layer, ast.ClassDef)
        self.base = ast.unparse(layer.bases[0]) if layer.bases else ""
        self.method = dispatch.facts("METHOD", "__call__")[backend]
        self.fields = self.backend == "jax"  # Flax's modules are dataclasses, and have a setup

    def imports(self) -> str:
        """The imports of the framework in all chapters, once each."""
        needs = (*dispatch.FRAMEWORKS[self.backend].needs, "numpy" if self.backend == "numpy" else "")
        found: dict[str, set[str]] = {}
        for one in (one for tree in self.trees.values() for one in tree.body):
            if isinstance(one, ast.Import) and one.names[0].name.partition(".")[0] in needs:
                found[ast.unparse(one)] = set()
            elif isinstance(one, ast.ImportFrom) and not one.level and (one.module or "").partition(".")[0] in needs:
                found.setdefault(f"from {one.module} import ", set()).update(ast.unparse(name) for name in one.names)
        lines = [f"{start}{', '.join(sorted(names))}" for start, names in found.items()]
        return "\n".join(
            [*sorted(lines, key=lambda line: (line.startswith("from"), line)), *BEGUN.get(self.backend, [])]
        )

    def function(self, name: str) -> str:
        """The signature and the docstring of a function of the lesson."""
        for tree in self.trees.values():
            for one in tree.body:
                if isinstance(one, ast.FunctionDef) and one.name == name:
                    docstring = "\n".join(quote(ast.get_docstring(one) or "", "    "))
                    return f"def {name}({ast.unparse(one.args)}):\n{docstring}\n    {NOT_DONE}"
        raise ValueError(f"the lesson of {self.backend} has no {name}")

    def layer(self, numbers: set[int]) -> str:
        """The class MultiHeadAttention, with the arguments that these levels need."""
        init = {"num_hiddens": "", "num_heads": "", "dropout": "0.0", "bias": "False"}
        call = {"queries": "", "keys": "", "values": "", "valid_lens": "None"}
        said = ["Attend with queries (B, Q, D) to keys and values (B, K, D).", "", LENGTHS]
        heads = grouped = ""
        if 8 in numbers:
            init |= {"num_key_value_heads": "None", "rotary": "None"}
            heads = (
                "num_key_value_heads: so many heads of keys and values are shared by all, None = num_heads.\n"
                "rotary: the base of a rotation of halves of queries and keys by their positions, None = none.\n"
            )
            grouped = ", W_k and W_v to those of their heads"
        if 6 in numbers:
            call |= {"mask": "None", "causal": "False"}
            said.append("mask: booleans (Q, K) or (B, Q, K), True = may attend. causal: query i sees the keys j <= i.")
        if 9 in numbers:
            call |= {"cache": "None"}
            said.append("cache: of earlier tokens, an empty dict at first; such a call is causal.")
        said.append("Returns (B, Q, D)" + (", with a cache (output, cache)." if 9 in numbers else "."))
        dense, biases = DENSE.get(self.backend, "a dense layer"), BIASES.get(self.backend, "")
        docstring = LAYER.format(heads=heads, grouped=grouped, dense=dense, biases=biases)
        made = self.cls("MultiHeadAttention", docstring, init, call, "\n".join(said))
        if 7 in numbers and self.backend == "numpy":
            made += "\n\n" + "\n".join(method("backward", {"cotangent": ""}, BACKWARD))
        return made

    def cls(self, name: str, docstring: str, init: dict[str, str], call: dict[str, str], called: str) -> str:
        """A class of the framework's own kind, without bodies.

        init, call: the arguments of the constructor and of a call, each with its default or ""; called: the docstring
        of the method that is called.
        """
        lines = [f"class {name}({self.base}):" if self.base else f"class {name}:", *quote(docstring, "    "), ""]
        if self.fields:
            kinds = {"num_hiddens": "int", "num_heads": "int", "dropout": "float", "bias": "bool"}
            for argument, default in init.items():
                kind = kinds.get(argument, "int | None" if "heads" in argument else "float | None")
                lines.append(f"    {argument}: {kind}{f' = {default}' if default else ''}")
            lines += ["", "    def setup(self):", f"        {NOT_DONE}"]
        else:
            lines.append(f"    def __init__(self, {arguments(init)}):")
            lines += ["        super().__init__()"] * bool(self.base) + [f"        {NOT_DONE}"]
        return "\n".join([*lines, "", *method(self.method, call, called)])


def method(name: str, given: dict[str, str], docstring: str) -> Iterator[str]:
    """The lines of a method without a body."""
    yield f"    def {name}(self, {arguments(given)}):"
    yield from quote(docstring, "        ")
    yield f"        {NOT_DONE}"


def arguments(given: dict[str, str]) -> str:
    """Arguments with their defaults."""
    return ", ".join(f"{name}={default}" if default else name for name, default in given.items())


def quote(docstring: str, indent: str) -> list[str]:
    """The lines of a docstring, quoted and indented."""
    lines = docstring.splitlines()
    lines[0] = f'"""{lines[0]}'
    lines[-1] += '"""' if len(lines) == 1 else ""
    lines += ['"""'] * (len(lines) > 1)
    return [f"{indent}{line}".rstrip() for line in lines]
