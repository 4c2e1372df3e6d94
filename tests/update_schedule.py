"""Writes the tables of docs/schedule.md anew: python tests/update_schedule.py.

A table stands between `<!-- NAME -->` and `<!-- end -->`.
"""

import re
from pathlib import Path

from gpuscale.explain.schedule import schedule, schedule_of_durations
from gpuscale.launch.subject import read_subject

PAGE = Path(__file__).parents[1] / "docs" / "schedule.md"
TABLE = re.compile(r"(?<=^<!-- )(closed_forms|plans|picture) -->\n.*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)

PICTURE = (25, 50, 75, 100, 75, 75, 100, 75, 50, 25)
"""Active ranks in percent by time step, 4 stages under 1F1B, as the reference draws them."""

HEAD = (1.0,) * 7 + (1.1,)
GIVEN = (
    ("1F1B, GPipe, equal stages", "1f1b", 8, 32, {}),
    ("1F1B, 4 microbatches", "1f1b", 8, 4, {}),
    ("1F1B, the last stage 10 % longer", "1f1b", 8, 32, {"forward": HEAD}),
    ("1F1B, the first stage 10 % shorter", "1f1b", 8, 32, {"forward": (0.9, *[1.0] * 7)}),
    ("1F1B, one of the middle twice as long", "1f1b", 8, 32, {"forward": (1, 1, 1, 2, 1, 1, 1, 1)}),
    ("1F1B, transfers of 0.1", "1f1b", 8, 32, {"transfer": 0.1}),
    ("1F1B, 2 stages, transfers of 0.1", "1f1b", 2, 32, {"transfer": 0.1}),
    ("interleaved, 4 chunks", "1f1b:4", 8, 32, {}),
    ("interleaved, 4 chunks, the last stage 10 % longer", "1f1b:4", 8, 32, {"forward": HEAD}),
    ("interleaved, 4 chunks, transfers of 0.1", "1f1b:4", 8, 32, {"transfer": 0.1}),
    *(
        (f"{text_of}, F : B : W = {text}", name, 8, 32, {"forward": f, "backward": b + w, "weight": w})
        for text_of, name in (("ZB-H1", "zb-h1"), ("ZB-2P", "zb-2p"), ("ZB-V", "zb-v"), ("DualPipe", "dualpipe"))
        for text, f, b, w in (("1 : 1 : 1", 1, 1, 1), ("1 : 1.1 : 0.9", 1, 1.1, 0.9), ("1 : 1.3 : 0.7", 1, 1.3, 0.7))
    ),
    ("ZB-H1, 4 microbatches", "zb-h1", 8, 4, {}),
    ("ZB-2P, 8 microbatches", "zb-2p", 8, 8, {}),
    ("ZB-2P, 16 microbatches", "zb-2p", 8, 16, {}),
    ("ZB-V, 8 microbatches", "zb-v", 8, 8, {}),
    ("ZB-H1, transfers of 0.1", "zb-h1", 8, 32, {"backward": 2, "transfer": 0.1}),
    ("ZB-V, transfers of 0.1", "zb-v", 8, 32, {"backward": 2, "transfer": 0.1}),
)  # fmt: skip
"""What a row is of: its name, schedule, ranks, microbatches and durations."""


def given(name, pp, count, durations):
    """Simulate one row of `GIVEN`."""
    name, _, vpp = name.partition(":")
    layout = {"pp": pp, "schedule": name, **({"vpp": int(vpp)} if vpp else {})}
    return schedule_of_durations(layout, count, durations)


def lines(header, rows):
    """A Markdown table."""
    every = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in every)


def closed_forms():
    """The simulation beside the closed forms of the search."""
    rows = []
    for text, *what in GIVEN:
        whole, bubble, transfers = given(*what).compared
        off = whole.closed_form_s / whole.simulated_s - 1
        pairs = [f"{one.simulated_s:.4g}, {one.closed_form_s:.4g}" for one in (bubble, transfers)]
        rows.append((text, f"{whole.simulated_s:.4g}", *pairs, f"{off:+.1%}" if abs(off) > 5e-5 else "exact"))
    return lines(("8 stages, 32 microbatches", "step", "bubble", "transfers", "step off by"), rows)


PLANS = (
    ("llama3.1-405b", 16384, {"gbs": 2048, "seq": 8192}, {"tp": 8, "pp": 16}),
    ("llama3.1-405b", 16384, {"gbs": 2048, "seq": 8192}, {"tp": 8, "pp": 16, "vpp": 8}),
    ("gpt3-175b", 1024, {"gbs": 1536, "seq": 2048, "cluster": "dgx-a100-superpod"}, {"tp": 8, "pp": 8, "vpp": 6}),
    ("llama3-70b", 640, {"gbs": 1280}, {"tp": 8, "pp": 4}),
    ("llama3-70b", 640, {"gbs": 1280}, {"tp": 4, "pp": 4, "vpp": 10}),
    ("mixtral-8x7b", 64, {"gbs": 512}, {"tp": 2, "pp": 4, "ep": 4}),
    *(
        ("llama3-70b", 64, {"gbs": 256, "framework": "generic"}, {"tp": 4, "pp": 8, "schedule": name})
        for name in ("zb-h1", "zb-2p", "zb-v")
    ),
    (
        "deepseek-v3", 2048, {"gbs": 15360, "framework": "generic", "cluster": "h800-deepseek"},
        {"pp": 16, "ep": 64, "schedule": "dualpipe"},
    ),
)  # fmt: skip
"""Plans of the second table: model, GPUs, options and layout."""


def of_plan(model, gpus, options, layout):
    """Simulate a plan: its name, and what was compared."""
    subject = read_subject(None, {"model": model, "gpus": gpus, **options}, layout)
    text = " ".join(f"{name.upper()}{value}" for name, value in layout.items() if name != "schedule")
    found = schedule(subject)
    return f"{model}, {gpus:,} GPUs, {text}, {found.schedule}, m = {found.pipeline.microbatches}", found.compared


def plans():
    """Plans by simulation and by the closed forms, in percent of the simulated pipeline."""
    rows = []
    for plan in PLANS:
        text, (whole, *others) = of_plan(*plan)
        pairs = [
            [100 * time_s / whole.simulated_s for time_s in (one.simulated_s, one.closed_form_s)] for one in others
        ]
        off = 100 * (whole.closed_form_s / whole.simulated_s - 1)
        rows.append((text, *(f"{one:.1f}, {other:.1f}" for one, other in pairs), f"{off:+.1f} %"))
    return lines(("plan", "bubble, %", "transfers, %", "pipeline off by"), rows)


def nearest():
    """The reference's picture, and the nearest of uniform schedules: name, microbatches, backward pass, shares."""
    found = []
    for name in ("1f1b", "gpipe", "zb-h1"):
        for count in range(1, 7):
            for backward in (1.0, 2.0):
                one = given(name, 4, count, {"backward": backward})
                shares = [round(100 * share) for share in one.active_share]
                length = max(len(shares), len(PICTURE))
                mine, theirs = ([*values, *[0] * (length - len(values))] for values in (shares, PICTURE))
                found.append(
                    (sum(abs(a - b) for a, b in zip(mine, theirs, strict=True)), name, count, backward, shares)
                )
    return min(found)[1:]


def picture():
    """The reference's picture beside the nearest real schedule."""
    name, count, backward, shares = nearest()
    length = max(len(shares), len(PICTURE))
    rows = [
        (text, *map(str, values), *[""] * (length - len(values)), str(sum(values) * 4 // 100))
        for text, values in (("the reference", PICTURE), (f"{name}, {count} microbatches, B = {backward:g} F", shares))
    ]
    return lines(("active ranks, %", *(f"t{number}" for number in range(1, length + 1)), "slots"), rows)


TABLES = {"closed_forms": closed_forms, "plans": plans, "picture": picture}


def made(text):
    """The page with its tables made anew."""
    return TABLE.sub(lambda found: f"{found[1]} -->\n{TABLES[found[1]]()}", text)


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
