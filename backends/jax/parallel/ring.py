"""later"""


def pool(*a):
    raise NotImplementedError
