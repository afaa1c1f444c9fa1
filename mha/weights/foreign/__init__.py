"""Convert the frameworks' own layers and the book's to ours and back, option by option and weight by weight.

An option that the other side does not have is refused by name, never dropped. A file of `mha/weights/frameworks/`
knows the layers of its framework, and is imported when it is used; it has the functions that the backend's facts name:
    take(layer) -> the configuration and the canonical weights of the framework's own layer
    make(kind, config, weights) -> the framework's own layer with these canonical weights
    make_cache(kind, keys, values, tokens) -> the cache of one layer of another library, see `mha.weights.caches`
    attend(layer, inputs, padding, pairs, causal, cotangent) -> the results of a call of the framework's own layer with
        queries, keys and values by name: output, weights (None = it has none), the gradients of the inputs and of its
        own arrays by name, and the naming scheme of these; other arguments as for `attend` here
    children(module) -> the submodules of any module, each with the text to write after the module: ".attention"
Where a layer may lack its weights at first:
    is_ready(layer), FIRST -> True if it has them; the call that gives them to it
Where the book has a section:
    DENSE -> the names of the classes of a printed layer's projections
    book_arrays(layer) -> the naming scheme and the arrays of a layer as the book prints it
    allocate(layer) -> a layer of the book with room for its weights
"""

from mha.weights.foreign.arrays import arrays_by_part, canonical, flatten_names
from mha.weights.foreign.kinds import KINDS, access_text, full_name, layer_kind, layers_inside
from mha.weights.foreign.layers import attend, make, read, read_layer, refuse, require, select_options

__all__ = [
    "KINDS",
    "access_text",
    "arrays_by_part",
    "attend",
    "canonical",
    "flatten_names",
    "full_name",
    "layer_kind",
    "layers_inside",
    "make",
    "read",
    "read_layer",
    "refuse",
    "require",
    "select_options",
]
