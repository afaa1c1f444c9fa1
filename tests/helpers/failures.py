"""The message of an assertion that must fail."""

import pytest


def of(check):
    """A function that runs a check, which must fail, and returns its message."""

    def failure_of(*arguments, **options):
        with pytest.raises(AssertionError) as failure:
            check(*arguments, **options)
        return str(failure.value)

    return failure_of
