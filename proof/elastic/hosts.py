"""Hosts of a job: those of a lab, or processes of this machine with addresses of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

# Addresses of the loopback interface: 127.0.0.1 and up.
_FIRST: Final = 1


class Hosts(Protocol):
    """Hosts on which agents and ranks run."""

    def address(self, host: int) -> str:
        """IP address of a host."""

    def namespace(self, host: int) -> Path | None:
        """Network namespace of a host; None for that of this machine."""


class LocalHosts:
    """Processes of this machine, whose addresses are those of its loopback interface."""

    def address(self, host: int) -> str:
        """IP address of a host."""
        return f"127.0.0.{_FIRST + host}"

    def namespace(self, host: int) -> None:
        """None: all are in the namespace of this machine."""
        return
