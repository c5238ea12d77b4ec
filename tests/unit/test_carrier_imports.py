import subprocess
import sys

import pytest

PURE = ("carrier", "callbacks", "http_carrier", "xml_documents", "twilio", "twilio_webhooks")


@pytest.mark.parametrize("module", PURE)
def test_a_pure_telephony_module_imports_no_http_library(module: str) -> None:
    code = f"import sys, trunkline.telephony.{module}; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
