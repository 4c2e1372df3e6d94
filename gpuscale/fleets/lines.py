"""What is said of the long lines between the sites of a fleet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LineRow:
    """Waiting for lines of some rate, with exchanges so many steps apart."""

    wan_gbit_per_s: float  #: what the lines of one site carry, one direction [Gbit/s]
    inner_steps: int  #: steps between exchanges
    synchronous_waits: float  #: share of the time that a synchronous step waits for the lines, whatever `inner_steps`
    diloco_waits: float  #: share of the time that DiLoCo waits which sends everything at once
    streaming_waits: float  #: the same of Streaming DiLoCo


@dataclass(frozen=True)
class EveryRow:
    """What lines must carry for sites to wait for 1 % of the time."""

    inner_steps: int  #: steps between exchanges
    #: of one site, where everything is sent at once [Gbit/s]; null where none are fast enough
    diloco_gbit_per_s: float | None
    streaming_gbit_per_s: float | None  #: the same with fragments, while steps go on


@dataclass(frozen=True)
class SitesAnswer:
    """What a fleet of sites makes of the lines between them."""

    sites: int  #: how many there are
    wan_gbit_per_s: float  #: what the lines of one site carry, one direction [Gbit/s]
    efficiency: float  #: share of it that transfers reach
    round_trip_ms: float  #: from one site to another and back [ms]
    inner_steps: int  #: steps between exchanges of DiLoCo
    outer_bits: int  #: bits of each parameter that are sent in an exchange
    fragments: int  #: parts of the model that Streaming DiLoCo sends one after the other
    outer_delay: int  #: steps that go on while a fragment is under way
    step_s: float  #: step of a site by itself, with its share of the batch [s]
    gradients_gb: float  #: what a site sends in a synchronous step [GB]
    exchange_gb: float  #: what a site sends in an exchange [GB]
    gradients_s: float  #: time for which gradients occupy the lines [s]
    exchange_s: float  #: time for which an exchange does [s]
    #: lines with which a synchronous step is within 5 % of DiLoCo's; null where none are fast enough
    synchronous_gbit_per_s: float | None
    #: steps between exchanges with which DiLoCo waits for less than 1 % of the time; null where none are enough
    least_inner_steps: int | None
    least_inner_steps_streaming: int | None  #: the same of Streaming DiLoCo
    outer_gib_per_gpu: float  #: memory of the outer optimizer, shared by the GPUs of a site [GiB]
    lines: tuple[LineRow, ...]  #: waiting, by rate of the lines and steps between exchanges
    needed: tuple[EveryRow, ...]  #: what lines must carry, by steps between exchanges
    loss: tuple[str, ...]  #: what was published of the loss of DiLoCo
