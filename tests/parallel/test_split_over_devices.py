"""A layer of PyTorch whose kernels were split by hand is refused: it would give wrong numbers."""

import pytest

# Two processes of one machine, each of which has half of every kernel that is split.
SPLIT = """
import datetime, itertools, multiprocessing, sys
import torch, torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import mha

COLUMNS = {name: ColwiseParallel() for name in ("W_q", "W_k", "W_v")}
PLANS = [COLUMNS | {"W_o": RowwiseParallel()}, *({name: plan} for name, plan in COLUMNS.items())]
HIDING = [{}, {"causal": True}, {"valid_lens": [3, 5]}, {"mask": torch.ones(5, 5, dtype=torch.bool)}]

def work(rank, folder):
    torch.set_num_threads(1)
    minute = datetime.timedelta(minutes=1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", minute, world_size=2, rank=rank)
    mesh, X = init_device_mesh("cpu", (2,)), torch.ones(2, 5, 12)
    for plan, pooling in itertools.product(PLANS, ("dot", "additive")):
        layer = mha.MultiHeadAttention(12, 2, pooling=pooling, backend="torch").layer
        layer = parallelize_module(layer, mesh, plan)
        first = next(iter(plan))
        problem = f"{first} gave 6 features, expected 12 for 2 heads: a plan that splits kernels alone splits no heads"
        for hiding, return_weights in itertools.product(HIDING, (False, True)):
            try:
                layer(X, X, X, **hiding, return_weights=return_weights)
            except ValueError as error:
                assert problem in str(error) and "mha.parallel.parallelize" in str(error), error
            else:
                raise AssertionError((plan, hiding, return_weights))
    torch.distributed.destroy_process_group()

processes = [multiprocessing.get_context("fork").Process(target=work, args=(rank, sys.argv[1])) for rank in (0, 1)]
for process in processes:
    process.start()
for process in processes:
    process.join(100)
    if process.is_alive():
        process.kill()
sys.exit(any(process.exitcode for process in processes))
"""


@pytest.mark.backends("torch")
def test_heads_that_were_split_are_refused(backend, python, tmp_path):
    python(SPLIT, str(tmp_path))
