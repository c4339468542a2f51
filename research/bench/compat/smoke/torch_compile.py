"""torch.compile in all its modes, training and inference, and transformers' static cache: the results are those without a compiler."""

import copy

import pytest
import torch

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
STEPS = 4


class Block(torch.nn.Module):
    """A small network with what compilers fuse, and a matrix product that they choose a kernel for."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(256)
        self.up, self.down = torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.down(torch.nn.functional.gelu(self.up(self.norm(values))))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", MODES)
def test_inference(mode: str) -> None:
    network = Block().cuda().eval()
    compiled = torch.compile(network, mode=mode)
    with torch.no_grad():
        for _ in range(STEPS):
            values = torch.randn(64, 256, device="cuda")
            torch.testing.assert_close(compiled(values).clone(), network(values), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("mode", MODES)
def test_training(mode: str) -> None:
    network = Block().cuda()
    other = copy.deepcopy(network)
    compiled = torch.compile(other, mode=mode)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (network, other)]
    for _ in range(STEPS):
        values, wanted = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda")
        losses = []
        for run, optimizer in zip((network, compiled), optimizers):
            torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(run(values), wanted)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 2e-2, losses
    for mine, theirs in zip(network.parameters(), other.parameters()):
        torch.testing.assert_close(mine, theirs, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("backend", ["cudagraphs", "aot_eager"])
def test_backend(backend: str) -> None:
    network = Block().cuda().eval()
    compiled = torch.compile(network, backend=backend)
    with torch.no_grad():
        for _ in range(STEPS):
            values = torch.randn(64, 256, device="cuda")
            torch.testing.assert_close(compiled(values).clone(), network(values), atol=2e-2, rtol=2e-2)


def test_empty_graph() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pass
    graph.replay()
    torch.cuda.synchronize()


def test_graphed_callables() -> None:
    network = Block().cuda()
    graphed = torch.cuda.make_graphed_callables(copy.deepcopy(network), (torch.randn(64, 256, device="cuda", requires_grad=True),))
    values = torch.randn(64, 256, device="cuda", requires_grad=True)
    torch.testing.assert_close(graphed(values), network(values))


def decoder():
    """A small decoder of Llama's shape with random weights."""
    import transformers
    settings = transformers.LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                        bos_token_id=1, eos_token_id=None, pad_token_id=0)
    return transformers.LlamaForCausalLM(settings).cuda().eval()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_static_cache(mode: str) -> None:
    from transformers import StaticCache
    model = decoder()
    words = torch.randint(2, 512, (2, 8), device="cuda")
    steps = 12

    def decode(step) -> torch.Tensor:
        """Greedy decoding, one word at a time, with a cache of a fixed size."""
        cache = StaticCache(config=model.config, max_cache_len=64)
        position = torch.arange(words.shape[1], device="cuda")
        with torch.no_grad():
            scores = model(words, past_key_values=cache, cache_position=position, use_cache=True).logits[:, -1:]
            chosen = [scores.argmax(-1)]
            for number in range(words.shape[1], words.shape[1] + steps):
                scores = step(chosen[-1].clone(), past_key_values=cache, cache_position=torch.tensor([number], device="cuda"),
                              use_cache=True).logits
                chosen.append(scores.argmax(-1).clone())
        return torch.cat(chosen, 1)

    plain = decode(model)
    compiled = decode(torch.compile(model, mode=mode, fullgraph=False))
    assert compiled.shape == plain.shape
    # Random weights give near ties, in which rounding decides; the first word has none of the compiler's rounding.
    assert torch.equal(compiled[:, 0], plain[:, 0])
    assert (compiled == plain).float().mean() > 0.5


def test_generate_with_static_cache() -> None:
    model = decoder()
    words = torch.randint(2, 512, (2, 8), device="cuda")
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    plain = model.generate(words, **settings)
    static = model.generate(words, cache_implementation="static", **settings)
    assert static.shape == plain.shape == (2, 20)
    assert torch.equal(static[:, :8], words)
