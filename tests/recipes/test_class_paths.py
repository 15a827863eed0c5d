"""A class path from a database may name allowed networks and data modules, and nothing else."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl
from optuna_taylorglo.recipes.load import data_module_class, model_class
from torch import nn

from optuna_taylorglo.errors import RecipeError

NETS = """
import os
import pytorch_lightning as pl
from torch import nn
from torch.nn import Linear
from stranger import Foreign

class Net(nn.Module):
    pass

class Lit(pl.LightningModule):
    pass

class Data(pl.LightningDataModule):
    pass

def build():
    raise AssertionError("called")
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """my_package (with my_package.nets), my_package_evil and stranger, importable."""
    evil = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()\n"
    files = {
        "my_package/__init__.py": "",
        "my_package/nets.py": NETS,
        "my_package/broken.py": "import a_module_that_does_not_exist\n",
        "my_package/__main__.py": evil,
        "my_package_evil.py": evil + "from torch import nn\nclass Net(nn.Module): pass\n",
        "stranger.py": "from torch import nn\nclass Foreign(nn.Module): pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in {"my_package", "my_package_evil", "stranger"}:
            del sys.modules[name]


@pytest.mark.parametrize("allowed", ["my_package", "my_package.nets"])
@pytest.mark.usefixtures("packages")
def test_allowed_classes_are_found(allowed: str) -> None:
    net = model_class("my_package.nets.Net", [allowed])
    assert issubclass(net, nn.Module)
    assert net.__name__ == "Net"
    assert issubclass(model_class("my_package.nets.Lit", [allowed]), pl.LightningModule)
    assert issubclass(data_module_class("my_package.nets.Data", [allowed]), pl.LightningDataModule)


@pytest.mark.parametrize(
    ("class_path", "expected"),
    [
        ("my_package_evil.Net", ["lies outside", "--allow my_package_evil"]),
        ("os.system", ["lies outside", "--allow os"]),
        ("stranger.Foreign", ["lies outside", "--allow stranger"]),
        ("torch.nn.Linear", ["lies outside", "--allow torch"]),
        ("my_package.nets.os.system", ["cannot be imported"]),
        ("my_package.nets.Linear", ["is defined in torch.nn", "--allow torch"]),
        ("my_package.nets.Foreign", ["is defined in stranger", "--allow stranger"]),
        ("my_package.nets.os", ["holds module, not a class"]),
        ("my_package.nets.build", ["holds function, not a class"]),
        ("my_package.nets.Absent", ["has no such name"]),
        ("my_package.nets.Data", ["must be a subclass of Module"]),
        ("my_package.broken.Net", ["cannot be imported", "a_module_that_does_not_exist"]),
        ("my_package.__main__.Net", ["dotted path"]),
        ("my_package.nets.__builtins__", ["dotted path"]),
        ("my_package..Net", ["dotted path"]),
        ("", ["dotted path"]),
    ],
)
def test_everything_else_is_refused(packages: Path, class_path: str, expected: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        model_class(class_path, ["my_package"])
    message = str(error.value)
    assert message.startswith(f"model.class_path: {class_path!r} ")
    for part in expected:
        assert part in message
    assert not (packages / "imported").exists()
    assert not (packages / "my_package" / "imported").exists()


@pytest.mark.usefixtures("packages")
def test_nothing_but_the_bundled_modules_is_allowed_by_default() -> None:
    with pytest.raises(RecipeError, match=r"allowed packages \(lightning_modules\).*my_package"):
        model_class("my_package.nets.Net")
    assert "my_package" not in sys.modules
    with pytest.raises(RecipeError, match=r"data\.class_path: .*subclass of LightningDataModule"):
        data_module_class("my_package.nets.Net", ["my_package"])
    with pytest.raises(ValueError, match="must be a name such as my_package"):
        model_class("my_package.nets.Net", ["__main__"])
