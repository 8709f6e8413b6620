"""docs/slurm.md: every command and script on it, as it stands there, on the cluster that slurm_cluster.py starts."""

import re
import shutil

import pytest
from slurm_cluster import PACKAGES, PYTHON
from tessera_runs import REPOSITORY, largest_difference, metrics, train, write_run_file

PAGE = (REPOSITORY / "docs" / "slurm.md").read_text()


def block(section, language=""):
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def folder(tiny_run, tmp_path):
    """run.yaml: three steps of a batch that 3 and 4 ranks share evenly."""
    deepspeed = {**tiny_run["deepspeed"], "train_batch_size": 12, "zero_optimization": {"stage": 2}}
    write_run_file(tmp_path, {**tiny_run, "training": {"max_steps": 3, "seed": 42}, "deepspeed": deepspeed})
    return tmp_path


def assert_trained(folder, output, as_well_as):
    assert largest_difference(metrics(folder / output), metrics(folder / as_well_as)) < 1e-5


def test_the_commands_of_a_job_script(cluster, folder):
    """The second and the jobs of the array share nodes where they run at a time."""
    jobs = []
    for command in block("A job script for a run").splitlines():
        said = cluster.run("bash", "-c", command, cwd=folder).out
        jobs += re.findall(r"Submitted batch job (\d+)", said)
    assert "\n#SBATCH --time=24:00:00\n" in (folder / "job.sh").read_text()
    one, array = jobs
    for job in (one, f"{array}_1", f"{array}_2"):
        state = cluster.wait_for(job)
        assert state["JobState"] == "COMPLETED", (folder / f"run-{state['JobId']}.out").read_text()
    train(folder / "run.yaml", 4, {"output": "here"}, cwd=folder)
    for output in ("out", "out-1", "out-2"):
        assert_trained(folder, output, "here")


PROGRAM_FOR_DEEPSPEED = """
import deepspeed, torch
deepspeed.init_distributed()
total = torch.tensor([1.0 + torch.distributed.get_rank()])
torch.distributed.all_reduce(total)
print(f"sum over {torch.distributed.get_world_size()} ranks: {total.item()}\\n", end="", flush=True)
"""


def test_the_commands_by_hand(cluster, folder):
    (folder / "train.py").write_text(PROGRAM_FOR_DEEPSPEED)
    (folder / "train").write_text('#!/bin/sh\necho "rank $RANK of $WORLD_SIZE reads $1, and meets at $MASTER_ADDR"\n')
    (folder / "train").chmod(0o755)
    (folder / "bin").mkdir()
    for name in ("python", "python3"):  # with torch: a link to it would leave its environment behind
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {PYTHON[0]} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    salloc, *commands = block("By hand").splitlines()
    said = cluster.run("bash", "-c", f"{salloc} bash -ec {chr(39)}{'; '.join(commands)}{chr(39)}", cwd=folder, PYTHONPATH=PACKAGES,
                       PATH=f"{folder / 'bin'}:{cluster.environment()['PATH']}")
    train(folder / "run.yaml", 3, {"output": "here"}, cwd=folder)
    assert_trained(folder, "out-srun", "here")
    assert_trained(folder, "out-launcher", "here")
    assert sorted(line for line in said.out.splitlines() if " reads " in line) == [
        f"rank {rank} of 3 reads text.txt, and meets at node1" for rank in range(3)], said
    assert said.out.count("sum over 3 ranks: 6.0\n") == 3 and said.out.count("sum over 2 ranks: 3.0\n") == 2, said


DOCUMENT_PROGRAM = """\
import torch
from transformers import BertTokenizer, BertForMaskedLM, DataCollatorForLanguageModeling
from datasets import load_dataset
from torch.utils.data import DataLoader, DistributedSampler
import deepspeed
import torch.distributed as dist

deepspeed.init_distributed()
world_size = dist.get_world_size()
rank = dist.get_rank()
torch.manual_seed(rank)

tokenizer = BertTokenizer.from_pretrained("./tokenizer/")
model = BertForMaskedLM.from_pretrained("./model")
dataset = load_dataset("parquet", data_files="./data/train-00000-of-00001.parquet", cache_dir=f"./cache-{rank}")


def tokenize_function(examples):
    return tokenizer(examples["text"], truncation=True, padding="max_length", max_length=32)


tokenized_dataset = dataset.map(tokenize_function, batched=True, remove_columns=["text"])
train_dataset = tokenized_dataset["train"]
sampler = DistributedSampler(train_dataset, num_replicas=world_size, rank=rank)
data_collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=True, mlm_probability=0.15)
train_loader = DataLoader(train_dataset, batch_size=4, collate_fn=data_collator, sampler=sampler)
for param in model.parameters():
    param.data = param.data.contiguous()
model_engine, optimizer, _, _ = deepspeed.initialize(
    args=None, model=model, model_parameters=model.parameters(), config='./ds_config.json')
model_engine.train()
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    epoch_loss = 0
    for step, batch in enumerate(train_loader):
        batch = {k: v.to(model_engine.device) for k, v in batch.items()}
        outputs = model_engine(**batch)
        loss = outputs.loss
        model_engine.backward(loss)
        model_engine.step()
        epoch_loss += loss.item()
    losses.append(epoch_loss / len(train_loader))
print(f"Rank {rank} of {world_size}: {len(train_loader)} batches, loss {losses[0]:.4f} to {losses[-1]:.4f}\\n", end="", flush=True)
if rank == 0:
    print("Training complete.")
"""


@pytest.fixture
def document_folder(tiny_bert, texts, tmp_path):
    """What document 004 uploads: program, script, ds_config, model, tokenizer and data."""
    for folder in ("model", "tokenizer", "data"):
        (tmp_path / folder).mkdir()
    for file in tiny_bert.iterdir():
        shutil.copy(file, tmp_path / ("tokenizer" if file.name in ("vocab.txt", "tokenizer_config.json") else "model"))
    shutil.copy(texts / "train.parquet", tmp_path / "data" / "train-00000-of-00001.parquet")
    shutil.copy(REPOSITORY / "tests" / "config" / "configs" / "document_004_bert.json", tmp_path / "ds_config.json")
    (tmp_path / "run_bert.py").write_text(DOCUMENT_PROGRAM)
    (tmp_path / "sbatch.sh").write_text(block("As for DeepSpeed", "bash"))
    return tmp_path


def modules(folder):
    """`module` as a function of the shell, which logs what it is asked for; jobs find it through BASH_ENV."""
    (folder / "modules.sh").write_text(f'module() {{ echo "$*" >> {folder}/modules.asked; }}\n')
    return folder / "modules.sh"


def deepspeed_command(folder):
    """What pip would install as `deepspeed`."""
    (folder / "bin").mkdir()
    command = folder / "bin" / "deepspeed"
    command.write_text(f"#!{PYTHON[0]}\nfrom deepspeed.launcher.runner import main\nmain()\n")
    command.chmod(0o755)
    return command.parent


def test_document_004_by_its_own_commands(cluster, document_folder):
    bin_folder = deepspeed_command(document_folder)
    setting = f"--export=ALL,BASH_ENV={modules(document_folder)},HF_HUB_OFFLINE=1"
    job = cluster.submit(setting, "sbatch.sh", cwd=document_folder, PYTHONPATH=PACKAGES,
                         PATH=f"{bin_folder}:{cluster.environment()['PATH']}", TOKENIZERS_PARALLELISM="false")
    state = cluster.wait_for(job)
    log = (document_folder / f"slurm-{job}.out").read_text()
    assert state["JobState"] == "COMPLETED" and "Training complete." in log, log
    ranks = re.findall(r"Rank (\d) of 4: 25 batches, loss ([\d.]+) to ([\d.]+)", log)
    assert sorted(rank for rank, *_ in ranks) == list("0123"), log
    assert all(float(last) < float(first) for _, first, last in ranks), log
    assert (document_folder / "modules.asked").read_text().splitlines() == ["load nvidia/cuda/12.2", "load mpich/3.4.1-gcc9.3"]
