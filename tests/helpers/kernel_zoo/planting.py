"""How a wrong kernel in NumPy is planted: a tiled kernel, or a packed one, with another method or two."""

from kernel_zoo.flash import Flash, Packed
from kernel_zoo.of_numpy import flash, packed

WRONG = {}  # the wrong kernels of all files by the words for what is wrong


def plant(words, known="", base=Flash, **methods):
    """Put a tiled kernel with other methods into the table. known: the name of the mistake in the catalogue."""
    WRONG[words] = flash(type("Wrong", (base,), methods))._replace(known=known)


def plant_in_texts(words, known="", **methods):
    """Put a packed kernel with other methods into the table."""
    WRONG[words] = packed(type("Wrong", (Packed,), methods)(Flash()))._replace(known=known)


def changed_call(**changes):
    """Return a `prepare` that changes the call: each name is a function of the right call."""

    def prepare(self, *arguments):
        call = Flash.prepare(self, *arguments)
        vars(call).update({name: change(call) for name, change in changes.items()})
        return call

    return prepare
