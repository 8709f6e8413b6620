"""tessera generate and chat over ranks that share the weights: what one process writes, each rank with its part of the model."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest
import torch
import transformers
from tessera_runs import TESSERA, alive, environment, finish, free_port, rank_pids, start, tessera, wait_until
from test_adapters import peft_model
from test_causal_lm import LETTERS, run_of
from test_chat import CHATML, computed_by_the_model, folder_of, read_by_the_model
from test_seq2seq import run_of as seq2seq_run_of

PROMPTS = ["a b c", "x", "k l m n o p q r s t u v w", "b", "z y"]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10 ** 3, "kB": 10 ** 3, "MB": 10 ** 6, "GB": 10 ** 9}


def asked(prompts):
    return [word for prompt in prompts for word in ("--prompt", prompt)]


def shards(result):
    """Bytes of all weights, and of those that each rank keeps."""
    [line] = [line for line in result.err.splitlines() if "are sharded over" in line]
    sizes = [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (\w*B)\b", line)]
    return sizes[0], sizes[1:]


@pytest.fixture(scope="module", params=["llama", "gemma3", "gpt2", "t5"])
def folder(request, tmp_path_factory):
    where = tmp_path_factory.mktemp("texts")
    if request.param == "t5":
        seq2seq_run_of(where, initializer_factor=1.5)
    else:
        run_of(where, request.param)
    # Several tokens end a text, so that those of some ranks end long before those of others.
    ends = [LETTERS.index(letter) for letter in ("e", "h", "##q", "##l")]
    starts = {"decoder_start_token_id": LETTERS.index("p")} if request.param == "t5" else {}
    (where / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, **starts}))
    return where / "model"


@pytest.mark.sample("llama-drawn", "t5-beams")
@pytest.mark.parametrize("how", [[], ["--beams", 3], ["--temperature", 0.9, "--top-k", 20, "--seed", 3], ["--dtype", "bf16"]], ids=["greedy", "beams", "drawn", "bf16"])
def test_ranks_write_what_one_process_writes(folder, how):
    flags = ["generate", "--model", folder, *asked(PROMPTS), "--max-new-tokens", 20, *how]
    one = tessera(*flags)
    assert one.code == 0, str(one)
    assert "sharded" not in one.err and len({len(line) for line in one.out.splitlines()}) > 2, str(one)
    for ranks in (2, 3):
        result = tessera(*flags, "--nproc", ranks)
        assert (result.code, result.out) == (0, one.out), str(result)
        whole, parts = shards(result)
        assert len(parts) == ranks and all(part == pytest.approx(whole / ranks, rel=0.05) for part in parts), str(result)


@pytest.mark.sample("gemma3", "t5")
def test_the_weights_of_all_ranks_are_those_of_the_model(folder):
    result = tessera("generate", "--model", folder, "--prompt", "a", "--max-new-tokens", 2, "--nproc", 2)
    classes = transformers.AutoModelForSeq2SeqLM if "t5" in (folder / "config.json").read_text() else transformers.AutoModelForCausalLM
    numel = sum(parameter.numel() for parameter in classes.from_pretrained(folder).parameters())
    assert shards(result)[0] == pytest.approx(4 * numel, rel=0.1), str(result)


@pytest.mark.sample("gpt2")
def test_more_ranks_than_prompts(folder):
    one = tessera("generate", "--model", folder, "--prompt", "a b c", "--max-new-tokens", 9)
    result = tessera("generate", "--model", folder, "--prompt", "-", "--max-new-tokens", 9, "--nproc", 3, said="a b c")
    assert (result.code, result.out) == (0, one.out), str(result)


def by_srun(command, said):
    """Two processes with the variables of Slurm's tasks; rank 0's result."""
    place = {"SLURM_STEP_ID": 0, "SLURM_NTASKS": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    second = start(*command, env={**place, "SLURM_PROCID": 1, "SLURM_LOCALID": 1})
    first = tessera(*command, env={**place, "SLURM_PROCID": 0, "SLURM_LOCALID": 0}, said=said)
    other = finish(second)
    assert (other.code, other.out) == (0, ""), str(other)
    return first


def by_launcher(launcher):
    def run(command, said):
        process = subprocess.Popen([*map(str, launcher), str(TESSERA), *map(str, command)], env=environment(OMP_NUM_THREADS=1), text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        return finish(process, said=said)
    return run


MPIRUN = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-n", 2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--no_python", "--master_port"]


@pytest.mark.parametrize("launcher", ["tessera launch", "torchrun", "srun", "mpirun"])
def test_the_ranks_of_a_launcher_share_the_weights(tmp_path, launcher):
    if launcher == "mpirun" and shutil.which(MPIRUN[0]) is None:
        pytest.skip(f"there is no {MPIRUN[0]}")
    run = {"tessera launch": by_launcher([TESSERA, "launch", "--nproc", 2, "--"]), "torchrun": by_launcher([*TORCHRUN, free_port()]), "srun": by_srun,
           "mpirun": by_launcher(MPIRUN)}[launcher]
    run_of(tmp_path, "llama")
    command = ["generate", "--model", tmp_path / "model", "--prompt", "-", "--max-new-tokens", 9]
    one = tessera(*command, said="a b c")
    result = run(command, "a b c")
    assert result.code == 0 and result.out == ("[rank 0] " if launcher == "tessera launch" else "") + one.out, str(result)
    assert len(shards(result)[1]) == 2, str(result)


def test_an_adapter_over_ranks(tmp_path):
    model, _ = run_of(tmp_path, "llama")
    peft_model(model, tmp_path / "adapter", "llama", use_dora=True)
    flags = ["generate", "--model", tmp_path / "model", *asked(PROMPTS[:3]), "--max-new-tokens", 12]
    plain, one = tessera(*flags), tessera(*flags, "--adapter", tmp_path / "adapter")
    result = tessera(*flags, "--adapter", tmp_path / "adapter", "--nproc", 2)
    assert (result.code, result.out) == (0, one.out) and one.out != plain.out, str(result)


def test_a_conversation_over_ranks(tmp_path):
    folder_of(tmp_path, CHATML)
    flags = ["chat", "--model", tmp_path, "--max-new-tokens", 24]
    how = {"said": "hello there\nand why?\n/reset\nbegin anew\n/exit\n", "env": {"TESSERA_LOG_LEVEL": "debug"}}
    one, result = tessera(*flags, **how), tessera(*flags, "--nproc", 2, **how)
    assert (result.code, result.out) == (0, one.out) and one.out.count("\n") >= 3, str(result)
    assert read_by_the_model(result) == read_by_the_model(one) and len(read_by_the_model(one)) == 3
    assert computed_by_the_model(result) == computed_by_the_model(one)  # the keys and values stay from turn to turn here, too
    whole, parts = shards(result)
    assert all(part == pytest.approx(whole / 2, rel=0.05) for part in parts), str(result)


def test_ranks_wait_longer_than_their_timeout_for_somebody_who_types(tmp_path):
    folder_of(tmp_path, CHATML)
    process = start("chat", "--model", tmp_path, "--max-new-tokens", 4, "--nproc", 2, env={"TESSERA_TIMEOUT": 2}, stdin=subprocess.PIPE)
    wait_until(lambda: len(rank_pids(process.pid)) == 2, "two ranks")
    time.sleep(7)
    result = finish(process, said="hello\n")
    assert result.code == 0 and result.out.count("\n") >= 1, str(result)


def test_ctrl_c_at_the_terminal_ends_a_conversation_on_all_ranks(tmp_path):
    folder_of(tmp_path, CHATML)
    terminal, its_end = os.openpty()
    process = start("chat", "--model", tmp_path, "--max-new-tokens", 4, "--nproc", 2, stdin=its_end, preexec=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    try:
        os.close(its_end)
        os.write(terminal, b"hello\n")
        said = ""
        while said.count("> ") < 2:
            said += process.stdout.read(1)
        ranks = rank_pids(process.pid)
        assert len(ranks) == 2 and said.startswith("> ") and len(said) > len("> > ")
        os.write(terminal, b"\x03")
        result = finish(process)
        assert result.code == 128 + signal.SIGINT and "error" not in result.err and not alive(ranks.values()), str(result)
    finally:
        os.close(terminal)


def test_a_rank_that_dies_is_named(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(LETTERS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      max_position_embeddings=1_000_000, eos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "vocab.txt").write_text("\n".join(LETTERS) + "\n")
    process = start("generate", "--model", tmp_path, "--prompt", "a", "--prompt", "b", "--max-new-tokens", 500_000, "--nproc", 2)
    wait_until(lambda: len(rank_pids(process.pid)) == 2, "two ranks")
    assert process.stdout.read(20)  # it writes
    os.kill(rank_pids(process.pid)[1], signal.SIGKILL)
    result = finish(process)
    assert result.code == 128 + signal.SIGKILL and "rank 1 was killed" in result.err, str(result)


@pytest.mark.parametrize("flags, what", [
    (["--top-p", 0], "top_p is 0"), (["--dtype", "fp8"], "there is no dtype 'fp8'"), (["--tokenizer", "nowhere"], "no such folder"),
    (["--beams", 2, "--temperature", 1], "beam search draws nothing"), (["--nproc", 0], "--nproc is 0"),
    (["--prompt", "a " * 64], "more than the 64 that the model takes"), (["--max-restarts", 1], "--max-restarts"),
], ids=str)
def test_what_makes_no_sense_is_told_once(tmp_path, flags, what):
    run_of(tmp_path, "llama")
    flags = flags if "--nproc" in flags else [*flags, "--nproc", 2]
    result = tessera("generate", "--model", tmp_path / "model", "--prompt", "a", *flags)
    assert result.code == 2 and result.err.count("error: ") == 1 and what in result.err, str(result)
