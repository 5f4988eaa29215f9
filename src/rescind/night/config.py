"""The file of a night, such as shop.toml: read strictly, every mistake named at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from rescind.errors import ConfigError, suggest

AUDITS = ("none", "standard", "full")
Texts = tuple[str, ...]


@dataclass(frozen=True)
class Data:
    """Imported data; the first night imports it if it is not there."""

    name: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class New:
    """New rows: a file, a folder or a glob, or a query for each day."""

    path: str = field(default="", metadata={"word": "from"})
    sql: str = ""
    query: str = ""


@dataclass(frozen=True)
class Requests(New):
    """What people ask: a folder of JSON, a CSV, or a query."""

    audit: str = "none"


@dataclass(frozen=True)
class Learn:
    """How the model is learnt, and in which folder it stands."""

    method: str = "Gram"
    settings: Texts = field(default=(), metadata={"word": "set"})
    run: str = ""


@dataclass(frozen=True)
class Export:
    """Lists for a shop's pages. items: the only ones that are listed; exclude: those that are not

    Both are ids, or a CSV with a column `item`.
    """

    to: str = ""
    k: int = 20
    items: Texts | str = ()
    exclude: Texts | str = ()
    sink: str = "parquet"


@dataclass(frozen=True)
class Witness:
    """Who signs the log's checkpoint, too. key: NAME+ID+KEY, or a file with it"""

    url: str = ""
    key: str = ""


@dataclass(frozen=True)
class Log:
    """Who is asked to cosign the log of receipts."""

    witnesses: tuple[Witness, ...] = ()


@dataclass(frozen=True)
class Config:
    """Everything that a night needs."""

    data: Data = Data()
    new: New = New()
    requests: Requests = Requests()
    learn: Learn = Learn()
    export: Export = Export()
    log: Log = Log()
    base: Path = Path()
    """The folder of the file: paths in it begin there."""

    def at(self, path: str) -> Path:
        """Return a path of the file."""
        return self.base / Path(path).expanduser()

    @property
    def run(self) -> Path:
        """Return the folder of the model."""
        return self.at(self.learn.run or f"runs/{self.data.name}")


def read(path: Path) -> Config:
    """Read the file of a night; raise `ConfigError` with all that is wrong in it."""
    config, wrong = parsed(path)
    if wrong:
        raise ConfigError(f"{path}: {'; '.join(wrong)}. Mend it, then: rescind night --check.")
    return config


def parsed(path: Path) -> tuple[Config, list[str]]:
    """Return the settings as far as they can be read, and what is wrong in the file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return Config(), [f"it cannot be read as TOML ({error})"]
    wrong: list[str] = []
    config = replace(_made(Config, table, "", wrong), base=path.absolute().parent)
    return config, wrong + list(_missing(config))


def _made(kind: type, table: Mapping[str, Any], where: str, wrong: list[str]) -> Any:
    hints = get_type_hints(kind)
    known = {one.metadata.get("word", one.name): one.name for one in fields(kind)}
    known.pop("base", None)
    values = {}
    for word, value in table.items():
        name = known.get(word)
        if name is None:
            wrong.append(f"{where}{word} is not known: {suggest(word, known)}")
            continue
        try:
            values[name] = _value(hints[name], value, f"{where}{word}.", wrong)
        except TypeError as error:
            wrong.append(f"{where}{word} is {value!r}, expected {error}")
    return kind(**values)


def _value(kind: Any, value: Any, where: str, wrong: list[str]) -> Any:
    """Return a value of TOML as what a setting is; raise TypeError with what it has to be."""
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise TypeError("a table")
        return _made(kind, value, where, wrong)  # type: ignore[arg-type]
    if kind == tuple[Witness, ...]:
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise TypeError('a list such as [{ url = "http://...", key = "witness.pub" }]')
        return tuple(_made(Witness, one, where, wrong) for one in value)
    if kind in (Texts, Texts | str) and isinstance(value, list):
        if all(isinstance(one, str) for one in value):
            return tuple(value)
    elif kind == Mapping[str, str] and isinstance(value, dict):
        if all(isinstance(one, str) for one in value.values()):
            return value
    elif type(value) is kind or (kind == Texts | str and isinstance(value, str)):
        return value
    names = {int: "a whole number", str: "a text", Mapping[str, str]: "a table of texts"}
    raise TypeError(names.get(kind, "a list of texts"))


def _missing(config: Config) -> list[str]:
    """Return what has to stand in the file, or does not go together."""
    found = [] if config.data.name else ["data.name is missing: the name of the imported data"]
    for name, source in (("new", config.new), ("requests", config.requests)):
        if bool(source.sql) != bool(source.query):
            found.append(f"{name} needs sql and query, both")
        if source.sql and source.path:
            found.append(f"{name} has from and sql: give one of them")
    if config.new.query and not {":yesterday", ":today"} & {*_words(config.new.query)}:
        found.append("new.query needs :yesterday or :today, or each night reads all rows again")
    if config.requests.audit not in AUDITS:
        found.append(f"requests.audit is '{config.requests.audit}', not {', '.join(AUDITS)}")
    if config.export.k < 1:
        found.append(f"export.k is {config.export.k}; it must be at least 1")
    for witness in config.log.witnesses:
        if not (witness.url and witness.key):
            found.append("each of log.witnesses needs url and key")
    return found


def _words(query: str) -> list[str]:
    return "".join(c if c.isalnum() or c in ":_" else " " for c in query).split()
