"""The interface to a host is found without sending anything; wrong ones are rejected."""

from __future__ import annotations

import socket

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.launch import namespaces, network_interfaces, rendezvous
from scaleproof.validator.launch.job import LOOPBACK
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.launch.rank_environment import MeetingPoint, RankEnvironment
from scaleproof.validator.netlab.lab import Netlab
from tests.validator.netlabs import lab_cluster, needs_netlab


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.7"])
def test_this_machine_is_reached_by_the_loopback_interface(host: str) -> None:
    name, own = network_interfaces.route_to(host, 29500)
    assert name == LOOPBACK
    assert network_interfaces.is_loopback(own)


def test_unknown_hosts_and_interfaces_give_a_one_line_error() -> None:
    with pytest.raises(InputError, match=r"MASTER_ADDR=nobody\.invalid: no host of that name; give the address"):
        network_interfaces.route_to("nobody.invalid", 29500)
    with pytest.raises(InputError, match=f"--interface eth77: .* has no such interface; give one of .*{LOOPBACK}"):
        network_interfaces.check("eth77")


def test_a_loopback_address_is_rejected_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    elsewhere = RankEnvironment(rank=1, ranks=4, local_rank=1, local_ranks=2)
    with pytest.raises(InputError, match=r"MASTER_ADDR=localhost is .* on .*, which other machines cannot reach; set it"):
        rendezvous.meet(elsewhere, MeetingPoint("localhost", 1, hosted=False), None, 1.0)


def on_host(path: str, address: str) -> tuple[str, str]:
    from pathlib import Path

    namespaces.enter(Path(path))
    return network_interfaces.route_to(address, 29500)


@needs_netlab
def test_hosts_use_the_interface_of_their_network() -> None:
    with Netlab(lab_cluster(2)) as lab:
        found = [run_on_ranks(on_host, 1, str(lab.namespace(host)), lab.address(0))[0] for host in range(2)]
    assert found == [[lab.interface, lab.address(host)] for host in range(2)]


def test_servers_listen_on_one_address_only() -> None:
    descriptor = rendezvous._listen(MeetingPoint("127.0.0.1", 0, hosted=False))
    with socket.socket(fileno=descriptor) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
