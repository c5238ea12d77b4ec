"""What the OpenAPI document says of parameters, fields and answers that many operations have: once each, by name.

A route or a shape that describes its own is left alone.
"""

from typing import Any

# Parameters of paths and queries.
PARAMETERS = {
    "account_id": "The id of the account.",
    "actor": "Only entries of this person or key.",
    "alarm_id": "The id of the alarm.",
    "attempt_id": "The id of the call.",
    "call_sid": "The carrier's id of the call.",
    "campaign_id": "The id of the campaign.",
    "carrier": "The carrier, for example `twilio`.",
    "encoding": "How the file is encoded.",
    "endpoint_id": "The id of the webhook endpoint.",
    "entry_id": "The id of the entry.",
    "item_id": "The id of the enrichment.",
    "job_id": "The id of the job.",
    "job_type": "Only jobs of this type.",
    "key_id": "The id of the key; not the key itself.",
    "lead_id": "The id of the lead.",
    "limit": "How many objects at most.",
    "merchant_id": "The id of the merchant.",
    "name": "Only those of this name.",
    "number_id": "The id of the number.",
    "pack_name": "The name of the pack.",
    "phone": "Only those of this phone, with its country code.",
    "pool_id": "The id of the pool.",
    "queue_kind": "Whether the queue is one of jobs or of mailboxes.",
    "reminder_id": "The id of the reminder.",
    "reseller_id": "The id of the reseller.",
    "scope": "What kind of thing is stopped.",
    "severity": "Only alarms of this severity.",
    "since": "Only entries from this time on.",
    "status": "Only those in this status.",
    "subject": "Only entries about this object.",
}

# Fields that mean the same in every shape.
FIELDS = {
    "attempt_id": "The call.",
    "created_at": "When it was created.",
    "fields": "The fields that are wrong.",
    "id": "Its id.",
    "items": "In the order of the list.",
    "last_error": "What went wrong last; null: nothing.",
    "merchant_id": "The merchant it belongs to; null: of the whole reseller, or the platform's.",
    "name": "Its name.",
    "priority": "1 is called first, 99 last, within a merchant.",
    "reporting_webhook_url": "Where results are reported.",
    "reseller_id": "The reseller it belongs to; null: the platform's.",
    "status": "Its status.",
    "success": "false, as this is an error.",
    "updated_at": "When it last changed.",
}

_ANSWERS = {
    ("get", "200"): "What was found.",
    ("post", "200"): "What was done.",
    ("post", "201"): "What was created.",
    ("post", "202"): "It is accepted, and goes on.",
    ("put", "200"): "What is set now.",
    ("patch", "200"): "The object as it is now.",
    ("delete", "200"): "The object as it is now.",
    ("delete", "204"): "It is gone. The answer has no body.",
}


def describe(document: dict[str, Any]) -> None:
    """Adds the words that are missing."""
    for operations in document["paths"].values():
        for method, operation in operations.items():
            # The summary is all there is to say of some.
            operation.setdefault("description", f"{operation['summary'].rstrip('?.')}.")
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in PARAMETERS:
                    parameter.setdefault("description", PARAMETERS[parameter["name"]])
            for status, answer in operation["responses"].items():
                if answer["description"] == "Successful Response":
                    answer["description"] = _ANSWERS[method, status]
    for shape in document["components"]["schemas"].values():
        for name, schema in shape.get("properties", {}).items():
            if name in FIELDS:
                schema.setdefault("description", FIELDS[name])
