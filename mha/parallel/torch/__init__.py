"""A layer of PyTorch over several ranks, on `torch.distributed`: heads, sequence, and weights in and out."""

from .files import gather, load, save
from .split import HeadParallel, parallelize, plan
