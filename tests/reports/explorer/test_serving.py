"""The command explore: it prints an address, serves it, and ends on a signal."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

import scaleproof
from scaleproof.reports.explorer import serving
from scaleproof.reports.explorer.serving import listen
from scaleproof.simulator.common.errors import RunError
from tests.validator.verdicts import in_bulk


@pytest.mark.full
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 0), *in_bulk((signal.SIGTERM, 143))])
def test_the_server_runs_until_ctrl_c_or_sigterm(number: signal.Signals, exit_code: int) -> None:
    command = [sys.executable, "-m", "scaleproof", "explore", "resnet50-servers-p100", "--set", "strategy.servers=8"]
    with subprocess.Popen([*command, "--no-browser", "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        where, _, query = address.partition("?")
        assert query == "scenario=resnet50-servers-p100&set=strategy.servers%3D8"
        for look in ("&look=first", "", "&look=first&gpus=32"):
            with urllib.request.urlopen(f"{where}api/answer?{query}{look}") as response:
                assert json.load(response)["ranks"] == 40
        process.send_signal(number)
        assert process.wait(20) == exit_code
        assert "Ctrl-C" in process.stdout.read()


def test_a_busy_port_and_an_invalid_address_give_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        assert scaleproof.main(["explore", "--no-browser", "--port", str(busy.getsockname()[1])]) == 1
    said = capsys.readouterr().err
    assert "in use; give another --port" in said
    assert said.count("\n") == 1
    for host, port in (("192.0.2.1", 0), ("127.0.0.1", 99_999), ("no such host", 0)):
        with pytest.raises(RunError, match="give another"):
            listen(host, port)


def test_an_invalid_scenario_is_reported_before_serving(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["explore", "no-such-scenario", "--no-browser"]) == 2
    assert "no scenario is called" in capsys.readouterr().err


def test_a_half_sent_request_is_closed_and_a_whole_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PATIENCE_S", 0.5)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(1.0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(answer, http=serving.Connection, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        with (
            socket.create_connection(listening.getsockname()) as half,
            socket.create_connection(listening.getsockname()) as whole,
        ):
            half.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n")
            whole.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            half.settimeout(10)
            assert half.recv(100) == b""
            whole.settimeout(10)
            assert b"200" in whole.recv(1000)
    finally:
        server.should_exit = True
        thread.join(10)
