"""Wrong settings are reported all at once, with the variable, its value and what is allowed."""

import re
from pathlib import Path

import pytest

import trunkline
from trunkline.errors import TrunklineError
from trunkline.settings import SettingProblem, SettingsError, load_settings
from trunkline.settings.reading import VARIABLES
from trunkline.settings.spellings import distance, warnings_about

DIRECT = "postgresql://db/calls"


def problems(environ: dict[str, str]) -> dict[str, SettingProblem]:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ)
    return {problem.name: problem for problem in caught.value.problems}


def test_every_problem_is_reported_at_once() -> None:
    found = problems(
        {
            "HTTP_PORT": "80a",
            "METRICS_PORT": "70000",
            "LOG_LEVEL": "loud",
            "TRUNKLINE_ROLES": "api,cook",
            "DATABASE_POOL_SIZE": "0",
            "HTTP_READ_TIMEOUT": "5 parsecs",
            "LEADER_ELECTION_DURATION": "5s",
            "TWILIO_ACCOUNT_SID": "AC1",
        }
    )
    assert found.keys() == {
        "HTTP_PORT",
        "METRICS_PORT",
        "LOG_LEVEL",
        "TRUNKLINE_ROLES",
        "DATABASE_POOL_SIZE",
        "HTTP_READ_TIMEOUT",
        "LEADER_ELECTION_RENEW_DEADLINE",
        "TWILIO_AUTH_TOKEN",
    }


def test_a_problem_names_variable_value_and_what_is_allowed() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"LOG_FORMAT": "xml", "DATABASE_POOL_SIZE": "many"})
    assert str(caught.value).splitlines() == [
        "DATABASE_POOL_SIZE is 'many'; allowed: a whole number from 1 to 1000",
        "LOG_FORMAT is 'xml'; allowed: `auto`, `json` or `console`",
    ]
    assert isinstance(caught.value, TrunklineError)


def test_a_problem_never_shows_a_secret() -> None:
    found = problems(
        {
            "TRUNKLINE_SECRET_KEY": "planted",
            "TRUNKLINE_ADMIN_KEY": "planted",
            "DATABASE_URL": "mysql://root:planted@db/x",
            "REDIS_URL": "http://:planted@cache",
        }
    )
    assert found.keys() == {"TRUNKLINE_SECRET_KEY", "TRUNKLINE_ADMIN_KEY", "DATABASE_URL", "REDIS_URL"}
    assert "planted" not in str(found)
    assert found["DATABASE_URL"].given == "mysql://root:***@db/x"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://db/calls"),
        ("DATABASE_URL", "db.internal"),
        ("DATABASE_URL", "postgresql://db:port/calls"),
        ("REDIS_URL", "http://cache"),
        ("REDIS_URL", "redis:"),
        ("PUBLIC_BASE_URL", "calls.example"),
        ("PUBLIC_BASE_URL", "https://calls.example/?a=1"),
        ("VOICE_AGENT_BASE_URL", "https://pods.example"),
        ("HTTP_READ_TIMEOUT", "0s"),
        ("HTTP_READ_TIMEOUT", "-1"),
        ("HTTP_READ_TIMEOUT", "inf"),
        ("HTTP_READ_TIMEOUT", "nan"),
        ("HTTP_READ_TIMEOUT", "5 s"),
        ("HTTP_MAX_BODY_BYTES", "1MB"),
        ("LEADER_ELECTION_ENABLED", "perhaps"),
        ("TRUNKLINE_DOMAIN", "{main}"),
        ("TRUNKLINE_ROLES", ","),
        ("TRUNKLINE_SECRET_KEY", ",".join(["k" * 32] * 3)),
        ("DIAL_AHEAD", "101ms"),
        ("RING_TIMEOUT", "11m"),
        ("RING_TIMEOUT", "500ms"),
        ("CALL_TIME_LIMIT", "25h"),
    ],
)
def test_a_value_outside_of_what_is_allowed_is_refused(name: str, value: str) -> None:
    found = problems({name: value})
    assert found.keys() == {name}
    assert found[name].allowed


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"HTTP_PORT": "9090"}, "METRICS_PORT"),
        ({"LEADER_ELECTION_RENEW_DEADLINE": "15s"}, "LEADER_ELECTION_RENEW_DEADLINE"),
        ({"LEADER_ELECTION_RETRY_PERIOD": "10s"}, "LEADER_ELECTION_RETRY_PERIOD"),
        ({"DATABASE_DIRECT_URL": DIRECT}, "DATABASE_URL"),
        ({"DATABASE_URL": DIRECT, "DATABASE_POOLER": "transaction"}, "DATABASE_DIRECT_URL"),
        ({"REDIS_CLUSTER": "true"}, "REDIS_URL"),
        ({"REDIS_CLUSTER": "true", "REDIS_URL": "unix:///run/valkey.sock"}, "REDIS_URL"),
        ({"TWILIO_AUTH_TOKEN": "t"}, "TWILIO_ACCOUNT_SID"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(environ: dict[str, str], named: str) -> None:
    assert problems(environ).keys() == {named}


def test_two_free_ports_do_not_clash() -> None:
    assert load_settings({"HTTP_PORT": "0", "METRICS_PORT": "0"}).http.port == 0


def test_a_clash_with_a_wrong_value_is_reported_once() -> None:
    assert problems({"LEADER_ELECTION_DURATION": "soon", "LEADER_ELECTION_RENEW_DEADLINE": "20s"}).keys() == {
        "LEADER_ELECTION_DURATION"
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HTTP_PROT", "HTTP_PORT"),
        ("REDIS_ULR", "REDIS_URL"),
        ("DATABASE_POOLSIZE", "DATABASE_POOL_SIZE"),
        ("TRUNKLINE_HTTP_PROT", "TRUNKLINE_HTTP_PORT"),
        ("TRUNKLINE_HTP_PORT", "TRUNKLINE_HTTP_PORT"),
        ("TRUNKLNE_HTTP_PORT", "TRUNKLINE_HTTP_PORT"),
    ],
)
def test_a_misspelt_name_is_warned_about_and_ignored(name: str, meant: str) -> None:
    settings = load_settings({name: "7"})
    assert settings.warnings == (f"{name} is not a setting of Trunkline; did you mean {meant}?",)
    assert settings.http.port == 8080


@pytest.mark.parametrize("value", ["80a", "tcp//10.0.0.7:8080"])
def test_a_problem_names_the_variable_as_it_is_spelt(value: str) -> None:
    assert problems({"TRUNKLINE_HTTP_PORT": value}).keys() == {"TRUNKLINE_HTTP_PORT"}
    assert problems({"TRUNKLINE_HTTP_PORT": "9090"}).keys() == {"METRICS_PORT"}
    both = {"TRUNKLINE_HTTP_PORT": "7000", "TRUNKLINE_METRICS_PORT": "7000"}
    assert problems(both).keys() == {"TRUNKLINE_METRICS_PORT"}


def test_two_spellings_with_two_values_are_refused_and_both_are_named() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"HTTP_PORT": "7000", "TRUNKLINE_HTTP_PORT": "9090", "LOG_LEVEL": "loud"})
    assert str(caught.value).splitlines() == [
        "HTTP_PORT is '7000'; allowed: the value of TRUNKLINE_HTTP_PORT, which is '9090', or only one of the two",
        "LOG_LEVEL is 'loud'; allowed: `debug`, `info`, `warning` or `error`",
    ]


def test_two_spellings_with_two_values_show_no_secret() -> None:
    found = problems(
        {
            "TWILIO_ACCOUNT_SID": "AC1",
            "TWILIO_AUTH_TOKEN": "planted-one",
            "TRUNKLINE_TWILIO_AUTH_TOKEN": "planted-two",
            "DATABASE_URL": "postgresql://user:planted-three@db/calls",
            "TRUNKLINE_DATABASE_URL": "postgresql://user:planted-four@db/calls",
        }
    )
    assert found.keys() == {"TWILIO_AUTH_TOKEN", "DATABASE_URL"}
    assert "planted" not in str(found)


def test_an_unknown_name_with_our_prefix_is_warned_about() -> None:
    assert load_settings({"TRUNKLINE_COLOUR": "red"}).warnings == (
        "TRUNKLINE_COLOUR is not a setting of Trunkline and is ignored",
    )


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "SESSION_TTL",
        "POSTGRES_PORT",
        "TRUNKLINE_CRASH_AT",
        "TRUNKLINE_SERVICE_HOST",
        "TRUNKLINE_SERVICE_PORT_HTTP",
        "TRUNKLINE_PORT",
        "TRUNKLINE_PORT_8080_TCP_ADDR",
        "TRUNKLINE_API_SERVICE_HOST",
    ],
)
def test_unrelated_variables_raise_no_warning(name: str) -> None:
    assert load_settings({name: "x"}).warnings == ()


@pytest.mark.parametrize("service", ["trunkline", "trunkline-http", "trunkline-https", "trunkline-metrics"])
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_links_of_a_cluster_to_its_services_are_no_settings(service: str, protocol: str) -> None:
    """What a kubelet puts into every pod of the namespace, unless the pod turns it off."""
    links = service_links(service, protocol)
    settings = load_settings(links)
    assert (settings.http.port, settings.http.metrics_port) == (8080, 9090)
    assert settings.warnings == ()
    given = load_settings({**links, "HTTP_PORT": "7000", "TRUNKLINE_METRICS_PORT": "7001"})
    assert (given.http.port, given.http.metrics_port) == (7000, 7001)


def test_service_link_variables_do_not_set_the_cluster_address() -> None:
    """Its link is an address, as the cluster's own is: only the bare name counts."""
    links = service_links("trunkline-kubernetes", "tcp") | service_links(
        "trunkline-kubernetes-service", "tcp"
    )
    settings = load_settings(
        {**links, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    )
    assert "TRUNKLINE_KUBERNETES_SERVICE_HOST" in links
    assert (settings.router.cluster_host, settings.router.cluster_port) == ("10.0.0.1", 6443)
    assert load_settings(links).router.cluster_host is None


def service_links(service: str, protocol: str) -> dict[str, str]:
    name, url = service.upper().replace("-", "_"), f"{protocol}://10.0.0.7:8080"
    port = f"{name}_PORT_8080_{protocol.upper()}"
    return {
        f"{name}_SERVICE_HOST": "10.0.0.7",
        f"{name}_SERVICE_PORT": "8080",
        f"{name}_SERVICE_PORT_HTTP": "8080",
        f"{name}_PORT": url,
        port: url,
        f"{port}_PROTO": protocol,
        f"{port}_PORT": "8080",
        f"{port}_ADDR": "10.0.0.7",
    }


def test_the_edit_distance_counts_single_edits() -> None:
    assert distance("kitten", "sitting") == 3
    assert distance("same", "same") == 0
    assert distance("", "abc") == 3


def test_no_variable_that_the_platform_itself_reads_is_taken_for_a_mistake() -> None:
    sources = Path(trunkline.__file__).parent.rglob("*.py")
    read = {name for path in sources for name in re.findall(r'"(TRUNKLINE_[A-Z_]+)"', path.read_text())}
    assert read >= {"TRUNKLINE_API_URL", "TRUNKLINE_API_KEY", "TRUNKLINE_ROLES"}
    assert list(warnings_about(dict.fromkeys(read, "x"), VARIABLES)) == []
