from mha.parity.testing import *
