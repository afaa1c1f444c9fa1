from mha.learn.heads import *
