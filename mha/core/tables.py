"""Print plain tables, lines, numbers and progress, for commands and reports."""

import io
import re
import shutil
import sys
import textwrap

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

# Chinese and Japanese have no spaces: a line may end after any of their characters. But no line begins with a closing
# mark or a small letter, and none ends with an opening mark. A formula, `B = 2`, stays on one line.
WIDE = "\u3040-\u30ff\u3400-\u9fff"
OPENING = "\u300c\u300e\uff08"  # brackets
CLOSING = "\u3001\u3002\u300d\u300f\uff01\uff09\uff0c\uff0e\uff1a\uff1b\uff1fーっゃゅょッャュョ々"
NARROW = f"[^\\s{WIDE}{OPENING}{CLOSING}]+"
CHUNK = re.compile(rf"[{OPENING}]*(?:{NARROW}(?: [=*+/] {NARROW})*|[{WIDE}])[{CLOSING}]*\s*|.")


class PlainTable(Table):
    """A table without a frame, in which one column is folded between words.

    Where the terminal is too narrow for that, each row is a paragraph: no word or number is ever broken or cut.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least_width() <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text(str(self.title), "bold")
        names = [str(column.header) for column in self.columns]
        for row in zip(*(map(str, column.cells) for column in self.columns), strict=True):
            rest = "; ".join(f"{name} {value}" for name, value in zip(names[1:], row[1:], strict=True) if value)
            for line in (*wrap(f"{names[0]} {row[0]}", options.max_width), *wrap(rest, options.max_width, "  ")):
                yield Text(line, no_wrap=True, overflow="ignore")

    def _least_width(self) -> int:
        """The width below which a word would be broken."""
        least = 2 * (len(self.columns) - 1)  # between the columns
        for column in self.columns:
            parts = [str(column.header), *map(str, column.cells)]
            least += max(map(cell_len, parts if column.no_wrap else " ".join(parts).split()))
        return least


def progress() -> Progress:
    """Return a progress bar, which shows only where stderr is a terminal."""
    stderr = Console(stderr=True)
    stderr.quiet = not stderr.is_terminal  # before Rich 14.3, a bar that is disabled ends with an empty line
    return Progress(console=stderr, transient=True, disable=stderr.quiet)


def plain_table(*columns: str, folded: str | None = None) -> PlainTable:
    """Make an empty table; where the terminal is narrow, one column is folded, None = the last one."""
    table = PlainTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        if column == (folded or columns[-1]):
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, no_wrap=True)
    return table


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text into indented lines of at most this width, between words alone; a longer word has its own line."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def wrap_anywhere(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a text in any language; wide characters take two columns, and a line may break between them."""
    lines = [indent]
    for chunk in CHUNK.findall(text):
        if lines != [indent] and cell_len(lines[-1] + chunk.rstrip()) > width:
            lines.append(indent)
        lines[-1] += chunk
    return [line.rstrip() for line in lines]


def plural(count: int, thing: str) -> str:
    """Write a count with its noun: 1 array, 2 arrays."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def number(value: float) -> str:
    """Write a number with three digits: 0.05, 3.3e+05."""
    return "0" if value == 0 else f"{value:.3g}"


def lines(text: str, options: ConsoleOptions) -> RenderResult:
    """Break a text between words, as wide as the console."""
    for line in wrap(text, options.max_width) or [""]:
        yield Text(line, no_wrap=True, overflow="ignore")


def text(printed: ConsoleRenderable) -> str:
    """Print with `rich` into plain text, as wide as the terminal; in a pipe 100 columns."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, markup=False, highlight=False, emoji=False).print(
        printed, overflow="ignore", crop=False
    )
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


class Printed:
    """What `rich` prints, as a string: in a pipe, and at the prompt."""

    def __str__(self: ConsoleRenderable) -> str:
        return text(self)

    __repr__ = __str__


def few(words: list[str]) -> list[str]:
    """Keep the first of many words."""
    return words if len(words) <= 4 else [*words[:3], "..."]
