"""Read the two HetRec 2011 datasets: Last.fm tag assignments and MovieLens ratings."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from rescind.data.arrays import Ints
from rescind.data.canonical import Canonical, build
from rescind.data.sources.archive import Files
from rescind.data.sources.text_columns import cut, decode, whole
from rescind.errors import DataError


def read_lastfm(files: Files) -> Canonical:
    """Read Last.fm 2K: `user_taggedartists.dat` (user, artist, tag, date) and `artists.dat`.

    The time of a row is midnight in Madrid on its day, as in the publisher's file of timestamps.
    """
    names = ("user", "artist", "tag", "day", "month", "year")
    table = cut(files, "user_taggedartists.dat", "\t", names, header=True)
    user, artist, tag, day, month, year = (table.whole(name) for name in names)
    time = _midnights(year, month, day, table.file)
    return build(user, artist, None, time, _titles(files, "artists.dat"), tag=tag)


def read_movielens(files: Files) -> Canonical:
    """Read MovieLens 2K: `user_ratedmovies-timestamps.dat` (milliseconds), `movies.dat`."""
    names = ("userID", "movieID", "rating", "timestamp")
    table = cut(files, "user_ratedmovies-timestamps.dat", "\t", names, header=True)
    facts = _titles(files, "movies.dat") if files.has("movies.dat") else None
    user, item, time = (table.whole(name) for name in ("userID", "movieID", "timestamp"))
    return build(user, item, table.decimal("rating"), time // 1000, facts)


def _titles(files: Files, name: str) -> dict[int, tuple[str, None]]:
    """Read number and title, the first two columns of a table with a header; no genres."""
    data, label = files.read(name), files.label(name)
    try:
        text = decode(data, label, "utf-8")
    except DataError:  # artists.dat is UTF-8, movies.dat is not
        text = decode(data, label, "latin-1")
    rows = [line.split("\t") for line in text.replace("\r\n", "\n").split("\n")[1:] if line]
    short = next((n for n, row in enumerate(rows, 2) if len(row) < 2), None)
    if short is not None:
        raise DataError(f"{label}, line {short}, column 2: the title is missing.")
    numbers = whole([row[0] for row in rows], label, "id", 2).tolist()
    return {number: (row[1], None) for number, row in zip(numbers, rows, strict=True)}


def _midnights(year: Ints, month: Ints, day: Ints, label: str) -> Ints:
    """Return Unix seconds of midnight in Madrid, computed once per distinct day."""
    from zoneinfo import ZoneInfo

    zone, origin = ZoneInfo("Europe/Madrid"), datetime(1970, 1, 1, tzinfo=UTC)
    days, inverse = np.unique(year * 10_000 + month * 100 + day, return_inverse=True)
    seconds = np.empty(len(days), dtype=np.int64)
    for at, number in enumerate(days.tolist()):
        try:
            moment = datetime(number // 10_000, number // 100 % 100, number % 100, tzinfo=zone)
        except ValueError as error:
            line = int(np.flatnonzero(inverse == at)[0]) + 2
            raise DataError(f"{label}, line {line}, columns day, month, year: {error}.") from error
        seconds[at] = round((moment - origin).total_seconds())
    times: Ints = seconds[inverse]
    return times
