"""deepspeed/_names.py: modules that have names and no file, by every way in which programs reach a module."""

import ast
import importlib
import importlib.util
import inspect
import io
import pickle
import pkgutil
import subprocess
import sys
import types
from unittest import mock

import deepspeed
import pytest
import ranks
from deepspeed import _names
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import FusedAdam

DROPIN = ranks.ROOT / "python" / "deepspeed"
FILES = sorted((DROPIN / "deepspeed").rglob("*.py"))
WITHOUT_FILE = [name for name in _names.NAMES if importlib.util.find_spec(name).origin == _names.__file__]


def in_a_fresh_python(code, **extra):
    return subprocess.run([sys.executable, "-c", code], env=ranks.environment(**extra), capture_output=True, text=True,
                          timeout=120, check=True).stdout


def only_hands_names_on(source):
    """Whether nothing is defined: docstrings, imports, `__all__`, `__getattr__ = …` and the call of serve()."""
    def hands_on(statement):
        if isinstance(statement, ast.Assign):
            return all(isinstance(each, ast.Name) and each.id in ("__all__", "__getattr__") for each in statement.targets)
        return isinstance(statement, (ast.Import, ast.ImportFrom, ast.Expr))

    return all(map(hands_on, ast.parse(source).body))


def test_no_file_only_hands_names_on():
    assert len(FILES) > 50
    assert [str(path.relative_to(DROPIN)) for path in FILES if only_hands_names_on(path.read_text())] == []


@pytest.mark.parametrize("source", [
    '"""Adam."""\n\nfrom tessera.optimizers import FusedAdam  # noqa: F401\n',
    "from x import lazy\n\n__all__ = ['a']\n__getattr__ = lazy(__name__)\n",
    "from deepspeed import _names\n\n_names.serve(__name__)\n",
    "",
])
def test_a_file_that_only_hands_names_on_is_seen(source):
    assert only_hands_names_on(source)
    assert not only_hands_names_on(source + "LIMIT = 1\n")


def test_what_is_tested_is_this_checkouts_own():
    assert deepspeed.__path__ == [str(DROPIN / "deepspeed"), f"{_names.__file__}:deepspeed"]


@pytest.mark.parametrize("module", _names.NAMES)
def test_every_row_names_something(module):
    found = importlib.import_module(module)
    for name in _names._names_of_rows(module):
        assert hasattr(found, name) and name in dir(found), name


@pytest.mark.parametrize("module", WITHOUT_FILE)
def test_a_module_without_a_file_is_like_any_other(module):
    found = importlib.import_module(module)
    assert isinstance(found, types.ModuleType) and found is sys.modules[module]
    assert found.__name__ == found.__spec__.name == module and found.__doc__
    assert importlib.reload(found) is found
    parent, _, own = module.rpartition(".")
    assert own in dir(importlib.import_module(parent))
    if module != "deepspeed.utils.z3_leaf_module":
        assert getattr(importlib.import_module(parent), own) is found


def test_imports_of_all_kinds():
    out = in_a_fresh_python("if True:\n"
                            "    import importlib, importlib.util, sys\n"
                            "    spec = importlib.util.find_spec('deepspeed.ops.adam')\n"
                            "    print(spec.name, 'deepspeed.ops.adam' in sys.modules)\n"
                            "    import deepspeed.ops.adam\n"
                            "    from deepspeed.ops.adam import FusedAdam, cpu_adam\n"
                            "    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as optimizer\n"
                            "    module = importlib.import_module('deepspeed.ops.adam.fused_adam')\n"
                            "    print(deepspeed.ops.adam.FusedAdam is FusedAdam is module.FusedAdam, cpu_adam.__name__)\n"
                            "    print(optimizer.__module__)\n")
    assert out.split() == ["deepspeed.ops.adam", "False", "True", "deepspeed.ops.adam.cpu_adam",
                           "deepspeed.runtime.optimizer_classes"]


def test_a_star_brings_the_rows_names():
    found = {}
    exec("from deepspeed.ops.adam import *\nfrom deepspeed.comm import *\nfrom deepspeed.utils import *", found)
    assert found["FusedAdam"] is FusedAdam
    assert found["all_reduce"] is deepspeed.comm.comm.all_reduce
    assert found["NCCL_BACKEND"] == "nccl"  # of the rows of a module that a row names
    assert found["safe_get_full_grad"] is deepspeed.utils.tensor_fragment.safe_get_full_grad
    assert not {"os", "_names"} & set(found)


def test_files_in_a_folder_without_init_are_imported_and_win():
    for path in FILES:
        name = ".".join(path.relative_to(DROPIN).with_suffix("").parts).removesuffix(".__init__")
        assert importlib.import_module(name).__file__ == str(path)
    assert not (DROPIN / "deepspeed" / "runtime" / "zero" / "__init__.py").exists()
    assert deepspeed.runtime.zero.__path__ == [str(DROPIN / "deepspeed" / "runtime" / "zero"),
                                               f"{_names.__file__}:deepspeed.runtime.zero"]


def test_walking_finds_every_module():
    walked = {info.name for info in pkgutil.walk_packages(deepspeed.__path__, "deepspeed.")}
    files = {".".join(path.relative_to(DROPIN).with_suffix("").parts).removesuffix(".__init__") for path in FILES}
    assert (files | set(_names.NAMES)) - walked == {"deepspeed"}
    assert {"deepspeed.monitor", "deepspeed.monitor.config"} <= walked  # a folder without rows
    assert not any("__pycache__" in name for name in walked)


def test_a_function_keeps_its_name_beside_a_module_of_that_name():
    import deepspeed.utils.z3_leaf_module as function  # as in DeepSpeed: the name in the package is the function's

    from deepspeed.utils import z3_leaf_module
    from deepspeed.utils.z3_leaf_module import set_z3_leaf_modules
    from tessera import leaf_modules
    assert function is z3_leaf_module is leaf_modules.z3_leaf_module
    assert set_z3_leaf_modules is leaf_modules.set_z3_leaf_modules


def test_inspection_and_pickles_go_by_the_place_of_definition():
    assert inspect.getmodule(FusedAdam) is sys.modules["tessera.optimizers"]
    assert pickle.loads(pickle.dumps(FusedAdam)) is FusedAdam
    assert pickle.load(io.BytesIO(b"cdeepspeed.ops.adam.fused_adam\nFusedAdam\n.")) is FusedAdam


@pytest.mark.parametrize("target", ["deepspeed.ops.lion.FusedLion", "deepspeed.comm.all_reduce", "deepspeed.initialize"])
def test_a_patched_name_comes_back(target):
    module, _, name = target.rpartition(".")
    module = importlib.import_module(module)
    before = getattr(module, name)
    with mock.patch(target) as stand_in:
        assert getattr(module, name) is stand_in
    assert getattr(module, name) is before


def test_a_name_of_a_star_is_looked_up_at_each_use(monkeypatch):
    stand_in = object()
    monkeypatch.setattr(deepspeed.comm.comm, "cdb", stand_in)
    assert deepspeed.comm.cdb is stand_in


def test_what_megatron_deepspeed_imports_at_its_start_says_what_is_missing_once_it_is_used():
    from deepspeed.compression.compress import init_compression, redundancy_clean
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.runtime.data_pipeline.data_routing.helper import convert_to_random_ltd
    from deepspeed.sequence.fpdt_layer import FPDT_Attention, FPDT_FFN, FPDT_InputConstruct, FPDT_LogitsLoss

    assert OpBuilder.is_rocm_pytorch() is False
    for use in (init_compression, redundancy_clean, convert_to_random_ltd, FPDT_Attention, FPDT_InputConstruct, lambda: FPDT_FFN.apply,
                lambda: FPDT_LogitsLoss.apply):
        with pytest.raises(NotImplementedError, match=r"deepspeed\.[\w.]+ is not in Tessera: a program can import it"):
            use()


def test_an_operator_that_is_not_there_has_a_builder_that_cannot_load_it():
    """As DeepSpeed's accelerator for CPUs has: Megatron-DeepSpeed asks for FlashAttentionBuilder at its start."""
    builder = get_accelerator().create_op_builder("FlashAttentionBuilder")
    assert type(builder) is get_accelerator().get_op_builder("NotImplementedBuilder") and not builder.is_compatible()
    with pytest.raises(NotImplementedError, match="NotImplementedBuilder.load: Tessera compiles no operators when a program runs") as error:
        builder.load()
    assert "0.19.8 has it" not in str(error.value)  # no such operator is anywhere
    assert get_accelerator().get_op_builder("CPUAdamBuilder") is deepspeed.ops.op_builder.CPUAdamBuilder


@pytest.mark.parametrize("statement", [
    "from deepspeed.utils.tensor_fragment import get_full_hp_param", "import deepspeed.ops.lion.cpu_lion",
    "from deepspeed.pipe import DualPipeVModule", "from deepspeed.ops.op_builder import TransformerBuilder"])
def test_modules_without_files_say_what_is_missing(statement):
    with pytest.raises(ModuleNotFoundError, match="is not in Tessera yet"):
        exec(statement, {})


def test_a_module_with_a_file_says_what_is_missing_to_each_way_of_asking():
    with pytest.raises(ImportError, match="^deepspeed.compression.helper.module_replacement is not in Tessera yet"):
        exec("from deepspeed.compression.helper import module_replacement", {})
    with pytest.raises(AttributeError, match="^deepspeed.compression.helper.module_replacement is not in Tessera yet"):
        importlib.import_module("deepspeed.compression.helper").module_replacement
    assert not hasattr(importlib.import_module("deepspeed.compression.helper"), "module_replacement")


def test_names_that_nobody_has_fail_as_ever():
    with pytest.raises(AttributeError, match="^module 'deepspeed.ops.adam' has no attribute 'nonsense'$"):
        deepspeed.ops.adam.nonsense
    with pytest.raises(ImportError, match="^cannot import name 'nonsense' from 'deepspeed.ops.adam'"):
        exec("from deepspeed.ops.adam import nonsense", {})
    with pytest.raises(ModuleNotFoundError, match="^No module named 'deepspeed.ops.adam.nonsense'$"):
        importlib.import_module("deepspeed.ops.adam.nonsense")
    assert not hasattr(deepspeed.ops.adam, "__file__")


def test_importing_loads_what_is_used():
    out = in_a_fresh_python("if True:\n"
                            "    import sys, deepspeed\n"
                            "    print(sorted(name for name in sys.modules if name.startswith('deepspeed')))\n"
                            "    import deepspeed.ops.adam.fused_adam, deepspeed.runtime.zero, deepspeed.utils, deepspeed.comm\n"
                            "    print({'torch', 'tessera.optimizers', 'deepspeed.comm.comm'} & set(sys.modules))\n")
    assert out.splitlines() == ["['deepspeed', 'deepspeed._names', 'deepspeed._not_yet']", "set()"]


def test_the_wheel_has_every_file_and_finds_the_names(tmp_path):
    """What it takes from the build (python/CMakeLists.txt)."""
    subprocess.run(["cmake", "--install", str(ranks.BUILD), "--component", "tessera_python", "--prefix", str(tmp_path)], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=300)
    installed = tmp_path / "tessera" / "drop_in"
    assert sorted(installed.rglob("*.py")) == sorted(installed / path.relative_to(DROPIN) for path in FILES)
    out = in_a_fresh_python("import deepspeed.ops.adam, deepspeed.runtime.zero.config as config\n"
                            "print(config.__file__, deepspeed.ops.adam.FusedAdam.__name__)",
                            PYTHONPATH=f"{installed}:{ranks.BUILD / 'python'}")
    assert out.split() == [str(installed / "deepspeed" / "runtime" / "zero" / "config.py"), "FusedAdam"]
