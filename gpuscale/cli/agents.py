"""`gpuscale mcp`: the commands as tools for coding agents, by the official MCP SDK, over stdin and stdout."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpuscale.cli.options import option, plain
from gpuscale.errors import InputError

if TYPE_CHECKING:
    import subprocess

    from gpuscale.cli.agent_worker import Desk

LIMIT_S = 60.0

MOST_AT_ONCE = 4
"""Answers that are worked out at the same time; others wait."""

SKILL = "gpuscale://skill"
INSTRUCTIONS = """gpuscale predicts and plans the training of large language models on GPU clusters: which layout,
whether it fits, step time, memory, cost, collectives. It computes from models of kernels, network and memory; it runs
nothing and needs no GPU. Tools take the options of the commands by name, also as messages spell them (`--mbs`: `mbs`);
what is left out has a default that the answer states. Numbers may have units: `seq`: "8k", `gbs`: "4Mtok",
`train_tokens`: "15T", `bytes`: "32MB". The tool `list` has all names. Answers are pages of up to 8 kB: `offset` goes
on; `key` answers in JSON. An error says what to change. Quote the 80 % interval, not the point alone."""


def mcp(
    root: Annotated[Path, option("Folder that files must lie below.", "DIR", "the current one")] = Path(),
    timeout: Annotated[
        float, option("Seconds that an answer may take.", "SECONDS", "60", parser=plain(float, 1, 3600))
    ] = LIMIT_S,
) -> None:
    """Serve plan, estimate, explain, check, compare, size, collective and show to coding agents (MCP, over stdio).

    Example: claude mcp add planner -- gpuscale mcp --root .

    Reads files below --root alone, writes none, and uses no network. Needs the MCP SDK (pip install 'gpuscale[mcp]').
    """
    from importlib.util import find_spec

    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        hint = "`pip install 'gpuscale[mcp]'` installs it"
        raise InputError("the MCP Python SDK, version 2 or newer, is not installed", hint=hint)
    if not root.is_dir():
        raise InputError("is not a folder", place=repr(str(root)[:300]), field="root", hint="give one that exists")
    from gpuscale.cli.agent_worker import Desk

    desk = Desk(root, timeout)  # its first process loads while the SDK does
    try:
        serve(desk)
    finally:
        desk.close()


def serve(desk: Desk) -> None:
    """Serve tools and the skill until stdin ends."""
    import anyio
    import anyio.to_thread
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.shared.exceptions import MCPError

    from gpuscale.cli.agent_tools import TOOLS, schema
    from gpuscale.presets.files import skill_text
    from gpuscale.version import __version__

    tools = [
        types.Tool(
            name=name, description=text, input_schema=schema(name),
            annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
        )
        for name, text in TOOLS.items()
    ]  # fmt: skip
    skill = types.Resource(
        uri=SKILL, name="skill", mime_type="text/markdown",
        description="How to plan with gpuscale: what to ask the user first, which command answers what, traps.",
    )  # fmt: skip
    turns = anyio.Semaphore(MOST_AT_ONCE)

    async def list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: object, asked: types.CallToolRequestParams) -> types.CallToolResult:
        started: list[subprocess.Popen[str]] = []
        answer = partial(desk.call, asked.name, asked.arguments or {}, started)
        try:
            async with turns:
                said = await anyio.to_thread.run_sync(answer, abandon_on_cancel=True)
        finally:
            for process in started:  # nobody waits for the answer of one that still runs
                process.kill()
        return types.CallToolResult(content=[types.TextContent(text=said.text)], is_error=said.failed)

    async def list_resources(*_: object) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[skill])

    async def read_resource(_: object, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(asked.uri) != SKILL:
            raise MCPError(types.INVALID_PARAMS, f"no such resource; {SKILL} is the only one")
        text = types.TextResourceContents(uri=SKILL, mime_type="text/markdown", text=skill_text())
        return types.ReadResourceResult(contents=[text])

    server = Server(
        "gpuscale", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool,
        on_list_resources=list_resources, on_read_resource=read_resource,
    )  # fmt: skip

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    gc.enable()  # `__main__` switches it off for commands, which end soon
    anyio.run(run)
