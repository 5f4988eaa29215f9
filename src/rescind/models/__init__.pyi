# Written by python -m rescind_papers.stubs: one line for each class that is found.
from rescind.core.model import Model
from rescind.models.bag import Bag as Bag
from rescind.models.bag import Counts as Counts
from rescind.models.bag import TwoBags as TwoBags
from rescind.models.gcn import GCN as GCN
from rescind.models.hops import Hops as Hops
from rescind.models.item_item import ItemWeights as ItemWeights
from rescind.models.item_item import LocalWeights as LocalWeights
from rescind.models.item_item import Neighbours as Neighbours
from rescind.models.lightgcn import LightGCN as LightGCN
from rescind.models.lightgcn import TwoSidedLightGCN as TwoSidedLightGCN
from rescind.models.mf import MF as MF
from rescind.models.ncf import NCF as NCF
from rescind.models.pfedrec import PFedRec as PFedRec

def all_models() -> dict[str, type[Model]]: ...
