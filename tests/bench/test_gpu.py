"""bench/gpu without a GPU: it says so; and on the CPU in place of one, all of it on the smallest model, so that it is there when somebody has a GPU."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from harness import places

# In the order in which they are measured.
PARTS = ["The tests on the device", "Losses beside the CPU's", "Bits with offload", "Memory beside the estimate", "Steps beside DDP and FSDP2",
         "The largest model that trains", "What offload costs", "Copies", "A trace"]
ON_CPU = ["--quick", "--device", "cpu"]


def gpu(*words, **environment):
    return subprocess.run([sys.executable, places.BENCH / "gpu", *map(str, words)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, **environment})


def parts_of(page):
    """{heading: text}, in the page's order, and what it says is not measured yet."""
    head, *parts = page.read_text().split("\n## ")
    missing = re.search(r"\*\*Not measured yet, or interrupted: (.*)\.\*\*", head)
    return {part.split("\n")[0]: part for part in parts}, missing.group(1).split("; ") if missing else []


def test_without_a_gpu_it_says_so(tmp_path):
    for words in ([], ["--check"]):
        done = gpu("--output", tmp_path / "gpu.md", *words, CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 2
        assert done.stderr.count("error:") == 1 and "sees no CUDA GPU" in done.stderr and "TESSERA_PYTHON" in done.stderr
        assert not (tmp_path / "gpu.md").exists()


def test_the_cpu_is_only_to_try_it_out(tmp_path):
    done = gpu("--device", "cpu", "--output", tmp_path / "gpu.md")
    assert done.returncode == 2 and done.stderr.count("error:") == 1


def test_what_fails_is_named_and_the_rest_goes_on(tmp_path):
    done = gpu(*ON_CPU, "--output", tmp_path / "gpu.md", TESSERA_BUILD=str(tmp_path / "nothing-built"))
    assert done.returncode == 1
    found, missing = parts_of(tmp_path / "gpu.md")
    assert list(found) == PARTS and missing == []
    failed = [part for part, text in found.items() if "\nFAILED: " in text]
    assert failed == [part for part in PARTS if part not in ("The largest model that trains", "Copies")]  # which say why nothing trains, and need no build


@pytest.fixture
def built():
    if not (places.BUILD / "bench" / "step_ranks").exists() or not (places.BUILD / "python").exists():
        pytest.skip("the programs of bench/ are not built")


def test_each_result_is_on_the_page_before_the_next_begins(built, tmp_path):
    """Stopped in the second part, when it has a result of several."""
    page = tmp_path / "gpu.md"
    running = subprocess.Popen([sys.executable, places.BENCH / "gpu", *ON_CPU, "--output", page], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        seen, deadline = [], time.monotonic() + 120
        while "Losses beside the CPU's" not in seen:
            assert time.monotonic() < deadline and running.poll() is None, seen
            time.sleep(0.02)
            if page.exists():
                found, missing = parts_of(page)
                seen = list(found)
                assert seen == PARTS[:len(seen)]
                assert missing in (PARTS[max(0, len(seen) - 1):], PARTS[len(seen):])  # the last may be done, or under way
        assert missing == PARTS[1:]  # its first result is there before it has all
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
    finally:
        running.kill()
    found, missing = parts_of(page)
    assert "| C++ (tests/engine/device_test.cpp) | 1 | 1 |  |\n| Python (tests/python/test_device.py) | 1 | 1 |  |" in found["The tests on the device"]
    assert "| stage 0, fp32 | " in found["Losses beside the CPU's"]
    assert "The tests on the device" not in missing and missing[-1] == "A trace"


@pytest.mark.sample()
def test_all_of_it_is_measured(built, tmp_path):
    done = gpu(*ON_CPU, "--output", tmp_path / "gpu.md")
    assert done.returncode == 0, done.stdout + done.stderr
    found, missing = parts_of(tmp_path / "gpu.md")
    assert list(found) == PARTS and missing == []
    # The CPU in place of the device has the CPU's bits, at every stage and with every offload.
    losses = re.findall(r"\| stage (\d), fp32 \| (\S+) \| (\S+) \| (\S+) \| (\w+) \|", found["Losses beside the CPU's"])
    assert [stage for stage, *_ in losses] == ["0", "3"]
    assert all(there == here and difference == "0.0e+00" and same == "yes" for _, there, here, difference, same in losses)
    assert found["Bits with offload"].count("| yes | 0.0e+00 |") == 7
    assert len(re.findall(r"\| \d+ \| \d+ \| \d+\.\d\d \|", found["Memory beside the estimate"])) == 8
    assert "\n| Tessera in C++, stage 3 | " in found["Steps beside DDP and FSDP2"]
    # There all that is tried trains.
    assert found["The largest model that trains"].count("| 4 | 0.00 | no more than 4 layers were tried | 1.0 |") == 4
    without, offloaded, share = re.search(r"stage 2 \| (\S+) \| (\S+) \| (\S+)% \|", found["What offload costs"]).groups()
    assert float(share) == pytest.approx(100 * float(without) / float(offloaded), rel=0.1)
    assert found["Copies"].count("pageable host memory") == 2
    assert re.search(r"\n\| compute \| \d+ \| ", found["A trace"])
