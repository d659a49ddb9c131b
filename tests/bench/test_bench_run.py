from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from llmlab.bench.contenders import make_contender
from llmlab.bench.job import Job, Settings
from llmlab.bench.process import WorkerProcess, environment
from llmlab.bench.workloads import QUICK, Draw, by_name
from llmlab.cli import app
from llmlab.errors import BenchError

OPTIONS = ("--quick", "--model", "mock", "--contenders", "llmlab", "--dtype", "fp32")


@pytest.fixture(scope="module")
def report():
    """A whole benchmark, in worker processes, on the model without weights."""
    arguments = [*OPTIONS, "--workloads", "W1,W4,overhead,tracing", "--json", "-"]
    command = [sys.executable, "-m", "llmlab", "bench", *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def samples(report, workload):
    return [sample for sample in report["samples"] if sample["workload"] == workload]


def test_every_contender_is_measured_in_every_round(report):
    seen = [(s["workload"], s["contender"], s["round"]) for s in report["samples"]]
    expected = [
        (workload, contender, number)
        for workload in ("W1", "W4", "overhead", "tracing")
        for contender in ("llmlab",)
        for number in (1, 2)
    ]
    assert sorted(seen) == sorted(expected)


def test_figures_are_positive(report):
    assert all(value > 0 for sample in report["samples"] for value in sample["metrics"].values())


def test_every_request_gets_all_its_tokens(report):
    assert [s["served"][0]["output_tokens"] for s in samples(report, "W1")] == [QUICK.new] * 2
    assert {a["output_tokens"] for s in samples(report, "W4") for a in s["served"]} == {QUICK.batch * QUICK.few_new}


def test_cache_is_off_then_filled_then_warm_in_every_round(report):
    for sample in samples(report, "W4"):
        off, cold, warm = (answer["cached_tokens"] for answer in sample["served"])
        assert off == 0
        assert cold < warm
        assert warm >= QUICK.batch * QUICK.shared


def test_rounds_do_not_find_each_others_prefixes(report):
    assert [sample["served"][0]["cached_tokens"] for sample in samples(report, "W1")] == [0, 0]


def test_time_outside_the_forward_pass_is_a_share(report):
    assert all(0 < s["metrics"]["outside_forward"] < 1 for s in samples(report, "overhead"))


def test_tables_are_printed_and_the_file_is_written(tmp_path):
    path = tmp_path / "bench.json"
    arguments = ["bench", *OPTIONS, "--workloads", "W1", "--repeats", "1", "--json", str(path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert "tokens_per_s" in result.stdout
    assert len(json.loads(path.read_text())["samples"]) == 1


@pytest.mark.parametrize("arguments", [["--workloads", "W9"], ["--workloads", ","], ["--json", "/no/such/folder/x"]])
def test_mistakes_are_refused_before_any_worker_starts(arguments):
    result = CliRunner().invoke(app, ["bench", *OPTIONS, *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""


# -- workers --------------------------------------------------------------------------------------------------


def test_worker_that_cannot_load_its_model_names_the_reason():
    with pytest.raises(BenchError, match="UnknownModel: There is no model 'no-such-model'"):
        WorkerProcess(Settings("llmlab", "no-such-model", "cpu", "float32"))


def test_worker_survives_a_job_it_cannot_do_and_its_death_is_reported():
    with WorkerProcess(Settings("llmlab", "mock", "cpu", "float32")) as worker:
        with pytest.raises(BenchError, match="EmptyPrompt"):
            worker.serve(Job([[]], 1))
        assert worker.serve(Job([[65, 66]], 3)).token_ids[0]
        worker._process.kill()
        with pytest.raises(BenchError, match="the worker died"):
            worker.serve(Job([[65, 66]], 3))


def test_worker_ends_by_itself_when_it_is_closed():
    worker = WorkerProcess(Settings("llmlab", "mock", "cpu", "float32"))
    worker.close()
    assert worker._process.returncode == 0


def test_what_libraries_print_does_not_reach_the_answers():
    code = "from llmlab.bench.worker import take_stdout; a = take_stdout(); print('noise'); a.write('answer')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert (done.stdout, done.stderr.strip()) == ("answer", "noise")


def test_workers_are_limited_to_their_threads():
    assert environment(1)["OMP_NUM_THREADS"] == "1"


# -- contenders -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """A random Llama of two layers with a byte vocabulary, room for the quick workloads, and no ties to break."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=1,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = ["<s>", "</s>", *sorted(ByteLevel.alphabet())]
    backend = Tokenizer(BPE({word: i for i, word in enumerate(words)}, []))
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def answers(tiny_model):
    """What every contender answers to the quick W1, W3 and W4."""
    threads = torch.get_num_threads()
    served = {}
    for name in ("llmlab", "generate", "generate_batch"):
        contender = make_contender(Settings(name, str(tiny_model), "cpu", "float32"))
        for workload in ("W1", "W3", "W4"):
            jobs = by_name()[workload].jobs(Draw(workload, 1, contender.vocab_size, QUICK))
            served[name, workload] = [contender.serve(job) for job in jobs]
        contender.close()
    torch.set_num_threads(threads)
    return served


@pytest.mark.parametrize("workload", ["W1", "W3", "W4"])
@pytest.mark.parametrize("peer", ["generate", "generate_batch"])
def test_peers_do_the_same_work(answers, peer, workload):
    ours = [answer.token_ids for answer in answers["llmlab", workload]]
    assert [answer.token_ids for answer in answers[peer, workload]] == ours


@pytest.mark.parametrize("name", ["llmlab", "generate", "generate_batch"])
def test_first_token_comes_before_the_last(answers, name):
    (one,) = answers[name, "W1"]
    assert 0 < one.first_token_s < one.seconds
    assert answers[name, "W3"][0].first_token_s is None


@pytest.mark.parametrize("name", ["llmlab", "generate", "generate_batch"])
def test_a_prefix_cache_changes_no_token(answers, name):
    off, cold, warm = (answer.token_ids for answer in answers[name, "W4"])
    assert off == cold == warm
