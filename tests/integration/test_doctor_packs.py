"""What the doctor finds out about packs of legal rules."""

from datetime import timedelta
from pathlib import Path

from tests.support.dispatch.dialing import open_dialing
from trunkline.cli.doctor import examine_packs, judge_packs
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.leads.rule_packs import PACKS, Pack
from trunkline.settings import load_settings

US = PACKS["us-tcpa"]


def test_doctor_warns_of_an_old_rule_pack() -> None:
    assert [each.state for each in judge_packs([US], 30, US.as_of)] == ["ok"]
    (finding,) = judge_packs([US], 30, US.as_of + timedelta(days=400))
    assert (finding.what, finding.state) == ("packs", "warning")
    assert "us-tcpa was last compared with the law" in finding.detail


def test_doctor_warns_of_a_ring_timeout_too_short_for_a_rule_pack() -> None:
    (finding,) = judge_packs([US], 10, US.as_of)
    assert finding.detail == "us-tcpa requires phones to ring for 15 s: RING_TIMEOUT is 10 s"


async def test_doctor_checks_the_packs_of_all_layers_as_the_platform_edited_them(
    database_url: str, tmp_path: Path
) -> None:
    settings = load_settings({}, TRUNKLINE_DATA_DIR=str(tmp_path))
    async with open_dialing(database_url) as dialing:
        assert await examine_packs(settings, database_url) == []
        ours = Pack(name="ours", as_of=US.as_of - timedelta(days=5000), note="Ours")
        await dialing.policy(CallingPolicy(edited_packs=(ours,)), "platform", "")
        await dialing.policy(CallingPolicy(packs=("ours",)))
        (finding,) = await examine_packs(settings, database_url)
    assert finding.detail.startswith("The pack ours was last compared with the law on ")


async def test_examine_packs_finds_nothing_while_postgres_is_unreachable(tmp_path: Path) -> None:
    settings = load_settings({}, TRUNKLINE_DATA_DIR=str(tmp_path))
    assert await examine_packs(settings, "postgres://127.0.0.1:1/none") == []
