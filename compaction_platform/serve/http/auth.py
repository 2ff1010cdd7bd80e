"""Who may touch what. Tenants are apart by construction: no two pairs of tenant and namespace become one in the
catalog. Tokens are kept as hashes only."""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compaction_platform.errors import CompactionError
from compaction_platform.serve.http.errors import Forbidden, Unauthenticated

ALL = "*"  # a development token is for every tenant
PREFIX = "cp_"


class TokensUnreadable(CompactionError):
    """The file of token hashes cannot be used."""


def catalog_namespace(tenant: str, namespace: str) -> str:
    """The length of the tenant's name tells where it ends: (a, b_c) and (a_b, c) stay apart."""
    return f"t{len(tenant)}_{tenant}_{namespace}"


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


@dataclass(frozen=True)
class Tokens:
    tenants: Mapping[str, frozenset[str]]  # by hash

    @classmethod
    def read(cls, path: Path) -> "Tokens":
        try:
            entries = json.loads(path.read_text())["tokens"]
            return cls({str(each["sha256"]): frozenset(map(str, each["tenants"])) for each in entries})
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TokensUnreadable(f"{path} is not a file of token hashes ({type(error).__name__}).") from None

    def tenants_of(self, authorization: str | None) -> frozenset[str]:
        """Of the token in this header. Every hash is compared, however early one matches."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("a token is needed: `Authorization: Bearer …`.")
        presented = hash_of(token.strip())
        found: frozenset[str] | None = None
        for known, tenants in self.tenants.items():
            if hmac.compare_digest(known.encode(), presented.encode()):
                found = tenants
        if found is None:
            raise Unauthenticated("this token is not known.")
        return found


def require_tenant(tenants: frozenset[str], wanted: str) -> None:
    if wanted not in tenants and ALL not in tenants:
        raise Forbidden(f"this token is not for tenant {wanted}.")


def add_token(path: Path, tenants: list[str]) -> str:
    """A new token for these tenants; only its hash is kept."""
    entries = json.loads(path.read_text())["tokens"] if path.exists() else []
    token = new_token()
    entries.append({"sha256": hash_of(token), "tenants": tenants})
    unfinished = path.with_name(f"{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"tokens": entries}, file, indent=1)
    unfinished.replace(path)
    return token
