"""Requests that arrive within a few iterations of the event loop share a batch if batches are
short."""

from collections.abc import Sequence

import pytest

from service.batching.batcher import _TURNS, Batcher
from service.batching.company import Company
from service.batching.latency import Latency
from tests.support.service.desk import in_virtual_time
from tests.support.service.virtual_time import now, turns


def test_company_is_two_at_once_until_the_look_after_the_next() -> None:
    company = Company()
    for _ in range(2):
        company.enter()
        company.leave()
    assert not company.look(), "one followed the other"
    company.enter()
    company.enter()
    company.leave()
    company.leave()
    assert [company.look(), company.look(), company.look()] == [True, True, False]


async def _batches(company: Company, apart: int) -> list[int]:
    """Return the sizes of the batches in which three items run. The items arrive `apart` iterations
    of the event loop apart."""
    ran: list[int] = []

    async def run(items: Sequence[str]) -> Sequence[str]:
        ran.append(len(items))
        return items

    short = Latency.measured(dict.fromkeys(range(1, 5), 1e-6), 4)
    batcher = Batcher[str, str](run, max_batch=4, latency=short, company=company, clock=now)
    for item in "abc":
        batcher.post(item, lambda _: None)
        await turns(apart)
    await turns(3 * _TURNS)
    await batcher.close()
    return ran


@pytest.mark.parametrize("apart", [3, _TURNS])
def test_a_short_batch_waits_for_requests_that_follow_in_steps(apart: int) -> None:
    @in_virtual_time
    async def waits() -> None:
        company = Company()
        for _ in range(3):
            company.enter()
        assert await _batches(company, apart) == [3]

    waits()


def test_nothing_waits_for_one_that_is_alone_too_late_or_gone() -> None:
    @in_virtual_time
    async def alone() -> None:
        company = Company()
        company.enter()
        assert await _batches(company, 3) == [1, 1, 1]

    @in_virtual_time
    async def late() -> None:
        company = Company()
        company.enter()
        company.enter()
        assert await _batches(company, _TURNS + 4) == [1, 1, 1]

    @in_virtual_time
    async def gone() -> None:
        company = Company()
        for change in (company.enter, company.enter, company.leave, company.leave):
            change()
        assert await _batches(company, 3) == [1, 1, 1]

    alone()
    late()
    gone()
