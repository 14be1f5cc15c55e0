"""Telling a credential from other text, without ever showing it."""

from __future__ import annotations

import math
import re
from collections import Counter

_KNOWN: tuple[tuple[str, str], ...] = (
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    ("a JSON Web Token", r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    ("an Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{8,}"),
    ("an API key", r"\b(?:sk|rk|pk)-[A-Za-z0-9_-]{16,}"),
    ("a payment key", r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{8,}"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})"),
    ("a GitLab token", r"\bgl(?:pat|dt|rt|ptt)-[A-Za-z0-9_-]{12,}"),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{8,}"),
    ("an AWS key id", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a Google key", r"\bAIza[A-Za-z0-9_-]{30,}"),
    ("a Google token", r"\bya29\.[A-Za-z0-9_-]{16,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{16,}"),
    ("a registry token", r"\b(?:npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{20,})"),
    ("a mail service key", r"\bSG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    ("a provider's key", r"\b(?:gsk_|xai-|r8_|nvapi-|tvly-|ctx7sk-)[A-Za-z0-9_-]{12,}"),
    ("a service's key", r"\b(?:lin_api_|figd_|dop_v1_|shpat_|ATATT)[A-Za-z0-9_-]{12,}"),
    ("a storage key", r"\bAccountKey=[A-Za-z0-9+/=]{16,}"),
)
KNOWN = tuple((name, re.compile(pattern)) for name, pattern in _KNOWN)
_BEARER = re.compile(r"\b(?:[Bb]earer|BEARER|Basic)\s+([A-Za-z0-9._~+/=-]{6,})")
_URL_LOGIN = re.compile(r"://[^/\s:@]{0,200}:([^/\s@]{1,1000})@")
_ASSIGNED = re.compile(r"(?:^|[?&;\s])-{0,2}([A-Za-z][A-Za-z0-9_-]*)=([^&\s\"']+)")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_ENDS = frozenset(
    (
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "apikey",
        "credential",
        "credentials",
        "authorization",
        "pwd",
    )
)
_SECRET_PAIRS = frozenset(
    ("api key", "access key", "private key", "secret key", "signing key", "auth key", "client key")
)
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]|\{\{")


def secret_key(key: str) -> bool:
    """Whether a key names a credential: its last word is one (``db_password``), or its last two are (``api_key``)."""
    words = [word.casefold() for word in _WORDS.findall(key)]
    return bool(words) and (words[-1] in _SECRET_ENDS or " ".join(words[-2:]) in _SECRET_PAIRS)


def entropy(text: str) -> float:
    """Shannon entropy in bits a character."""
    counts = Counter(text)
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values()) if text else 0.0


def looks_random(text: str, *, shortest: int = 12) -> bool:
    """One word of mixed letters and digits with the entropy of a generated value."""
    if len(text) < shortest or any(char.isspace() for char in text) or _VARIABLE.match(text):
        return False
    mixed = any(char.isdigit() for char in text) and any(char.isalpha() for char in text)
    return mixed and entropy(text) >= 3.0 and "://" not in text


def credential_in(text: str) -> str | None:
    """What kind of credential the text holds, by its form alone; None where it holds none."""
    for name, pattern in KNOWN:
        if pattern.search(text):
            return name
    for match in _BEARER.finditer(text):
        token = match.group(1)
        if any(char.isdigit() for char in token) or (len(token) >= 16 and not token.isalpha()):
            return "an authorization header"
    login = _URL_LOGIN.search(text)
    if login is not None and not _VARIABLE.match(login.group(1)):
        return "a URL with a password"
    for key, value in _ASSIGNED.findall(text):
        if secret_key(key) and looks_random(value, shortest=8):
            return f"a value for {key}"
    return None


def redact(text: str) -> str:
    """The text with everything that looks like a credential as ``***``."""
    for _, pattern in KNOWN:
        text = pattern.sub("***", text)
    text = re.sub(r"\beyJ[A-Za-z0-9_-]{8,}", "***", text)
    text = _BEARER.sub(lambda match: match.group().replace(match.group(1), "***"), text)
    return _URL_LOGIN.sub(lambda match: match.group().replace(match.group(1), "***"), text)
