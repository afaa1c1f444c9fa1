"""Files that are whole or not there."""

import os
from pathlib import Path


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file; until all of it is on the disk, the old one stays.

    Raises OSError if the file cannot be written; the old one then stays too.
    """
    path = Path(path).resolve()  # a link keeps pointing to the file
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
