"""The plain tables that commands print."""

from rich import box
from rich.table import Table


def plain_table(*columns: str, folded: str | None = None) -> Table:
    """An empty table without a frame; where the terminal is narrow, one column is folded, None = the last one."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        if column == (folded or columns[-1]):
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, no_wrap=True)
    return table
