"""Which GPU preset a PCI device, a product name or an architecture means; which network a card is on.

PCI ids as the PCI ID Repository (pci-ids.ucw.cz) and vendors' drivers list them. A model without a preset is named all
the same, so that the message can say what it is.
"""

from __future__ import annotations

import re

from gpuscale.importers.facts import Device

AMAZON, CRAY = "1d0f", "17db"

PCI_GPUS: dict[str, tuple[str, str | None]] = {
    "10de:1db1": ("Tesla V100 SXM2 16 GB", "v100-sxm-16gb"),
    "10de:1db5": ("Tesla V100 SXM2 32 GB", "v100-sxm-32gb"),
    "10de:1db8": ("Tesla V100 SXM3 32 GB", "v100-sxm-32gb"),
    "10de:1db4": ("Tesla V100 PCIe 16 GB", None),
    "10de:1db6": ("Tesla V100 PCIe 32 GB", None),
    "10de:1eb8": ("Tesla T4", None),
    "10de:20b0": ("A100 SXM4 40 GB", "a100-sxm-40gb"),
    "10de:20b2": ("A100 SXM4 80 GB", "a100-sxm-80gb"),
    "10de:20b1": ("A100 PCIe 40 GB", "a100-pcie-40gb"),
    "10de:20f1": ("A100 PCIe 40 GB", "a100-pcie-40gb"),
    "10de:20b5": ("A100 PCIe 80 GB", "a100-pcie-80gb"),
    "10de:20b7": ("A30 PCIe", None),
    "10de:20f3": ("A800 SXM4 80 GB", None),
    "10de:20f5": ("A800 PCIe 80 GB", None),
    "10de:20f6": ("A800 PCIe 40 GB", None),
    "10de:2235": ("A40", None),
    "10de:2237": ("A10G", None),
    "10de:2321": ("H100 NVL 94 GB", "h100-nvl-94gb"),
    "10de:2322": ("H800 PCIe", None),
    "10de:2324": ("H800 SXM5", "h800-sxm-80gb"),
    "10de:2329": ("H20", None),
    "10de:2330": ("H100 SXM5 80 GB", "h100-sxm-80gb"),
    "10de:2331": ("H100 PCIe 80 GB", "h100-pcie-80gb"),
    "10de:2335": ("H200 SXM 141 GB", "h200-sxm-141gb"),
    "10de:233b": ("H200 NVL", None),
    "10de:2342": ("GH200 96 GB", "gh200-96gb"),
    "10de:2348": ("GH200 144 GB", "gh200-144gb"),
    "10de:26b5": ("L40", None),
    "10de:26b9": ("L40S", "l40s"),
    "10de:27b8": ("L4", None),
    "10de:2684": ("GeForce RTX 4090", None),
    "10de:2bb5": ("RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
    "10de:2901": ("B200", "b200"),
    "10de:2941": ("GB200", "gb200"),
    "10de:3182": ("B300", "b300"),
    "10de:31c2": ("GB300", "gb300"),
    "1002:66a1": ("Instinct MI50", None),
    "1002:738c": ("Instinct MI100", None),
    "1002:7408": ("Instinct MI250X", "mi250x"),
    "1002:740c": ("Instinct MI250X or MI250", "mi250x"),
    "1002:740f": ("Instinct MI210", None),
    "1002:74a0": ("Instinct MI300A", None),
    "1002:74a1": ("Instinct MI300X", "mi300x"),
    "1002:74a5": ("Instinct MI325X", "mi325x"),
    "1002:75a3": ("Instinct MI355X", "mi355x"),
}
"""PCI vendor:device -> model, and its preset where gpuscale has one."""

SM_GPUS: dict[int, str] = {70: "v100-sxm-32gb", 80: "a100-sxm-80gb", 89: "l40s", 90: "h100-sxm-80gb",
                           100: "b200", 103: "b300", 120: "rtx-pro-6000"}  # fmt: skip
"""Compute capability -> the preset assumed where a file says no more."""

GFX_GPUS: dict[str, str] = {"gfx90a": "mi250x", "gfx942": "mi300x", "gfx950": "mi355x"}
"""AMD architecture -> the preset assumed where a file says no more."""

_RCCL_GFX = {"906": "gfx906", "908": "gfx908", "910": "gfx90a", "940": "gfx940", "941": "gfx941", "942": "gfx942",
             "950": "gfx950"}  # fmt: skip

PRODUCTS: tuple[tuple[str, str | None], ...] = (
    (r"V100-SXM[23]-16GB", "v100-sxm-16gb"),
    (r"V100-SXM[23]-32GB", "v100-sxm-32gb"),
    (r"A100-SXM4?-40GB", "a100-sxm-40gb"),
    (r"A100-SXM4?-80GB", "a100-sxm-80gb"),
    (r"A100-PCIE-40GB|A100 PCIe 40GB", "a100-pcie-40gb"),
    (r"A100[ -]PCIE?-?\s?80GB|A100 80GB PCIe", "a100-pcie-80gb"),
    (r"H100 80GB HBM3", "h100-sxm-80gb"),
    (r"H100 PCIe", "h100-pcie-80gb"),
    (r"H100 NVL", "h100-nvl-94gb"),
    (r"H200 NVL", None),
    (r"\bH200\b", "h200-sxm-141gb"),
    (r"H800 PCIe", None),
    (r"\bH800\b", "h800-sxm-80gb"),
    (r"GH200 144G", "gh200-144gb"),
    (r"GH200", "gh200-96gb"),
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"\bB300\b", "b300"),
    (r"\bB200\b", "b200"),
    (r"\bB100\b", "b100"),
    (r"\bL40S\b", "l40s"),
    (r"RTX PRO 6000 Blackwell Server", "rtx-pro-6000"),
)
"""Product name as the driver prints it (a part of it) -> preset."""


def pci_gpu(vendor: str, device: str) -> Device | None:
    """Return the GPU of a PCI vendor and device id (four hex digits each); None when neither table knows it."""
    found = PCI_GPUS.get(f"{vendor}:{device}")
    return None if found is None else Device(f"{found[0]} (PCI {vendor}:{device})", found[1], exact=True)


def product_gpu(name: str) -> Device:
    """Return the GPU of a product name as nvidia-smi prints it."""
    for pattern, preset in PRODUCTS:
        if re.search(pattern, name, re.IGNORECASE):
            return Device(name, preset, exact=True)
    return Device(name, None, exact=True)


def sm_gpu(sm: int) -> Device:
    """Return the GPU assumed for a compute capability such as 90."""
    return Device(f"a GPU of compute capability {sm // 10}.{sm % 10}", SM_GPUS.get(sm), exact=False)


def gfx_gpu(gcn: str, sm_count: int) -> Device:
    """Return the GPU assumed for RCCL's `gcn`: a name such as `gfx942`, or its number (`910` is gfx90a)."""
    name = _RCCL_GFX.get(gcn, gcn).split(":")[0]
    return Device(f"an AMD {name} with {sm_count} compute units", GFX_GPUS.get(name), exact=False, sm_count=sm_count)


def nic_fabric(vendor: str, pci_class: str, name: str) -> str | None:
    """Return the network of a card by PCI vendor, PCI class and interface name; None where none of them tells."""
    if re.match(r"(eth|ens|eno|enp|enP|bond)[0-9]", name):  # of sockets, whatever the card
        return "eni" if vendor == AMAZON else "ethernet"
    if vendor == AMAZON or name.startswith(("rdmap", "efa")):
        return "efa"
    if vendor == CRAY or name.startswith(("cxi", "hsn")):
        return "slingshot"
    if pci_class.startswith("0x0207"):
        return "infiniband"
    if pci_class.startswith("0x0200"):
        return "roce"
    return None


NIC_GBIT_PER_S = {"1d0f:efa0": 100, "1d0f:efa1": 100, "1d0f:efa2": 200}
"""Rates of cards that come in one rate only (AWS EC2: EFA of p4d, p5 and p5en)."""
