"""What the gateway says of itself: kept in docs/, and true for whatever a client makes of it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.config import HttpConfig
from gateway.routes import create_app, describe
from tests.support.fake_orchestrator import FakeOrchestrator

FILE = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
EXAMPLES = int(os.environ.get("OUTRIDER_TEST_HTTP_EXAMPLES", "300"))
"""Generated requests over all routes; `make http-examples` takes 5,000."""


def test_the_file_in_docs_is_what_the_gateway_says():
    assert json.loads(FILE.read_text(encoding="utf-8")) == describe(), "run scripts/openapi.py"


def test_no_generated_request_makes_a_server_error():
    schema = schemathesis.openapi.from_dict(describe())
    operations = [result.ok() for result in schema.get_all_operations()]
    loop = asyncio.new_event_loop()
    app = create_app(FakeOrchestrator(), HttpConfig(listen="127.0.0.1:0", slots=True))
    statuses: dict[int, int] = {}

    async def call(case: Any) -> httpx.Response:
        parsed = case.as_transport_kwargs(base_url="http://localhost")
        parsed = {
            name: value for name, value in parsed.items() if name not in ("cookies", "timeout")
        }
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.request(**parsed)

    def check(case: Any) -> None:
        try:
            response = loop.run_until_complete(call(case))
        except UnicodeEncodeError:
            return  # a lone surrogate, which no client can send
        assert response.status_code < 500, response.text
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1

    for operation in operations:
        share = settings(
            max_examples=max(1, EXAMPLES // len(operations)),
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        strategy = st.one_of(operation.as_strategy())
        share(given(strategy)(check))()
    loop.close()
    assert statuses[200] > len(operations)
