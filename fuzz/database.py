"""Where Hypothesis keeps what it found: a folder, or a Redis server that several hosts share."""

from pathlib import Path
from urllib.parse import urlsplit

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from conformance.core.request import SuiteError

_SCHEMES = ("redis", "rediss", "unix")
_ANSWER_S = 10.0


def database_of(place: str) -> ExampleDatabase:
    """Return the database of a folder's path or a redis:// address.

    Raise SuiteError for a folder that cannot be written, a server that does not answer, and an
    address where the package redis is missing.
    """
    return _redis(place) if "://" in place else _folder(Path(place))


def _folder(path: Path) -> ExampleDatabase:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SuiteError(
            f"--database {path}: found {problem.strerror}; allowed: a folder that can be written, "
            "or redis://HOST:PORT/NUMBER; to fix: choose another one"
        ) from problem
    return DirectoryBasedExampleDatabase(path)


def _redis(address: str) -> ExampleDatabase:
    parts = urlsplit(address)
    # Without user and password, which nobody wants in a log.
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    allowed = "allowed: redis://HOST:PORT/NUMBER of a server that answers, or a folder"
    if parts.scheme not in _SCHEMES:
        raise SuiteError(
            f"--database {place}: found {parts.scheme}://; {allowed}; to fix: correct it"
        )
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError as problem:
        raise SuiteError(
            f"--database {place}: found no package redis; {allowed}; to fix: "
            "python -m pip install '.[redis]'"
        ) from problem
    try:
        server = Redis.from_url(address, socket_timeout=_ANSWER_S)
        server.ping()
    except (RedisError, ValueError, OSError) as problem:
        raise SuiteError(
            f"--database {place}: found {problem}; {allowed}; to fix: start the server, or correct "
            "the address"
        ) from problem
    return RedisExampleDatabase(server)
