"""A box of cards: the cluster that the name of a GPU means, where nothing else is said of the machine."""

from gpuscale.errors import InputError
from gpuscale.specs.gpu import GpuSpec

BOX_GPUS = 8
"""Most double-width cards of a server."""

HOST_MEMORY = {
    "pcie3": (256, "two sockets with 6 channels of DDR4-2666 each"),
    "pcie4": (409.6, "two sockets with 8 channels of DDR4-3200 each"),
    "pcie5": (921.6, "two sockets with 12 channels of DDR5-4800 each"),
}
"""Link to the host -> DRAM bandwidth of hosts of its time [GB/s], and why."""

_LEVEL = """
[[levels]]
name = "{name}"
fabric = "{fabric}"
gpus = {gpus}
path = "{path}"
in_network_reduction = false
[levels.sources]
gpus = "{why}"
path = "{how}"
in_network_reduction = "no switch here adds up payloads"
"""

_HOST = """
[host]
gpus = {gpus}
gpus_per_uplink = 1
memory_gib = 1024
memory_gb_per_s = {rate}
[host.sources]
"gpus, memory_gib" = "guesstimate: a common box of {gpus} cards"
gpus_per_uplink = "guesstimate: two sockets offer 128 lanes, enough for {gpus} cards"
memory_gb_per_s = "guesstimate: {why}"
"""


def is_card(gpu: GpuSpec) -> bool:
    """Whether a GPU sits in a PCIe slot, beside others or joined to one of them by an NVLink bridge."""
    return gpu.host_link_name in HOST_MEMORY and (not gpu.links or gpu.bridged_gpus > 0)


def box_text(gpu: GpuSpec, reference: str, *, pairs: bool = False) -> str:
    """Return the cluster file of a box of eight cards in PCIe slots.

    Args:
        gpu: a card (`is_card`).
        reference: how the file names it.
        pairs: NVLink bridges join the cards.

    Raises:
        InputError: no bridge joins such cards.
    """
    if pairs and not gpu.bridged_gpus:
        raise InputError(f"no NVLink bridge joins cards of {gpu.title}", field="cluster", hint="leave out `-pairs`")
    bridges = ", joined by NVLink bridges" if pairs else ", no NVLink bridges" if gpu.links else ""
    generation = f"PCIe {gpu.host_link_name[-1]}.0"
    text = f'title = "One box of {BOX_GPUS} x {gpu.title} on {generation}{bridges}"\ngpu = "{reference}"\n'
    text += "extendable = false\n"
    if pairs:
        why, how = f"each bridge joins {gpu.bridged_gpus} cards", "the bridge"
        text += _LEVEL.format(name="pair", fabric="nvlink", gpus=gpu.bridged_gpus, path="nvlink-p2p", why=why, how=how)
    path, how = "pcie-p2p-host", "cards reach each other through the CPUs"
    if not gpu.pcie_peers:
        path, how = "shm", gpu.sources["pcie_peers"]
    why = f"guesstimate: {BOX_GPUS} double-width cards fit a 4U server"
    text += _LEVEL.format(name="node", fabric="pcie", gpus=BOX_GPUS, path=path, why=why, how=how)
    rate, why = HOST_MEMORY[gpu.host_link_name]
    return text + _HOST.format(gpus=BOX_GPUS, rate=rate, why=why)
