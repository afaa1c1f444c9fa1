"""Write files whole or not at all, and open regular files alone."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


class FileError(OSError, ValueError):
    """A path that is no regular file, or one that cannot be opened.

    It is an OSError, as Python raises if a file cannot be used, and a ValueError, as mha raises for a wrong argument.
    """


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read its bytes; anything else is refused, because reading a FIFO could wait for ever.

    Raises TypeError if path is no path, FileNotFoundError if there is no file, and FileError if it is no regular file
    or may not be read.
    """
    path = regular(path)
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be opened, expected a file that may be read: {error.strerror}") from error


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file; until all of it is on the disk, the old one stays.

    If the process is killed meanwhile, the old file or the new one is there; a hidden file `.mha-...` may be left
    beside it, which nothing reads.

    Raises TypeError if path is no path, FileError if something other than a regular file is there, and OSError if the
    file cannot be written; then the old one stays, too.
    """
    path = regular(path)
    path = Path(os.path.realpath(path))  # a link keeps pointing to the file
    temporary = path.with_name(f".mha-{os.urandom(8).hex()}")  # a name of its own: the path's may have no room to grow
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def regular(path: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file, or of none; FileError if something else is there."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is {path!r} ({type(path).__name__}), expected a str or an os.PathLike")
    path = Path(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return path
    except (OSError, ValueError) as error:  # a ValueError where the path holds a null
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileError(f"{path} cannot be looked up, expected the path of a regular file: {reason}") from error
    if not stat.S_ISREG(mode):
        raise FileError(f"{path} is a {_KINDS.get(stat.S_IFMT(mode), 'special file')}, expected a regular file")
    return path
