"""Old import paths of version 0.1, for one more version: gone in 0.3.

An old name gives the same module object as the new one, with a warning that says the new name.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Old name > new name, both below `rescind`; a colon marks another package.
TABLE = """
clock>core.clock jagged>core.jagged settings>core.settings records>core.records cohort>core.cohort
holdings>core.holdings world>core.world labels>core.labels plan>core.plan model>core.model
update>core.update state>core.state optim>core.optim gate>core.gate guards>core.guards
method>core.method executor>core.executor federation>core.federation params>core.params
tasks>core.tasks tasks.ranking>core.tasks.ranking tasks.metrics>core.tasks.metrics
tasks.nodes>core.tasks.nodes beside>core.loss_terms past>core.history moments>core.run_state
fused>core.fast.dispatch dense>core.fast.softmax flat>core.fast.ego_gpu linear>core.fast.linear
kernels>core.fast.ego_kernel linear_kernels>core.fast.linear_kernel rowops>core.fast.rowops
accountant>privacy.accountant two_servers>privacy.two_servers shared_sums>privacy.shared_sums
data.amazon>data.sources.amazon data.archive>data.sources.archive data.gowalla>data.sources.gowalla
data.hetrec>data.sources.hetrec data.movielens>data.sources.movielens
data.synthetic>data.sources.synthetic data.graph>data.sources.graphs
data.only_arrays>data.sources.safe_pickle data.columns>data.sources.text_columns
data.cells>data.import_cells data.tables>data.import_tables sharing>data.simulated_lending
audits.probe>audits.case audits.leak>audits.update_leak audits.pairs>audits.item_pairs
audits.people>audits.user_membership audits.stand_in>audits.virtual_client
audits.trigger>audits.backdoor findings>audits.finding methods.leaving>methods._client_removal
methods.fedavg>methods.baselines.fedavg methods.popularity>methods.baselines.popularity
methods.softmax>methods.baselines.softmax methods.ease>methods.baselines.ease
methods.neighbours>methods.baselines.item_knn methods.fedshare>methods.sharing.fedshare
methods.fedshare_fedavg>methods.sharing.fedshare_fedavg methods.cdcgnnfed>methods.sharing.cdcgnnfed
methods.pdc_frs>methods.sharing.pdc_frs methods.central>methods.sharing.central
methods.server_path>methods.sharing._server_rerun models.shared_graph>methods._lent_graph.graph
models.graph_steps>methods._lent_graph.steps models.graph_kernels>methods._lent_graph.kernels
models.forgotten_views>methods.sharing._forgotten_views
models.perturb>methods.sharing.pdc_frs methods.finetune>methods.continual.finetune
methods.f3crec>methods.continual.f3crec methods.reg>methods.continual.reg
methods.distill>methods.continual.kd methods.proxies>methods.continual.spp
methods.reloop>methods.continual.reloop2 models.memory_kernels>methods.continual._reloop2_kernels
methods.fedgcv>methods.graphs.fedgcv methods.sga>methods.graphs.sga
methods.noisy_gd>methods.graphs.noisy_gd methods.ulkd>methods.graphs.ulkd
methods.fedosd>methods.graphs.fedosd methods.regen_proxy>methods.graphs.regen_proxy
methods.drop>methods.graphs.drop methods.graph_fedavg>methods.graphs.fedavg
methods.ascent_graph>methods.graphs.pga methods.spare_models>methods.graphs.leave_one_out
methods.climbing>methods.graphs._ascent models.vgae>methods.graphs._vgae
models.block_model>methods.graphs._block_model methods.gram>methods.additive.gram
methods.local_gram>methods.additive.local_gram methods.blend>methods.additive.blend
models.gram_pairs>methods.additive._pairs models.gram_solve>methods.additive._solve
models.gram_sides>methods.additive._exchange models.gram_events>methods.additive._additive
models.gram_release>methods.additive._release models.gram_kernels>methods.additive._kernels
models.local_ridge>methods.additive._local_ridge
models.local_kernels>methods.additive._local_kernels claims>forgetting.claims
releases>methods.additive._additive methods.retrain>methods.unlearning.retrain
methods.purge_only>methods.unlearning.purge_only methods.ascent>methods.unlearning.ascent
methods.fedaccum>methods.unlearning.fedaccum methods.federaser>methods.unlearning.federaser
methods.fru>methods.unlearning.fru methods.cfru>methods.unlearning.cfru
methods.cufru>methods.unlearning.cufru methods.server_replay>methods.unlearning.server_replay
methods.server_influence>methods.unlearning.server_influence
methods.corrected_ascent>methods.unlearning.corrected_ascent
methods.nothing>methods.unlearning.no_op methods.finetune_unlearn>methods.unlearning.finetune
methods.taken_back>methods.unlearning.ulkd_ranking
methods.negative_memory>methods.unlearning._negative_memory packing>storage.packing
run_folder>storage.run_folder provenance>storage.provenance purge>forgetting.purge
requests>experiments.forget_run withheld>data.blocklist receipt>forgetting.receipt
receipt_page>forgetting.receipt_html verification>forgetting.verify keys>privacy.keys
examine>forgetting.examine workers>forgetting.parallel recipe>experiments.recipe
recipe_file>experiments.recipe_file cell>experiments.cell experiment>experiments.learning_run
stream_cell>experiments.stream_run trials>experiments.unlearning_run streams>experiments.streams
drift>experiments.drift results>experiments.results tables>experiments.tables
sweeps>experiments.sweeps significance>experiments.significance value>experiments.value
counterfactual>experiments.counterfactual leaks>experiments.update_leaks peeled>experiments.peeling
audits.peeling>experiments.peeling_attack report>reporting.html charts>reporting.charts
cli.progress>reporting.progress flower.asked>flower.run_request flower.kit>flower.certificates
flower.executor>flower.server.executor flower.line>flower.server.transport
flower.serving>flower.server.serve flower.answering>flower.server.forgetting
flower.streaming>flower.server.streams flower.written>flower.server.storage
flower.elsewhere>flower.server.remote_holdings flower.journal>flower.server.journal
flower.node>flower.silo.node flower.store>flower.silo.storage flower.resident>flower.silo.resident
flower.parts>flower.silo.partition flower.sources>flower.silo.data_source
flower.local>flower.silo.recommend flower.wire>flower.wire.messages
flower.letters>flower.wire.payloads flower.carried>flower.wire.serde
flower.masking>flower.wire.secure_aggregation demo_page>demo.page papers>:rescind_papers.index
exhibits>:rescind_papers.exhibits figures>:rescind_papers.figures
leaderboard>:rescind_papers.leaderboard pages>:rescind_papers.pages
departures>:rescind_papers.departures reproduction>:rescind_papers.reproduction
bench>:rescind_papers.bench.speed bench.yardsticks>:rescind_papers.bench.yardsticks
bench.continual>:rescind_papers.bench.continual
"""
MOVED = {
    f"rescind.{old}": new[1:] if new.startswith(":") else f"rescind.{new}"
    for old, new in (pair.split(">") for pair in TABLE.split())
}


class _Moved(MetaPathFinder, Loader):
    """Finds modules under their old names, after everybody else has looked."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(
            f"{spec.name} is now {new}. The old name goes in version 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        return importlib.import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module was run under its new name."""


def install() -> None:
    """Answer to old names, if nothing else does."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
