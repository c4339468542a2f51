"""The networks, written out so that the benchmark needs no model zoo. Random weights."""

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand by four, with a shortcut."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Module:
    """The 50-layer network: stages of 3, 4, 6 and 3 bottlenecks."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


class Layer(nn.Module):
    """A layer of a decoder of Llama's shape: attention and a gated MLP, each behind a norm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, cache: torch.Tensor | None = None) -> torch.Tensor:
        """With a cache of keys and values, `x` is one token behind them; without, it is a whole text."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[:, :, :, -1:] = torch.stack((k, v))
            k, v = cache
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.up(self.before_mlp(x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


class Decoder(nn.Module):
    """A decoder of 16 layers, 2048 wide, with a vocabulary of 32,000."""

    def __init__(self, layers: int = 16, width: int = 2048, heads: int = 16, inner: int = 5504, words: int = 32000) -> None:
        super().__init__()
        self.shape = (2, heads, width // heads)
        self.words, self.layers = nn.Embedding(words, width), nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def caches(self, batch: int, length: int) -> list[torch.Tensor]:
        """Keys and values of `length` tokens, for each layer."""
        two, heads, depth = self.shape
        like = self.head.weight
        return [torch.randn(two, batch, heads, length, depth, device=like.device, dtype=like.dtype) for _ in self.layers]

    def forward(self, tokens: torch.Tensor, caches: list[torch.Tensor] | None = None) -> torch.Tensor:
        """The most probable next token of each text."""
        x = self.words(tokens)
        for at, layer in enumerate(self.layers):
            x = layer(x, caches[at] if caches else None)
        return self.head(self.norm(x[:, -1:])).argmax(-1)


class Recommender(nn.Module):
    """26 tables of embeddings, of which each request reads 32 rows, and an MLP: bound by random reads of memory."""

    def __init__(self, tables: int = 26, rows: int = 500_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.mlp = nn.Sequential(nn.Linear(tables * width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` is tables by batch by rows."""
        return self.mlp(torch.cat([table(picked) for table, picked in zip(self.tables, rows)], dim=1))


class Denoiser(nn.Module):
    """Residual blocks of convolutions and attention on 64 x 64 latents, as in a diffusion model's outer levels."""

    def __init__(self, channels: int = 320, blocks: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, channels, 3, padding=1), nn.Conv2d(channels, 4, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(
            nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(blocks))
        self.attention = nn.ModuleList(nn.Conv2d(channels, 3 * channels, 1) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block, attention in zip(self.blocks, self.attention):
            x = x + block(x)
            batch, channels, height, width = x.shape
            q, k, v = attention(x).reshape(batch, 3, 5, channels // 5, height * width).transpose(-1, -2).unbind(1)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(x.shape)
        return self.last(x)
