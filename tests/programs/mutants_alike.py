"""Mutants that change nothing a user can see, by file and name, each with its reason: `mutants.py` leaves them out."""

ALIKE: dict[str, dict[str, str]] = {
    "backends/numpy/engine/pooling.py": {
        "AttentionPooling.pool_backward: False -> True": "a copy more, of the same numbers",
    },
    "mha/core/cache/steps.py": {
        "_find_visible: call._replace(valid_lens=None, mask=None, score_bias=None, offset=0, key_positions=places) -> "
        "call._replace(valid_lens=None, mask=None, score_bias=None, key_positions=places)": (
            "positions say where queries are"
        ),
    },
    "mha/parity/rule/rules.py": {
        "ratio_of: error(result, oracle) -> error(oracle, result)": "a distance is the same from both sides",
    },
    "backends/numpy/cache.py": {
        "recall: cache.lost < LOST -> cache.lost <= LOST": "NumPy's numbers are known: what would be lost is refused",
    },
    "mha/core/options/checks.py": {
        "extremes: valid_lens.size > FEW -> valid_lens.size >= FEW": "both ways give the same"
    },
    "mha/bench/run.py": {
        "Runner.sweep: 0 -> 1": "only what has its memory comes there, and far more than 8 MiB are free"
    },
    "mha/core/call/signatures.py": {
        "call_of: call and (not call.keys() <= _BY_KEYWORD) -> not call.keys() <= _BY_KEYWORD": "without names all are",
    },
    "mha/core/call/fitting.py": {
        "_hint_axes: row.hides and 'BQ' in row.axes and shape_fits(value.shape, (full['Q'], full['B'])) "
        "-> 'BQ' in row.axes and shape_fits(value.shape, (full['Q'], full['B']))": "what has these axes hides",
    },
    "mha/cli/terminal.py": {
        "_option_names: described.param_decls or () -> described.param_decls": "typer makes a tuple, or an empty one",
    },
    "mha/core/engine/blocks.py": {
        "heads: 1 -> 2 (3)": "a piece has other sizes, and the same numbers",
        "_pieces_of_segments: keys.stop - 1 -> keys.stop + 1": "what needs no key has one that nobody sees",
        "block: 1 -> 2": "a block of a window has one query fewer at most, and the same numbers",
    },
    "mha/parity/diagnosis/wrong_setup/beyond_attention.py": {
        "fit_norm: 1e-300 -> 2e-300": "it only keeps 0 / 0 from NaN, and no other sum of squares is so small",
    },
    "mha/parity/diagnosis/mistakes/bench.py": {
        "Bench.part: plan.rows == self.rows or part in WHOLE -> plan.rows == self.rows": "what needs all queries only "
        "computes some once more",
    },
    "mha/parity/rule/problem.py": {
        "Problem.alone: made.expectations.update(self.expectations) -> pass": (
            "what is known is computed again, and only costs time"
        ),
    },
    "mha/parity/rule/relations.py": {
        "changes: abs(factor - 1) > 0.02 -> abs(factor - 1) >= 0.02": "1.02 - 1 and 1 - 0.98 round to more than 0.02",
        "relate: np.zeros(0) -> np.ones(0)": "both have no number",
        "sorting_order: min((X.dtype, Y.dtype), key=lambda dtype: dtype.itemsize) "
        "-> min((X.dtype, Y.dtype))": "NumPy orders dtypes, too, and a smaller one comes first",
    },
    "mha/parity/diagnosis/search/search.py": {
        "Search.furthest: [state for state in further if state not in self.known] "
        "-> [state for state in further]": "what is known is not computed again, and only costs a little time",
    },
    "mha/parity/cases/run/workers.py": {"_listen: 1 -> 2": "any number below 0 says that the total is not known yet"},
    "mha/weights/readers/foreign.py": {
        "_is_msgpack: 0 -> 1 (3)": "neither begins a text",
        "_is_pickle: 6 -> 7": "there is no protocol 6",
    },
}
