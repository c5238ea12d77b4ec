from datetime import UTC, datetime, timedelta

import pytest

from trunkline.console.sessions import LINK_S, SESSION_S, Seals

NOW = datetime(2030, 1, 7, 12, tzinfo=UTC)
HASH = bytes(range(32))


def test_a_sealed_session_opens_until_it_expires() -> None:
    seals = Seals(["one secret"])
    session = seals.session(HASH, NOW)
    sealed = seals.seal(session)
    assert seals.open("session", sealed, NOW) == session
    assert seals.open("session", sealed, NOW + timedelta(seconds=SESSION_S)) is None


def test_a_link_is_no_session_and_a_session_no_link() -> None:
    seals = Seals(["one secret"])
    assert seals.open("session", seals.seal(seals.link(HASH, NOW)), NOW) is None
    assert seals.open("link", seals.seal(seals.session(HASH, NOW)), NOW) is None
    assert seals.open("link", seals.seal(seals.link(HASH, NOW)), NOW + timedelta(seconds=LINK_S)) is None


def test_a_session_sealed_by_others_or_changed_does_not_open() -> None:
    sealed = Seals(["their secret"]).seal(Seals(["their secret"]).session(HASH, NOW))
    ours = Seals(["our secret"])
    mine = ours.seal(ours.session(HASH, NOW))
    assert ours.open("session", sealed, NOW) is None
    assert ours.open("session", mine[:-4] + "AAAA", NOW) is None
    for nonsense in ("", "x", "é" * 20, "A" * 5000):
        assert ours.open("session", nonsense, NOW) is None


def test_a_session_of_the_old_secret_opens_while_secrets_are_rotated() -> None:
    old = Seals(["old"])
    session = old.session(HASH, NOW)
    assert Seals(["new", "old"]).open("session", old.seal(session), NOW) == session


def test_the_token_of_a_form_is_of_one_session_alone() -> None:
    seals = Seals(["one secret"])
    first, second = seals.session(HASH, NOW), seals.session(HASH, NOW)
    assert seals.is_form_token(first, seals.form_token(first))
    assert not seals.is_form_token(second, seals.form_token(first))
    assert not seals.is_form_token(first, "é")
    assert not seals.is_form_token(first, "")


def test_session_seals_need_a_secret() -> None:
    with pytest.raises(ValueError, match="at least one secret"):
        Seals([])
