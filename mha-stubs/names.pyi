from mha.core.options.names import *
