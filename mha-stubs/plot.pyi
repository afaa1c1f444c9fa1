from mha.learn.plot import *
