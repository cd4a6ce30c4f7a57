"""Network namespaces exist as long as their holder, and are removed with it."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch import namespaces
from scaleproof.validator.launch.namespaces import Holder, enter, inside
from tests.validator.netlabs import namespace_numbers, needs_netlab, still_open
from tests.validator.processes import is_running, kill, wait_until

pytestmark = needs_netlab

SETTINGS = {"ipv4/tcp_slow_start_after_idle": "0", "there/is/no/such": "1"}


@pytest.fixture
def holder() -> Iterator[Holder]:
    opened = Holder(3, SETTINGS)
    yield opened
    opened.close()


def _interfaces() -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def test_namespaces_differ_from_each_other_and_from_this_process(holder: Holder) -> None:
    numbers = namespace_numbers(holder.paths)
    assert len(numbers) == 3
    assert Path("/proc/self/ns/net").stat().st_ino not in numbers
    assert still_open(numbers) == numbers


def test_a_function_runs_inside_while_this_thread_stays_outside(holder: Holder) -> None:
    before = _interfaces()
    assert inside(holder.paths[0], _interfaces) == ["lo"]
    assert _interfaces() == before


def test_a_socket_stays_in_its_namespace(holder: Holder) -> None:
    # loopback is down in a new namespace
    with inside(holder.paths[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as end:
        assert end.connect_ex(("127.0.0.1", 9)) == errno.ENETUNREACH


def test_settings_are_separate_for_each_namespace(holder: Holder) -> None:
    file = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
    outside = file.read_text()
    assert inside(holder.paths[2], file.read_text).strip() == "0"
    assert file.read_text() == outside


def test_closing_removes_namespaces_even_if_a_fork_has_the_socket(holder: Holder) -> None:
    numbers = namespace_numbers(holder.paths)
    woken, wake = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.close(wake)
        os.read(woken, 1)
        os._exit(0)
    os.close(woken)
    try:
        holder.close()
        assert not is_running(holder.pid)
        assert still_open(numbers) == set()
    finally:
        os.close(wake)
        os.waitpid(fork, 0)


def test_closing_in_a_fork_keeps_the_namespaces(holder: Holder) -> None:
    fork = os.fork()
    if fork == 0:
        holder.close()
        os._exit(0)
    os.waitpid(fork, 0)
    assert is_running(holder.pid)
    assert holder.alive


def test_a_killed_holder_leaves_no_namespace(holder: Holder) -> None:
    numbers = namespace_numbers(holder.paths)
    kill(holder.pid)
    assert wait_until(lambda: not still_open(numbers))
    assert not holder.alive
    with pytest.raises(RunError, match=r"no network namespace there .*; its lab has ended, build it again"):
        inside(holder.paths[0], _interfaces)


LAUNCHER = """
import json, os, sys, time
from scaleproof.validator.launch.namespaces import Holder
holder = Holder(2, {})
# a fork that outlives the launcher has the socket to the holder as well
fork = os.fork()
if fork:
    print(json.dumps([holder.pid, fork, [path.stat().st_ino for path in holder.paths]]), flush=True)
time.sleep(60)
"""


def test_a_killed_launcher_leaves_no_namespace() -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pid, fork, numbers = json.loads(launcher.stdout.readline())
        try:
            kill(launcher.pid)
            assert wait_until(lambda: not is_running(pid) and not still_open(set(numbers)))
            assert is_running(fork)
        finally:
            kill(fork)


def not_permitted(*_: object) -> None:
    sys.exit("Operation not permitted")


def test_missing_permission_for_namespaces_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "hold", not_permitted)
    with pytest.raises(RunError, match="cannot be made: Operation not permitted; run as root with CAP_SYS_ADMIN"):
        Holder(1, {})


def test_entering_an_invalid_namespace_gives_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no network namespace there"):
        enter(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot join the namespace"):
        enter(tmp_path / "file")
