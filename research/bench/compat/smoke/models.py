"""Models of transformers, accelerate and timm with random weights: inference twice alike, and a loss that falls in training."""

import pytest
import torch

# A kind of each family: its configuration, its head, and what its configuration needs beside what is common.
TEXT = {
    "llama": ("LlamaConfig", "AutoModelForCausalLM", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2Config", "AutoModelForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "mixtral": ("MixtralConfig", "AutoModelForCausalLM", {"num_key_value_heads": 2, "num_local_experts": 4}),
    "bert": ("BertConfig", "AutoModelForMaskedLM", {}),
    "t5": ("T5Config", "AutoModelForSeq2SeqLM", {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16,
                                              "decoder_start_token_id": 0}),
}
COMMON = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def text_model(name: str, **settings_of_model: str):
    import transformers
    torch.manual_seed(0)
    config, kind, settings = TEXT[name]
    own = settings if name in ("gpt2", "t5") else {**COMMON, **settings}
    configured = getattr(transformers, config)(**{"vocab_size": 128, **own})
    return getattr(transformers, kind).from_config(configured, **settings_of_model).cuda()


@pytest.mark.parametrize("name", TEXT)
def test_text_inference(name: str) -> None:
    model = text_model(name).eval()
    words = torch.randint(3, 128, (4, 16), device="cuda")
    with torch.no_grad():
        first, second = (model(input_ids=words, labels=words).logits for _ in range(2))
    assert torch.isfinite(first).all()
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("name", TEXT)
def test_text_training(name: str) -> None:
    model = text_model(name).train()
    words = torch.randint(3, 128, (4, 16), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
def test_attention(attention: str) -> None:
    model = text_model("llama", attn_implementation=attention).eval()
    words = torch.randint(3, 128, (2, 128), device="cuda")
    with torch.no_grad():
        assert torch.isfinite(model(input_ids=words).logits).all()


@pytest.mark.parametrize("settings", [{"do_sample": False}, {"do_sample": True, "top_k": 20}, {"num_beams": 3}],
                         ids=["greedy", "sampled", "beams"])
def test_generate(settings: dict) -> None:
    model = text_model("gpt2").eval()
    words = torch.randint(3, 128, (2, 8), device="cuda")
    made = model.generate(words, max_new_tokens=8, min_new_tokens=8, pad_token_id=0, **settings)
    assert made.shape == (2, 16)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_100"])
def test_vision(name: str) -> None:
    import timm
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10).cuda().to(memory_format=torch.channels_last)
    pictures = torch.randn(8, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (8,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    model.eval()
    with torch.no_grad():
        assert torch.isfinite(model(pictures)).all()


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_accelerate(precision: str) -> None:
    import accelerate
    torch.manual_seed(0)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(mixed_precision=precision)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    values = torch.randn(64, 32)
    samples = torch.utils.data.TensorDataset(values, values.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(samples, batch_size=16, pin_memory=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2), loader)
    losses = []
    for _ in range(6):
        for given, wanted in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(given), wanted)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0], losses


def test_big_model_is_dispatched() -> None:
    import accelerate
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    model = accelerate.dispatch_model(model, device_map={"0": 0, "1": 0, "2": "cpu", "3": 0})
    assert torch.isfinite(model(torch.randn(4, 64, device="cuda"))).all()


def test_profiler_sees_kernels() -> None:
    model = text_model("gpt2").eval()
    words = torch.randint(3, 128, (2, 8), device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.no_grad(), torch.profiler.profile(activities=activities) as profile:
        model(input_ids=words)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) > 20, f"the profiler saw {len(kernels)} events on the GPU"
