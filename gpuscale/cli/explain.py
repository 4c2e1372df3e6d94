"""`gpuscale explain` and `compare`."""

from __future__ import annotations

from typing import Annotated, Any

from gpuscale.cli.options import (
    OUTPUT,
    Html,
    Json,
    LaunchFiles,
    PlanFile,
    Variables,
    Verbose,
    arguments,
    option,
    page_fills_stdout,
    part,
    save_page,
    takes,
    variables,
)
from gpuscale.render.output import print_json
from gpuscale.request import JobOptions, Layout


@takes(JobOptions, Layout, optional=True)
def explain(
    given: dict[str, Any],
    plan_file: PlanFile = None,
    despite_rules: Annotated[
        bool, option("Also a layout that the framework's rules refuse, as a fork may run.", "", flags="--despite-rules")
    ] = False,
    launch_files: LaunchFiles = None,
    var: Variables = None,
    traffic: Annotated[
        bool, option("What travels over which level, and what the network must give.", "", "", "--traffic", OUTPUT)
    ] = False,
    depth: Annotated[int | None, option("Levels of the trees.", default="4", panel=OUTPUT)] = None,
    html: Html = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Explain one plan: what binds it, what would help, what would flip the choice; step and memory as trees.

    Examples: gpuscale explain plan.toml; gpuscale explain --model llama3-70b --gpus 640 --tp 8 --pp 4;
    gpuscale explain --from run.sh
    """
    from gpuscale.explain.explanation import explain_subject
    from gpuscale.launch.subject import read_subject

    streamed = page_fills_stdout(html, other=json)
    options, layout, values = part(given, JobOptions), part(given, Layout), variables(var, launch_files)
    subject = read_subject(plan_file, options, layout, launch_files, values, despite_rules=despite_rules)
    save_page(html, subject)
    if streamed:
        return
    if traffic and not json:
        from gpuscale.explain.traffic import traffic_of
        from gpuscale.render.traffic import draw_traffic

        draw_traffic(subject, traffic_of(subject))
        return
    found = explain_subject(subject, lambda made: arguments("estimate", made), traffic=json)
    if json:
        print_json("explain", found)
    else:
        from gpuscale.render.explain import draw_explanation

        draw_explanation(found, depth=depth, verbose=verbose)
