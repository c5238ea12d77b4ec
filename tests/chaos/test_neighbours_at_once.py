"""All faulty handlers at once, for some seconds. `make proof-neighbours` does it for two minutes and looks at times."""

from bench.neighbours import on_engines_of_its_own


async def test_faulty_jobs_and_mailboxes_together_lose_nothing_and_finish_nothing_twice() -> None:
    found = await on_engines_of_its_own(seconds=10.0)
    assert found.is_whole, found.text()
    assert min(len(found.jobs), len(found.mailboxes)) > 0
