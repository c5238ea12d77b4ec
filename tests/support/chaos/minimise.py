"""The smallest plan that still fails: faults are left out, halves first, then one by one."""

from tests.support.chaos.machine import Machine
from tests.support.chaos.plan import Plan, Strike
from tests.support.chaos.run import run


async def minimised(machine: Machine, plan: Plan) -> Plan:
    """Delta debugging. A run that happens to pass keeps its faults: the smallest plan may be smaller still."""

    async def fails(strikes: tuple[Strike, ...]) -> bool:
        return bool((await run(machine, plan.only(strikes))).violations)

    strikes, parts = plan.strikes, 2
    while len(strikes) > 1:
        size = max(1, len(strikes) // parts)
        pieces = [strikes[at : at + size] for at in range(0, len(strikes), size)]
        for piece in pieces:
            rest = tuple(each for each in strikes if each not in piece)
            if await fails(rest):
                strikes, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(strikes), parts * 2)
    return plan.only(strikes)
