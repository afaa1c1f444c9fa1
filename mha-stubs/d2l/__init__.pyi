from mha.learn.d2l import jax as jax
from mha.learn.d2l import mxnet as mxnet
from mha.learn.d2l import next as next
from mha.learn.d2l import tensorflow as tensorflow
from mha.learn.d2l import torch as torch
