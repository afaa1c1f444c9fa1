"""Mutants that change nothing a user can see, by file and name, each with its reason: `mutants.py` leaves them out."""

ALIKE: dict[str, dict[str, str]] = {
    "mha/call/declaration.py": {
        "call_of: call and (not call.keys() <= _BY_KEYWORD) -> not call.keys() <= _BY_KEYWORD": "without names all are",
    },
    "mha/call/fitting.py": {
        "_turned: row.hides and 'BQ' in row.axes and shape_fits(value.shape, (full['Q'], full['B'])) "
        "-> 'BQ' in row.axes and shape_fits(value.shape, (full['Q'], full['B']))": "what has these axes hides",
    },
    "mha/parity/same/relations.py": {
        "related: np.zeros(0) -> np.ones(0)": "both have no number",
        "sorted_alike: min((X.dtype, Y.dtype), key=lambda dtype: dtype.itemsize) "
        "-> min((X.dtype, Y.dtype))": "NumPy orders dtypes, too, and a smaller one comes first",
    },
    "mha/weights/readers/foreign.py": {"_is_pickle: 6 -> 7": "there is no protocol 6"},
}
