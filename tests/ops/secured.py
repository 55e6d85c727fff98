"""An Apache Kafka as it is run in earnest: TLS, SCRAM users, ACLs that allow nothing until it is granted."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from sidecar.embedded import free_port
from tests.kafka.broker import KafkaBroker

USERS = tuple(f"frontier-{party}" for party in ("setup", "tail", "fleet", "agents", "listeners", "operators"))
PASSWORD = "not-a-secret"

KINDS = {"--topic": 2, "--group": 3, "--transactional-id": 5}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8}
PATTERNS = {"literal": 3, "prefixed": 4}
ALLOW = 3

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates:
    """Certificates that openssl makes in a folder, each with its key; `ca` and `stranger` are authorities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("ca", "stranger"):
            self._run(
                *("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
                *("-addext", "keyUsage=critical,keyCertSign", "-keyout", self.key(name), "-out", self.cert(name)),
            )
        self.issue("broker", names="DNS:localhost,IP:127.0.0.1")
        self.issue("expired", names="DNS:localhost,IP:127.0.0.1", days=-1)
        self.issue("elsewhere", names="DNS:kafka.example")
        self.issue("frontier-tail", names="DNS:tail.example")

    def issue(self, name: str, *, names: str, days: int = 2) -> None:
        """Make a certificate, signed by `ca`, and beside it a file with key and certificate as brokers want it."""
        extensions, request = self.folder / f"{name}.cnf", self.folder / f"{name}.csr"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        self._run("req", "-new", *_KEY, "-subj", f"/CN={name}", "-keyout", self.key(name), "-out", request)
        self._run(
            *("x509", "-req", "-in", request, "-CA", self.cert("ca"), "-CAkey", self.key("ca"), "-CAcreateserial"),
            *("-extfile", extensions, "-days", days, "-out", self.cert(name)),
        )
        self.both(name).write_text(self.key(name).read_text() + self.cert(name).read_text())

    def cert(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def both(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    @staticmethod
    def _run(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def available() -> str | None:
    """Return None if certificates can be made here, else the reason."""
    return (
        None if shutil.which("openssl") else "openssl makes the certificates of the secured broker, and it is not here"
    )


class SecuredBroker:
    """Run the broker: one open address for whoever administers it in the tests, the others as their names say.

    Args:
        folder: for its data and its certificates.
    """

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "certificates")
        self.broker = KafkaBroker(folder / "broker", users=dict.fromkeys(USERS, PASSWORD))
        self.scram, self.expired, self.elsewhere, self.mutual = (f"127.0.0.1:{free_port()}" for _ in range(4))
        self.broker.properties = self._properties()

    @property
    def open(self) -> str:
        """Return the address where everything is allowed."""
        return self.broker.bootstrap

    def _properties(self) -> dict[str, object]:
        listeners = {
            "PLAINTEXT": (self.open, "PLAINTEXT", None),
            "SCRAM": (self.scram, "SASL_SSL", "broker"),
            "EXPIRED": (self.expired, "SASL_SSL", "expired"),
            "ELSEWHERE": (self.elsewhere, "SASL_SSL", "elsewhere"),
            "MUTUAL": (self.mutual, "SSL", "broker"),
        }
        addresses = ",".join(f"{name}://{address}" for name, (address, _, _) in listeners.items())
        protocols = ",".join(f"{name}:{protocol}" for name, (_, protocol, _) in listeners.items())
        properties: dict[str, object] = {
            "listeners": f"{addresses},CONTROLLER://127.0.0.1:{self.broker.controller_port}",
            "advertised.listeners": addresses,
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",  # the broker itself, and the tests on the open address
            "ssl.principal.mapping.rules": r"RULE:^CN=([^,]+).*$/$1/",
        }
        for name, (_, _, certificate) in listeners.items():
            if certificate is not None:
                prefix = f"listener.name.{name.lower()}."
                properties[f"{prefix}ssl.keystore.type"] = "PEM"
                properties[f"{prefix}ssl.keystore.location"] = self.certificates.both(certificate)
                properties[f"{prefix}scram-sha-512.sasl.jaas.config"] = (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                )
        properties["listener.name.mutual.ssl.client.auth"] = "required"
        properties["listener.name.mutual.ssl.truststore.type"] = "PEM"
        properties["listener.name.mutual.ssl.truststore.location"] = self.certificates.cert("ca")
        return properties

    def environment(self, user: str, **more: str) -> dict[str, str]:
        """Return the variables with which a user logs in on the SCRAM address."""
        given = {
            "bootstrap_servers": self.scram,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": PASSWORD,
            "ssl_cafile": str(self.certificates.cert("ca")),
            **more,
        }
        return {f"SIDECAR_KAFKA__{name.upper()}": value for name, value in given.items()}


class Grant(NamedTuple):
    """Allow a principal one operation, as the brokers keep it."""

    principal: str
    kind: int
    name: str
    pattern: int
    operation: int


def grants_of(arguments: list[str]) -> list[Grant]:
    """Return what a call of kafka-acls.sh with these arguments grants.

    Raises:
        ValueError: an argument is none that it is known to take.
    """
    principals: list[str] = []
    operations: list[str] = []
    things: list[tuple[str, str]] = []
    pattern, add = "literal", False
    words = iter(arguments)
    for word in words:
        if word == "--add":
            add = True
        elif word == "--allow-principal":
            principals.append(next(words))
        elif word == "--operation":
            operations.append(next(words))
        elif word == "--resource-pattern-type":
            pattern = next(words)
        elif word in KINDS:
            things.append((word, next(words)))
        elif word in ("--bootstrap-server", "--command-config"):
            next(words)
        else:
            raise ValueError(f"kafka-acls.sh is not known to take {word!r}")
    if not (add and principals and operations and things):
        raise ValueError(f"this grants nothing: {arguments}")
    return [
        Grant(principal, KINDS[flag], name, PATTERNS[pattern], OPERATIONS[operation])
        for principal in principals
        for flag, name in things
        for operation in operations
    ]


class Administrator:
    """Grant and revoke; an async context manager.

    Args:
        address: where everything is allowed.
    """

    def __init__(self, address: str) -> None:
        self._client = AIOKafkaAdminClient(bootstrap_servers=address)

    async def __aenter__(self) -> "Administrator":
        await self._client.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def grant(self, grants: Iterable[Grant]) -> None:
        """Allow, and wait until the broker goes by it."""
        await self.instead(grants, ())

    async def revoke(self, grants: Iterable[Grant]) -> None:
        """Allow no more, and wait until the broker goes by it."""
        await self.instead((), grants)

    async def instead(self, granted: Iterable[Grant], revoked: Iterable[Grant]) -> None:
        """Do both in one go."""
        for kind, grants, there in ((CreateAclsRequest, granted, True), (DeleteAclsRequest, revoked, False)):
            for g in grants:
                answer = await self._ask(kind, g)
                results = answer["creation_responses" if there else "filter_responses"]
                assert [result["error_code"] for result in results] == [0], answer
            # The answer comes before the authorizer goes by it.
            for g in grants:
                for _ in range(500):
                    if bool((await self._ask(DescribeAclsRequest, g))["resources"]) is there:
                        break
                    await asyncio.sleep(0.02)
                else:
                    raise TimeoutError(f"the broker does not go by {g}")

    async def _ask(self, kind: Any, g: Grant) -> Any:
        request = kind(g.kind, g.name, g.pattern, g.principal, "*", g.operation, ALLOW)
        return (await self._client._send_request(request)).to_object()
