"""Write a method `load`, which takes a layer's weights from a checkpoint, where no renaming of its parts does."""

import dataclasses
import re
from collections.abc import Mapping
from string import Template
from textwrap import indent

from mha.core.options.config import Config
from mha.learn.write.lesson import facts
from mha.learn.write.lesson.named import renaming
from mha.learn.write.recipe import Recipe
from mha.learn.write.trees import nodes
from mha.learn.write.trees.program import LAYER, Program
from mha.weights import SCHEMES
from mha.weights.schemes.table import ArrayPlace


@dataclasses.dataclass(frozen=True)
class Idiom:
    """How a framework reads the arrays of a file, and how a layer takes them, as code.

    Attributes:
        opens: its name for safetensors.
        library: the module whose functions take these arrays.
        ends: the statements by which a layer takes the arrays `found`.
        axes: of a dense layer's kernel, inputs and outputs.
        turned: the suffix that transposes a kernel, but no bias.
        split: the function that splits an array.
        imports: the import statements that all these need, by the names that they bind.
        says: the docstring of the method.
    """

    opens: str
    library: str
    ends: str
    axes: str = "oi"
    turned: str = ".T"
    split: str = "split"
    imports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    says: str = "Take the weights of a safetensors file, in which their names begin with the prefix."

    @property
    def own(self) -> str:
        """The name of a dense layer's kernel."""
        return "kernel" if self.axes == "io" else "weight"

    def turns(self, axes: str) -> str:
        """The suffix that turns a kernel with these axes, heads merged, into that of a dense layer; "" = none."""
        return "" if self.axes == ("io" if "H" in axes else axes) else self.turned


EACH = "for name, X in found.items():\n    operator.attrgetter(name)(self)"
OPERATOR = {"operator": "import operator"}
IDIOMS: dict[str, Idiom] = {  # by framework, or by the kind of its modules
    "numpy": Idiom("np", "np", f"{EACH}[...] = X", axes="io", imports=OPERATOR),
    "torch": Idiom("pt", "torch", "self.load_state_dict(found)", turned=".t()", split="tensor_split"),
    "tensorflow": Idiom("np", "np", f"{EACH}.assign(X)", axes="io", imports={"np": "import numpy as np"} | OPERATOR),
    "jax": Idiom(
        "flax",
        "jnp",
        'return {"params": traverse_util.unflatten_dict(found, sep=".")}',
        axes="io",
        imports={"traverse_util": "from flax import traverse_util"},
        says="The variables: the weights of a safetensors file, in which their names begin with the prefix.",
    ),
    "nnx": Idiom("flax", "jnp", f"{EACH}[...] = X", axes="io", imports=OPERATOR),
    "mxnet": Idiom(
        "np",
        "onp",
        f"{EACH}.set_data(np.array(X, dtype=X.dtype))",
        imports={"onp": "import numpy as onp"} | OPERATOR,
        says="Take the weights of a safetensors file, in which their names begin with the prefix, once initialized.",
    ),
    "mlx": Idiom("mlx", "mx", "self.load_weights([*found.items()])"),
}

# The method, and how it reads what is laid in one way or another; `$` marks what a framework or a scheme says.
METHOD = """
def load(self, path, prefix=""):
    $says
$before
    found = {}
    with safe_open(path, "$opens") as file:
$inside
$ends
"""
SEPARATE = """
for $each:
    found[f"{part}.$own"] = file.get_tensor(f"{prefix}$weight")$turned
"""
BIASED = """
    if config.bias:
        found[f"{part}.bias"] = file.get_tensor(f"{prefix}$bias")
"""
PARTLY = """
    if config.bias:  # those that a file lacks are 0
        bias, zeros = f"{prefix}$bias", $library.zeros_like(found[f"{part}.$own"][$row])
        found[f"{part}.bias"] = file.get_tensor(bias) if bias in {*file.keys()} else zeros
"""
BY_HEADS = """
for $each:
    X = file.get_tensor(f"{prefix}$weight")  # (in, H, d), of W_o (H, d, out)
    X = X.reshape(-1, X.shape[2]) if part == "W_o" else X.reshape(X.shape[0], -1)  # (in, out)
    found[f"{part}.$own"] = X$turned
    if config.bias:
        found[f"{part}.bias"] = file.get_tensor(f"{prefix}$bias").reshape(-1)  # (out,)
"""
PACKED = """
for $each:
$apart
    found.update({f"W_q.{$kind}": q$turned, f"W_k.{$kind}": k$turned, f"W_v.{$kind}": v$turned})
    found[f"W_o.{$kind}"] = file.get_tensor(f"{prefix}$output")$turned
"""
THIRDS = """
q, k, v = $library.$split(file.get_tensor(f"{prefix}$packed"), 3$axis)
"""
SECTIONS = """
X = file.get_tensor(f"{prefix}$packed")  # ((H + 2G)*d, ...)
d = X.shape[0] // (H + 2 * G)
q, k, v = $library.$split(X, [H * d, (H + G) * d])  # (H*d, ...), (G*d, ...), (G*d, ...)
"""
GROUPS = """
X = file.get_tensor(f"{prefix}$packed")  # ((H + 2G)*d, ...)
X = X.reshape(G, H // G + 2, -1, *X.shape[1:])  # (G, H / G + 2, d, ...)
parts = X[:, :-2], X[:, -2], X[:, -1]
q, k, v = (part.reshape(-1, *X.shape[3:]) for part in parts)  # (H*d, ...), (G*d, ...), (G*d, ...)
"""
HEADS = """
X = file.get_tensor(f"{prefix}$packed")  # (3*H*d, ...)
X = X.reshape(config.num_heads, 3, -1, *X.shape[1:])  # (H, 3, d, ...)
q, k, v = (X[:, n].reshape(-1, *X.shape[3:]) for n in range(3))  # (H*d, ...)
"""
PACKED_BIASES = """
if config.bias:
    q, k, v = $library.$split(file.get_tensor(f"{prefix}$packed"), 3)
    o = file.get_tensor(f"{prefix}$output")
    found |= {"W_q.bias": q, "W_k.bias": k, "W_v.bias": v, "W_o.bias": o}
"""


def take_names(program: Program, recipe: Recipe) -> None:
    """Let a layer take the arrays of a scheme's files: rename its parts, or add a method `load` if that cannot do."""
    config, scheme = recipe.config, recipe.names
    if scheme is None:
        return
    if own := renaming.own_names(config, recipe.backend, scheme):
        renaming.rename_parts(program, own)
        return
    of = recipe.kind or recipe.backend
    program.add(LAYER, nodes.replace(nodes.statement(method(config, of, scheme)), facts.names(config)))
    program.imports = {"safe_open": "from safetensors import safe_open", **IDIOMS[of].imports} | program.imports


def method(config: Config, of: str, scheme: str) -> str:
    """The text of the method, in which the numbers of a layer are those of `config`; of: a key of `IDIOMS`."""
    idiom, places = IDIOMS[of], renaming.places(config, scheme)
    said = {"library": idiom.library, "split": idiom.split, "own": idiom.own}
    if places["W_q.kernel"].part:
        before, form, more = _read_one_array(places, idiom, grouped=config.num_key_value_heads < config.num_heads)
    else:
        before, form, more = _read_arrays(places, idiom, partly=bool(SCHEMES[scheme].biases))  # type: ignore[index]
    inside = Template(form).substitute(said | more)
    for name, place in places.items():
        if not name.endswith(("kernel", "bias")):
            inside += f'found["{name}"] = file.get_tensor(f"{{prefix}}{place.name}")\n'
    blocks = {"before": indent(before, " " * 4), "inside": indent(inside, " " * 8), "ends": indent(idiom.ends, " " * 4)}
    text = Template(METHOD).substitute(blocks, says=f'"""{idiom.says}"""', opens=idiom.opens)
    return "".join(f"{line}\n" for line in text.split("\n") if line)


def _read_one_array(places: Mapping[str, ArrayPlace], idiom: Idiom, grouped: bool) -> tuple[str, str, dict[str, str]]:
    """The code that reads one array of queries, keys and values: the statements before, a template, and its values."""
    kernel = places["W_q.kernel"]
    (stem, weight), (_, bias) = _split_name(kernel.name), _split_name(places["W_q.bias"].name)
    output = _split_name(places["W_o.kernel"].name)[0]
    said = {"packed": f"{stem}{{kind}}", "output": f"{output}{{kind}}", "turned": idiom.turns(kernel.axes)}
    said["axis"] = ", -1" if kernel.axes == "io" else ""
    before = "H, G = config.num_heads, config.num_key_value_heads\n" if grouped else ""
    if idiom.own == weight:
        said |= {"kind": "kind", "each": f'kind in ["{weight}", "{bias}"] if config.bias else ["{weight}"]'}
    else:
        said |= {"kind": "own", "each": "own, kind in kinds.items()"}
        first = f'"{idiom.own}": "{weight}"'
        before += f'kinds = {{{first}, "bias": "{bias}"}} if config.bias else {{{first}}}\n'
    by_group = kernel.by == "group"
    apart = (GROUPS if grouped else HEADS) if by_group else (SECTIONS if grouped else THIRDS)
    return before, PACKED.replace("$apart", indent(apart, " " * 4)), said


def _read_arrays(places: Mapping[str, ArrayPlace], idiom: Idiom, partly: bool) -> tuple[str, str, dict[str, str]]:
    """The code that reads an array for each projection: the statements before, a template, and its values."""
    kernel, bias = places["W_q.kernel"], places.get("W_q.bias")
    names = {name.partition(".")[0]: place.name for name, place in places.items() if name.endswith(".kernel")}
    if bias is None or bias.part:
        stems, ends = names, ("", "")
    else:
        stems = {part: _split_name(name)[0][:-1] for part, name in names.items()}
        ends = kernel.name.removeprefix(stems["W_q"]), bias.name.removeprefix(stems["W_q"])
    if all(part == stem for part, stem in stems.items()):
        before, name, each = "", "{part}", f"part in ({', '.join(map(repr, stems))})"
    else:
        entries = ", ".join(f'"{part}": "{stem}"' for part, stem in stems.items() if part != "W_g")
        before, name, each = f"names = {{{entries}}}\n", "{name}", "part, name in names.items()"
        if "W_g" in stems:
            before += f'names["W_g"] = "{stems["W_g"]}"\n'
    said = {"each": each, "weight": name + ends[0], "bias": name + ends[1], "turned": idiom.turns(kernel.axes)}
    if bias is None:
        return before, SEPARATE, said
    if bias.part:
        return before, SEPARATE + PACKED_BIASES, said | {"packed": bias.name, "output": places["W_o.bias"].name}
    if "H" in kernel.axes:
        return before, BY_HEADS, said
    return before, SEPARATE + (PARTLY if partly else BIASED), said | {"row": "0" if idiom.axes == "io" else ":, 0"}


def _split_name(name: str) -> tuple[str, str]:
    """Split an array's name after its last dot or underscore: "c_attn." and "weight"."""
    end = re.split(r"[._](?!\d)", name)[-1]  # "vars.0" in one
    return name.removesuffix(end), end
