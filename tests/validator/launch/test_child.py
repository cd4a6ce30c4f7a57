"""Child processes: arguments, end with the launcher, and the reason of their end."""

from __future__ import annotations

import os
import sys

from scaleproof.validator.launch.child import Child
from tests.validator import processes


def echo(control: int, text: str) -> None:
    os.write(control, text.encode())
    os.read(control, 1)


def write_to(_: int, descriptor: int) -> None:
    os.write(descriptor, b"here")


def fail(_: int) -> None:
    print("first", file=sys.stderr)
    sys.exit("no more memory")


def test_a_child_gets_its_arguments_and_ends_when_closed() -> None:
    child = Child(echo, "hello")
    child.socket.settimeout(20)

    assert child.socket.recv(100) == b"hello"
    assert child.alive
    child.close()
    assert not child.alive
    assert not processes.is_running(child.pid)
    child.close()


def test_file_descriptors_are_inherited() -> None:
    reads, writes = os.pipe()
    child = Child(write_to, writes, descriptors=[writes])
    os.close(writes)

    with os.fdopen(reads, "rb") as file:
        assert file.read() == b"here"
    child.close()


def test_the_last_line_of_a_child_gives_the_reason_of_its_end() -> None:
    failing, killed = Child(fail), Child(echo, "hello")
    assert failing.socket.recv(1) == b""
    processes.kill(killed.pid)

    assert failing.why() == "no more memory"
    assert killed.why() == "ended by another process"
    failing.close()
    killed.close()
