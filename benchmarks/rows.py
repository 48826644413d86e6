"""How benchmarks print: a table for people, or one JSON object per measured row for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

Value = str | int | float | None
Row = Mapping[str, Value]


def print_rows(rows: Sequence[Row], columns: Mapping[str, str], *, as_json: bool, note: str = "") -> None:
    """Print rows.

    Args:
        columns: key of a row → heading. The table shows these and no others; JSON shows all keys.
        note: printed below the table, for instance the machine's limits.
    """
    if as_json:
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    cells = [list(columns.values())] + [[_text(row.get(key)) for key in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, line in enumerate(cells):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
        if number == 0:
            print("  ".join("─" * width for width in widths))
    if note:
        print(f"\n{note}")


def _text(value: Value) -> str:
    """At least three significant digits."""
    if value is None:
        return "–"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
