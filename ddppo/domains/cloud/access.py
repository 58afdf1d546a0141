"""Where worlds at a real endpoint are, what the user has agreed to, and the clients of its services.

`Endpoint` holds the settings and checks them before anything is asked of the endpoint. `Access` finds credentials by
the usual chain of boto3 and compares their account with the one that was named.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ddppo.domains.cloud.cli import REGION, SERVICES
from ddppo.errors import ConfigError

# Bounded: an endpoint that does not answer ends an episode after about a minute.
PATIENCE = {
    "connect_timeout": 4,
    "read_timeout": 10,
    "retries": {"total_max_attempts": 4, "mode": "standard"},
}
SHORTEST = 16  # letters of a real key
RETRIES = re.compile(r" \(reached max retries: \d+\)")


@dataclass(frozen=True)
class Endpoint:
    """Where the worlds of backend_cloud=aws are, and what the user has agreed to."""

    endpoint_url: str | None = None  # None: AWS itself
    allow_real_cloud: bool = False
    account_id: str | int | None = None  # required unless the endpoint is of this machine
    name_prefix: str = "ddppo"  # names begin with it; worlds of one prefix clean up after one another

    def check(self) -> None:
        """Raise ConfigError unless the settings are complete and agreed to. Nothing is asked of the endpoint."""
        if self.endpoint_url is not None:
            url = urlsplit(str(self.endpoint_url))
            is_plain = url.scheme in ("http", "https") and url.hostname and not (url.query or url.fragment)
            if not is_plain or url.username or url.password:
                raise ConfigError(
                    "endpoint_url must be http:// or https://, a host and a port, such as http://127.0.0.1:5000, "
                    "without a user or a password"
                )
        where = self.endpoint_url or "AWS itself"
        if self.allow_real_cloud is not True:
            raise ConfigError(
                f"backend_cloud=aws makes and deletes resources at {where}, which may cost money: set "
                "allow_real_cloud=true to agree (for training env.allow_real_cloud=true)"
            )
        if re.fullmatch(r"[a-z][a-z0-9]{1,11}", str(self.name_prefix)) is None:
            raise ConfigError(
                f"name_prefix={self.name_prefix}: must be 2 to 12 small letters and digits, a letter first, as names "
                "of buckets begin with it"
            )
        if not self.is_loopback and not re.fullmatch(r"\d{1,12}", str(self.account_id)):
            raise ConfigError(
                f"backend_cloud=aws at {where}, which is not on this machine: name the account in which everything may "
                "be made and deleted, account_id=<12 digits>, as `aws sts get-caller-identity` prints it"
            )

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(str(self.endpoint_url)).hostname if self.endpoint_url else None
        if host is None:
            return False
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")


class Access:
    """Clients of the services of the tasks, by the usual chain of credentials, and the account they belong to."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ConfigError for settings that are not agreed to, for missing credentials, and for another account."""
        endpoint.check()
        self.endpoint = endpoint
        session = boto3.Session()
        self._credentials = session.get_credentials()
        if self._credentials is None:
            raise ConfigError(
                "backend_cloud=aws finds no credentials: give them as to the AWS CLI, for example by AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY (for a server of moto any will do); a server of worlds passes them on with "
                "keep_env=[AWS_*]"
            )
        self.region = session.region_name or REGION
        own = {"endpoint_url": endpoint.endpoint_url} if endpoint.endpoint_url else {}
        # An address in AWS_ENDPOINT_URL does not count: it would reach some of the services only.
        s3 = {"s3": {"addressing_style": "path"}} if own else {}
        config = Config(**PATIENCE, **s3, ignore_configured_endpoint_urls=True)
        make = {"region_name": self.region, "config": config, **own}
        self.clients = {name: session.client(service, **make) for name, service in SERVICES.items()}
        self._caller = ""
        sts = session.client("sts", **make)
        try:
            caller = sts.get_caller_identity()
            self.account, self._caller = str(caller["Account"]), str(caller["Arn"])
        except (ClientError, BotoCoreError) as error:
            raise ConfigError(
                f"backend_cloud=aws: {endpoint.endpoint_url or 'AWS'} does not name the account of the credentials: "
                f"{self.without_secrets(said(error))}"
            ) from None
        finally:
            sts.close()
        if endpoint.account_id is not None and self.account != str(endpoint.account_id).zfill(12):
            raise ConfigError(
                f"account_id={str(endpoint.account_id).zfill(12)}: the credentials belong to another account, which "
                f"ends in {self.account[-4:]}: use credentials of the account that you named"
            )

    def secrets(self) -> tuple[str, ...]:
        """Return the texts that nothing may show: keys, and the name of the caller."""
        if self._credentials is None:
            return ()
        now = self._credentials.get_frozen_credentials()
        # Shorter texts, such as `test`, are stand-ins for keys, and words that others use.
        texts = (self._caller, now.access_key, now.secret_key, now.token)
        return tuple(text for text in texts if len(text or "") >= SHORTEST)

    def without_secrets(self, text: str) -> str:
        for secret in self.secrets():
            text = text.replace(secret, "***")
        return text

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


def said(error: Exception) -> str:
    return RETRIES.sub("", f"{type(error).__name__}: {error}")


def endpoint_of(backend: str, endpoint: Endpoint) -> Endpoint | None:
    """Return the endpoint of backend_cloud=aws, None with moto. Raises ConfigError."""
    if backend == "aws":
        endpoint.check()
        return endpoint
    if backend != "moto":
        raise ConfigError(
            f"backend_cloud={backend}: must be moto (simulated, in the process) or aws (an endpoint)"
        )
    default = Endpoint()
    for name in ("endpoint_url", "allow_real_cloud", "account_id", "name_prefix"):
        if getattr(endpoint, name) != getattr(default, name):
            raise ConfigError(
                f"{name} has no effect with backend_cloud=moto: leave it out, or use backend_cloud=aws"
            )
    return None
