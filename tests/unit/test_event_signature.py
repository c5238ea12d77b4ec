from trunkline.api.event_signature import TOLERANCE_S, is_good, sign

NOW_S = 1_893_490_200
BODY = b'{"type":"opened"}'


def test_a_signature_verifies_for_its_own_request() -> None:
    header = sign("secret", NOW_S, "issue", "acme/site#12", BODY)
    assert is_good(header, ["secret"], NOW_S, "issue", "acme/site#12", BODY)
    assert is_good(header, ["new", "secret"], NOW_S + TOLERANCE_S, "issue", "acme/site#12", BODY)


def test_a_signature_does_not_verify_for_another_mailbox_body_secret_or_moment() -> None:
    header = sign("secret", NOW_S, "issue", "12", BODY)
    assert not is_good(header, ["secret"], NOW_S, "issue", "13", BODY)
    assert not is_good(header, ["secret"], NOW_S, "order", "12", BODY)
    assert not is_good(header, ["secret"], NOW_S, "issue", "12", BODY + b" ")
    assert not is_good(header, ["other"], NOW_S, "issue", "12", BODY)
    assert not is_good(header, [], NOW_S, "issue", "12", BODY)
    assert not is_good(header, ["secret"], NOW_S + TOLERANCE_S + 1, "issue", "12", BODY)
    assert not is_good(header, ["secret"], NOW_S - TOLERANCE_S - 1, "issue", "12", BODY)


def test_the_moment_of_a_signature_cannot_be_moved() -> None:
    header = sign("secret", NOW_S, "issue", "12", BODY)
    later = header.replace(str(NOW_S), str(NOW_S + 900))
    assert not is_good(later, ["secret"], NOW_S + 900, "issue", "12", BODY)


def test_a_malformed_signature_header_does_not_verify() -> None:
    for header in (
        "",
        "t=1",
        "v1=ab",
        "t=x,v1=" + "0" * 64,
        f"t={NOW_S},v1=" + "0" * 63,
        "t=٣,v1=" + "0" * 64,
    ):
        assert not is_good(header, ["secret"], NOW_S, "issue", "12", BODY)
