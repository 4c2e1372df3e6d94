"""A document as Markdown: tables, lists, drawings of characters as code, charts as the sentence that sums them up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuscale.files import NO_BREAK, printable
from gpuscale.render.document import LONG, WIDTH, Chart, Checklist, Code, Document, Shown, Table, shown


def markdown(document: Document) -> str:
    """Return a document as Markdown: the same text for the same document."""
    verdict = document.verdict if isinstance(document.verdict, str) else document.verdict(LONG)
    blocks = [f"# {_line(document.title)}", *map(_line, verdict.split("\n"))]
    for section in document.sections:
        parts = [text for part in shown(section.parts, "page") for text in _texts(part)]
        blocks += [f"## {_line(section.title)}", *parts] if section.title and parts else parts
    return "\n\n".join(blocks) + "\n"


def _line(said: str) -> str:
    """Write text so that nothing in it is taken for Markdown or HTML."""
    return re.sub(r"([\\`*_<>|\[\]#])", r"\\\1", printable(" ".join(said.split())).replace(NO_BREAK, " "))


def _texts(part: Shown) -> Iterator[str]:
    if isinstance(part, Table):
        yield from [f"**{_line(part.caption)}**"] if part.caption else []
        yield _table(part.header, [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in part.rows])
    elif isinstance(part, Chart):
        yield f"**{_line(part.title)}**: {_line(part.summary)}"
    elif isinstance(part, Checklist):
        yield "\n".join(
            f"- [ ] **{_line(name)}** " + " ".join(f"{_line(key).capitalize()}: {_line(said)}." for key, said in lines)
            for name, lines in part.items
        )
    elif isinstance(part, list):
        yield "\n".join(f"- **{_line(name)}**: {_line(said)}" if name else f"- {_line(said)}" for name, said in part)
    else:
        said = part.text if isinstance(part, Code) else part if isinstance(part, str) else part(WIDTH)
        lines = [printable(line).replace(NO_BREAK, " ") for line in said.split("\n")]
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", said)), default=0))
        shell = isinstance(part, Code)
        yield "\n".join([fence + "sh" * shell, *lines, fence]) if shell or len(lines) > 1 else _line(said)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[_line(name) for name in header], ["---"] * len(header), *([_line(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
