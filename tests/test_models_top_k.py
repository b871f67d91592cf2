import numpy as np
import pytest
import torch

from bastion.models.top_k import best_and_lead, best_token, choices, top_k, top_k_log_probs


@pytest.mark.parametrize("vocab", [5, 300, 4096, 49152, 128256, 151936])
@pytest.mark.parametrize("k", [1, 2, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_k_greatest_as_torch_finds_them(vocab, k, dtype):
    generator = torch.Generator().manual_seed(vocab + k)
    scores = torch.randn(3, vocab, generator=generator).to(dtype)
    values, ids = top_k(scores, k)
    expected = torch.topk(scores, min(k, vocab)).values
    assert torch.equal(values, expected)
    assert torch.equal(scores.gather(1, ids), values)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_all_of_them_in_one_chunk():
    scores = torch.zeros(1, 4096)
    scores[0, 1000:1032] = torch.arange(32.0) + 1
    values, ids = top_k(scores, 32)
    assert ids[0].tolist() == list(range(1031, 999, -1))
    assert values[0].tolist() == list(range(32, 0, -1))


@pytest.mark.parametrize("vocab", [5, 300, 4096, 49152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_best_token_is_the_lowest_of_equals(vocab, dtype):
    scores = torch.randint(0, 4, (vocab,), generator=torch.Generator().manual_seed(vocab)).to(dtype)
    assert best_token(scores) == int((scores == scores.max()).nonzero()[0])
    scores[vocab - 1] = 9
    assert best_token(scores) == vocab - 1


@pytest.mark.parametrize("vocab", [128, 300, 4096, 49152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("spread", [4, 1000])
def test_the_best_and_its_lead_are_those_of_all_rows_at_once(vocab, dtype, spread):
    rows = torch.randint(0, spread, (4, vocab), generator=torch.Generator().manual_seed(vocab)).to(dtype) / 8
    ids, bits = choices(rows).numpy()
    found = [best_and_lead(row) for row in rows]
    assert [token for token, _ in found] == ids.tolist()
    assert [lead for _, lead in found] == bits.view(np.float32).tolist()


def test_temperatures_divide_the_logits():
    logits, temperatures = torch.randn(7, 512, generator=torch.Generator().manual_seed(1)), torch.linspace(0.5, 2.0, 7)[:, None]
    for found, wanted in zip(top_k_log_probs(logits, 9, temperatures), top_k_log_probs(logits / temperatures, 9), strict=True):
        assert torch.equal(found, wanted)


def test_log_probs_are_those_of_the_whole_vocabulary():
    logits = torch.randn(19, 8192, generator=torch.Generator().manual_seed(0)) * 4
    log_probs, ids = top_k_log_probs(logits, 20)
    expected = torch.log_softmax(logits.double(), dim=-1)
    np.testing.assert_allclose(log_probs.numpy(), expected.gather(1, ids).numpy(), atol=1e-5)
