"""Bugs of the options of today's models in lessons and engines: replacements in the text of a backend.

A group is as in `bugs_of_backends.py`. Those of other options are there, and in `bugs_by_seam.py`."""

from bugs_of_backends import IN_PLACE

# fmt: off
GROUPS = {
    "temperatures": ("positions", {
        "positions below 0 are warm": {
            "numpy jax": (r"\w+\.maximum\(places, 0\) \+ temperature", "places + temperature"),
            "torch": (r"places\.clamp\(min=0\)", "places"), "tensorflow": (r"tf\.maximum\(places, 0\)", "places"),
            "mxnet": (r"np\.maximum\(places, 0\)\.astype", "places.astype")},
        "temperatures are not shifted": {"all": (r" \+ temperature\.shift", "")},
        "keys are tempered, too": {"all": (r"(            q = keep\(\"tempered_q\", .*)",
            r"\1\n            k = temper(k, *given[:2], config.num_key_value_heads)")},
    }),
    "magnitudes": ("rotations", {
        "sines are not magnified": {"numpy torch tensorflow mxnet": (
            r"rotary\.magnitude \* ((np|torch|tf)\.sin)", r"\1"),
            "jax": (r"(jnp\.where\(odd, cos, sin\)) \* sign", r"\1 * (1 - (quarters & 2))")},
        "cosines are not magnified": {"numpy torch tensorflow mxnet": (
            r"rotary\.magnitude \* ((np|torch|tf)\.cos)", r"\1"),
            "jax": (r"rotary\.magnitude \* jnp\.cos", "jnp.cos")},
    }),
    "sinks": ("sinks options blocks", {
        "sinks are forgotten": {"all": (
            r"visible_softmax\(scores, visible, sinks\)  #", "visible_softmax(scores, visible)  #")},
        "nothing hides beside sinks": {"all": (r"\*with_sinks\(scores, visible, sinks\)",
            "*with_sinks(scores, None, sinks)")},
        "sinks of other heads": {
            "numpy tensorflow jax mxnet": (r"(self\.sinks.*\(?1, -1, 1, 1\)+)\)  #", r"\1[:, ::-1])  #"),
            "torch": (r"sinks=self\.sinks\.", "sinks=self.sinks.flip(0).")},
        "a lone token has the sinks of other heads": {"numpy mxnet": (
            r"\(call\)\.sinks, \(B, H, G, 1\)", "(call).sinks[:, ::-1], (B, H, G, 1)")},
        "the kernel forgets sinks": {"torch": (r"return not config\.sinks and attention", "return attention",
            r"call\.sinks is not None or self", "self")},
        "sinks get no gradient": {"numpy": (r"by_sinks = -total", "by_sinks = 0 * total"),
            "mxnet": (r'items\(\) if name != "mask"', 'items() if name == "score_bias"')},
    }),
    "output gate": ("output_gate alone", {
        "the output gate is forgotten": {"all": (
            r'pooled = keep\("gated", self\.gate_by\(pooled, call\.gates\)\)', "pass")},
        "the output gate is of other heads": {
            "numpy tensorflow jax mxnet": (r"(qkv\(self\.W_g\(queries\))", r"\1[..., ::-1]"),
            "torch": (r"(qkv\(self\.W_g\(queries\))", r"\1.flip(-1)")},
        "a gate that is not a number counts": {
            "numpy tensorflow jax": (r"sees \| ~[\w.]+\(gates\)", "sees | True"),
            "torch": (r"sees \| ~gates\.isnan\(\)", "sees | True"),
            "mxnet": (r"sees \+ \(gates <= np\.inf\) > 0", "sees > -1")},
        "a lone token is not gated": dict.fromkeys(IN_PLACE, (
            r"if config\.output_gate:\n(        gates = layer)", r"if False:\n\1")),
        "gated heads are views": {"torch": (r"config\.temperature or config\.output_gate", "config.temperature"),
            "tensorflow": (r"head_gates is not None or config\.output_gate", "head_gates is not None")},
        "a compiled layer has no gate": {"tensorflow": (r"dense\.append\(layer\.W_g\)", "pass")},
        "gates get no gradient": {"numpy": (r"opened \* \(1 - opened\)", "0 * opened")},
        "queries get no gradient of their gates": {"numpy": (r"by_queries \+ by_opened", "by_queries")},
    }),
    "norms": ("norms", {
        "the norm comes before the rotation in any case": {"all": (
            r"if config\.qk_norm and not config\.qk_norm\.after:\n(.*)\n", r"if config.qk_norm:\n\1\n")},
        "values have no norm": {"all": (r'v = keep\("norm_v", self\.v_norm\(v\)\)', 'keep("norm_v", self.v_norm(v))')},
    }),
    "chunks": ("alone parity case_decodes cache_long", {
        "chunks are counted from the query": {"all": (
            r"each_query - each_query % call\.chunk == each_key - each_key % call\.chunk",
            "(each_query - each_key < call.chunk) * (each_key - each_query < call.chunk)")},
        "chunks are one longer": {"all": (r"% call\.chunk == each_key - each_key % call\.chunk",
            "% (call.chunk + 1) == each_key - each_key % (call.chunk + 1)")},
        "an engine knows no chunks": {"numpy tensorflow jax": (
            r"in \(\*PLACES, \*PACKED, \"chunk\"\)", "in (*PLACES, *PACKED)")},
        "a plan forgets chunks": {"torch mxnet mlx": (r"None if layer\.config\.chunk else getattr", "getattr")},
        "a portion in place knows no chunks": {"numpy": (  # elsewhere what hides knows them itself
            r"call = by_mask\(.*\) if call\.chunk else call", "pass")},
        "a prompt knows no chunks": {"jax": (r"own = by_mask\(OPERATIONS, q, k\[1\], (.*)\)\n", r"own = \1\n")},
    }),
    "options": ("options", {
        "1 is added to the scale of a norm": {"all": (
            r"(widen\(self\.scale\)|widen\(tf.*\(self\.scale\)\)|wide / roots \* scale)", r"(1 + \1)")},
        "RMS norm for layer norm": {"all": (r'if self\.norm\.kind == "layer":', "if False:")},
        "another epsilon": {"all": (r"\+ self\.norm\.eps\)", "+ 1e-6)")},
        "the gradient of a group is that of its first head": {"numpy": (r"X\.shape\[2\]\)\.sum\(1\)",
            "X.shape[2])[:, 0]")},
        "the gradient of a norm forgets its root": {"numpy": (r"by_X = by_normalized - normalized \* .*",
            "by_X = by_normalized")},
        "the gradient of a layer norm forgets its mean": {"numpy": (r'if norm\.norm\.kind == "layer":', "if False:")},
        "gradients are not turned back": {"numpy": (r"rotate\(by_k, -places", "rotate(by_k, places")},
        "the gradient of a cap is 1": {"numpy": (r"\(1 - \(capped / softcap\) \*\* 2\)", "1")},
    }),
}
