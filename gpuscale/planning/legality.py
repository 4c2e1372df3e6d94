"""How a broken rule is reported: the sentence, where the framework says so, and which frameworks know no such rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuscale.errors import InputError
from gpuscale.layouts.arrays import Candidates
from gpuscale.presets.frameworks import load_framework
from gpuscale.rules.check import BY_CODE, broken_rules, source_in
from gpuscale.rules.rule import EVERY, Rule
from gpuscale.specs.job import JobSpec

TODAY = ("megatron-lm", "torchtitan", "deepspeed", "megatron-deepspeed", "nanotron", "llm-foundry", "generic")
"""Frameworks that a message may point to, by names that `--framework` takes."""


def rule_text(code: str, job: JobSpec) -> str:
    """A rule as a sentence, and where the job's framework says it."""
    rule = BY_CODE[code]
    return f"{rule.text} [{source_in(rule, job.runtime.rule_set)}]"


def illegal(rows: Candidates, job: JobSpec, broken: Sequence[Rule], place: str, hint: str) -> InputError:
    """Build the error for one layout that breaks rules: each with code and source, and which frameworks can run it."""
    message = "; ".join(f"{rule.text} ({rule.code}) [{source_in(rule, job.runtime.rule_set)}]" for rule in broken)
    elsewhere = [] if any(rule.frameworks == EVERY for rule in broken) else running_it(rows, job)
    names = " or ".join(filter(None, (", ".join(elsewhere[:-1]), *elsewhere[-1:])))
    return InputError(message, place=place, hint=f"with --framework {names} it can run; {hint}" if names else hint)


def running_it(rows: Candidates, job: JobSpec) -> list[str]:
    """Return the frameworks of `TODAY` under whose profiles one layout breaks no rule."""
    runtimes = {name: load_framework(name).runtime for name in TODAY}
    return [name for name, runtime in runtimes.items() if not broken_rules(rows, replace(job, runtime=runtime))]
