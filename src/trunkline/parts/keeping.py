"""What is lost or late is found again, what recurs is made, and what is old goes: the loops of the role `control`."""

from trunkline.campaigns.counting import CountFolder
from trunkline.campaigns.keeper import CampaignKeeper
from trunkline.control.guardian import Heartbeat
from trunkline.dispatch.checks import CheckLimits
from trunkline.dispatch.hangups import HangUps
from trunkline.loops.alarms import AlarmLoop
from trunkline.loops.base import Loop
from trunkline.loops.channels import ChannelReconciler
from trunkline.loops.checker import Checker
from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.loops.loader import Loader, Refiller
from trunkline.loops.rebuilder import Rebuilder
from trunkline.mailbox.gauges import MailboxGauges
from trunkline.mailbox.retention import MailboxRetention
from trunkline.parts.dialing import Dialing
from trunkline.parts.following import Following
from trunkline.parts.ground import LEADER, Ground
from trunkline.parts.routing import Routing
from trunkline.parts.steering import Steering
from trunkline.parts.way_in import WayIn
from trunkline.reminders.follower import ReminderFollower
from trunkline.reminders.scheduler import ReminderScheduler
from trunkline.router.slot_check import SlotCheck
from trunkline.settings import Settings


class Keeping:
    def __init__(
        self,
        ground: Ground,
        way_in: WayIn,
        steering: Steering,
        routing: Routing,
        dialing: Dialing,
        following: Following,
    ):
        settings, database, bus, clock = ground.settings, ground.database, ground.bus, ground.clock
        controls, rollout = steering.controls, steering.rollout
        self.leadership = Leadership(database, clock, LEADER, settings.identity, _lease_times(settings))
        self.reminders = ReminderScheduler(
            database,
            dialing.schedule,
            interval_s=settings.reminders.poll_s,
            batch_max=settings.reminders.batch_max,
        )
        self.checker = Checker(
            database, bus, clock, way_in.carriers, way_in.inbox, _check_limits(settings), dialing.settler
        )
        self.channels = ChannelReconciler(
            database, bus, controls, rollout, grant_ttl_s=settings.dispatch.grant_ttl_s
        )
        self.loops: list[Loop] = [
            self.leadership,
            Rebuilder(database, bus, controls, rollout),
            Loader(database, bus, jitter_max_s=settings.dispatch.loader_jitter_max_s),
            Refiller(database, bus),
            self.channels,
            self.checker,
            HangUps(database, way_in.carriers),
            SlotCheck(
                database,
                routing.free,
                doubt_s=_check_limits(settings).ring_over_s,
                tombstone_s=routing.ended_ttl_s,
            ),
            dialing.precheck_walk,
            MailboxRetention(database, keep_s=settings.mailboxes.keep_s),
            MailboxGauges(database),
            Heartbeat(self.leadership, database, bus, steering.guardian),
            self.reminders,
            ReminderFollower(database),
            CampaignKeeper(database),
            CountFolder(database),
            AlarmLoop(
                self.leadership,
                database,
                bus,
                clock,
                announce=following.announce,
                slots=routing.slot_rule if dialing.agents.are_ours else None,
            ),
        ]


def _lease_times(settings: Settings) -> LeaseTimes:
    leader = settings.leader
    return LeaseTimes(leader.duration_s, leader.renew_deadline_s, leader.retry_period_s)


def _check_limits(settings: Settings) -> CheckLimits:
    carrier = settings.carrier
    return CheckLimits(carrier.request_timeout_s, carrier.ring_timeout_s, carrier.time_limit_s)
