"""Call a layer of JAX over the devices of a mesh: split its arguments, run the parts, and join their outputs.

Letters as in the chapters. `jax.shard_map` runs the layer with the heads of one device, which knows nothing of the
others; what is computed is not written again.
"""

import functools
from collections.abc import Mapping

import flax
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mha.backends.jax import arrays
from mha.backends.jax.engine.operations import OPERATIONS
from mha.backends.jax.hiding import places
from mha.backends.jax.layer import MultiHeadAttention
from mha.core.cache import Cache
from mha.core.call import OF_PAIRS, PACKED, PLACES, axes_of, bind_call, check
from mha.core.engine.visible_range import by_mask, by_segments, without_positions
from mha.core.options import checks
from mha.core.options.config import shapes
from mha.parallel import rows
from mha.parallel.parts import over_all, part_of, split_axes

from . import norms
from .filling import pad_inputs
from .heads import config_of_devices, of_device, with_copies
from .sequence import HOWS, over
from .slots import over as slots_over


def plan(module, heads="heads", mesh=None):
    """See `mha.parallel.plan`."""
    if not isinstance(module, MultiHeadAttention):
        raise TypeError(f"layer is a {type(module).__name__}, expected a module: attention.layer.unbind()[0]")
    count = 1
    if mesh is not None:
        _axes(mesh, heads=heads)  # or the mesh has no such axis
        count = mesh.shape[heads]
        part_of(module.config, count)  # or it cannot be split so
    specs = {name: [None] * len(shape) for name, shape in shapes(module.config).items()}
    for name, axis in split_axes(module.config, count).items():
        if name in specs:
            specs[name][axis] = heads
    named = {("params", *name.split(".")): PartitionSpec(*spec) for name, spec in specs.items()}
    return flax.traverse_util.unflatten_dict(named)


def attend(
    module, variables, queries, keys, values, *given, rngs=None,
    mesh, data=None, heads=None, sequence=None, how="ring", zigzag=None, **named,
):  # fmt: skip
    """See `mha.parallel.attend`."""
    if not isinstance(module, MultiHeadAttention):
        raise TypeError(f"module is a {type(module).__name__}, expected that of a layer: attention.layer.unbind()[0]")
    arrays.refuse_to_narrow(module.config.dtype)
    checks.choice("how", how, tuple(HOWS))
    axes = _axes(mesh, data=data, heads=heads, sequence=sequence)
    if not isinstance(rngs, Mapping | None):
        raise TypeError(f'rngs is {checks.brief(rngs)}, expected {{"dropout": jax.random.key(seed)}}')
    variables = flax.core.unfreeze(variables)
    given = bind_call(given, named)
    if given.return_weights:
        raise ValueError("return_weights is given, expected False: no device has all weights; call the layer itself")
    keeper, own = module, given.cache
    if own is not None and heads is not None:
        keeper = module.clone(config=config_of_devices(module.config, mesh.shape[heads]))
        given = given._replace(cache=with_copies(own, module.config, mesh.shape[heads]))
    call = check(arrays, keeper, queries, keys, values, given).with_plan(known=None)
    if call.cache is not None:
        _fit_slots(call.cache, mesh.shape.get(sequence, 1), zigzag)
        how = "ring"  # which takes any heads: slots are split in one way alone
    in_zigzag = _in_zigzag(zigzag, how, sequence, call)
    part = _part(module, queries, axes, mesh, how)
    named = {"queries": queries, "keys": keys, "values": values, "rngs": rngs or {}} | call.arrays()
    if call.cache is not None:
        found = _decode(module, part, axes, call, mesh, variables, named)
        if own is not given.cache:
            own.use_up()
        return found
    if 0 in (queries.size, keys.size):
        # Nothing is there to spread.
        return module.apply(variables, queries, keys, values, **given.arguments(), rngs=rngs)
    run = functools.partial(_spread, module, part, axes, (how, in_zigzag), call.map_arrays(lambda X: None))
    # Rows that do not divide are on every device, in the end, where shardings are part of types.
    there = sequence if queries.shape[1] % mesh.shape.get(sequence, 1) == 0 else None
    return _in_mesh(run, PartitionSpec(data, there), mesh, variables, named)


def _in_mesh(run, specs, mesh, *arrays):
    """Call run(mesh, *arrays), also in a mesh with explicit axes; specs: how the result lies on the devices."""
    if AxisType.Explicit not in mesh.axis_types:
        return run(mesh, *arrays)
    # Where shardings are part of types, XLA finds those inside by itself.
    own = mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_types))
    whole = jax.tree.map(functools.partial(NamedSharding, mesh), specs)
    return jax.sharding.auto_axes(functools.partial(run, own), out_sharding=whole)(*arrays)


def _decode(module, part, axes, call, mesh, variables, named):
    """The output of a checked call with a cache, and the next cache.

    Each device keeps its own heads and slots of the cache.
    """
    (data, heads, sequence), cache = (axes.get(name) for name in ("data", "heads", "sequence")), call.cache
    plain = call.map_arrays(lambda X: None)._replace(cache=None).with_plan(step=None)
    of_all = heads and over_all(part.config)
    layer = slots_over(part, sequence) if sequence else part
    layer = norms.over(layer, heads, heads) if of_all else layer
    whole_rows = {name: axis for name, axis in axes.items() if name != "sequence"}
    place = functools.partial(_place, axes=whole_rows, together=False, of_all=of_all)
    specs = {name: jax.tree.map(functools.partial(place, name), X) for name, X in named.items()}
    of_weights = plan(module, heads, mesh) if heads else jax.tree.map(lambda X: PartitionSpec(), variables)
    kept = (*2 * [PartitionSpec(data, heads, sequence)], *3 * [PartitionSpec(data)])

    def local(variables, arrays, slots):
        call = _whole(plain, arrays)._replace(cache=Cache(part.config, slots, cache.frozen))
        inputs = (arrays[name] for name in ("queries", "keys", "values"))
        if heads:
            variables = of_device(module.config, heads, variables)
        options = {"method": "attend", "rngs": _own_keys(arrays["rngs"], axes.values())}
        output, left = layer.apply(variables, *inputs, call, **options)
        return jax.lax.psum(output, heads) if heads else output, left.arrays()  # (B, Q, D)

    def run(mesh, *arrays):
        out_specs = PartitionSpec(data), kept
        spread = jax.shard_map(local, mesh=mesh, in_specs=(of_weights, specs, kept), out_specs=out_specs)
        return spread(*arrays)

    output, slots = _in_mesh(run, (PartitionSpec(data), kept), mesh, variables, named, cache.arrays())
    if cache.frozen:
        return output, cache
    left = cache.after(*slots)
    cache.use_up()
    return output, left if call.plan.step is None else left.with_state(call.plan.step.slot_state)


def _spread(module, part, axes, way, plain, mesh, variables, arrays):
    """The output of a checked call; arrays: its own, by name; way: (how, in_zigzag); plain: the call without arrays."""
    how, in_zigzag = way
    data, heads, sequence = (axes.get(name) for name in ("data", "heads", "sequence"))
    inputs, Q = [arrays[name] for name in ("queries", "keys", "values")], arrays["queries"].shape[1]
    in_ring = how == "ring" and sequence
    call = _whole(plain, arrays)
    call = _as_numbers(*inputs[:2], call) if in_ring else by_mask(OPERATIONS, *inputs[:2], call)
    plain = call.map_arrays(lambda X: None)
    (queries, keys, values), call = pad_inputs(*inputs, call, mesh.shape.get(sequence, 1) * (2 if in_zigzag else 1))
    arrays = {name: X for name, X in arrays.items() if name not in PACKED}  # which may be in the mask now
    arrays |= {"queries": queries, "keys": keys, "values": values} | call.arrays()
    each = call.valid_lens is not None and call.valid_lens.shape[1] > 1
    together, of_all = how == "ulysses" and sequence, heads and over_all(part.config)
    place = functools.partial(_place, axes=axes, together=together, of_all=of_all)
    specs = {name: jax.tree.map(functools.partial(place, name), X) for name, X in arrays.items()}
    of_weights = plan(module, heads, mesh) if heads else jax.tree.map(lambda X: PartitionSpec(), variables)

    def local(variables, arrays):
        call = _whole(plain, arrays)
        placed = call.positions, call.key_positions
        inputs = arrays["queries"], arrays["keys"], arrays["values"]
        call = call if in_ring or not sequence else without_positions(call)
        options = {"method": "attend", "rngs": _own_keys(arrays["rngs"], axes.values())}
        if heads:
            variables = of_device(module.config, heads, variables)
        layer = part
        if sequence:
            layer = over(part, sequence, how, (queries.shape[1], keys.shape[1]), each, placed, in_zigzag)
        if of_all:
            layer = norms.over(layer, heads, (heads, sequence) if together else heads)
        output = layer.apply(variables, *inputs, call, **options)
        return jax.lax.psum(output, heads) if heads else output  # (B, Q, D)

    spread = jax.shard_map(local, mesh=mesh, in_specs=(of_weights, specs), out_specs=PartitionSpec(data, sequence))
    return spread(variables, arrays)[:, :Q]  # (B, Q, D)


def _as_numbers(queries, keys, call):
    """The call with its segments and positions, if it has any, as arrays of queries (B or 1, Q) and keys (B or 1, K).

    A mask would take memory for all pairs. Chunks become segments, or beside other segments positions.
    """
    if not call.by_tokens():
        return call
    if call.plan.chunk and not call.is_packed() and not call.by_positions():
        call = by_segments(OPERATIONS, queries, keys, call)
    own, others = call.segment_ids().values()
    if own is not None:
        call = call.with_segments(places(queries, own), places(keys, others))
    if call.by_positions() or call.plan.chunk:
        placed = places(queries, call.positions, call.offset), places(keys, call.key_positions)
        call = call._replace(positions=placed[0], key_positions=placed[1])
    return call


def _whole(plain, arrays):
    """The call `plain` with those of the arrays that it has a field for."""
    return plain._replace(**{name: X for name, X in arrays.items() if name in plain._fields})


def _place(name, X, axes, together, of_all):
    """The `PartitionSpec` of an array of a call.

    together: whether each device pools all rows of some heads; of_all: whether a norm is over all heads, so that each
    device needs the masks and biases of all.
    """
    data, heads, sequence = (axes.get(name) for name in ("data", "heads", "sequence"))
    rows, of_pairs = (sequence, heads) if not together else (None, (heads, sequence) if heads else sequence)
    if name in ("queries", "keys", "values"):
        return PartitionSpec(data, sequence)
    if name == "rngs":
        return PartitionSpec()
    of_pairs = None if of_all else of_pairs
    split = {"B": data, "H": of_pairs if name in OF_PAIRS else heads, "Q": rows}
    if name in PLACES:  # which the rotation takes
        split |= {"Q": sequence}
    sizes = zip(axes_of(name, X), X.shape, strict=True)
    return PartitionSpec(*(None if size == 1 else split.get(letter) for letter, size in sizes))


def _axes(mesh, **named):
    """The axes of the mesh by what they split, checked; None = not split."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is {checks.brief(mesh)}, expected a jax.sharding.Mesh")
    axes = {name: axis for name, axis in named.items() if axis is not None}
    for name, axis in axes.items():
        if axis not in mesh.shape:
            raise ValueError(
                f"{name} is {axis!r}, expected an axis of the mesh: {', '.join(map(repr, mesh.axis_names))}"
            )
    if len({*axes.values()}) < len(axes):
        raise ValueError(f"{' and '.join(axes)} are {list(axes.values())}, expected an axis of its own for each")
    return axes


def _fit_slots(cache, devices, zigzag):
    """Check that the devices divide a cache's slots, and that zigzag is not asked for; else raise ValueError."""
    S = cache.sizes[1]
    if S % devices:
        raise ValueError(
            f"cache has {S} slots, expected a multiple of {devices} devices: make it with size={S + -S % devices}"
        )
    if zigzag:
        raise ValueError("zigzag is True beside a cache, expected None: its slots are split, and all rows are together")


def _in_zigzag(zigzag, how, sequence, call):
    """Whether a checked call exchanges its rows into zigzag; zigzag: the user's choice, None = where it balances."""
    if zigzag is None:
        own = {name for name, X in call.pairs().items() if X.shape[-2] > 1}
        return how == "ring" and sequence is not None and rows.balances(call, own)
    if checks.flag("zigzag", zigzag) and (how != "ring" or sequence is None):
        came = "without sequence" if sequence is None else f'beside how="{how}"'
        raise ValueError(f'zigzag is True {came}, expected None: only a ring has it; write sequence="axis", how="ring"')
    return zigzag


def _part(module, queries, axes, mesh, how):
    """The layer of one device; raises ValueError if the devices do not divide batch or heads."""
    sizes = {name: mesh.shape[axis] for name, axis in axes.items()}
    if len(queries) % sizes.get("data", 1):
        raise ValueError(f"queries has batch size {len(queries)}, expected a multiple of {sizes['data']} devices")
    config = part_of(module.config, sizes["heads"]) if "heads" in axes else module.config
    if how == "ulysses" and config.num_heads % sizes.get("sequence", 1):
        devices = f"{config.num_heads} heads on {sizes['sequence']} devices"
        raise ValueError(f'how is "ulysses" for {devices}, expected a multiple of these; use "ring"')
    return module.clone(config=config)


def _own_keys(rngs, axes):
    """Keys of random numbers for this device alone."""
    for axis in axes:
        rngs = jax.tree.map(lambda key, axis=axis: jax.random.fold_in(key, jax.lax.axis_index(axis)), rngs)
    return rngs
