"""Names and interfaces: workers of one run talk over loopback, gloo and NCCL over what they find."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

from bench.doctor.box import Box
from bench.doctor.findings import Note, check, info, ok, problem, warning

AREA = "network"
RESOLVE_SECONDS = 5.0


@check(AREA, "host name")
def host_name(box: Box) -> Iterator[Note]:
    name = socket.gethostname()
    effect = "this suite hands gloo the loopback interface, so its own runs work; torchrun and other programs may hang"
    remedy = f"add '127.0.1.1 {name}' to /etc/hosts"
    addresses, why = resolve(name)
    if why is not None:
        yield info(f"{name} does not resolve: {why}", effect, remedy)
    else:
        yield ok(f"{name} is {', '.join(addresses)}")


def resolve(name: str) -> tuple[list[str], str | None]:
    """Addresses of a name, or why there are none. A name server that does not answer costs RESOLVE_SECONDS."""
    found: list[str] = []
    reasons = [f"no answer within {RESOLVE_SECONDS:g} s"]

    def look() -> None:
        try:
            found.extend(sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}))
        except OSError as error:
            reasons[0] = str(error)

    # getaddrinfo has no time limit of its own.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(RESOLVE_SECONDS)
    return (list(found), None) if found else ([], reasons[0])


@check(AREA, "loopback")
def loopback(box: Box) -> Iterator[Note]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(RESOLVE_SECONDS)
            with socket.create_connection(server.getsockname(), timeout=RESOLVE_SECONDS):
                server.accept()[0].close()
    except OSError as error:
        fact = f"a connection to 127.0.0.1 fails: {error}"
        yield problem(
            fact, "no launch can start: workers are controlled over it", "sudo ip link set lo up; check the firewall"
        )
        return
    yield ok("127.0.0.1 takes connections")


@check(AREA, "interfaces")
def interfaces(box: Box) -> Iterator[Note]:
    names = [name for _, name in socket.if_nameindex()]
    yield ok(", ".join(names))
    if not any(name.startswith("lo") for name in names):
        effect = "gloo looks the host name up instead, and hangs or fails where that does not resolve"
        yield warning("no interface is called lo", effect, "set GLOO_SOCKET_IFNAME to one of these")
    yield from chosen(box.environment.get("GLOO_SOCKET_IFNAME"), box.environment.get("NCCL_SOCKET_IFNAME"), names)


def chosen(gloo: str | None, nccl: str | None, names: list[str]) -> Iterator[Note]:
    """Whether the interfaces that variables ask for exist. gloo takes names, NCCL prefixes, `=` names, `^` all but."""
    unset = "unset it, or name one that exists"
    for wanted in filter(None, (gloo or "").split(",")):
        if wanted not in names:
            yield problem(
                f"GLOO_SOCKET_IFNAME names {wanted}, which does not exist", "ddp and fsdp over gloo fail", unset
            )
    if nccl and not nccl.startswith("^"):
        exact, wanted_names = nccl.startswith("="), nccl.lstrip("=").split(",")
        fits = any(name == wanted if exact else name.startswith(wanted) for name in names for wanted in wanted_names)
        if not fits:
            yield problem(f"NCCL_SOCKET_IFNAME={nccl} fits no interface", "ddp and fsdp over NCCL fail", unset)
