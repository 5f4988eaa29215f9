"""`fit`, `add`, `forget` without a federation: all records are in one place, ids are your own.

`rs.Gram` is such an estimator; `rs.methods.Gram` is the method of a federation with the same model.
"""

from rescind.estimators.gram import Gram
from rescind.estimators.graph_gram import GraphGram
from rescind.estimators.seq_gram import SeqGram

__all__ = ["Gram", "GraphGram", "SeqGram"]
