"""The build step that pyproject.toml cannot state: wheels carry recipes/ as rescind/recipes.

The repository keeps one copy at its top. An editable install reads that one.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RECIPES = Path("recipes")


class BuildWithRecipes(build_py):
    """Copy recipes, their results and the map of the papers into the package that is built."""

    def get_source_files(self) -> list[str]:
        """Return the files of a source distribution, from which a wheel can be built again."""
        return [*super().get_source_files(), *map(str, _recipes())]

    def run(self) -> None:
        """Build the package, then add the recipes."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "rescind"
        shutil.rmtree(target / RECIPES, ignore_errors=True)  # an older build may have had others
        for path in _recipes():
            self.mkpath(str(target / path.parent))
            self.copy_file(str(path), str(target / path))


def _recipes() -> list[Path]:
    found = sorted(p for p in RECIPES.rglob("*") if p.suffix in (".toml", ".json", ".jsonl"))
    if not found:
        raise FileNotFoundError("there is no recipes/ folder here. Build in a complete checkout.")
    return found


setup(cmdclass={"build_py": BuildWithRecipes})
