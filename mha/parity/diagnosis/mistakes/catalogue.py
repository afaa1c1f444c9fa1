"""The catalogue of all mistakes that have exact forms, in the order in which they are tried."""

from mha.parity.diagnosis.mistakes.mistake import Mistake, forms_of, only_where
from mha.parity.diagnosis.mistakes.of_decoding import OF_DECODING
from mha.parity.diagnosis.mistakes.of_heads import OF_GATES, OF_GROUPS, OF_HEADS, OF_OUTPUT_GATE
from mha.parity.diagnosis.mistakes.of_hiding import OF_CHUNKS, OF_HIDING, OF_SEGMENTS, OF_WINDOWS
from mha.parity.diagnosis.mistakes.of_masks import OF_MASKS
from mha.parity.diagnosis.mistakes.of_norms import OF_NORMS
from mha.parity.diagnosis.mistakes.of_permutations import OF_PERMUTATIONS
from mha.parity.diagnosis.mistakes.of_rotations import OF_ROTATED_PARTS, OF_ROTATIONS, OF_TEMPERATURE
from mha.parity.diagnosis.mistakes.of_scores import OF_BIASES, OF_SCALE, OF_SCORES
from mha.parity.diagnosis.mistakes.of_softmax import OF_NAN, OF_SINKS, OF_SOFTMAX
from mha.parity.diagnosis.mistakes.of_tiles import OF_TEXTS, OF_TILES
from mha.parity.diagnosis.mistakes.of_weights import OF_KERNELS, OF_ORDERS_AND_BIASES
from mha.parity.rule.kernel import KernelProblem
from mha.parity.rule.problem import Problem

# Mistakes that need projections, which a kernel has not.
OF_PROJECTIONS = only_where(lambda plan: plan.projects, *OF_KERNELS, *OF_HEADS, *OF_ORDERS_AND_BIASES)
CATALOGUE = (
    *OF_NAN, *OF_PROJECTIONS, *OF_SCALE, *OF_HIDING, *OF_MASKS, *OF_SOFTMAX, *OF_GROUPS,
    *OF_ROTATIONS, *OF_ROTATED_PARTS, *OF_TEMPERATURE, *OF_PERMUTATIONS, *OF_NORMS, *OF_SCORES, *OF_SINKS, *OF_BIASES,
    *OF_WINDOWS, *OF_CHUNKS, *OF_SEGMENTS, *OF_GATES, *OF_OUTPUT_GATE,
)  # fmt: skip

CACHED_CATALOGUE = (*OF_DECODING, *CATALOGUE)  # of calls with a cache
KERNEL_CATALOGUE = (*OF_TILES, *OF_TEXTS, *CATALOGUE)  # of kernels


def catalogue_of(asked: Problem) -> tuple[Mistake, ...]:
    """Return the mistakes that are known in a call of this kind."""
    if isinstance(asked, KernelProblem):
        return KERNEL_CATALOGUE
    return CATALOGUE if asked.sizes.slots is None else CACHED_CATALOGUE


FORMS = forms_of(CATALOGUE)
