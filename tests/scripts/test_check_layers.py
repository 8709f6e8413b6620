"""scripts/check_layers names a planted violation of each kind by file and line, and nothing in a tree that has none."""

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

# A tree in order: each file skirts the rules that the plants below break.
IN_ORDER = {
    "tessera/base/CMakeLists.txt": "tessera_room(base PUBLIC_HEADERS error.h SOURCES error.cpp)\n",
    "tessera/base/error.h": '#pragma once\n#include <stdexcept>\nclass Error : public std::runtime_error {};\n',
    "tessera/base/error.cpp": '// #include "tessera/zero/unit.h"\n// once: throw std::runtime_error, std::abort()\n'
                              '#include "tessera/base/error.h"\nconst char* kText = "never exit(1)";\n',
    "tessera/nn/CMakeLists.txt": "tessera_room(nn\n  PUBLIC_HEADERS layers.h\n  SOURCES layers.cpp)  # USES zero\n",
    "tessera/nn/layers.h": '#pragma once\n#include <torch/nn/module.h>\n#include "tessera/base/error.h"\n',
    "tessera/nn/layers.cpp": '#include <torch/torch.h>\nvoid f(App& app) { app.exit(poll_exit()); }\n',
    "tessera/zero/CMakeLists.txt": "tessera_room(zero SOURCES unit.cpp USES comm)\n",
    "tessera/zero/unit.h": "#pragma once\n",
    "tessera/zero/unit.cpp": '#include "tessera/zero/unit.h"\n',
    "tessera/launch/rank_process.cpp": "void run_child() { _exit(127); }\n",
    "tessera/cli/main.cpp": '#include <cstdlib>\n#include "tessera/zero/unit.h"\nint main() { std::exit(0); }\n',
    "tests/zero/unit_test.cpp": '#include "tessera/zero/unit.h"\n#include "toy_models.h"\n',
    "tests/zero/long_test.cpp": "// One table.\n// Long because: it is data.\n" + "int x;\n" * 700,
    "tests/zero/test_long.py": '#!/usr/bin/env python3\n"""One table.\n\nLong because: it is data."""\n' + "x = 1\n" * 700,
}

# The file that is added or replaced, its text, and where and how it is named.
PLANTED = {
    "a room includes one that stands above it":
        ("tessera/nn/linear.cpp", '#include <vector>\n#include "tessera/zero/unit.h"\n',
         "tessera/nn/linear.cpp:2: nn/ may not include zero/"),
    "a room includes one that its USES does not name":
        ("tessera/zero/gather.cpp", '#include "tessera/storage/dtype.h"\n',
         "tessera/zero/gather.cpp:1: zero/ includes storage/, which is not in USES"),
    "a room includes the whole library":
        ("tessera/nn/linear.cpp", '#include "tessera/tessera.h"\n', "tessera/nn/linear.cpp:1: nn/ may not include tessera/tessera.h"),
    "an include that hides its room":
        ("tessera/nn/linear.cpp", '#include "../zero/unit.h"\n', 'tessera/nn/linear.cpp:1: "../zero/unit.h"'),
    "USES names a room that stands above":
        ("tessera/nn/CMakeLists.txt", "tessera_room(nn\n  SOURCES layers.cpp\n  USES comm\n    zero)\n",
         "tessera/nn/CMakeLists.txt:4: USES zero: nn/ may not use zero/"),
    "a room that the table does not know":
        ("tessera/moe/CMakeLists.txt", "tessera_room(moe SOURCES gate.cpp)\n", "tessera/moe/CMakeLists.txt:1: the room 'moe'"),
    "a public header that is not there":
        ("tessera/nn/CMakeLists.txt", "tessera_room(nn PUBLIC_HEADERS gone.h)\n", "tessera/nn/CMakeLists.txt:1: PUBLIC_HEADERS gone.h"),
    "a public header includes a private one":
        ("tessera/nn/layers.h", '#pragma once\n#include "tessera/nn/secret.h"\n', "tessera/nn/layers.h:2: a public header includes"),
    "the whole of LibTorch in a header":
        ("tests/zero/toy_models.h", "#pragma once\n#include <torch/torch.h>\n", "tests/zero/toy_models.h:2: no <torch/torch.h>"),
    "LibTorch where it has no business":
        ("tessera/config/keys.cpp", "#include <ATen/core/Tensor.h>\n", "tessera/config/keys.cpp:1: <ATen/core/Tensor.h>: config/"),
    "exit in a room": ("tessera/nn/linear.cpp", "void f() {\n  if (true) exit(1);\n}\n", "tessera/nn/linear.cpp:2: exit()"),
    "abort in a room": ("tessera/nn/linear.cpp", "void f() { ::std::abort(); }\n", "tessera/nn/linear.cpp:1: abort()"),
    "_exit where nothing forks": ("tessera/launch/plan.cpp", "void f() { ::_exit(1); }\n", "tessera/launch/plan.cpp:1: _exit()"),
    "exit where only _exit is right":
        ("tessera/launch/rank_process.cpp", "void f() { std::exit(1); }\n", "tessera/launch/rank_process.cpp:1: exit()"),
    "a runtime_error":
        ("tessera/nn/linear.cpp", '\nvoid f() { throw std::runtime_error("x"); }\n', "tessera/nn/linear.cpp:2: throw tessera::Error"),
    "a trainer that knows a task": ("tessera/train/trainer.cpp", "\nvoid mask_for_mlm();\n", "tessera/train/trainer.cpp:2: 'mlm'"),
    "a memory model that knows a model":
        ("tessera/plan/memory_model.cpp", '#include "tessera/base/error.h"\nbool b = type == "BERT";\n',
         "tessera/plan/memory_model.cpp:2: 'BERT'"),
    "a file that is named after nothing": ("tests/zero/utils.h", "", "tests/zero/utils.h:1: 'utils'"),
    "a file that is half named after nothing": ("tessera/zero/unit_helpers.cpp", "", "tessera/zero/unit_helpers.cpp:1: 'unit_helpers'"),
    "a folder that is named after nothing": ("tests/common/dirs.h", "", "tests/common/dirs.h:1: 'common'"),
    "a long file without a reason":
        ("tessera/zero/unit.cpp", "int x;\n" * 650 + "// Long because: too late\n", "tessera/zero/unit.cpp:601: 651 lines"),
}


TABLE = ("| room | what lives there | begin with | may use | LibTorch |\n| --- | --- | --- | --- | --- |\n"
         "| base | errors | error.h | | no |\n| comm | ranks | | | yes |\n| zero | units | | comm | yes |\n"
         "| nn | layers | | | yes |\n| launch | processes | | | no |\n")


def check(tree: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, TOP / "scripts" / "check_layers", tree], capture_output=True, text=True, timeout=60)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def plant(tree: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)


def test_a_tree_in_order_passes(tmp_path):
    plant(tmp_path, IN_ORDER)
    assert check(tmp_path) == (0, "check_layers: the rooms are in order\n")


@pytest.mark.parametrize("kind", PLANTED)
def test_names_file_and_line_of_a_planted_violation(tmp_path, kind):
    path, text, named = PLANTED[kind]
    plant(tmp_path, {**IN_ORDER, path: text})
    code, output = check(tmp_path)
    assert code == 1
    assert any(line.startswith(named) for line in output.splitlines()), output
    assert all(line.startswith((path, "check_layers: ")) for line in output.splitlines()), output


def in_a_tree_with(tmp_path, table):
    plant(tmp_path, {**IN_ORDER, "docs/architecture.md": "# Picture\n" + table,
                     "tessera/comm/CMakeLists.txt": "tessera_room(comm SOURCES group.cpp)\n",
                     "tessera/launch/CMakeLists.txt": "tessera_room(launch SOURCES rank_process.cpp)\n"})
    return check(tmp_path)


def test_the_tree_is_held_to_the_table_of_its_own_page(tmp_path):
    assert in_a_tree_with(tmp_path, TABLE) == (0, "check_layers: the rooms are in order\n")


@pytest.mark.parametrize("row, instead, named", [
    ("| nn | layers | | | yes |\n", "", "tessera/nn/CMakeLists.txt:1: the room 'nn' has no row"),
    ("| nn | layers | | | yes |\n", "| nn | layers | | | yes |\n| moe | experts | | | yes |\n",
     "docs/architecture.md:8: there is no room 'moe'"),
    ("| comm | ranks | | | yes |\n| zero | units | | comm | yes |\n", "| zero | units | | comm | yes |\n| comm | ranks | | | yes |\n",
     "docs/architecture.md:5: zero may not use comm"),
    ("| zero | units | | comm | yes |\n", "| zero | units | | | yes |\n", "tessera/zero/CMakeLists.txt:1: USES comm"),
    ("| nn | layers | | | yes |\n", "| nn | layers | | | no |\n", "tessera/nn/layers.h:2: <torch/nn/module.h>: nn/ does without"),
])
def test_a_page_that_is_not_the_tree_is_named(tmp_path, row, instead, named):
    assert row in TABLE
    code, output = in_a_tree_with(tmp_path, TABLE.replace(row, instead))
    assert code == 1 and any(line.startswith(named) for line in output.splitlines()), output


def test_this_project_is_in_order():
    assert check(TOP)[0] == 0
