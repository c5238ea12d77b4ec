"""Examples of the OpenAPI document, for shapes that declare none: made of the examples of their fields."""

from collections.abc import Mapping
from typing import Any

# By name, for fields whose type says too little.
_BY_NAME: Mapping[str, Any] = {
    "account": "acme",
    "carrier": "twilio",
    "carrier_call_id": "CA00000000000000000000000000000001",
    "changed_by": "key:operator",
    "e164": "+14155550100",
    "from_phone": "+14155550100",
    "merchant_id": "acme-store",
    "name": "acme-main",
    "phone": "+14155550123",
    "pool": "acme-main",
    "reason": "maintenance",
    "region": "US",
    "reporting_webhook_url": "https://acme.example/hooks/trunkline",
    "request_id": "order-4711-reminder",
    "reseller_id": "acme",
    "success": False,
    "timezone": "America/New_York",
    "to_phone": "+14155550123",
    "url": "https://acme.example/hooks/trunkline",
}
_BY_FORMAT = {
    "date": "2030-05-01",
    "date-time": "2030-05-01T09:30:00Z",
    "time": "09:00",
    "uuid": "01890a5d-ac96-774b-bcce-b302099a8057",
}
_BY_TYPE: Mapping[str, Any] = {"boolean": True, "integer": 1, "null": None, "number": 0.5, "string": "text"}


class Examples:
    def __init__(self, schemas: Mapping[str, dict[str, Any]]):
        self._schemas = schemas

    def add(self) -> None:
        for name, schema in self._schemas.items():
            if "examples" not in schema:
                schema["examples"] = [self.of(schema, name)]

    def of(self, schema: Mapping[str, Any], name: str = "") -> Any:
        """The schema's own example, or one that is made of its parts."""
        if schema.get("examples"):
            return schema["examples"][0]
        if "$ref" in schema:
            return self.of(self._schemas[schema["$ref"].rpartition("/")[2]], name)
        for choice in ("enum", "anyOf", "oneOf"):
            if choice in schema:
                first = schema[choice][0]
                return first if choice == "enum" else self.of(first, name)
        if "const" in schema:
            return schema["const"]
        if schema.get("type") == "object" or "properties" in schema:
            return {field: self.of(part, field) for field, part in schema.get("properties", {}).items()}
        if schema.get("type") == "array":
            return [self.of(schema.get("items", {}), name)]
        return self._plain(schema, name)

    def _plain(self, schema: Mapping[str, Any], name: str) -> Any:
        kind = schema.get("type", "string")
        if schema.get("format") in _BY_FORMAT:
            return _BY_FORMAT[schema["format"]]
        if name in _BY_NAME and isinstance(_BY_NAME[name], str | bool) and kind in ("string", "boolean"):
            return _BY_NAME[name]
        if kind in ("integer", "number"):
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            return max(least, _BY_TYPE[kind]) if "maximum" not in schema else max(least, 1)
        return _BY_TYPE[kind]
