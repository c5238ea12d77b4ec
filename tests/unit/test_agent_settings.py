import socket

import pytest

from trunkline.agent import AgentSettings, AgentSettingsError


def test_the_environment_is_read_under_its_documented_names() -> None:
    settings = AgentSettings.from_env(
        {
            "SMART_ROUTER_BASE_URL": "https://router.example.com",
            "SMART_ROUTER_API_KEY": "tl_secret",
            "SMART_ROUTER_TIMEOUT_MS": "1500",
            "POD_NAME": "voice-agent-3",
            "POD_IP": "10.0.0.3",
            "VOICE_AGENT_BASE_URL": "wss://voice.example.com",
            "VOICE_AGENT_HEARTBEAT_INTERVAL": "10s",
            "VOICE_AGENT_SHUTDOWN_TIMEOUT": "5m",
        }
    )
    assert settings == AgentSettings(
        router_url="https://router.example.com",
        api_key="tl_secret",
        router_timeout_s=1.5,
        pod_name="voice-agent-3",
        pod_ip="10.0.0.3",
        base_url="wss://voice.example.com",
        heartbeat_interval_s=10,
        shutdown_timeout_s=300,
    )
    assert "tl_secret" not in repr(settings)


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = AgentSettings.from_env({})
    assert settings == AgentSettings()
    assert settings.router_url == "http://smart-router:8080"
    assert settings.pod_name == socket.gethostname()
    assert (settings.router_timeout_s, settings.heartbeat_interval_s, settings.shutdown_timeout_s) == (
        3,
        5,
        None,
    )


def test_every_wrong_variable_is_named_at_once() -> None:
    with pytest.raises(AgentSettingsError) as caught:
        AgentSettings.from_env(
            {
                "SMART_ROUTER_BASE_URL": "router",
                "VOICE_AGENT_BASE_URL": "https://x",
                "VOICE_AGENT_HEARTBEAT_INTERVAL": "often",
                "VOICE_AGENT_SHUTDOWN_TIMEOUT": "-1",
                "SMART_ROUTER_TIMEOUT_MS": "5 sm",
            }
        )
    assert sorted(line.partition(":")[0] for line in str(caught.value).splitlines()) == [
        "SMART_ROUTER_BASE_URL",
        "SMART_ROUTER_TIMEOUT_MS",
        "VOICE_AGENT_BASE_URL",
        "VOICE_AGENT_HEARTBEAT_INTERVAL",
        "VOICE_AGENT_SHUTDOWN_TIMEOUT",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("1.5", 1.5), ("200ms", 0.2), ("5s", 5), ("1m30s", 90), ("2h", 7200)]
)
def test_durations_are_written_with_or_without_a_unit(text: str, seconds: float) -> None:
    assert AgentSettings.from_env({"VOICE_AGENT_SHUTDOWN_TIMEOUT": text}).shutdown_timeout_s == seconds


@pytest.mark.parametrize("text", ["s", "5 s", "5x", "5s!", "1m30", "nan", "inf", "0", "-5s", "25h"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(AgentSettingsError, match="VOICE_AGENT_HEARTBEAT_INTERVAL"):
        AgentSettings.from_env({"VOICE_AGENT_HEARTBEAT_INTERVAL": text})
