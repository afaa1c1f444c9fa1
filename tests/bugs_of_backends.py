"""Bugs of lines that one engine, or one framework, has: replacements in the text of a backend.

A group: the tests that must notice its bugs, and patterns with their replacements, by the name of the bug and the
backend; "all" = the same in each. Every file of the backend is searched, and `mha/call` and `mha/engine`."""

from mha import dispatch

# The backends whose arrays a call with a cache writes to, and whose calls are not compiled as a whole.
IN_PLACE = tuple(name for name, alone in dispatch.facts("ALONE").items() if "engine/decoding.py" not in alone)

# fmt: off
GROUPS = {
    "cache": ("cache cache_compiled cache_long cache_trace", {
        "a token is written one slot too far": {"all": (r"(\[:, None\]) - 1 - slot\) % S", r"\1 - slot) % S")},
        "padding is kept": {"all": (r"real = new >= 0", "real = new >= -1")},
        "new tokens begin at the newest": {"all": (r" \+ 1 \+ (\w+\.a?range\(Q)", r" + \1")},
        "a window forgets what a portion pushes out": {"all": (
            r"(pushed_out = .*\(\[)\(?columns != slot\)?", r"\1columns < 0")},
        "what is lost does not matter": dict.fromkeys(("numpy", "torch", "tensorflow", "jax"), (
            r"LOST, found\)", "found, found)")),
        "slots have the positions of the columns": {"all": (
            r"state = taken\(before, columns, 1\)", "state = before[:, :S]")},
        "a trace uses the cache up": {"all": (r"if not call\.traced:", "if True:")},
        "a trace has the slots as they were, not as they are": {"all": (
            r"steps\[name\] = taken\(X, columns, 2\)", "steps[name] = X[:, :, : columns.shape[2]]")},
        "a trace beside a frozen cache has a new key": {"all": (r"new = 0 if cache\.frozen else", "new =")},
        "lengths beside a frozen cache are forgotten": dict.fromkeys(IN_PLACE, (
            r"lengths = call\.valid_lens if frozen else None", "lengths = None")),
        "a portion in place begins at the first slot": dict.fromkeys(IN_PLACE, (
            r"step\.first - step\.used\.start", "step.first")),
        "tokens in place are turned as the first": dict.fromkeys(IN_PLACE, (
            r"(of\.arange\(queries\.shape\[1\], queries\)\[None\]) \+ step\.first", r"\1")),
        "positions in place are one too far": dict.fromkeys(IN_PLACE, (
            r"(positions\[:, there\] = .*)", r"\1 + 1")),
        "a lone token in place is turned as the first": dict.fromkeys(IN_PLACE, (
            r"np\.full\(\(1, 1\), step\.first\)", "np.zeros((1, 1), int)")),
        "heads of a lone token see other keys": dict.fromkeys(IN_PLACE, (
            r"of\.reshape\(q, \(B, G, H // G, d\)\)", "of.reshape(q, (B, H // G, G, d)).swapaxes(1, 2)")),
        "what a lone token is given is not looked at": dict.fromkeys(IN_PLACE, (
            r"call\.mask is call\.score_bias is call\.head_gates is None", "True")),
        "several tokens count as a lone one": dict.fromkeys(IN_PLACE, (
            r"queries\.shape\[1\] == 1 and step is not", "step is not")),
        "a lone token sees all slots": {
            "numpy": (r"\(q, k\[:, :, call\.step\.used\], v\[.*?\]\)", "(q, k, v)"),
            "torch": (r"k, v = k\[:, :, call\.step\.used\], v\[.*\]", "pass"),
            "mxnet": (r"k, v = k\[:, :, used\], v\[:, :, used\]", "pass")},
        "a lone token is pooled without a cap": {"torch": (r"call\.plan\.plain and is_token", "is_token")},
        "a lone token drops nothing": dict.fromkeys(("numpy", "mxnet", "mlx"), (
            r"weigh\(q, k, v, training=call\.training", "weigh(q, k, v, training=False")),
        "lengths in place stay": dict.fromkeys(IN_PLACE, (r"lengths\[:\] = book\.tokens", "pass")),
        "what a ring in place has lost is one too far": dict.fromkeys(IN_PLACE, (
            r"lost\[:\] = book\.tokens - S - 1", "lost[:] = book.tokens - S")),
        "padding in place is projected": {"torch": (r"if \(step\.positions < 0\)\.any\(\):", "if False:")},
        "a mask in place hides alone": dict.fromkeys(IN_PLACE, (
            r'of\.four_axes\(pairs\["mask"\]\) \* seen', 'of.four_axes(pairs["mask"])')),
        "pairs in place may hide what is no number": dict.fromkeys(IN_PLACE, (
            "if pairs or step\\.hidden:", "if step.hidden:")),
        "a window in place may hide what is no number": dict.fromkeys(IN_PLACE, (
            "if pairs or step\\.hidden:", "if pairs:")),
        "the book of a cache is that of before": dict.fromkeys(IN_PLACE, (
            r"\.booked\(book\)", ".booked(call.cache.book())")),
        "what gradients need is written over": {"torch": (r"return not any\((X is not None and .*)\)", "return True"),
            "mxnet": (r"autograd\.is_recording\(\) or not in_place", "not in_place")},
        "heads that share keys are mixed up for one query": {"torch": (
            r"q = q\.view\(batch_size, k\.shape\[1\], -1, q\.shape\[3\]\)",
            "q = q.view(batch_size, -1, k.shape[1], q.shape[3]).transpose(1, 2)")},
        "a lone token inside a compiler goes one slot too far": {"torch": (
            r"new >= 0, cache\.lengths % S", "new >= 0, (cache.lengths + 1) % S")},
        "what a lone token inside a compiler pushes out is not lost": {"torch": (
            r"torch\.maximum\(lost, pushed\)  # \(B,\)\n    wrong = \(found >= 0\) & \(found >= torch",
            "lost\n    wrong = (found >= 0) & (found >= torch")},
        "padding takes a slot inside a compiler": {"torch": (
            r"torch\.where\(call\.key_positions\[:, :, None\] >= 0, new, .*\)", "new")},
        "what a window hides may be no number inside a compiler": {"torch": (
            r"if call\.pairs\(\) or call\.window or call\.chunk:", "if call.pairs():")},
        "a cache that was written to may be used again": {"torch": (r"use_up\(written=True\)", "use_up()")},
        "the first of two tokens stays in a slot": {"jax": (r"jnp\.where\(last, slots", "jnp.where(~last, slots")},
        "slots that nobody sees are weighed": {"jax": (r"found = jax\.lax\.cond\(jnp\.isnan.*", "pass")},
        "new tokens that nobody sees are weighed": {"jax": (
            r"new = jnp\.where\(seen\[:, S:\], v\[1\], 0\)", "new = v[1]")},
        "any portion counts as the first one": {"jax": (
            r"\(call\.cache\.lengths == 0\)\.all\(\) & .*", "jnp.array(True)")},
        "a portion in pieces weighs what nobody sees": {"jax": (
            r"\(jnp\.where\(seen, X, 0\) for X in \(keys, values\)\)", "(keys, values)")},
        "the rest of the slots is not 0": {"mxnet": (r"np\.zeros\((\(\*weights\.shape\[:2\])", r"np.ones(\1")},
        "slots that nobody sees count": {"tensorflow": (r"return tf\.cond\(tf\.reduce_any\(.*", "return found")},
        "what others have is written": {"tensorflow": (r"cache\.owner\(\) is not layer", "False")},
        "a token's own keys have no gradients": {"tensorflow": (r" and not record\.could_possibly_record\(\)", "")},
        "heads write into the slots of the first": {"tensorflow": (r"tf\.range\(B \* G\) \* S", "0 * tf.range(B * G)")},
        "padding has a slot": {"tensorflow": (r"(there\[:, None\] <) S", r"\1= S")},
        "a portion begins at the first slot": {"tensorflow": (r"step\.first - step\.used\.start if", "0 if")},
        "each token is compiled anew": {"tensorflow": (r'"real", step\.first is not None or', '"real", step.first or')},
        "a slot has the position of its number": {"tensorflow": (r"end - 1 - \(end - 1 - slot\) % S", "slot")},
        "a portion sees what it writes over": {"tensorflow": (r"isinstance\(Q, int\) and Q == 1", "True")},
        "a mask has a column for each slot and token": {"tensorflow": (
            r"(call\.key_positions\], 1\), )call\._replace\(\*\*pairs\)", r"\1call")},
    }),
    "blocks": ("reference loops blocks", {
        "a block forgets its place": {
            "jax": (r" \+ piece % counts\[2\] \* size", ""),
            "tensorflow": (r"tf\.cast\(offset, tf\.int64\) \+ (\w+\.range)", r"\1"),
        },
        "blocks of a window that see other keys are taken as alike": {"torch": (
            r"size == keys\.start - before\.start == (keys\.stop - before\.stop)", r"size == \1")},
        "a window's rows of a group in another order": {"torch": (r"\.repeat\(1, 1, BH // BG, 1\)",
            ".repeat_interleave(BH // BG, 2)")},
        "the kernel's mask of groups in another order": {"torch": (r"visible\.expand\(B, heads, -1, -1\)",
            "visible.expand(B, heads, -1, -1).transpose(0, 1)")},
        "the kernel forgets the scale": {"torch": (r"is_causal=ordered, scale=self\.scale", "is_causal=ordered")},
        "a causal order with an offset is left to the kernel": {"torch": (
            r"return isinstance\(call\.offset, int\) and call\.offset == 0", "return True")},
        "a bias of other blocks": {"torch": (r"score_bias(\.split\(sizes, 2\))", r"score_bias.roll(1, 2)\1")},
        "keys of a chunk from its beginning": {"tensorflow": (r"seen\.start - start : seen\.stop - start",
            "0 : seen.stop - seen.start")},
        "the bias of the first keys in every part": {"jax": (r"cut\(X, first, size, 3\)", "X[:, :, :, :size]")},
        "gradients of a bias go to its first keys": {"mxnet": (r"(total\[)cut(\] \+=)",
            r"\1(*cut[:3], slice(X.shape[3])) if X.ndim == 4 else cut\2")},
        "lengths of the first queries in every block of a loop": {"jax": (r"call\.valid_lens\[:, None, :, None\]",
            "jnp.tile(call.valid_lens[:, :size], (1, -(-Q // size)))[:, :Q, None][:, None]")},
        "the causal order of a loop ends before its block does": {"jax": (
            r"jnp\.minimum\(offset\.max\(\), K - right\) \+ size \+ right", "(offset.max() + size + right) // 2")},
        "a loop misses the first key of its window": {"jax": (r"clip\((call\.)?offset - left",
            r"clip(\1offset - left + 1")},
        "a loop forgets where its keys begin": {"jax": (r"offset=call\.offset - first", "offset=call.offset")},
        "lengths forget where the keys of a loop begin": {"jax": (r"call\.valid_lens - first", "call.valid_lens")},
        "the bias of the first queries in every piece": {
            "tensorflow": (r"\(s \* P \+ p\) \* C \+ c", "(s * P + p) * C"),
            "mxnet": (r"zip\(\(block, seen\), pairs", "zip((slice(block.stop - block.start), seen), pairs"),
            "jax": (r"\(lens, (offset.*), \*pairs\)", r"(lens, \1, *map(of_first, pairs))", r"    arrays = \[",
            "    of_first = lambda X: X if X.shape[2] == 1 else jnp.tile(\n"
            "        X[:, :, :size], (1, 1, -(-Q // size), 1))[:, :, :Q]\n    arrays = ["),
        },
        "lengths alone blank nothing": {
            "torch": (r"keys = torch\.where\(seen\[:, :, None\], keys, 0\)", "pass"),
            "mxnet": (r"return X if flags\.all\(\) else .*", "return X"),
        },
        "a mask is not cut to the length of all": {"tensorflow": (
            r"_replace\(valid_lens=None\)\.part\(keys=seen\)", "_replace(valid_lens=None)")},
        "both passes of a function of one's own drop other weights": {"tensorflow": (
            r"seed = pooling\.dropping\.seed_generator\.next\(\) if .*\n",
            "seed = tf.random.uniform((2,), maxval=2**30, dtype=tf.int32)\n",
            r"stateless_fold_in\(tf\.cast\(seed, tf\.int32\), piece\)",
            "stateless_fold_in(tf.random.uniform((2,), maxval=2**30, dtype=tf.int32), piece)")},
        "several samples have the first one's length": {"tensorflow": (
            r"isinstance\(heads, int\) and heads <= G", "isinstance(heads, int)")},
        "offsets of 64 bits meet integers of 32": {"tensorflow": (
            r"isinstance\(offset, int\) and offset\.dtype != tf\.int32", "isinstance(offset, int) and False")},
        "a mask of one column is cut as others are": {"jax": (r"X if X\.shape\[3\] == 1 else cut", "cut")},
        "queries of empty samples stay": {"torch": ("if shortest == 0:", "if False:")},
        "another thread has its own state of training": {"mxnet": (
            r"autograd\.is_training\(\) if call\.training is None else call\.training\n", "call.training\n")},
    }),
    "what a compiler knows": ("compiled", {
        "a trace keeps the lengths of its first call": {"torch": (
            r"not \((torch\.compiler\.is_compiling\(\)) or torch\.jit\.is_tracing\(\)\)", r"not \1")},
        "what is decided in a trace is remembered": {"torch": (r" or torch\.jit\.is_tracing\(\) or not", " or not")},
        "lengths that a map hides count as known": {"torch": (r"alone and call\.extremes is not None:", "alone:")},
        "compiled blocks end the graph": {"torch": (r"    if torch\.compiler\.is_compiling\(\):\n        return True",
            "    if False:\n        return True")},
    }),
    "what a layer of Keras was made": ("tensorflow_calls", {
        "a part that looks at neighbours has rows": {"tensorflow": (
            r"return type\(dense\) is keras\.layers\.Dense and is_untouched\(dense\)", "return True")},
        "rows count as samples in the loss of a part": {"tensorflow": (r"Dense and is_untouched\(dense\)", "Dense")},
        "a part's own loss is forgotten": {"tensorflow": (r" and part\.activity_regularizer is None\n", "\n")},
        "a part of another precision counts as the layer's": {"tensorflow": (
            r" or part\.dtype_policy\.name != dtype\.name", "")},
        "a norm of another class counts as the layer's": {"tensorflow": (r"type\(part\) is not HeadNorm or ", "")},
        "a norm's epsilon counts as the configuration's": {"tensorflow": (
            r"is not HeadNorm or part\.norm != .*:", "is not HeadNorm:")},
        "a dropout counts as the configuration's": {"tensorflow": (
            r"pooling\.dropout == pooling\.dropping\.rate == config\.dropout and ", "")},
        "a cap counts as the configuration's": {"tensorflow": (r" and pooling\.softcap == config\.softcap\)", ")")},
        "a scale counts as the configuration's": {"tensorflow": (r"pooling\.scale != config\.scale:", "False:")},
        "scores of one's own count as finite": {"tensorflow": (
            r" and is_untouched\(layer\.attention\) and not", " and not")},
    }),
    "what is remembered of calls": ("programs", {
        "lengths that were seen count as all others": {"jax": (r"_seen and _seen\(\) is lengths", "_seen")},
        "lengths that only a compiler knows are looked at": {"jax": (
            r"    if \(known := (arrays\.known\(lengths\))\) is None:.*\n        return given\n", r"    known = \1\n")},
        "a number counts as a switch": {"jax": (r" or not SWITCHES\.issuperset\(map\(type, switches\)\)", "")},
        "all calls are remembered": {"jax": (r"len\(PLANS\) >= MOST", "False")},
        "each offset is looked at anew": {"jax": (r" or int in types", "")},
    }),
    "what is refused": ("bad_inputs", {
        "sparse arrays pass for those that were checked": {"torch": (r" or X\.layout != torch\.strided:", ":")},
    }),
    "options alone": ("alone", {
        "views of heads that are to be turned": {"torch": (r" or config\.qk_norm or config\.rotary\b", "")},
        "views of heads that have gates": {"torch": (r"if call\.head_gates is not None or not", "if not"),
            "tensorflow": (r" or call\.head_gates is not None or", " or")},
        "views of heads that share keys": {"torch": (
            r"turned = config\.num_key_value_heads != config\.num_heads or config\.qk_norm",
            "turned = config.qk_norm")},
        "views forget the scale": {"torch": (r"is_causal=ordered, scale=scale\)", "is_causal=ordered)")},
        "views forget the bias": {"torch": (r"attn_mask\(q\[:, 0\], k\[:, 0\], call\)",
            "attn_mask(q[:, 0], k[:, 0], call._replace(score_bias=None))")},
        "views forget lengths": {"torch": (r"attn_mask\(q\[:, 0\], k\[:, 0\], call\)",
            "attn_mask(q[:, 0], k[:, 0], call._replace(valid_lens=None))")},
        "views forget a mask": {"torch": (r"attn_mask\(q\[:, 0\], k\[:, 0\], call\)",
            "attn_mask(q[:, 0], k[:, 0], call._replace(mask=None))")},
        "the kernel forgets the cap": {"torch": (r"self\.softcap is not None or \(training", "(training")},
        "an offset below 0 counts as 0": {
            "torch": (r"call\.offset\) is not int or call\.offset != 0", "call.offset) is not int or call.offset > 0",
                r"isinstance\(call\.offset, int\) and call\.offset == 0",
                "isinstance(call.offset, int) and call.offset <= 0"),
            "mxnet": (r"call\.offset\) is not int or call\.offset != 0", "call.offset) is not int or call.offset > 0"),
        },
        "a window to the left is taken for a causal order": {"torch": (r"reach\(call\) == \(None, 0\) and",
            "reach(call)[1] == 0 and")},
        "a window to the right is taken for a causal order": {"torch": (r"reach\(call\) == \(None, 0\) and",
            "reach(call)[0] is None and reach(call)[1] is not None and")},
        "lengths beside a causal order are forgotten": {"torch": (
            r"== \(None, 0\) and call\.valid_lens is None and", "== (None, 0) and")},
        "pairs beside a causal order are forgotten": {"torch": (r"valid_lens is None and not call\.pairs\(\)\n",
            "valid_lens is None\n")},
        "lengths alone hide one key too few": {"torch": (r"np\.arange\(K\) < lengths", "np.arange(K) <= lengths")},
        "the shortest length for the longest": {"torch": (r"min\(longest, keys\.shape\[1\]\)",
            "min(shortest, keys.shape[1])")},
        "keys that nobody sees count, where every query sees one": {
            "torch mxnet mlx": (r"whole_used\(call, Q, K\)", "all_used(call, Q, K)"),
        },
        "queries without keys keep what they hold": {
            "mxnet mlx": (r"return zeroed\(of, queries, sees\)", "return queries"),
            "tensorflow": (r"return queries if call\.plan is not None and call\.plan\.see else blank_queries",
                "return queries"),
        },
        "unseen values keep what they hold": {"mxnet mlx": (
            r"zeroed\(of, values, seen_by_any\), call", "values, call")},
        "a query before the first key counts as seeing": {" ".join(IN_PLACE): (r"call\.offset \+ right < 0",
            "call.offset + right < -1")},
        "heads that are to be turned keep four axes": {"tensorflow": (
            r"turned = config\.qk_norm or config\.value_norm or config\.rotary or", "turned =")},
        "heads of a rotation keep four axes": {"tensorflow": (r"config\.value_norm or config\.rotary or",
            "config.value_norm or")},
        "the engine forgets the scale": {"tensorflow": (
            r"sqrt\(queries\.shape\[-1\]\) if self\.scale is None else self\.scale", "sqrt(queries.shape[-1])")},
        "every query of a call with lengths sees a key": {"tensorflow": (r'return "one" if (.*) else "some"',
            r'return "some"', r'if not bounds or bounds\[0\] == 0', "if not bounds")},
        "one length for all, if the longest is": {"tensorflow": (r'return "one" if bounds\[0\] == bounds\[1\]',
            r'return "one" if bounds[0] < bounds[1]')},
        "a row without keys is not put back": {"tensorflow": (r"if sees is not None and not call\.plan\.see",
            "if False")},
        "plan of lengths per query as of samples": {"tensorflow": (
            r" and len\(call\.valid_lens\.shape\) == 1\n", "\n")},
    }),
    "bounds": ("bounds", {
        "a query beyond the last key counts as seeing": {" ".join(IN_PLACE): (r"- 1 - left < num_keys",
            "- 2 - left < num_keys")},
        "the first key of a late window is one beyond all": {"torch": (r"smaller\(lowest - left, num_keys - 1\)",
            "smaller(lowest - left, num_keys)")},
        "the highest offset counts where the lowest does": {" ".join(IN_PLACE): (r"larger\(0, smaller\(lowest - left",
            "larger(0, smaller(highest - left")},
        "the lowest offset counts where the highest does": {" ".join(IN_PLACE): (r"smaller\(highest \+ num_queries",
            "smaller(lowest + num_queries")},
        "a window to the right ends one key early": {" ".join(IN_PLACE): (
            r"num_keys - right\) \+ right\n", "num_keys - right) + right - 1\n")},
        "keys between those that are seen are blank": {" ".join(IN_PLACE): (
            r"if call\.pairs\(\) or call\.by_tokens\(\) or \(per_query and left is not None\)", "if call.pairs()",
            r"lengths\.ndim == 2 and reach\(call\)\[0\] is not None", "False")},
        "a length of the last query for all of its sample": {" ".join(IN_PLACE): (
            r"of\.maximum\(each_query, left\) - left", "of.maximum(each_query, left) - left + 1")},
        "where queries see no key by a window, the first does": {" ".join(IN_PLACE): (r"sees = first < last  #",
            "sees = first <= last  #")},
        "queries past all keys count as seeing in a compiler": {"torch": (
            r"known = all\(isinstance\(size, int\) for size in \(num_queries, num_keys\)\)\n", "known = True\n",
            r"if type\(call\.offset\) is not int or \(", "if (")},
        "a norm squares in half precision": {
            "torch jax tensorflow": (r"        wide = widen\(X\)\n", "        wide = X\n"),
            "numpy": (r"        X = widen\(X\)\n        ", "        "),
        },
        "a window of the whole starts a key late in blocks": {"torch numpy mxnet": (
            r"yield queries, span\(call\.part\(queries=queries\)",
            "yield queries, span(call.part(queries=slice(first + 1, queries.stop))")},
        "samples in one part have the offset of the first": {" ".join(IN_PLACE): (
            r"checks\.extremes\(offset\)", "checks.extremes(offset[:1])")},
        "an offset has the axes of samples, wherever keys were cut off": {"tensorflow": (
            r"tuple\(call\.offset\.shape\) in \(\(\), \(1, 1\)\)", "call.offset.shape[0] == 1")},
        "a window that begins before the keys wraps": {"jax": (r"jnp\.clip\(call\.offset - left, 0, K - size\)",
            "jnp.minimum(call.offset - left, K - size)")},
        "a window that ends after the keys is cut": {"jax": (r"Q \+ left \+ right >= K", "Q + left + right > K + 2")},
        "an offset of samples for that of all in a loop": {"jax": (r"offset\.max\(\), K - right",
            "offset.min(), K - right")},
    }),
    "branches": ("branches", {
        "a branch that no test takes": {"numpy": (r"if len\(outputs\) > 1 else",
            "if len(outputs) > 1 and len(outputs) < 10**9 else")},
    }),
    "ranks": ("heads_over_ranks sequence_over_ranks", {
        "gates count as alike, whatever their shape": {"torch": (
            r"found\[name\] = (_value\(call, name, X\) if by_value) else",
            r'found[name] = \1 else None if name == "head_gates" else')},
        "sinks count on each rank": {"torch": (
            r"torch\.ones_like\(state\[1\]\)", "self.mesh.size() * torch.ones_like(state[1])")},
        "sinks are those of the first heads": {"torch": (
            r"call\.sinks\[:, first : first \+ self", "call.sinks[:, : self")},
        "a ring forgets the window": {"torch": (r"score_bias=None, sinks=None\), tuple\(weights\)",
            "score_bias=None, sinks=None, window=None), tuple(weights)")},
        "a ring counts keys from those of the first rank": {"torch": (
            r"keys=slice\(first, first \+ size\)\)", "keys=slice(0, size))._replace(offset=self.call.offset)")},
    }),
    "dropout in pieces": ("dropout_pieces", {
        "one mask for all pieces of a head": {
            "tensorflow": (r"stateless_fold_in\((.*), piece\)", r"stateless_fold_in(\1, 0)"),
            "jax": (r"fold_in\(key, piece\)", "fold_in(key, piece // counts[2])"),
            "mxnet": (r"self\.seed \+ block\.start", "self.seed"),
        },
        "one mask for all groups": {"jax": (r"fold_in\(key, piece\)", "fold_in(key, piece % counts[2])")},
        "kept weights that do not grow in pieces": {
            "tensorflow": (r"(stateless_dropout\(weights, self\.dropout, .*\))", r"\1 * (1 - self.dropout)"),
            "mxnet": (r"kept / \(1 - self\.dropout\)", "kept"),
        },
        "what is kept and what is dropped in pieces confused": {
            "tensorflow": (r"stateless_dropout\(weights, self\.dropout", "stateless_dropout(weights, 1 - self.dropout"),
            "mxnet": (r'"float32"\) >= self\.dropout', '"float32") >= 1 - self.dropout'),
        },
        "the kernel, which drops nothing, is taken in training": {"torch": (
            r"return type\(self\) is DotProductAttention and .*", "return type(self) is DotProductAttention")},
    }),
    "memory": ("memory", {
        "scores are kept for the backward pass": {
            "numpy": (r"(?s)(def pool_backward.*?for block, seen in )self\.pieces\(queries, keys, call\)",
                r"\1[(slice(0, queries.shape[1]), slice(0, keys.shape[1]))]"),
            "torch": (r"checkpoint\(function, \*inputs, use_reentrant=False\)", "function(*inputs)"),
            "tensorflow": (r" +@recomputed\n", ""),
            "jax": (r"again = functools\.partial\(jax\.checkpoint.*", "again = lambda function: function"),
            "mxnet": (r"return Recomputed\.call\(.*",
                "return np.concatenate([pool_block(*cuts, queries[:, cuts[0]], *(X[:, cuts[1]] "
                "for X in (keys, values)))\n        for cuts in pieces], 1)"),
        },
        "a kernel that keeps the scores is taken": {"torch": ("keeps = .*", "keeps = False")},
        "a bias with gradients passes for one without": {"torch": (
            r'bias is not None and getattr\(bias, "requires_grad", None\)', "None")},
        "keys are copied for every head": {"torch": (r"\.expand\(-1, sizes\[1\], -1, -1\)",
            ".repeat(1, sizes[0] * sizes[1] // X.shape[0], 1, 1)")},
    }),
    "single frameworks": ("poolings frozen half_precision calls split_over_devices", {
        "the scores of a replaced pooling are ignored": {"torch": (r"type\(self\) is DotProductAttention",
            "isinstance(self, DotProductAttention)")},
        "heads that were split over devices are taken": {"torch": (r"whole_heads\(self\.config, .*\)", "pass")},
        "calls with NumPy arrays are recorded": {"torch": ("if not tracked:", "if False:")},
        "frozen weights have no gradients": {"mxnet": (r'parameter\.grad_req = "write"', "pass")},
        "frozen weights are thawed": {"mxnet": (r"twin = copy\.deepcopy\(layer, kept\)", "twin = layer")},
        "gradients of biases are summed in half precision": {"numpy": (r"widen\(by_output\)\.sum\(axes\)",
            "by_output.sum(axes)")},
    }),
    "checks": ("checks", {
        "as many samples as keys hide none": {"torch mxnet mlx": (r"bounds\[0\] == keys\.shape\[1\]",
            "bounds[0] == keys.shape[0]")},
    }),
    "what pulls gradients back": ("vjp", {
        "the output of a call that was pulled back has a history": {"torch": (r"return output\.detach\(\), pull_back",
            "return output, pull_back")},
        "gradients forget the dropout of the call": {"numpy": (r"kept = attention\.drop\(.*\)",
            "kept = np.ones_like(weights)")},
        "gradients drop what another call would": {
            "numpy": (r"copied\(again\)", "again"),
            "tensorflow": (r"run\(_pulled, \*same, seed,", "run(_pulled, *same, seed and seed + 1,"),
        },
        "gradients can be pulled back once": {
            "torch": ("retain_graph=True", "retain_graph=False"),
            "mxnet": (r"weights \* npx\.dropout\(np\.ones_like\(weights\)", "npx.dropout(weights"),
        },
        "weights that were assigned after the call count": {
            "numpy torch": (r"twin = copy\.deepcopy\(layer\)", "twin = layer"),
            "mxnet": (r"twin = thawed\(layer\)", "twin = layer"),
            "tensorflow": (r"own = own\[0\], \[tf\.convert_to_tensor\(X\).*", "pass"),
        },
        "inputs that change after the call count": {
            "numpy": (r"return X\.copy\(\)", "return X"),
            "torch": (r"return X\.detach\(\)\.clone\(\)", "return X", r"detach\(\)\.clone\(\)\.req", "detach().req"),
            "mxnet": (r"(def copied.*\n.*\n    return) X\.copy\(\)", r"\1 X"),
        },
    }),
    "devices": ("devices_of_jax", {
        "the samples of all devices take the first one's branch": {"jax": (r"jax\.lax\.pmax\(needed, TOGETHER\)",
            "jax.lax.all_gather(last, TOGETHER)[0]")},
        "samples are looped over on all devices": {"jax": (r"return 1 if mesh\.empty or varies\(X\) else .*",
            "return 1")},
        "samples of one device are computed as if they lay on all": {"jax": (r"mesh\.empty or (.*), mesh\.size\)",
            r"\1, jax.device_count())")},
    }),
    "calls": ("dropout reference loops own_layers layer calls parity", {
        "bias of the values dropped": {"all": (r"self\.W_v\(values\)", "self.W_v(values) - self.W_v(values * 0)")},
        "bias of the output dropped": {"all": (r"self\.W_o\(merged\)", "(self.W_o(merged) - self.W_o(merged * 0))")},
        "dropout when not training": {
            "numpy": (r"if not training or self\.dropout == 0", "if self.dropout == 0"),
            "torch": (r"self\.dropout, training\)", "self.dropout, True)"),
            "tensorflow": (r"self\.dropping\(weights, training=training\)", "self.dropping(weights, training=True)"),
            "jax": ("deterministic=not training", "deterministic=False", r"if call\.training and (layer|pooling)",
                r"if \1"),
            "mxnet": (r"if not training:\n            return weights", "if False:\n            return weights"),
        },
        "additive scores without tanh": {"all": (r"\w+\.tanh\(", "(")},
        "scores in float32 whatever the dtype": {
            "numpy": (r"np\.promote_types\(X\.dtype, np\.float32\)", "np.float32"),
            "torch": (r"torch\.promote_types\(X\.dtype, torch\.float32\)", "torch.float32"),
            "tensorflow": (r"tf\.cast\(X, tf\.float32\) if .*", "tf.cast(X, tf.float32)"),
            "jax": (r"jnp\.promote_types\(X\.dtype, jnp\.float32\)", "jnp.float32"),
            "mxnet": (r"onp\.promote_types\(X\.dtype, onp\.float32\)", '"float32"'),
        },
        "no gradient through the weights": {
            "numpy": (r"by_biased = weights \*", "by_biased = 0 * weights *"),
            "torch mxnet": (r"self\.drop\(weights, training\)", "self.drop(weights.detach(), training)"),
            "tensorflow": (r"self\.drop\(weights, training\)", "self.drop(tf.stop_gradient(weights), training)"),
            "jax": (r"self\.drop\(weights, training\)", "self.drop(jax.lax.stop_gradient(weights), training)"),
        },
    }),
}
