"""Results of the `all_reduce_bench.py` scripts of BigScience and of "Machine Learning Engineering" (torch.distributed).

The first prints one size per run and, for every rank and trial, lines such as

    0 data size: 4.0 GB
    duration: 0.4507 sec
    algo throughput: 142007505620.8443 bps, 142.0075 Gbps
    busbw: 106.5056  Gbps

of which the durations are taken: the ranks print at the same time, so that the lines of one may stand within those of
another. The second printed

    The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 4 ranks):
     algbw: 86.500 GBps (692.0 Gbps)

and in later versions a table of `| payload | busbw | algbw |` in GBps (1e9 bytes/s), payloads in powers of two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuscale.calibration.tables import MAX_ROWS, Sample, Table
from gpuscale.presets.calibration import LEAST_TIME_US, MOST_TIME_US
from gpuscale.units import MAX_BYTES

_SIZE = re.compile(r"(?:^|\s)(\d{1,7}) data size: ([\d.]{1,12}) GB")
_DURATION = re.compile(r"duration: ([\d.]{1,16}) sec")
_LOCAL = re.compile(r"local_rank: (\d{1,3})\s*$")
_PAYLOAD = re.compile(r"\|\s*([\d.]{1,8})\s*([KMGT]?)i?B\s*\|\s*([\d.]{1,12})\s*GBps\s*\|\s*([\d.]{1,12})\s*GBps")
_AVERAGE = re.compile(r"with a ([\d.]{1,8})\s*([KMG]?)B payload \(")
_RATE = re.compile(r"^\W*algbw: ([\d.]{1,12}) GBps")
_RANKS = re.compile(r"trials, (\d{1,7}) ranks\)")
_DECIMAL = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}
_POWERS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class TorchBench:
    """Collects the lines of such a log; `table()` is None where it is none.

    Attributes:
        beyond: line of the first result that is not read; None where all are.
    """

    def __init__(self) -> None:
        self.beyond: int | None = None
        self._samples: list[Sample] = []
        self._bytes = 0
        self._local = -1
        self._ranks = 0

    def feed(self, number: int, text: str) -> None:
        """Take one line."""
        if self.beyond is not None:
            return
        if found := _SIZE.search(text):
            self._ranks = max(self._ranks, int(found[1]) + 1)
            self._bytes = round(_number(found[2]) * 1e9)
        elif found := _DURATION.search(text):
            time_us = _number(found[1]) * 1e6
            self._add(Sample(number, self._bytes, time_us, 0.0, 0.0))
        elif found := _LOCAL.search(text):
            self._local = max(self._local, int(found[1]))
        elif found := _RANKS.search(text):
            self._ranks = int(found[1])
            if payload := _AVERAGE.search(text):
                self._bytes = round(_number(payload[1]) * _DECIMAL[payload[2]])
        elif found := _RATE.search(text):
            self._add_rate(number, self._bytes, _number(found[1]), 0.0)
        elif found := _PAYLOAD.search(text):
            size = round(_number(found[1]) * _POWERS[found[2]])
            self._add_rate(number, size, _number(found[4]), _number(found[3]))

    def _add_rate(self, number: int, size: int, algbw: float, busbw: float) -> None:
        if algbw:
            self._add(Sample(number, size, size / algbw / 1e3, algbw, busbw))

    def _add(self, sample: Sample) -> None:
        if 1 <= sample.bytes <= MAX_BYTES and LEAST_TIME_US <= sample.time_us <= MOST_TIME_US:
            if len(self._samples) < MAX_ROWS:
                self._samples.append(sample)
            else:
                self.beyond = sample.line

    def table(self) -> Table | None:
        """Return what was found as one AllReduce table."""
        if not self._samples:
            return None
        table = Table(line=self._samples[0].line, named="all_reduce", redop="sum", root=-1, done=True)
        table.samples = self._samples
        table.told_ranks, table.told_per_node = self._ranks or None, self._local + 1 or None
        return table

    def read(self, lines: Iterable[tuple[int, str]]) -> Table | None:
        """Take all lines."""
        for number, text in lines:
            self.feed(number, text)
        return self.table()


def _number(text: str) -> float:
    return float(text) if text.count(".") <= 1 and text != "." else 0.0
