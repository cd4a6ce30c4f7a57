"""The explorer's server: responses to browsers and to malicious requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from scaleproof.reports.explorer import server
from scaleproof.reports.explorer.question import Question, Shelf
from scaleproof.reports.explorer.responses.answer import answer
from scaleproof.reports.explorer.server import app, own_hosts
from scaleproof.reports.explorer.worker import Report, UnansweredError
from tests.reports.explorer.conftest import workers

BASE = "http://127.0.0.1:8471"
STATIC = Path(server.__file__).parent / "static"


def client(shelf: Shelf = Shelf(), ask: Callable[[Question, Report], bytes] = answer) -> TestClient:  # noqa: B008
    return TestClient(app(shelf, workers(ask), own_hosts("127.0.0.1", 8471)), base_url=BASE)


def canned(question: Question, report: Report) -> bytes:
    report("working")
    return json.dumps({"sets": question.sets, "look": question.look}).encode()


def test_the_page_and_its_resources_are_served() -> None:
    page = client().get("/")
    assert page.status_code == 200
    modules = {path.name for path in STATIC.iterdir()}
    for name in modules:
        assert client().get(f"/{name}").status_code == 200
    assert "/explorer.js" in page.text
    imported = {name for path in STATIC.glob("*.js") for name in re.findall(r'from "\./(.*?)"', path.read_text())}
    assert imported < modules


def test_a_plan_reports_its_progress_line_by_line() -> None:
    lines = client(ask=canned).get("/api/answer?look=plan&gpus=12").text.splitlines()
    assert [json.loads(line) for line in lines] == [{"progress": "working"}, {"sets": [], "look": "plan"}]


def test_scenarios_are_listed_in_groups() -> None:
    library = client().get("/api/library").json()
    groups = {group["title"]: [one["name"] for one in group["scenarios"]] for group in library["groups"]}
    assert "llama-2-7b-fsdp-a100" in groups["Language models"]
    assert "resnet50-servers-p100" in groups["Parameter servers"]
    assert sorted(name for names in groups.values() for name in names) == sorted(Shelf().scenarios())


def test_every_response_has_isolating_security_headers() -> None:
    for path in ("/", "/api/library", "/api/answer?scenario=nothing", "/nothing"):
        headers = client(ask=canned).get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "unsafe" not in headers["content-security-policy"]


def test_the_scenario_is_exported() -> None:
    response = client().get("/scenario.yaml?scenario=resnet50-ring-p100&set=strategy.workers=8")
    assert "workers: 8" in response.text
    assert "attachment" in response.headers["content-disposition"]
    assert client().get("/scenario.yaml?scenario=resnet50-ring-p100&set=strategy.workers=7000").status_code == 400


def test_a_scenario_file_named_on_the_command_line_is_offered(tmp_path: Path) -> None:
    path = tmp_path / "<b>mine.yaml"
    path.write_text("model: resnet50\ncluster: dgx1\nstrategy: {kind: data_parallel, workers: 2}\nbatch: 8\n")
    own = client(Shelf(str(path), ("batch=16",)))
    library = own.get("/api/library").json()
    assert library["groups"][0]["scenarios"][0]["name"] == str(path)
    found = own.get(f"/api/answer{library['query']}&look=first").json()
    assert found["name"] == "<b>mine"
    # and no other is
    assert client().get("/api/answer", params={"scenario": str(path)}).status_code == 400


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/%2e%2e/pyproject.toml", "/static/page.html", "/page.html/../server.py", "//etc/passwd",
     "/server.py", "/explorer.js/", "/api/", "/scenario.yaml/x"],
)  # fmt: skip
def test_files_outside_the_static_folder_are_not_served(path: str) -> None:
    response = client().get(path)
    assert response.status_code == 404
    assert "scaleproof" not in response.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "TRACE"])
def test_only_get_and_head_are_allowed(method: str) -> None:
    assert client().request(method, "/api/answer").status_code == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8471", "127.0.0.1", "127.0.0.1:80", "localhost:84710", "", "[::1"]
)
def test_requests_with_a_foreign_host_header_are_rejected(host: str) -> None:
    response = client().get("/", headers={"host": host})
    assert response.status_code == 421
    assert "<" not in response.text


def test_requests_with_own_host_names_are_accepted() -> None:
    for host in ("127.0.0.1:8471", "localhost:8471", "LOCALHOST:8471", "[::1]:8471"):
        assert client().get("/", headers={"host": host}).status_code == 200
    on_all = own_hosts("0.0.0.0", 8471)
    assert on_all("192.0.2.7:8471")
    assert not on_all("evil.example:8471")
    assert own_hosts("lab.example", 80)("lab.example")
    assert not own_hosts("lab.example", 80)("127.0.0.1")


def test_cross_site_requests_are_rejected() -> None:
    headers = {"sec-fetch-site": "cross-site"}
    assert client(ask=canned).get("/api/answer", headers=headers).status_code == 403
    # navigation from another site is harmless
    assert client().get("/", headers=headers).status_code == 200


def test_too_long_queries_are_rejected() -> None:
    assert client(ask=canned).get("/api/answer?" + "set=a=b&" * 4000).status_code == 414


@given(st.text(alphabet=st.characters(codec="latin-1", exclude_categories=["Cc"], exclude_characters="#"), max_size=60))
def test_any_query_has_a_json_response(query: str) -> None:
    response = client(ask=canned).get(f"/api/answer?{query}")
    assert response.status_code in (200, 400)
    assert isinstance(response.json(), dict)


def test_requests_that_time_out_are_reported() -> None:
    def ask(question: Question, report: Report) -> bytes:
        raise UnansweredError("That takes too long.")

    response = client(ask=ask).get("/api/answer")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "That takes too long."


def test_the_same_request_is_computed_once() -> None:
    requests: list[Question] = []

    def ask(question: Question, report: Report) -> bytes:
        requests.append(question)
        return canned(question, report)

    own = client(ask=ask)
    for query in ("?set=steps=5", "?set=steps=6", "?set=steps=5", "?set=steps=5&look=first"):
        assert own.get(f"/api/answer{query}").status_code == 200
    assert len(requests) == 3
