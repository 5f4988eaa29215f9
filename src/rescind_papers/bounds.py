"""What two printed numbers can be together: the least NDCG@K that a hit rate allows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def least_ndcg(held: npt.NDArray[np.int64], hit_rate: float, k: int = 20) -> float:
    """Return the least mean NDCG@k of lists that hit this fraction of the users.

    A user counts as hit from the first of its n held-out items on. The worst such list has one
    hit, at place k: NDCG = (1 / log2(k + 1)) / sum over r <= min(n, k) of 1 / log2(r + 1). The
    least mean has all hits at the users with the most held-out items, whose ideal is highest.

    held: the number of held-out items of each user that has any; [users]
    """
    discount = 1 / np.log2(np.arange(k) + 2)
    least = np.sort(discount[-1] / np.cumsum(discount)[np.minimum(held, k) - 1])
    hit = hit_rate * len(held)
    whole = int(hit)
    rest = (hit - whole) * least[whole] if whole < len(least) else 0.0
    return float((least[:whole].sum() + rest) / len(held))
