"""The lab is a network of hosts whose links have the requested rates; nothing of it is left afterwards."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.validator.launch.namespaces import inside
from scaleproof.validator.netlab import lab as netlab
from scaleproof.validator.netlab import wiring
from scaleproof.validator.netlab.lab import Netlab
from tests.validator.netlabs import lab_cluster, namespace_numbers, needs_netlab, still_open
from tests.validator.processes import children, is_running, kill, wait_until
from tests.validator.verdicts import in_bulk

TREE = {"kind": "leaf_spine", "per_leaf": 2, "oversubscription": 4}


@pytest.fixture(scope="module")
def tree() -> Iterator[Netlab]:
    """Two leaves of two hosts of 100 Mbit/s, with uplinks of 50 Mbit/s; nobody changes it."""
    with Netlab(lab_cluster(4, "100 Mbit/s", topology=TREE)) as lab:
        yield lab


def _on(lab: Netlab, host: int, *argv: str) -> str:
    return subprocess.run(lab.command(host, argv), capture_output=True, text=True, check=True, timeout=100).stdout


def _interfaces() -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


@needs_netlab
def test_each_host_has_its_address_on_its_interface(tree: Netlab) -> None:
    for host in range(tree.hosts):
        (interface,) = json.loads(_on(tree, host, "ip", "-json", "address", "show", "dev", tree.interface))
        (address,) = interface["addr_info"]
        assert (address["local"], address["prefixlen"]) == (tree.address(host), 16)
        assert interface["mtu"] == tree.mtu


@needs_netlab
def test_hosts_are_distinguishable(tree: Netlab) -> None:
    assert len(namespace_numbers(map(tree.namespace, range(tree.hosts)))) == tree.hosts
    assert inside(tree.namespace(3), _interfaces) == ["eth0", "lo"]


@needs_netlab
def test_every_host_reaches_every_other(tree: Netlab) -> None:
    for target in range(tree.hosts):
        with inside(tree.namespace(target), partial(socket.create_server, (tree.address(target), 0))) as listening:
            place = (tree.address(target), listening.getsockname()[1])
            for source in range(tree.hosts):
                inside(tree.namespace(source), partial(socket.create_connection, place, 10)).close()


@needs_netlab
def test_hosts_cannot_reach_outside_the_lab(tree: Netlab) -> None:
    assert not [route for route in json.loads(_on(tree, 0, "ip", "-json", "route")) if route["dst"] == "default"]


@needs_netlab
def test_the_self_test_measures_the_requested_rates(tree: Netlab) -> None:
    """Never more; less by what else the machine is doing."""
    report = tree.self_test()
    assert [link.name for link in report.alone] == [
        "host 0 to host 1",
        "host 1 to host 2",
        "host 2 to host 3",
        "host 3 to host 0",
        "uplink of leaf 0",
        "uplink of leaf 1",
    ]
    assert [link.expected_Bps * 8 for link in report.alone] == [100e6, 50e6, 100e6, 50e6, 50e6, 50e6]
    assert all(0 < link.share < 1.25 for link in report.alone)
    assert {"out of host 0", "into host 3"} <= {end.name for end in report.ends}
    assert all(0 < end.share < 1.25 for end in report.ends)
    assert report.hidden == ("out of leaf 0", "into leaf 0", "out of leaf 1", "into leaf 1"), "two leaves hide each other's"
    assert 0 < report.round_trip_s < 0.1
    reported = report.provenance()
    assert reported.keys() > tree.provenance().keys()
    assert reported["link rate"].startswith("100 Mbit/s requested, ")
    assert reported["uplink rate"] == "50.0 Mbit/s"
    assert reported["mtu"] == str(tree.mtu) == "3000"


@pytest.mark.full
@needs_netlab
def test_a_link_of_wrong_rate_is_found() -> None:
    with Netlab(lab_cluster(3, "200 Mbit/s")) as lab:
        slow = ["root", "tbf", "rate", "50mbit", "burst", "50000", "limit", "1000000"]
        _on(lab, 1, "tc", "qdisc", "replace", "dev", lab.interface, *slow)
        warnings = lab.self_test().warnings
    assert [line for line in warnings if line.startswith("host 1 to host 2: ") and " measured, 200 Mbit/s requested" in line]


@pytest.mark.full
@needs_netlab
@pytest.mark.parametrize("place", ["in the host", "in the fabric"])
def test_a_missing_limit_at_one_end_is_found(place: str) -> None:
    """Between two hosts the other end hides it."""
    with Netlab(lab_cluster(5, "40 Mbit/s")) as lab:
        if place == "in the host":
            _on(lab, 4, "tc", "qdisc", "del", "dev", lab.interface, "root")
        else:
            assert lab._holder is not None
            fabric = ["nsenter", f"--net={lab._holder.paths[0]}"]
            subprocess.run([*fabric, "tc", "qdisc", "del", "dev", "host4", "root"], check=True, timeout=100)
        warnings = lab.self_test().warnings
    name = "out of host 4" if place == "in the host" else "into host 4"
    assert [line for line in warnings if line.startswith(f"{name}: ") and line.endswith(_UNLIMITED)]


_UNLIMITED = (
    " measured, 40.0 Mbit/s requested: its limit is missing or was changed; "
    "build the lab again, and do not change its links while it is up"
)


@pytest.mark.full
@needs_netlab
def test_a_too_slow_host_among_slow_ones_is_found() -> None:
    """No single neighbour takes as much as it may send."""
    with Netlab(lab_cluster(5, "20 Mbit/s", exceptions=[{"at": [2], "bandwidth": "40 Mbit/s"}])) as lab:
        slow = ["root", "tbf", "rate", "20mbit", "burst", "50000", "limit", "1000000"]
        _on(lab, 2, "tc", "qdisc", "replace", "dev", lab.interface, *slow)
        report = lab.self_test()
    off = [line for line in report.warnings if line.startswith("out of host 2: ")]
    assert [line for line in off if " measured, 40.0 Mbit/s requested" in line]
    assert not [line for line in report.warnings if line.startswith("host 2 to")]


@pytest.mark.full
@needs_netlab
def test_hosts_that_cannot_reach_each_other_are_named() -> None:
    with Netlab(lab_cluster(2)) as lab:
        _on(lab, 1, "ip", "link", "set", "eth0", "down")
        with pytest.raises(RunError, match=r"host 0 does not reach host 1 .*; build the lab again"):
            lab.self_test()


@needs_netlab
def test_a_closed_lab_leaves_nothing() -> None:
    interfaces, processes = _interfaces(), children(os.getpid())
    with Netlab(lab_cluster(3)) as lab:
        numbers = namespace_numbers(map(lab.namespace, range(3)))
        assert len(still_open(numbers)) == 3
    assert still_open(numbers) == set()
    assert children(os.getpid()) == processes
    assert _interfaces() == interfaces
    with pytest.raises(RunError, match="the lab is not up"):
        lab.namespace(0)


@needs_netlab
def test_a_lab_can_be_entered_again() -> None:
    lab = Netlab(lab_cluster(2))
    for _ in range(2):
        with lab:
            assert inside(lab.namespace(1), _interfaces) == ["eth0", "lo"]


@pytest.mark.full
@needs_netlab
def test_a_process_that_outlives_the_lab_loses_its_links() -> None:
    with Netlab(lab_cluster(2)) as lab:
        numbers = namespace_numbers([lab.namespace(0)])
        left = subprocess.Popen(lab.command(0, ["sleep", "60"]))
        assert wait_until(lambda: Path(f"/proc/{left.pid}/comm").read_text() == "sleep\n")
    try:
        links = ["nsenter", f"--net=/proc/{left.pid}/ns/net", "ip", "-brief", "link"]
        assert wait_until(lambda: "eth0" not in subprocess.run(links, capture_output=True, text=True, check=True).stdout)
    finally:
        left.kill()
        left.wait()
    assert still_open(numbers) == set()


@needs_netlab
def test_killing_a_process_on_a_host_keeps_the_lab() -> None:
    with Netlab(lab_cluster(2)) as lab:
        numbers = namespace_numbers(map(lab.namespace, range(2)))
        with subprocess.Popen(lab.command(0, ["sleep", "60"])) as process:
            process.kill()
        assert inside(lab.namespace(0), _interfaces) == ["eth0", "lo"]
    assert still_open(numbers) == set()


LAUNCHER = """
import json, sys, time
from tests.validator.netlabs import lab_cluster
from scaleproof.validator.netlab.lab import Netlab
with Netlab(lab_cluster(3)) as lab:
    numbers = [lab.namespace(host).stat().st_ino for host in range(3)]
    print(json.dumps([int(lab.namespace(0).parts[2]), numbers]), flush=True)
    time.sleep(60)
"""


@needs_netlab
@pytest.mark.parametrize("victim", ["launcher", *in_bulk("holder")])
def test_killing_launcher_or_holder_leaves_nothing(victim: str) -> None:
    interfaces = _interfaces()
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        holder, numbers = json.loads(launcher.stdout.readline())
        try:
            kill(launcher.pid if victim == "launcher" else holder)
            assert wait_until(lambda: not is_running(holder) and not still_open(set(numbers)))
        finally:
            launcher.kill()
    assert _interfaces() == interfaces


@needs_netlab
def test_a_lab_whose_holder_was_killed_gives_an_error() -> None:
    with Netlab(lab_cluster(2)) as lab:
        kill(int(lab.namespace(0).parts[2]))
        assert wait_until(lambda: not _is_up(lab))
        with pytest.raises(RunError, match=r"the lab is not up: .* was ended; build it again"):
            lab.command(0, ["true"])


def _is_up(lab: Netlab) -> bool:
    try:
        return lab.namespace(0).exists()
    except RunError:
        return False


@needs_netlab
def test_failing_network_tools_are_reported_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "host_links", lambda lab, host: ["address add nonsense dev eth0"])
    processes = children(os.getpid())
    with (
        pytest.raises(RunError, match=r"^the lab cannot be built: ip: .*nonsense.*; does the kernel have"),
        Netlab(lab_cluster(2)),
    ):
        pass
    assert children(os.getpid()) == processes


def test_a_lab_that_was_not_entered_gives_an_error() -> None:
    with pytest.raises(RunError, match="the lab is not up: it was not entered"):
        Netlab(lab_cluster(2)).command(0, ["true"])


def test_impossible_labs_are_rejected_before_building() -> None:
    with pytest.raises(InputError, match="netlab cannot build torus"):
        Netlab(lab_cluster(4, topology={"kind": "torus", "dimensions": [2, 2]}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sys.platform", "darwin", "netlab needs Linux's network namespaces, and this is darwin; measure on local processes"),
        ("os.geteuid", lambda: 1000, "netlab makes network namespaces, which only root may; run it with sudo"),
        ("shutil.which", lambda tool: None if tool == "tc" else tool, "netlab needs the command tc; apt-get install iproute2"),
    ],
)
def test_missing_capabilities_of_the_machine_are_reported(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, message: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    monkeypatch.setattr(netlab.sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(f"scaleproof.validator.netlab.lab.{name}", value)
    with pytest.raises(RunError) as error:
        netlab.require()
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("netem", "latency"),
    [
        (True, "netem, {requested}, and that of the software"),
        (False, "that of the software only: this kernel has no netem to add the requested {requested}"),
    ],
)
@pytest.mark.parametrize(
    ("topology", "requested"),
    [
        ({"kind": "switch"}, "60.0 us one way"),
        (TREE | {"hop_latency": "3 ms"}, "60.0 us one way and 3.00 ms per hop between leaves"),
    ],
)
def test_the_provenance_names_the_source_of_the_latency(
    monkeypatch: pytest.MonkeyPatch, netem: bool, latency: str, topology: dict[str, object], requested: str
) -> None:
    lab = Netlab(lab_cluster(4, topology=topology))
    monkeypatch.setattr(lab, "_has_netem", netem, raising=False)
    assert lab.provenance()["latency"] == latency.format(requested=requested)
