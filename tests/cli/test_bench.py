"""tessera bench io: what it prints can be pasted into a ds_config, and nothing stays where it measured. No test asserts a rate."""

import json
import signal
import time

import pytest
from tessera_runs import finish, start, tessera

SETTINGS = 5 * 4 * 2  # block sizes x depths x threads


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_the_best_block_is_a_setting_that_was_measured_and_a_ds_config_takes_it(tmp_path, engine):
    folder = tmp_path / "drive"
    folder.mkdir()
    result = tessera("bench", "io", "--path", folder, "--size", "16M", "--json", env={"TESSERA_IO": engine})
    assert result.code == 0, str(result)
    found = json.loads(result.out)
    if found["engine"] != engine:
        pytest.skip("the kernel refuses io_uring")
    assert len(found["settings"]) == SETTINGS
    assert all(row["write_bytes_per_s"] > 0 and row["read_bytes_per_s"] > 0 for row in found["settings"])
    aio = found["best"]["aio"]
    assert any(aio.items() <= row.items() for row in found["settings"])
    assert list(folder.iterdir()) == []

    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"train_batch_size": 1, "aio": aio}))
    checked = tessera("config", "check", config, "--json")
    assert checked.code == 0, str(checked)
    assert json.loads(checked.out)["warnings"] == []


def test_the_table_ends_with_the_block_to_paste(tmp_path):
    result = tessera("bench", "io", "--path", tmp_path, "--size", "16M")
    assert result.code == 0, str(result)
    table, _, block = result.out.partition('"aio": ')
    assert len([line for line in table.splitlines() if line.strip().startswith(("128K ", "256K ", "512K ", "1M ", "4M "))]) == SETTINGS
    assert set(json.loads(block)) == {"block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events"}


def test_nothing_stays_of_a_run_that_is_killed(tmp_path):
    process = start("bench", "io", "--path", tmp_path, "--size", "256M")
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert list(tmp_path.iterdir()) == []
