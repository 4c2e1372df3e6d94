"""Slurm's `topology.yaml`: a list of topologies, each a tree of switches, blocks, or flat.

Read with PyYAML's safe loader, down to nodes of the document and no further: no value is built, no alias is followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpuscale.importers.facts import Facts, Stated
from gpuscale.importers.source import MAX_NAME, SourceFile, shown
from gpuscale.importers.switch_tree import MAX_SWITCHES, Switch, SwitchTable, block_facts, tree_facts
from gpuscale.units import KIB

KIND = "Slurm's topology.yaml"
MAX_YAML_BYTES = 512 * KIB
MAX_DEPTH = 16
LINE = re.compile(r"\s*-\s+topology\s*:")
_SHAPE = "see Slurm's topology.yaml(5): a list of `- topology: NAME` with `tree:` or `block:`"


def parse(source: SourceFile) -> Facts:
    """Return the levels of the default topology's network.

    Raises:
        InputError: not YAML, an alias, a document of another shape, or only flat topologies; or PyYAML is missing.
    """
    root = _compose(source)
    topologies = [_mapping(source, item) for item in _sequence(source, root)]
    usable = [entry for entry in topologies if "tree" in entry or "block" in entry]
    if not usable:
        raise source.error(1, f"{len(topologies)} topologies, none with `tree` or `block`: flat ones have no levels")
    chosen = next((entry for entry in usable if _is_true(entry.get("cluster_default"))), usable[0])
    facts = _tree(source, chosen["tree"]) if "tree" in chosen else _block(source, chosen["block"])
    if len(topologies) == 1:
        return facts
    name = shown(str(chosen["topology"].value), MAX_NAME) if "topology" in chosen else "the first"
    note = f"{source.name}: {len(topologies)} topologies; {name} is taken (the default, else the first with switches)"
    return Facts(facts.file, facts.kind, tiers=facts.tiers, notes=(note, *facts.notes))


def _compose(source: SourceFile) -> Any:
    try:
        import yaml  # noqa: PLC0415 - an optional library, only where a YAML file is read
    except ImportError:
        hint = "pip install 'gpuscale[yaml]', or give the same tree as topology.conf"
        raise source.error(None, "reading YAML needs PyYAML, which is not installed", hint) from None
    size = len(source.text.encode())
    if size > MAX_YAML_BYTES:
        raise source.error(None, f"{size // KIB} KiB of YAML, at most {MAX_YAML_BYTES // KIB} KiB")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_tokens(source, yaml.scan(source.text, Loader=loader))
        return yaml.compose(source.text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = shown(str(getattr(error, "problem", None) or error), 100)
        raise source.error(mark.line + 1 if mark else None, f"not valid YAML: {problem}", _SHAPE) from None


def _check_tokens(source: SourceFile, tokens: Iterable[Any]) -> None:
    """Refuse aliases, tags and deep nesting before a document is built: libyaml's recursion is not bounded."""
    depth = 0
    for token in tokens:
        kind = type(token).__name__
        if kind in {"AliasToken", "AnchorToken", "TagToken"}:
            line = token.start_mark.line + 1
            raise source.error(line, "an anchor, alias or tag, which topology.yaml does not need", "write it out")
        depth += kind.endswith(("SequenceStartToken", "MappingStartToken")) - kind.endswith("EndToken")
        if depth > MAX_DEPTH:
            raise source.error(token.start_mark.line + 1, f"nested deeper than {MAX_DEPTH} levels")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _sequence(source: SourceFile, node: Any) -> list[Any]:
    if getattr(node, "id", None) != "sequence":
        raise source.error(_line(node) if node is not None else 1, "a list is expected here", _SHAPE)
    if len(node.value) > MAX_SWITCHES:
        raise source.error(_line(node), f"a list of {len(node.value):,} entries, at most {MAX_SWITCHES:,}")
    return list(node.value)


def _mapping(source: SourceFile, node: Any) -> dict[str, Any]:
    if getattr(node, "id", None) != "mapping":
        raise source.error(_line(node), "`key: value` pairs are expected here", _SHAPE)
    return {str(key.value).lower(): value for key, value in node.value if key.id == "scalar"}


def _text(source: SourceFile, entry: dict[str, Any], key: str, node: Any) -> str:
    value = entry.get(key)
    if value is None or value.id != "scalar" or not value.value:
        raise source.error(_line(value if value is not None else node), f"`{key}` with a name is expected here", _SHAPE)
    return str(value.value)


def _is_true(node: Any) -> bool:
    return node is not None and str(node.value).lower() in {"true", "yes", "on"}


def _switches(source: SourceFile, entries: list[Any], name_key: str) -> dict[str, Switch]:
    table = SwitchTable(source)
    for node in entries:
        entry, line = _mapping(source, node), _line(node)
        names = _text(source, entry, name_key, node)
        nodes, children = (_text(source, entry, key, node) if key in entry else None for key in ("nodes", "children"))
        if nodes is None and children is None:
            raise source.error(line, f"{shown(names, MAX_NAME)} names neither nodes nor children", _SHAPE)
        table.define(line, names, nodes, children)
    if not table.switches:
        raise source.error(None, f"no `{name_key}`: it describes no network", _SHAPE)
    return table.switches


def _tree(source: SourceFile, node: Any) -> Facts:
    entry = _mapping(source, node)
    return tree_facts(source, KIND, _switches(source, _sequence(source, entry.get("switches", node)), "switch"))


def _block(source: SourceFile, node: Any) -> Facts:
    entry = _mapping(source, node)
    blocks = _switches(source, _sequence(source, entry.get("blocks", node)), "block")
    listed = _sequence(source, entry["block_sizes"]) if "block_sizes" in entry else []
    texts = [str(item.value) for item in listed]
    if not all(re.fullmatch(r"[0-9]{1,7}", text) for text in texts):
        raise source.error(_line(entry["block_sizes"]), "block_sizes is not a list of whole numbers")
    sizes = Stated([int(text) for text in texts], f"{source.at(_line(listed[0]))}: block_sizes") if listed else None
    return block_facts(source, KIND, blocks, sizes)
