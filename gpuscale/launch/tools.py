"""Which training tool a job is of: by what starts it, and by settings that only its files have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuscale.launch.settings import Source
from gpuscale.presets.tools import Tool, load_tool


def started(source: Source, tool: Tool) -> bool:
    """Whether a command starts a tool: by one of its programs, or a module or file below one (`trl/scripts/sft.py`)."""
    words = [f"{word.rpartition('/')[2]}." for word in source.program]
    inside = [f".{word.replace('/', '.')}." for word in source.program]
    return any(word.startswith(f"{one}.") for word in words for one in tool.programs) or any(
        f".{one}." in word for word in inside for one in tool.programs if "." in one
    )


def tool_of(sources: Sequence[Source], names: Iterable[str]) -> Tool:
    """Return the first of these tools that a command starts, else whose settings are there, else the last."""
    tools = [load_tool(name) for name in names]
    said = [({name for name, one in source.settings.items() if one.value is not None}, source) for source in sources]
    written = {name for names, source in said if source.kind != "command" for name in names}
    stated = {name for names, source in said for name in (*names, *source.launcher)}
    begun = (tool for tool in tools if any(started(source, tool) for source in sources))
    ours = [tool for tool in tools if not stated.intersection(tool.foreign)]
    marked = (tool for tool in ours if (written if tool.documents else stated).intersection(tool.marks))
    return next(begun, None) or next(marked, tools[-1])
