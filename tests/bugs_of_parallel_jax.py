"""Bugs of a layer of JAX over several devices, which its tests must notice: planted as those in bugs.py."""

DEVICES_TESTS = ["test_devices_of_jax.py"]
RING, SEQUENCE, SPREAD = (f"backends/jax/parallel/{name}" for name in ("ring", "sequence", "spread"))
BATCH_BUGS = {
    "the samples of all devices take the first one's branch": {
        "jax": [(r"jax\.lax\.pmax\(last, TOGETHER\)", "jax.lax.all_gather(last, TOGETHER)[0]")]
    },
    "samples are looped over on all devices": {
        "jax": [(r"return 1 if mesh\.empty or varies\(X\) else .*", "return 1")]
    },
    "samples of one device are computed as if they lay on all": {
        "jax": [(r"mesh\.empty or (.*), mesh\.size\)", r"\1, jax.device_count())")]
    },
}
DEVICES_BUGS = {
    "W_o's bias is added by every device": (SPREAD, r"if heads and part\.config\.bias:", "if False:"),
    "masks of heads stay whole": (SPREAD, r"\(data, of_pairs, rows, None\)", "(data, None, rows, None)"),
    "columns are interleaved over the devices": (
        SPREAD,
        r"return spread\(variables, arrays\)",
        "def mixed(X):\n"
        "        return X.reshape(*X.shape[:-1], -1, len(jax.devices())).swapaxes(-1, -2).reshape(X.shape)\n\n"
        '    changed = {"W_q": jax.tree.map(mixed, variables["params"]["W_q"])}\n'
        '    return spread({"params": variables["params"] | changed}, arrays)',
    ),
    "keys that are filled in are seen": (SPREAD, r"jnp\.minimum\(lens, K\)", "lens + more_keys"),
    "all devices drop the same weights": (
        SPREAD,
        r"    for axis in axes:\n        rngs",
        "    for axis in ():\n        rngs",
    ),
    "the first query of a ring is at 0 everywhere": (
        SEQUENCE,
        r"jax\.lax\.axis_index\(axis\) \* q\.shape\[1\]\)\n    return ring",
        "0)\n    return ring",
    ),
    "keys are rotated as if they were the first": (SEQUENCE, r"positions\(k, first_key\)", "positions(k)"),
    "keys that others see are blank": (SEQUENCE, r"seen = _anywhere\(seen, axis\)  # \(B, all keys\)", "pass"),
    "one column is the first device's": (SEQUENCE, r"jnp\.broadcast_to\(flags, X\.shape\[:2\]\)", "flags"),
    "NaN counts as nothing seen": (RING, r"sees = total != 0", "sees = total > 0"),
    "one logarithm for maximum and sum": (
        RING,
        r"jnp\.exp\(_hidden\(scores, visible\) - largest\) \* share",
        "jnp.exp(_hidden(scores, visible) - (largest - jnp.log(share)))",
    ),
    "both passes round scores in their own way": (
        RING,
        r"jnp\.exp\(_hidden\(scores, visible\) - largest\) \* share",
        "jnp.exp(scores - largest) * share * (1 if visible is None else visible)",
    ),
    "a merge without its maximum": (RING, r"base = jnp\.where\(.*", "base = jnp.zeros_like(most)"),
    "gradients of keys are not sent home": (RING, r"\*_passed\(circle, by_kv\), \*rest", "*by_kv, *rest"),
    "gradients of a bias pile up in the first columns": (
        RING,
        r"columns, owner \* columns\.shape\[3\], 3",
        "columns, 0, 3",
    ),
    "other weights are dropped backward": (RING, r"(by_v \+= .*weights) \* kept", r"\1"),
}  # fmt: skip
