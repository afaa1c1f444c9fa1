"""Kernels are judged as attention is: answers by hand, bounds as numbers, right ones and wrong ones.

Letters as in the lessons.
"""

import math

import kernel_zoo
import numpy as np
import pytest
from kernel_zoo.calls import CASES, able, asked, call, draw

import mha
from mha.parity import compare_kernel

UNIT = 2.0**-24  # of float32
# Calls with options first: most wrong kernels differ in any, and the others in these.
IN_ORDER = sorted(CASES, key=lambda case: (not (case.options or case.how), case.Q * case.K))


def heads(*X, dtype="float32"):
    """Numbers as one head of one feature of one sample: (1, 1, T, 1)."""
    return np.array(X, dtype)[None, None, :, None]  # (1, 1, T, 1)


def nothing(*sizes):
    """Queries of zeros, for which every score is 0."""
    return np.zeros(sizes, "float32")


def differing(report):
    """The names of the arrays that differ."""
    return [row.title for row in report.rows if not row.passed]


def test_where_a_gradient_of_keys_differs_is_said_by_keys():
    q, k = (np.random.default_rng(0).normal(size=size) for size in ((1, 4, 3, 6), (1, 2, 5, 6)))
    place = compare_kernel({"dk": 0 * k}, q, k, k, lengths=np.array([4])).rows[0].place
    assert place.where == "keys 0-3 of 5; not in padding"
    assert [line.split()[-1] for line in place.picture] == ["0-4", "####-", "####-"]


# Answers by hand


A, B = 0.5, -1.0  # the scores of two keys
FIRST = math.exp(A) / (math.exp(A) + math.exp(B))  # the weight of the first
SLOPE = FIRST * (1 - FIRST)


def two_keys(dtype):
    """A query and two keys, and what a kernel has to give: values 2 and 5, the gradient of the output 3."""
    output, by_scores = FIRST * 2 + (1 - FIRST) * 5, SLOPE * (2 - 5) * 3
    right = {
        "output": heads(output, dtype=dtype),
        "lse": np.full((1, 1, 1), math.log(math.exp(A) + math.exp(B))),
        "dq": heads(by_scores * (A - B), dtype=dtype),
        "dk": heads(by_scores, -by_scores, dtype=dtype),
        "dv": heads(3 * FIRST, 3 * (1 - FIRST), dtype=dtype),
    }
    inputs = (heads(1, dtype=dtype), heads(A, B, dtype=dtype), heads(2, 5, dtype=dtype))
    return right, (inputs, {"cotangent": heads(3, dtype=dtype)})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_keys_by_hand(dtype):
    right, (inputs, more) = two_keys(dtype)
    assert compare_kernel(right, *inputs, **more)
    assert compare_kernel(right["output"], *inputs)
    assert compare_kernel((right["output"], right["lse"]), *inputs)
    for name in right:
        assert differing(compare_kernel(right | {name: right[name] * 1.001}, *inputs, **more)) == [name]


def test_the_gradient_is_of_a_cotangent_of_ones_where_none_is_given():
    right, (inputs, _) = two_keys("float64")
    assert compare_kernel({"dv": right["dv"] / 3}, *inputs)
    assert not compare_kernel({"dv": right["dv"]}, *inputs)


def test_a_sink_takes_its_share_and_is_in_the_log_sum_exp():
    inputs, sinks = (heads(0), heads(1), heads(8)), np.log([3.0])
    assert compare_kernel((heads(2), np.full((1, 1, 1), math.log(4))), *inputs, sinks=sinks)  # 1 / (1 + 3) of 8
    assert differing(compare_kernel((heads(2), np.zeros((1, 1, 1))), *inputs, sinks=sinks)) == ["lse"]
    assert differing(compare_kernel((heads(8), np.full((1, 1, 1), math.log(4))), *inputs, sinks=sinks)) == ["output"]


@pytest.mark.parametrize(("options", "right"), [({"scale": 2.0}, 4.0), ({"softcap": 3.0}, 3 * math.tanh(2 / 3)),
                         ({"scale": 2.0, "softcap": 3.0}, 3 * math.tanh(4 / 3)), ({"bias": heads(0.25)}, 2.25),
                         ({"softcap": 3.0, "bias": heads(0.25)}, 3 * math.tanh(2 / 3) + 0.25)])  # fmt: skip
def test_the_log_sum_exp_of_one_key_is_its_score(options, right):
    inputs = heads(1), heads(2), heads(1)
    assert compare_kernel((heads(1), np.full((1, 1, 1), right)), *inputs, **options)
    assert not compare_kernel((heads(1), np.full((1, 1, 1), right + 1e-4)), *inputs, **options)


@pytest.mark.parametrize("K", [4096, 16384])
def test_many_terms_may_be_added_one_after_the_other(K):
    """Values with a mean, of which a sum grows: each addition rounds as much of it."""
    v = np.random.default_rng(5).normal(3, 1, (1, 4, K, 16)).astype("float32")
    total = np.add.accumulate(v / np.float32(K), 2)[:, :, -1:]  # (1, 4, 1, 16)
    report = compare_kernel(total, nothing(1, 4, 1, 2), nothing(1, 4, K, 2), v)
    assert 0.05 < report.ratio < 0.7
    assert not compare_kernel(total * np.float32(1 + 3e-5), nothing(1, 4, 1, 2), nothing(1, 4, K, 2), v)


V = (1.0, 3.0, 8.0)  # the values of three keys
SEEN = {  # what is seen by each of two queries, as options say
    "all": ({}, [V, V]),
    "upper left": ({"causal": True}, [V[:1], V[:2]]),
    "lower right": ({"causal": "lower right"}, [V[:2], V]),
    "lower right of a length": ({"causal": "lower right", "lengths": np.array([2])}, [V[:1], V[:2]]),
    "upper left of a length": ({"causal": True, "lengths": np.array([1])}, [V[:1], V[:1]]),
    "lower right in a window": ({"causal": "lower right", "window": (1, 0)}, [V[:2], V[1:]]),
    "a window": ({"window": (0, 1)}, [V[:2], V[1:]]),
    "a window that is open on the left": ({"window": (None, 0)}, [V[:1], V[:2]]),
    "a mask": ({"mask": np.array([[True, False, True], [False, True, True]])}, [V[::2], V[1:]]),
    "a bias that hides": ({"bias": np.array([[0, -np.inf, 0]])}, [V[::2], V[::2]]),
}


@pytest.mark.parametrize("name", SEEN)
def test_the_output_is_the_mean_of_what_is_seen(name):
    """And another choice of keys is not the same."""
    options, seen = SEEN[name]
    inputs = nothing(1, 1, 2, 1), nothing(1, 1, 3, 1), heads(*V)
    for _, keys in SEEN.values():
        output, lse = heads(*map(np.mean, keys)), np.log([[list(map(len, keys))]])
        assert bool(compare_kernel((output, lse), *inputs, **options)) == (keys == seen)


PACKED = {
    "each its own": ({}, [[1.0, 3.0], [1.0, 3.0], [8.0]]),
    "in order": ({"causal": True}, [[1.0], [1.0, 3.0], [8.0]]),
    "of other lengths": ({"cu_seqlens_k": [0, 1, 3]}, [[1.0], [1.0], [3.0, 8.0]]),
    "in order, lower right": ({"cu_seqlens_k": [0, 1, 3], "causal": "lower right"}, [[], [1.0], [3.0, 8.0]]),
}


@pytest.mark.parametrize("name", PACKED)
def test_texts_that_are_packed_see_their_own_keys(name):
    options, seen = PACKED[name]
    q, k, v = nothing(3, 1, 1), nothing(3, 1, 1), np.array(V, "float32").reshape(3, 1, 1)
    for _, keys in PACKED.values():
        output = np.array([sum(each) / max(len(each), 1) for each in keys], "float32").reshape(3, 1, 1)
        with np.errstate(divide="ignore"):
            lse = np.log([[len(each) for each in keys]])  # (H, tokens)
        packed = compare_kernel((output, lse), q, k, v, layout="THD", cu_seqlens=np.array([0, 2, 3]), **options)
        assert bool(packed) == (keys == seen)


def test_the_layouts_of_heads_and_of_the_log_sum_exp():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, H, T, 4)) for H, T in ((6, 5), (3, 7), (3, 7)))
    kernel = kernel_zoo.right("numpy")["flash 32"].call
    output, lse = (X.astype("float32") for X in kernel(*(X.astype("float32") for X in (q, k, v))))
    first, second = ([X.astype("float32") for X in (q, k, v)], [X.swapaxes(1, 2).astype("float32") for X in (q, k, v)])
    assert compare_kernel((output, lse), *first)
    assert compare_kernel((output.swapaxes(1, 2), lse.swapaxes(1, 2)), *second, layout="BTHD")
    for theirs in ((output.swapaxes(1, 2), lse), (output, lse[..., None])):
        wrong = compare_kernel(theirs, *first)
        assert [row.ratio for row in wrong.rows if not row.passed] == [math.inf]
        assert "it has shape" in str(wrong)


# Rows that see no key


HIDDEN = {"lengths": np.array([3, 0])}  # the second sample


def with_hidden(**changes):
    """The arrays of two samples whose second sees nothing, with other numbers there."""
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(2, 2, 3, 4)).astype("float32") for _ in range(3)]
    kernel = kernel_zoo.right("numpy")["flash 32"]
    output, lse = kernel.call(*inputs, **HIDDEN)
    found = {"output": output, "lse": lse}
    found |= kernel.backward(*inputs, output, lse, np.ones_like(output), **HIDDEN)
    for name, number in changes.items():
        found[name] = found[name].copy()
        found[name][1, 1, 2] = number
    return inputs, found


def test_rows_without_keys_are_0_and_their_log_sum_exp_minus_infinity():
    inputs, found = with_hidden()
    assert compare_kernel(found, *inputs, **HIDDEN)
    assert (found["output"][1] == 0).all()
    assert (found["lse"][1] == -np.inf).all()


@pytest.mark.parametrize("name", ["output", "dq", "dk", "dv"])
@pytest.mark.parametrize("number", [1e-30, np.nan, np.inf])
def test_any_other_number_where_nothing_is_seen_differs(name, number):
    inputs, found = with_hidden(**{name: number})
    assert differing(compare_kernel(found, *inputs, **HIDDEN)) == [name]


@pytest.mark.parametrize("number", [0, -1e30, np.nan, np.inf])
def test_the_log_sum_exp_of_nothing_is_minus_infinity(number):
    inputs, found = with_hidden(lse=number)
    assert differing(compare_kernel(found, *inputs, **HIDDEN)) == ["lse"]


@pytest.mark.parametrize("number", [-np.inf, math.log(3)])
def test_the_log_sum_exp_of_nothing_but_a_sink_may_be_that_of_the_sink(number):
    inputs, more = (heads(0), heads(1), heads(8)), {"sinks": np.log([3.0]), "lengths": np.array([0])}
    assert compare_kernel((heads(0), np.full((1, 1, 1), number)), *inputs, **more)
    assert differing(compare_kernel((heads(8), np.full((1, 1, 1), number)), *inputs, **more)) == ["output"]


def test_rows_without_keys_do_not_count_if_the_caller_says_so():
    inputs, found = with_hidden(output=np.nan, lse=5)
    assert compare_kernel(found, *inputs, **HIDDEN, empty_rows=False)
    found["output"][0, 0, 0] *= 2
    assert differing(compare_kernel(found, *inputs, **HIDDEN, empty_rows=False)) == ["output"]


# Bounds as numbers: of inputs whose results are exact, so that the terms alone count


SMALL = 2.0**-13  # the values of the second head, or text, by those of the first
EXACT = {"output": 2.0, "dq": 0.0, "dv": 0.5}  # of two keys of score 0 and values 1 and 3
TERMS = {"output": 2.0, "dq": 4.0, "dv": 0.5}  # 0.5 * (1 + 2) + 0.5 * (3 + 2) of queries; 0.5 of each value


def exact(share, name, layout, place):
    """A report on two heads or texts, whose second is smaller, with an error of so many bounds in one place."""
    axis = 1 if layout == "BHTD" else 0
    small = np.array([1.0, SMALL]).reshape([-1 if i == axis else 1 for i in range(len(layout))])
    if layout == "BHTD":
        q, k, v = nothing(1, 2, 1, 1), np.ones((1, 2, 2, 1), "float32"), heads(1, 3) * small
        of_tokens, options = small, {}
    else:
        q, k = nothing(2, 1, 1), np.ones((4, 1, 1), "float32")
        v = np.array([1, 3, SMALL, 3 * SMALL]).reshape(4, 1, 1)
        of_tokens, options = small, {"cu_seqlens": np.array([0, 1, 2]), "cu_seqlens_k": np.array([0, 2, 4])}
    right = {"output": 2 * of_tokens, "dq": 0 * of_tokens, "dv": np.full(v.shape, 0.5)}[name].astype("float64")
    size = TERMS[name] * (SMALL if place and name != "dv" else 1)
    at = (0, place, 0, 0) if layout == "BHTD" else (place * (2 if name == "dv" else 1), 0, 0)
    right[at] += share * 16 * UNIT * size
    return compare_kernel({name: right.astype("float32")}, q, k, v.astype("float32"), layout=layout, **options)


@pytest.mark.margin(1, 1)
@pytest.mark.parametrize("layout", ["BHTD", "THD"])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", EXACT)
def test_a_bound_is_of_a_text_and_a_head(layout, name, place):
    assert exact(0.9, name, layout, place)
    assert exact(-0.9, name, layout, place)
    assert not exact(1.1, name, layout, place)
    assert not exact(-1.1, name, layout, place)


@pytest.mark.margin(1, 1)
def test_the_bound_of_a_log_sum_exp_is_of_the_largest_score():
    for score in (1 / 4, 3.0):
        for share, same in ((0.9, True), (1.1, False)):
            lse = np.full((1, 1, 1), score + share * 16 * UNIT * max(score, 1))
            assert bool(compare_kernel({"lse": lse}, heads(1), heads(score), heads(1))) == same


@pytest.mark.margin(1, 1)
def test_the_bound_of_a_log_sum_exp_knows_products_that_a_bias_takes_back():
    for share, same in ((0.9, True), (1.1, False)):
        lse = np.full((1, 1, 1), share * 16 * UNIT * 3)
        assert bool(compare_kernel({"lse": lse}, heads(1), heads(3), heads(1), bias=heads(-3.0))) == same


@pytest.mark.margin(1, 1)
def test_large_scores_widen_the_bound_as_their_rounding_moves_the_weights():
    """By an eighth of the product: 80 are 10 more."""
    for share, same in ((0.9, True), (1.1, False)):
        theirs = heads(1 + share * 16 * UNIT * 11)
        assert bool(compare_kernel(theirs, heads(8), heads(10), heads(1))) == same


@pytest.mark.margin(1, 1)
def test_the_bound_of_a_shared_head_is_of_the_heads_that_share_it():
    inputs = nothing(1, 4, 1, 1), nothing(1, 2, 1, 1), np.ones((1, 2, 1, 1), "float32")
    cotangent = np.array([1, 1, SMALL, SMALL], "float32").reshape(1, 4, 1, 1)
    for share, same in ((0.9, True), (1.1, False)):
        dv = np.array([2, 2 * SMALL * (1 + share * 16 * UNIT)], "float32").reshape(1, 2, 1, 1)
        assert bool(compare_kernel({"dv": dv}, *inputs, cotangent=cotangent)) == same


def test_a_gradient_that_must_be_0_may_not_be_anything_else():
    inputs = nothing(1, 1, 1, 1), heads(1, 1), heads(1, 3)
    assert compare_kernel({"dk": heads(0, 0)}, *inputs)
    assert not compare_kernel({"dk": heads(0, 1e-30)}, *inputs)


# What is no call, or no result


INPUTS = tuple(np.ones((2, H, T, 4), "float32") for H, T in ((6, 3), (2, 5), (2, 5)))
OUTPUT = np.ones((2, 6, 3, 4), "float32")
PACKED_INPUTS = tuple(np.ones((T, 2, 4), "float32") for T in (3, 5, 5))


def kernel_inputs(**changed):
    """The inputs with others in their place."""
    return [changed.get(name, X) for name, X in zip("qkv", INPUTS, strict=True)]


@pytest.mark.parametrize(
    ("error", "words", "theirs", "inputs", "options"),
    [
        (ValueError, "theirs is a tuple of 3", (OUTPUT,) * 3, INPUTS, {}),
        (ValueError, "theirs has nothing", {}, INPUTS, {}),
        (ValueError, r"theirs has \['weights'\]", {"weights": OUTPUT}, INPUTS, {}),
        (TypeError, r"theirs\['output'\] is a str", "output", INPUTS, {}),
        (TypeError, r"theirs\['lse'\] has dtype int64", {"lse": np.zeros((2, 6, 3), int)}, INPUTS, {}),
        (TypeError, "q is a list", OUTPUT, kernel_inputs(q=[1.0]), {}),
        (TypeError, "k has dtype int64", OUTPUT, kernel_inputs(k=np.ones((2, 2, 5, 4), int)), {}),
        (ValueError, r"q has shape \(2, 3, 4\), expected 4", OUTPUT, kernel_inputs(q=np.ones((2, 3, 4), "f4")), {}),
        (ValueError, "k has 3 samples", OUTPUT, kernel_inputs(k=np.ones((3, 2, 5, 4), "f4")), {}),
        (ValueError, "v has 1 heads", OUTPUT, kernel_inputs(v=np.ones((2, 1, 5, 4), "f4")), {}),
        (ValueError, "v has 4 keys", OUTPUT, kernel_inputs(v=np.ones((2, 2, 4, 4), "f4")), {}),
        (ValueError, "k has 3 features", OUTPUT, kernel_inputs(k=np.ones((2, 2, 5, 3), "f4")), {}),
        (ValueError, "q has 5 heads, expected a mult", OUTPUT, kernel_inputs(q=np.ones((2, 5, 3, 4), "f4")), {}),
        (ValueError, "q has no heads or no features", OUTPUT, [np.ones((2, 2, 3, 0), "f4")] * 3, {}),
        (ValueError, "layout is 'BHDT'", OUTPUT, INPUTS, {"layout": "BHDT"}),
        (ValueError, "causal is 'lower'", OUTPUT, INPUTS, {"causal": "lower"}),
        (TypeError, "causal is 1", OUTPUT, INPUTS, {"causal": 1}),
        (ValueError, "window is ", OUTPUT, INPUTS, {"window": (-1, 0)}),
        (TypeError, "window is ", OUTPUT, INPUTS, {"window": (1.5, 0)}),
        (ValueError, "scale is ", OUTPUT, INPUTS, {"scale": np.nan}),
        (ValueError, "softcap is ", OUTPUT, INPUTS, {"softcap": 0.0}),
        (TypeError, "mask has dtype float32", OUTPUT, INPUTS, {"mask": np.ones((3, 5), "f4")}),
        (ValueError, r"mask has shape \(3, 4\)", OUTPUT, INPUTS, {"mask": np.ones((3, 4), bool)}),
        (TypeError, "bias has dtype bool", OUTPUT, INPUTS, {"bias": np.ones((3, 5), bool)}),
        (ValueError, r"bias has shape \(3, 4\)", OUTPUT, INPUTS, {"bias": np.ones((3, 4), "f4")}),
        (TypeError, "lengths has dtype float32", OUTPUT, INPUTS, {"lengths": np.ones(2, "f4")}),
        (ValueError, r"lengths has shape \(3,\)", OUTPUT, INPUTS, {"lengths": np.ones(3, int)}),
        (ValueError, r"lengths has shape \(3,\) beside", OUTPUT, INPUTS,
         {"lengths": np.ones(3, int), "causal": "lower right"}),
        (ValueError, r"sinks has shape \(2,\)", OUTPUT, INPUTS, {"sinks": np.ones(2, "f4")}),
        (TypeError, "sinks has dtype int64", OUTPUT, INPUTS, {"sinks": np.ones(6, int)}),
        (ValueError, r"cotangent has shape \(2, 6, 3, 5\)", OUTPUT, INPUTS, {"cotangent": np.ones((2, 6, 3, 5), "f4")}),
        (ValueError, "cotangent has shape", OUTPUT, INPUTS, {"cotangent": np.ones((6, 3, 4), "f4")}),
        (ValueError, "cu_seqlens is given", OUTPUT, INPUTS, {"cu_seqlens": np.array([0, 3])}),
        (ValueError, "cu_seqlens is None", PACKED_INPUTS[0], PACKED_INPUTS, {"layout": "THD"}),
        (ValueError, r"cu_seqlens is \[0, 2\]", PACKED_INPUTS[0], PACKED_INPUTS,
         {"layout": "THD", "cu_seqlens": [0, 2]}),
        (ValueError, r"cu_seqlens is \[0, 2, 1, 3\]", PACKED_INPUTS[0], PACKED_INPUTS,
         {"layout": "THD", "cu_seqlens": [0, 2, 1, 3], "cu_seqlens_k": [0, 1, 2, 5]}),
        (TypeError, "cu_seqlens has dtype float64", PACKED_INPUTS[0], PACKED_INPUTS,
         {"layout": "THD", "cu_seqlens": [0.0, 3.0]}),
        (ValueError, "cu_seqlens_k has 3 numbers, expected 2", PACKED_INPUTS[0], PACKED_INPUTS,
         {"layout": "THD", "cu_seqlens": [0, 3], "cu_seqlens_k": [0, 1, 5]}),
        (ValueError, "dtype is 'int8'", OUTPUT, INPUTS, {"dtype": "int8"}),
        (TypeError, "empty_rows is 1", OUTPUT, INPUTS, {"empty_rows": 1}),
        (ValueError, "style is 'any'", OUTPUT, INPUTS, {"style": "any"}),
        (TypeError, r"compare_kernel\(\) got an unexpected keyword argument 'masks'", OUTPUT, INPUTS, {"masks": 1}),
    ],
)  # fmt: skip
def test_bad_input_is_named(error, words, theirs, inputs, options):
    with pytest.raises(error, match=f"^{words}"):
        compare_kernel(theirs, *inputs, **options)


# Right and wrong kernels


def judge(backend, kernel, case, seed=1, dtype="float32"):
    """Call a kernel and judge what it gives; None if it says that it cannot do the call."""
    drawn = draw(case, seed, dtype)
    try:
        theirs = call(backend, kernel, case, drawn)
    except NotImplementedError:
        return None
    inputs, more = asked(kernel, case, drawn)
    return compare_kernel(theirs, *inputs, **more)


@pytest.mark.long("jax", "tensorflow")  # which compile each call
def test_right_kernels_pass(backend):
    every = 12 if backend == "jax" else 4  # JAX compiles each call
    for name, kernel in kernel_zoo.right(backend).items():
        cases = [case for case in able(kernel) if case.K < 1000][::every]
        reports = [report for case in cases if (report := judge(backend, kernel, case)) is not None]
        assert reports, name
        for report in reports:
            assert report, f"{name}\n{report}"


@pytest.mark.long("jax", "tensorflow")
def test_wrong_kernels_are_noticed(backend):
    for name, kernel in kernel_zoo.wrong(backend).items():
        reports = (judge(backend, kernel, case) for case in able(kernel, IN_ORDER))
        assert any(report is not None and not report for report in reports), name


BESIDE_SINKS = (
    "neither pooled values nor their sum are rescaled", "padding of the last tile counts", "tiles overlap by a key",
    "only the last tile counts", "rows of the last, partial tile are 0",
)  # fmt: skip
IN_TEXTS = [name for name, kernel in kernel_zoo.wrong("numpy").items() if kernel.layout == "THD"]


@pytest.mark.parametrize(
    "array", ["both", *(pytest.param(one, marks=pytest.mark.long("numpy")) for one in ("output", "lse"))]
)
@pytest.mark.parametrize(("option", "name"), [("bias", "tiles begin a key early"),
                                              *(("sinks", name) for name in BESIDE_SINKS),
                                              *(("cu_seqlens", name) for name in IN_TEXTS)])  # fmt: skip
def test_a_mistake_of_tiles_and_texts_is_named(option, name, array):
    """By the output and by the log-sum-exp, each alone, and by both, of which one explanation has to give all."""
    kernel, named = kernel_zoo.wrong("numpy")[name], []
    for case in (case for case in able(kernel) if option in case.options and "mask" not in case.options):
        drawn = draw(case, 1)
        found, (inputs, more) = call("numpy", kernel, case, drawn, gradients=False), asked(kernel, case, drawn)
        report = compare_kernel(found if array == "both" else {array: found[array]}, *inputs, **more)
        if not report:
            named.append((kernel.known,) in report.diagnosis.alternatives)
    assert all(named)
    assert named or (array, kernel.known) == ("output", "the log-sum-exp of other rows")


def test_arrays_of_a_framework_are_taken(backend):
    right, (inputs, _) = two_keys("float32")
    own = [mha.tensor(X, backend=backend) for X in (right["output"], *inputs)]
    assert compare_kernel(*own)
    assert not compare_kernel(own[1], *own[1:])
