"""Records the small checkpoints of pipelines that test_stock_pipelines.py reads. Run it where `make peers-test` has installed DeepSpeed:

    .venv/bin/python tests/python/record_deepspeed_pipelines.py

recorded_pipelines/<case>/ is then what DeepSpeed wrote on four ranks, <case>.expected.pt the weights and moments as it says itself,
and losses.json those of the steps that follow.
"""

import json
import shutil
import tempfile
from pathlib import Path

from peers import run_deepspeed_for_json

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "recorded_pipelines"


def main():
    with tempfile.TemporaryDirectory() as folder:
        losses = run_deepspeed_for_json(HERE / "stock_pipeline_runs.py", "record", folder, count=4)
        for script in Path(folder).glob("*/*.py"):  # DeepSpeed's own, copied beside each checkpoint
            script.unlink()
        shutil.rmtree(RECORDED, ignore_errors=True)
        shutil.copytree(folder, RECORDED)
    (RECORDED / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")


if __name__ == "__main__":
    main()
