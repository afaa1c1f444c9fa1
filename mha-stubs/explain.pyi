from mha.learn.explain import *
