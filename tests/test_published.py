"""Large published jobs: what `gpuscale estimate` says of their layouts, by the commands of docs/published.md."""

import statistics

import pytest
from test_validate_table import _script

PUBLISHED = _script("published_jobs")


@pytest.fixture(scope="module")
def errors():
    jobs = PUBLISHED.read_jobs()
    return {job["name"]: PUBLISHED.figure(job, PUBLISHED.estimated(job)[1]) / job["published"] - 1 for job in jobs}


def test_no_published_job_is_off_by_more_than_a_fifth_and_half_of_them_by_less_than_8_percent(errors):
    assert {name: error for name, error in errors.items() if abs(error) > 0.2} == {}
    assert statistics.median(map(abs, errors.values())) < 0.08
    assert len(errors) >= 11


def test_the_page_has_every_job_with_its_command():
    page = PUBLISHED.PAGE.read_text()
    for job in PUBLISHED.read_jobs():
        assert f"| {job['name']} |" in page
        words = dict(PUBLISHED.pairs(f"{job['choosing']} {job['options']}"))
        assert "`gpuscale estimate " + " ".join(f"{name} {value}" for name, value in words.items()) + "`" in page


def test_a_figure_counts_attention_as_its_source_does():
    job = PUBLISHED.read_jobs()[0]
    answer = PUBLISHED.estimated(job)[1]
    causal, full = (PUBLISHED.figure({**job, "attention": how}, answer) for how in ("causal", "full"))
    assert causal == pytest.approx(answer["plan"]["tflops_per_gpu"])
    assert full == pytest.approx(causal * 875.14 / 841.32, rel=1e-4)


def test_deepseek_v3_fits_where_it_was_trained():
    job = next(job for job in PUBLISHED.read_jobs() if "DeepSeek-V3" in job["name"])
    layout = PUBLISHED.estimated(job)[1]["plan"]
    assert layout["memory_gib"] < layout["memory_limit_gib"] < 80
